"""korvet/lake/replay.py: topics replayed through a real broker, from both tiers, each record once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka.partitioner import murmur2

from korvet.admin.client import AdminClient
from korvet.admin.offsets import CommittedOffset
from korvet.admin.producer import TransactionalProducer
from korvet.admin.types import Resource, TopicPartition, settled
from korvet.errors import LakeError
from korvet.lake import files
from korvet.lake.expiry import Expiry
from korvet.lake.replay import RecordRate, Replay
from korvet.lake.replay_state import ReplayEdge, ReplayError, ReplaySpec
from korvet.lake.source import RetentionLimits, SourceTopic
from korvet.protocol.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from tests.lake.archives import committed_in_the_past
from tests.support import batches
from tests.support.archives import FORMATS, Format, archive, trim
from tests.support.batches import LZ4, Record
from tests.support.replaying import Stage, stage_in
from tests.support.virtual_clock import VirtualClock


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Give a broker, with what tests of this module replay on it."""
    with stage_in(tmp_path_factory.mktemp("broker")) as result:
        yield result


def numbered(stage: Stage, count: int, partitions: int = 1, **configs: str) -> SourceTopic:
    """Make a topic whose records tell their offsets, with times 1000 ms later than that."""
    topic = stage.make("batch", partitions, **configs)
    for partition in topic.partitions:
        stage.topics.produce(partition, *(Record(b"%d" % at, b"k", 1000 + at) for at in range(count)))
    return topic


def values(stage: Stage, topic: SourceTopic, partition: int = 0) -> list[int]:
    """Return what the values of a partition tell."""
    return [int(value or b"") for _, _, value, _ in stage.contents(topic, partition)]


transactional_or_not = pytest.mark.parametrize("transactional", [False, True])


@transactional_or_not
@pytest.mark.parametrize("storage_format", FORMATS)
def test_every_record_of_both_tiers_comes_once_and_in_order(
    stage: Stage, storage_format: Format, *, transactional: bool
) -> None:
    source = stage.source(storage_format)
    other: Format = "record" if storage_format == "batch" else "batch"
    for target, codec in ((stage.make(storage_format, 2), 0), (stage.make(other, 3), LZ4)):
        spec = ReplaySpec(source=source.name, target=target.name)
        assert sum(stage.run(spec, codec=codec, transactional=transactional)) == 2 * 3 * 1520
        for partition in (0, 1):
            assert stage.contents(target, partition) == stage.produced(source, partition)
        # It is done: nothing comes a second time.
        assert stage.run(spec, transactional=transactional) == []
        done = stage.replay(spec, transactional=transactional)
        assert [item.records for item in done.ranges] == [3 * 1520] * 2
        # And a group has its progress: the end.
        committed = stage.admin.offsets.committed(done.name)
        assert {place: item.offset for place, item in committed.items()} == {
            TopicPartition(source.name, at): stage.topics.bounds(item).high_watermark
            for at, item in enumerate(source.partitions)
        }


def test_a_range_of_offsets_or_of_times_is_what_it_says(stage: Stage) -> None:
    source = numbered(stage, 20, partitions=2)

    def replayed(begin: ReplayEdge, end: ReplayEdge, *partitions: int) -> list[list[int]]:
        target = stage.make("batch", 2)
        spec = ReplaySpec(source=source.name, target=target.name, partitions=partitions, start=begin, end=end)
        stage.run(spec)
        return [values(stage, target, at) for at in (0, 1)]

    assert replayed(ReplayEdge(offset=5), ReplayEdge(offset=8)) == [[5, 6, 7]] * 2
    assert replayed(ReplayEdge(timestamp=1005), ReplayEdge(timestamp=1008)) == [[5, 6, 7]] * 2
    assert replayed(ReplayEdge(timestamp=1018), ReplayEdge(), 1) == [[], [18, 19]]
    assert replayed(ReplayEdge(), ReplayEdge(offset=2), 0) == [[0, 1], []]
    # What a log does not have is the nearest that it has, as where groups are reset.
    assert replayed(ReplayEdge(offset=18), ReplayEdge(offset=99)) == [[18, 19]] * 2


