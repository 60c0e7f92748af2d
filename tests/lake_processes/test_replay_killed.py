"""Replays that are killed, wherever they are, and replays side by side: each record once, all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiokafka.partitioner import murmur2

from korvet.admin.producer import IdempotentProducer
from korvet.admin.types import Resource, TopicPartition, settled
from korvet.lake.replay_state import Partitioning, ReplayError, ReplaySpec, ReplayState, load_states
from korvet.lake.source import SourceTopic
from tests.support import reading
from tests.support.batches import Record, batch
from tests.support.processes import wait_until
from tests.support.replay_driver import POINTS, TRANSACTIONAL_POINTS, driver
from tests.support.replaying import Stage, stage_in

PER_PARTITION = 2400


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Give a broker whose keeper looks for producers to forget ten times a second."""
    directory = tmp_path_factory.mktemp("broker")
    with stage_in(directory, "--set", "log.retention.check.interval.ms=100") as found:
        yield found


@pytest.fixture(scope="module")
def source(stage: Stage) -> SourceTopic:
    """Give a topic whose partitions are several batches each, to a replay."""
    topic = stage.make("record", 2)
    for partition in topic.partitions:
        for first in range(0, PER_PARTITION, 400):
            value = b"%d" % partition.index * 900
            records = [Record(value, b"key-%d" % at, at) for at in range(first, first + 400)]
            stage.topics.produce(partition, *records)
    return topic


