"""Replays that are killed, wherever they are, and replays side by side: each record once, all the same."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from aiokafka.partitioner import murmur2

from korvet.admin.producer import IdempotentProducer
from korvet.admin.types import Resource, TopicPartition, settled
from korvet.lake.replay_state import Partitioning, ReplayError, ReplaySpec, ReplayState, load_states
from korvet.lake.source import SourceTopic
from tests.support import kill_points, reading
from tests.support.batches import Record, batch
from tests.support.kill_points import NOWHERE, replay, started
from tests.support.processes import wait_until
from tests.support.replaying import Stage, stage_in

PER_PARTITION = 2400
BEGINNING = "korvet.lake.replay:Replay _begin"
NOTE = "korvet.lake.replay:Replay commit"
BATCH = "korvet.admin.producer:IdempotentProducer send"
END = "korvet.admin.producer:TransactionalProducer _renew"
"""The first end of a transactional replay is that of the run before, and its second one begins it."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Give a broker whose keeper looks for producers to forget ten times a second."""
    directory = tmp_path_factory.mktemp("broker")
    with stage_in(directory, "--set", "log.retention.check.interval.ms=100") as result:
        yield result


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


def where(stage: Stage, spec: ReplaySpec, *, transactional: bool = False) -> tuple[str, ...]:
    source, encoded = stage.topics.source, msgspec.json.encode(spec).decode()
    return stage.broker.bootstrap, source.redis_url, stage.topics.lake, encoded, "yes" * transactional


def killed(stage: Stage, spec: ReplaySpec, point: str, *, transactional: bool = False) -> None:
    """Replay up to a point, and no further."""
    kill_points.killed(replay, point, *where(stage, spec, transactional=transactional))


def state_of(stage: Stage, spec: ReplaySpec, target: SourceTopic) -> ReplayState:
    return load_states(stage.admin, spec.name, spec, target.id)[0]


def check(stage: Stage, source: SourceTopic, target: SourceTopic) -> None:
    """Hold that a target has each record once, in the order of its partition in the source."""
    for partition in target.partitions:
        assert stage.contents(target, partition.index) == stage.produced(source, partition.index)


@pytest.mark.parametrize(
    "point",
    [
        f"before {BEGINNING} 1",
        f"after {BEGINNING} 1",
        f"before {NOTE} 2",
        f"before {BATCH} 3",
        f"after {BATCH} 1",
        f"after {BATCH} 4",
    ],
)
def test_a_killed_replay_loses_and_repeats_nothing(stage: Stage, source: SourceTopic, point: str) -> None:
    target = stage.make("batch", 2)
    spec = ReplaySpec(source=source.name, target=target.name)
    killed(stage, spec, point)
    stage.run(spec)
    check(stage, source, target)
    assert sum(item.records for item in stage.replay(spec).ranges) == 2 * PER_PARTITION


def seen(stage: Stage, target: SourceTopic, isolation: str = "read_committed") -> list[list[bytes]]:
    """Return the keys that a consumer finds in each partition of a target now."""
    result = reading.read_to_end(stage.broker.bootstrap, target.name, len(target.partitions), isolation)
    return [[item.key or b"" for item in some] for some in result]


@pytest.mark.parametrize(
    ("point", "partitioning"),
    [
        (f"before {BEGINNING} 1", "keep"),
        (f"before {END} 2", "keep"),
        (f"after {BEGINNING} 1", "keep"),
        (f"before {BATCH} 2", "keep"),
        (f"after {BATCH} 1", "keep"),
        (f"after {BATCH} 4", "keep"),
        (f"before {END} 4", "keep"),
        (f"after {END} 4", "keep"),
        (f"after {BATCH} 2", "hash"),
    ],
)
def test_of_a_killed_transactional_replay_readers_see_whole_commits(
    stage: Stage, source: SourceTopic, point: str, partitioning: Partitioning
) -> None:
    target = stage.make("batch", 2)
    spec = ReplaySpec(source=source.name, target=target.name, partitioning=partitioning)
    killed(stage, spec, point, transactional=True)
    committed = stage.replay(spec, transactional=True).ranges
    there = seen(stage, target)
    # Committed is what the group says, and nothing of an open transaction.
    assert sum(map(len, there)) == sum(item.records for item in committed) < 2 * PER_PARTITION
    if partitioning == "keep":
        assert [len(interval) for interval in there] == [item.records for item in committed]
    if point.startswith(f"after {BATCH}"):
        assert sum(map(len, seen(stage, target, "read_uncommitted"))) > sum(map(len, there))
    stage.run(spec, transactional=True)
    keys = [[key or b"" for _, key, _, _ in stage.produced(source, at)] for at in (0, 1)]
    if partitioning == "hash":
        both = keys[0] + keys[1]
        keys = [[item for item in both if (murmur2(item) & 0x7FFFFFFF) % 2 == at] for at in (0, 1)]
    assert seen(stage, target) == keys
    assert sum(item.records for item in stage.replay(spec, transactional=True).ranges) == 2 * PER_PARTITION


def test_of_what_was_being_sent_only_what_has_not_come_is_sent_again(stage: Stage) -> None:
    source, target = stage.make(), stage.make("batch", 3)
    records = [Record(b"%d" % at, b"%d" % at) for at in range(30)]
    stage.topics.produce(source.partitions[0], *records)
    spec = ReplaySpec(source=source.name, target=target.name, partitioning="hash")
    killed(stage, spec, f"before {BATCH} 1")
    # One of its three batches, as where the broker of the others is away.
    whole = stage.make("batch", 3)
    stage.run(ReplaySpec(source=source.name, target=whole.name, partitioning="hash"))
    mine = [Record(value, key, at) for at, key, value, _ in stage.contents(whole, 1)]
    assert 0 < len(mine) < 30
    producer = IdempotentProducer(stage.admin, state_of(stage, spec, target).note.identity)
    settled(producer.send({TopicPartition(target.name, 1): batch(*mine)}))
    # And once more killed while the rest is on its way.
    killed(stage, spec, f"before {BATCH} 1")
    killed(stage, spec, f"after {BATCH} 1")
    assert stage.run(spec) == []
    for place in range(3):
        assert stage.contents(target, place) == stage.contents(whole, place)
    assert [item.records for item in stage.replay(spec).ranges] == [30]


def test_replays_side_by_side_replay_each_record_once(stage: Stage, source: SourceTopic) -> None:
    target = stage.make("batch", 2)
    spec = ReplaySpec(source=source.name, target=target.name)
    killed(stage, spec, f"after {BEGINNING} 1")
    with (
        started(replay, NOWHERE, *where(stage, spec)) as one,
        started(replay, NOWHERE, *where(stage, spec)) as other,
    ):
        for process in (one, other):
            # One of them may find that the other one replays.
            process.communicate(timeout=120)
    stage.run(spec)
    check(stage, source, target)


def test_what_another_producer_of_that_identity_sent_stops_a_replay(
    stage: Stage, source: SourceTopic
) -> None:
    target = stage.make("batch", 2)
    spec = ReplaySpec(source=source.name, target=target.name)
    killed(stage, spec, f"before {BATCH} 1")
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
    killed(stage, spec, f"after {BATCH} 1")
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
    killed(stage, spec, f"before {BATCH} 1")
    stage.run(spec)
    check(stage, source, again)