@transactional_or_not
def test_an_empty_range_is_refused_and_changes_nothing(stage: Stage, *, transactional: bool) -> None:
    source, target = numbered(stage, 5, partitions=2), stage.make("batch", 2)

    def refused(topic: SourceTopic, begin: ReplayEdge, end: ReplayEdge) -> None:
        spec = ReplaySpec(source=topic.name, target=target.name, start=begin, end=end)
        with pytest.raises(ReplayError, match=rf"nothing to replay: {topic.name} has no record in the range"):
            stage.run(spec, transactional=transactional)
        assert stage.admin.offsets.committed(spec.name) == {}

    refused(source, ReplayEdge(offset=2), ReplayEdge(offset=2))
    refused(source, ReplayEdge(offset=5), ReplayEdge())
    refused(source, ReplayEdge(timestamp=2000), ReplayEdge())
    refused(source, ReplayEdge(), ReplayEdge(timestamp=1000))
    refused(stage.make(), ReplayEdge(), ReplayEdge())
    # In format `record` offsets have gaps.
    sparse = stage.make("record")
    for value in (b"1", b"2"):
        stage.topics.produce(sparse.partitions[0], value)
    first, last = (item[0] for item in stage.topics.produced[sparse.id, 0])
    refused(sparse, ReplayEdge(offset=first + 1), ReplayEdge(offset=last))
    spec = ReplaySpec(source=sparse.name, target=target.name, start=ReplayEdge(offset=last))
    assert stage.run(spec, transactional=transactional) == [1]
    assert [stage.contents(target, at) == [] for at in (0, 1)] == [False, True]


@transactional_or_not
def test_a_replay_as_of_a_version_or_a_time_takes_what_the_table_held(
    stage: Stage, *, transactional: bool
) -> None:
    source = numbered(stage, 3)
    archive(stage.topics)
    table = stage.topics.source.lake.open(source.of)
    assert table is not None
    then = committed_in_the_past(table.uri)
    stage.topics.produce(source.partitions[0], b"3", b"4")
    archive(stage.topics)
    settled(stage.admin.topics.delete_records({TopicPartition(source.name, 0): 4}))
    Expiry(stage.topics.source).expire(stage.topics.stores, source, RetentionLimits(), 0)

    def replayed(**edges: Any) -> list[int]:
        target = stage.make()
        spec = ReplaySpec(source=source.name, target=target.name, **edges)
        stage.run(spec, transactional=transactional)
        assert stage.run(spec, transactional=transactional) == []
        return values(stage, target)

    assert replayed() == [4]
    for as_of in (table.version, then):
        assert replayed(as_of=as_of) == [0, 1, 2]
        assert replayed(as_of=as_of, start=ReplayEdge(offset=2)) == [2]
        assert replayed(as_of=as_of, start=ReplayEdge(timestamp=1001), end=ReplayEdge(timestamp=1002)) == [1]
    with pytest.raises(LakeError, match=f"nothing of {source.name} was archived yet as of 0"):
        replayed(as_of=0)
    with pytest.raises(LakeError, match="end version"):
        replayed(as_of=99)
    with pytest.raises(LakeError, match="was archived yet as of 1"):
        stage.run(ReplaySpec(source=stage.make().name, target=source.name, as_of=1))
    # Into itself, it has an end.
    itself = ReplaySpec(source=source.name, target=source.name, as_of=table.version)
    assert sum(stage.run(itself, transactional=transactional)) == 3


def test_a_damaged_file_is_no_deletion_of_what_was_replayed_before(stage: Stage) -> None:
    source = numbered(stage, 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "ROW_GROUP_ROWS", 3)
        archive(stage.topics)
    trim(stage.topics, source.partitions[0])
    table = stage.topics.source.lake.open(source.of)
    assert table is not None
    [file] = table.files()
    replay = stage.replay(ReplaySpec(source=source.name, target=stage.make().name))
    rows = replay.rows(0, 0, 6)
    assert next(rows).num_rows == 3
    settled(stage.admin.topics.delete_records({TopicPartition(source.name, 0): 2}))
    path = Path(table.uri.removeprefix("file://"), file.path)
    data = path.read_bytes()
    rows_end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(b"x" * rows_end + data[rows_end:])
    with pytest.raises(LakeError, match="cannot be read"):
        list(rows)


def test_a_replay_without_as_of_keeps_its_name() -> None:
    spec = ReplaySpec(source="orders", target="again", start=ReplayEdge(offset=5))
    assert spec.digest == "4576ec0dd91500c6"
    assert len({spec.digest, msgspec.structs.replace(spec, as_of=5).digest}) == 2


def test_records_that_come_after_a_replay_has_begun_are_none_of_it(stage: Stage) -> None:
    source, target = numbered(stage, 3), stage.make()
    spec = ReplaySpec(source=source.name, target=target.name)
    begun = stage.replay(spec)
    stage.topics.produce(source.partitions[0], b"3")
    begun.run(RecordRate(None), 0, lambda *_: None)
    stage.topics.produce(source.partitions[0], b"4")
    assert stage.run(spec) == []
    assert values(stage, target) == [0, 1, 2]