def killed(
    stage: Stage, spec: ReplaySpec, point: str, times: int = 1, *, transactional: bool = False
) -> None:
    """Replay up to a point, and no further."""
    with driver(
        stage.topics, stage.broker.bootstrap, spec, point, times, transactional=transactional
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == point


def state_of(stage: Stage, spec: ReplaySpec, target: SourceTopic, partition: int = 0) -> ReplayState:
    return load_states(stage.admin, spec.name, spec, target.id)[partition]


def check(stage: Stage, source: SourceTopic, target: SourceTopic) -> None:
    """Hold that a target has each record once, in the order of its partition in the source."""
    for partition in target.partitions:
        assert stage.contents(target, partition.index) == stage.produced(source, partition.index)


@pytest.mark.parametrize(("point", "times"), POINTS)
def test_a_killed_replay_loses_and_repeats_nothing(
    stage: Stage, source: SourceTopic, point: str, times: int
) -> None:
    target = stage.make("batch", 2)
    spec = ReplaySpec(source=source.name, target=target.name)
    killed(stage, spec, point, times)
    stage.run(spec)
    check(stage, source, target)
    assert sum(each.records for each in stage.replay(spec).ranges) == 2 * PER_PARTITION


def seen(stage: Stage, target: SourceTopic, isolation: str = "read_committed") -> list[list[bytes]]:
    """Return the keys that a consumer finds in each partition of a target now."""
    found = reading.read_to_end(stage.broker.bootstrap, target.name, len(target.partitions), isolation)
    return [[each.key or b"" for each in some] for some in found]


@pytest.mark.parametrize(
    ("point", "times", "partitioning"),
    [*((*each, "keep") for each in TRANSACTIONAL_POINTS), ("after a batch", 2, "hash")],
)
def test_of_a_killed_transactional_replay_readers_see_whole_commits(
    stage: Stage, source: SourceTopic, point: str, times: int, partitioning: Partitioning
) -> None:
    target = stage.make("batch", 2)
    spec = ReplaySpec(source=source.name, target=target.name, partitioning=partitioning)
    killed(stage, spec, point, times, transactional=True)
    committed = stage.replay(spec, transactional=True).ranges
    there = seen(stage, target)
    # What is committed is what the group says, and nothing of what is open.
    assert sum(map(len, there)) == sum(each.records for each in committed) < 2 * PER_PARTITION
    if partitioning == "keep":
        assert [len(each) for each in there] == [each.records for each in committed]
    if point == "after a batch":
        assert sum(map(len, seen(stage, target, "read_uncommitted"))) > sum(map(len, there))
    stage.run(spec, transactional=True)
    keys = [[key or b"" for _, key, _, _ in stage.produced(source, at)] for at in (0, 1)]
    if partitioning == "hash":
        both = keys[0] + keys[1]
        keys = [[each for each in both if (murmur2(each) & 0x7FFFFFFF) % 2 == at] for at in (0, 1)]
    assert seen(stage, target) == keys
    assert sum(each.records for each in stage.replay(spec, transactional=True).ranges) == 2 * PER_PARTITION


def test_a_killed_replay_by_keys_loses_and_repeats_nothing(stage: Stage, source: SourceTopic) -> None:
    target = stage.make("batch", 3)
    spec = ReplaySpec(source=source.name, target=target.name, partitioning="hash")
    killed(stage, spec, "before a batch", 2)
    killed(stage, spec, "after a batch")
    stage.run(spec)
    records = [each for partition in (0, 1) for each in stage.produced(source, partition)]
    for place in range(3):
        mine = [each for each in records if (murmur2(each[1]) & 0x7FFFFFFF) % 3 == place]
        assert stage.contents(target, place) == mine


def test_of_what_was_being_sent_only_what_has_not_come_is_sent_again(stage: Stage) -> None:
    source, target = stage.make(), stage.make("batch", 3)
    records = [Record(b"%d" % at, b"%d" % at) for at in range(30)]
    stage.topics.produce(source.partitions[0], *records)
    spec = ReplaySpec(source=source.name, target=target.name, partitioning="hash")
    killed(stage, spec, "before a batch")
    # One of its three batches, as where the broker of the others is away.
    whole = stage.make("batch", 3)
    stage.run(ReplaySpec(source=source.name, target=whole.name, partitioning="hash"))
    mine = [Record(value, key, at) for at, key, value, _ in stage.contents(whole, 1)]
    assert 0 < len(mine) < 30
    producer = IdempotentProducer(stage.admin, state_of(stage, spec, target).note.identity)
    settled(producer.send({TopicPartition(target.name, 1): batch(*mine)}))
    # And once more killed while the rest is on its way.
    killed(stage, spec, "before a batch")
    killed(stage, spec, "after a batch")
    assert stage.run(spec) == []
    for place in range(3):
        assert stage.contents(target, place) == stage.contents(whole, place)
    assert [each.records for each in stage.replay(spec).ranges] == [30]


def test_replays_side_by_side_replay_each_record_once(stage: Stage, source: SourceTopic) -> None:
    target = stage.make("batch", 2)
    spec = ReplaySpec(source=source.name, target=target.name)
    killed(stage, spec, "after the beginning")
    with (
        driver(stage.topics, stage.broker.bootstrap, spec) as one,
        driver(stage.topics, stage.broker.bootstrap, spec) as other,
    ):
        one.wait(60)
        other.wait(60)
    stage.run(spec)
    check(stage, source, target)


def test_what_another_producer_of_that_identity_sent_stops_a_replay(
    stage: Stage, source: SourceTopic
) -> None:
    target = stage.make("batch", 2)
    spec = ReplaySpec(source=source.name, target=target.name)
    killed(stage, spec, "before a batch")
    identity = state_of(stage, spec, target).note.identity
    place = TopicPartition(target.name, 0)
    settled(IdempotentProducer(stage.admin, identity).send({place: batch(b"another")}))
    with pytest.raises(
        ReplayError, match=r"has the replay's records up to number 0, where -1 or \d+ is expected"
    ):
        stage.run(spec)
    assert len(stage.contents(target)) == 1


def test_a_replay_whose_producer_is_forgotten_says_so(stage: Stage, source: SourceTopic) -> None:
    target = stage.make("batch", 2)
    spec = ReplaySpec(source=source.name, target=target.name)
    killed(stage, spec, "after a batch")
    before = stage.contents(target)
    place = TopicPartition(target.name, 0)
    name = "producer.id.expiration.ms"
    settled(stage.admin.configs.alter({Resource.cluster(): {name: "1"}}))
    try:
        wait_until(lambda: not settled(stage.admin.partitions.producers([place]))[place], "producers go")
        with pytest.raises(ReplayError, match="was stopped for longer than brokers remember producers"):
            stage.run(spec)
    finally:
        settled(stage.admin.configs.alter({Resource.cluster(): {name: None}}))
    assert stage.contents(target) == before
    # Where too little time has gone by for that, it is known that nothing has come.
    again = stage.make("batch", 2)
    spec = ReplaySpec(source=source.name, target=again.name)
    killed(stage, spec, "before a batch")
    stage.run(spec)
    check(stage, source, again)