def test_keys_choose_the_partition_as_kafkas_clients_let_them(stage: Stage) -> None:
    source, target = stage.make("batch", 2), stage.make("batch", 5)
    for partition in source.partitions:
        records = [Record(b"%d" % at, None if at % 7 == 0 else b"key-%d" % (at % 40)) for at in range(200)]
        stage.topics.produce(partition, *records)
    few = stage.make("batch", 1)
    with pytest.raises(
        ReplayError, match=r"has 1 partitions, but .* has partition 1: add partitions, or give"
    ):
        stage.run(ReplaySpec(source=source.name, target=few.name))
    stage.run(ReplaySpec(source=source.name, target=target.name, partitioning="hash"))
    produced = [(at, item) for at in (0, 1) for item in stage.produced(source, at)]
    for place in range(5):
        assert stage.contents(target, place) == [
            item
            for at, item in produced
            if (at if item[1] is None else (murmur2(item[1]) & 0x7FFFFFFF) % 5) == place
        ]


def test_what_only_brokers_write_is_not_replayed(stage: Stage) -> None:
    source, target = stage.make(), stage.make()
    for marks in (TRANSACTIONAL_BIT, TRANSACTIONAL_BIT | CONTROL_BIT):
        data = batches.forged(batches.batch(b"1", b"2"), attributes=marks, producer_id=7, producer_epoch=0)
        stage.topics.put(source.partitions[0], data)
    stage.run(ReplaySpec(source=source.name, target=target.name))
    assert values(stage, target) == [1, 2]


@transactional_or_not
def test_what_was_aborted_is_not_replayed(stage: Stage, *, transactional: bool) -> None:
    source, target = stage.make(), stage.make()
    producer = TransactionalProducer(stage.admin, f"into-{source.name}", 60_000)
    for number in range(4):
        settled(producer.send({TopicPartition(source.name, 0): batches.batch(b"%d" % number)}))
        if number % 2:
            producer.commit("unused", {TopicPartition(source.name, 0): CommittedOffset(0)})
        else:
            producer.abort()
    stage.run(ReplaySpec(source=source.name, target=target.name), transactional=transactional)
    assert values(stage, target) == [1, 3]


def test_a_rate_bounds_how_many_records_pass() -> None:
    clock = VirtualClock()
    begun = clock.monotonic()
    pace = RecordRate(50, clock)
    assert pace.at_once == 50
    passed = 0
    for count in (50, 50, 25, 50, 1):
        pace.take(count)
        passed += count
        # Never more than the elapsed time allows, besides the first burst.
        assert passed - count <= (clock.monotonic() - begun) * 50
    assert clock.monotonic() - begun == pytest.approx((50 + 50 + 25 + 50) / 50)
    clock.sleep(1000)
    begun = clock.monotonic()
    pace.take(50)
    pace.take(50)
    assert clock.monotonic() - begun == pytest.approx(1)
    assert RecordRate(0.5).at_once == 1
    assert RecordRate(None).at_once is None


def test_a_slow_replay_sends_no_more_at_once_than_its_rate_allows(stage: Stage) -> None:
    source, target = numbered(stage, 25), stage.make()
    clock = VirtualClock()
    begun = clock.monotonic()
    seen: list[int] = []
    stage.replay(ReplaySpec(source=source.name, target=target.name)).run(
        RecordRate(10, clock), 0, lambda count, _: seen.append(count)
    )
    assert (seen, clock.monotonic() - begun) == ([10, 10, 5], 2)
    assert values(stage, target) == list(range(25))


def test_batches_are_no_larger_than_the_target_takes(stage: Stage) -> None:
    source = stage.make()
    stage.topics.produce(source.partitions[0], *(b"%d" % at * 100 for at in range(50)))
    target = stage.make(max_message_bytes="1000")
    spec = ReplaySpec(source=source.name, target=target.name)
    assert len(stage.run(spec)) > 10
    assert stage.contents(target) == stage.produced(source)


def test_a_record_that_is_refused_stops_a_replay_that_goes_on_when_it_is_taken(stage: Stage) -> None:
    source = stage.make()
    for value in (b"1", b"2" * 2000, b"3"):
        stage.topics.produce(source.partitions[0], value)
    target = stage.make(max_message_bytes="1000")
    spec = ReplaySpec(source=source.name, target=target.name)
    with pytest.raises(
        ReplayError, match=r":0 did not take offsets 1 to 1 of topic-\d+: MESSAGE_TOO_LARGE: "
    ):
        stage.run(spec)
    assert len(stage.contents(target)) == 1
    settled(stage.admin.configs.alter({Resource.topic(target.name): {"max.message.bytes": "100000"}}))
    assert sum(stage.run(spec)) == 2
    assert stage.contents(target) == stage.produced(source)


def test_a_refused_batch_is_aborted_at_once_with_those_of_other_partitions(stage: Stage) -> None:
    source, target = stage.make(), stage.make("batch", 2, max_message_bytes="1000")
    # Of these keys each goes to a partition of its own.
    keys = [next(b"%d" % item for item in range(99) if murmur2(b"%d" % item) % 2 == at) for at in (0, 1)]
    stage.topics.produce(source.partitions[0], Record(b"1", keys[0]), Record(b"2" * 2000, keys[1]))
    spec = ReplaySpec(source=source.name, target=target.name, partitioning="hash")
    replay = stage.replay(spec, transactional=True)
    replay.batch_bytes = 10_000  # as where brokers do not say what they take
    with pytest.raises(
        ReplayError, match=r":1 did not take offsets 0 to 1 of topic-\d+: MESSAGE_TOO_LARGE: "
    ):
        replay.run(RecordRate(None), 0, lambda *_: None)
    assert settled(stage.admin.transactions.describe([spec.name]))[spec.name].state == "CompleteAbort"
    stage.topics.produce(target.partitions[0], Record(b"another"))
    assert [value for _, _, value, _ in stage.contents(target)] == [b"another"]
    settled(stage.admin.configs.alter({Resource.topic(target.name): {"max.message.bytes": "100000"}}))
    assert stage.run(spec, transactional=True) == [2]
    assert stage.contents(target)[1:] + stage.contents(target, 1) == stage.produced(source)


def test_a_run_that_begins_goes_on_from_what_the_one_before_has_committed_last(stage: Stage) -> None:
    source, target = numbered(stage, 5), stage.make()
    spec = ReplaySpec(source=source.name, target=target.name)
    planned = stage.replay(spec, transactional=True)
    assert stage.run(spec, transactional=True) == [5]
    planned.run(RecordRate(None), 0, lambda *_: None)
    assert values(stage, target) == list(range(5))


def test_the_second_of_two_transactional_runs_takes_over(stage: Stage) -> None:
    source, target = numbered(stage, 50), stage.make()
    spec = ReplaySpec(source=source.name, target=target.name)
    first = stage.replay(spec, transactional=True)
    steps: list[int] = []

    def other(records: int, _: int) -> None:
        steps.append(records)
        # A plan ends no other run, and a run does.
        with AdminClient(stage.broker.bootstrap) as admin:
            planned = Replay(admin, stage.topics.stores, spec, transactional=True)
            assert (planned.resumed, planned.ranges[0].records) == (True, 10 * len(steps))
            if len(steps) == 2:
                planned.run(RecordRate(None), 0, lambda *_: None)

    with pytest.raises(ReplayError, match="runs elsewhere now, or its transaction took too long: "):
        first.run(RecordRate(10, VirtualClock()), 0, other)
    assert steps == [10, 10]
    assert values(stage, target) == list(range(50))


def test_a_replay_goes_on_with_transactions_or_without_as_it_began(stage: Stage) -> None:
    source, target = numbered(stage, 5), stage.make()
    spec = ReplaySpec(source=source.name, target=target.name)
    for begun in (False, True):
        name = f"{target.name}-{begun}"
        assert stage.run(spec, name, transactional=begun) == [5]
        message = f"{name} was begun with{'' if begun else 'out'} --transactional, and cannot go on with"
        with pytest.raises(ReplayError, match=message):
            stage.run(spec, name, transactional=not begun)
    assert values(stage, target) == [*range(5), *range(5)]


def test_a_topic_is_replayed_into_itself_up_to_an_end(stage: Stage) -> None:
    topic = numbered(stage, 5)
    itself = ReplaySpec(source=topic.name, target=topic.name)
    with pytest.raises(ReplayError, match="into itself up to an end: --to-offset or --to-time"):
        stage.run(itself)
    with pytest.raises(
        ReplayError, match="ends at offset 5: a topic is replayed into itself up to an end that"
    ):
        stage.run(msgspec.structs.replace(itself, end=ReplayEdge(offset=6)))
    stage.run(msgspec.structs.replace(itself, start=ReplayEdge(offset=3), end=ReplayEdge(offset=5)))
    assert values(stage, topic) == [0, 1, 2, 3, 4, 3, 4]


def test_a_name_is_that_of_one_replay(stage: Stage) -> None:
    source, target = numbered(stage, 5), stage.make()
    spec = ReplaySpec(source=source.name, target=target.name, end=ReplayEdge(offset=3))
    assert stage.run(spec, "mine") == [3]
    assert stage.run(spec, "mine") == []
    with pytest.raises(
        ReplayError, match=r"mine is a replay of something else, of topic-.* from offset 0 to 2"
    ):
        stage.run(ReplaySpec(source=source.name, target=target.name, end=ReplayEdge(offset=4)), "mine")
    settled(stage.admin.topics.delete([target.name]))
    settled(stage.admin.topics.create([target.name]))
    with pytest.raises(ReplayError, match="was deleted and re-created since it began"):
        stage.run(spec, "mine")
    settled(stage.admin.offsets.alter("readers", {TopicPartition(source.name, 0): 2}))
    with pytest.raises(ReplayError, match="readers is a consumer group that has committed offsets"):
        stage.run(spec, "readers")
    assert stage.admin.offsets.committed("readers")[TopicPartition(source.name, 0)].offset == 2


def test_what_cannot_be_replayed_is_one_clear_error(stage: Stage) -> None:
    source = numbered(stage, 5, partitions=2)
    with pytest.raises(ReplayError, match="there is no topic nowhere: create it first"):
        stage.run(ReplaySpec(source=source.name, target="nowhere"))
    with pytest.raises(ValueError, match="there is no topic nothing"):
        stage.run(ReplaySpec(source="nothing", target=source.name))
    with pytest.raises(ReplayError, match="has no partition 7"):
        stage.run(ReplaySpec(source=source.name, target=stage.make().name, partitions=(0, 7)))
    # A broker reports an id that is not the one in this Redis.
    other = stage.topics.make("other", "batch", number=1)
    with pytest.raises(ReplayError, match="--bootstrap-server and --redis-url name different clusters"):
        stage.run(ReplaySpec(source=other.name, target=source.name))
    many = stage.make("batch", 201)
    with pytest.raises(ReplayError, match="has 201 partitions: records are hashed to 200 at the most"):
        stage.run(ReplaySpec(source=source.name, target=many.name, partitioning="hash"))


def test_records_that_were_deleted_before_they_were_replayed_are_an_error(stage: Stage) -> None:
    source, target = stage.make(), stage.make(max_message_bytes="1000")
    for value in (b"1", b"2" * 2000, b"3"):
        stage.topics.produce(source.partitions[0], value)
    spec = ReplaySpec(source=source.name, target=target.name)
    with pytest.raises(ReplayError, match="did not take"):
        stage.run(spec)
    settled(stage.admin.topics.delete_records({TopicPartition(source.name, 0): 2}))
    message = (
        "records of topic-.* from offset 1 on were deleted before they were replayed: .*, from offset 2 on"
    )
    with pytest.raises(ReplayError, match=message):
        stage.run(spec)
    assert values(stage, target) == [1]


def test_records_that_are_deleted_while_a_replay_runs_are_an_error(stage: Stage) -> None:
    source, target = stage.make(), stage.make()
    for at in range(4):
        stage.topics.produce(source.partitions[0], b"%d" % at)
    spec = ReplaySpec(source=source.name, target=target.name)

    def delete(*_: object) -> None:
        settled(stage.admin.topics.delete_records({TopicPartition(source.name, 0): 3}))

    begun = stage.replay(spec)
    begun.rows = _after(delete, begun.rows)  # type: ignore[method-assign]  # a moment that nothing else marks
    with pytest.raises(
        ReplayError, match=r"from offset 0 on were deleted before they were replayed: .*, from offset 3"
    ):
        begun.run(RecordRate(None), 0, lambda *_: None)
    assert stage.contents(target) == []


def _after(first: Callable[[], None], rows: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def both(*args: int) -> Iterator[Any]:
        first()
        yield from rows(*args)

    return both


def test_a_target_that_is_deleted_meanwhile_is_one_clear_error(stage: Stage) -> None:
    source, target = numbered(stage, 5), stage.make()
    planned = stage.replay(ReplaySpec(source=source.name, target=target.name))
    settled(stage.admin.topics.delete([target.name]))
    with pytest.raises(
        ReplayError,
        match=r"did not take offsets 0 to 4 of topic-\d+: topic topic-\d+: UNKNOWN_TOPIC_OR_PARTITION",
    ):
        planned.run(RecordRate(None), 0, lambda *_: None)
