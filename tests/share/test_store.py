"""The parts of share groups in both kinds: acquired, acknowledged, released, counted, each as KIP-932 has it."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.redis.keys import Keys
from korvet.share.types import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    AckRange,
    Acquired,
    Begin,
    Readable,
    ShareOffsets,
)
from korvet.topics.deletion import TopicDeletion
from tests.lua.support import announced
from tests.share.support import GROUP, POLICY, Part, code_of, offsets_in
from tests.support.log_bench import Bench
from tests.support.partition_state import change_log


def filled(part: Part, count: int = 10) -> list[int]:
    """Append batches of one record, begin at the first of them, and return their offsets."""
    offsets = [part.bench.append(b"v%d" % n) for n in range(count)]
    part.begin(offsets[0])
    return offsets


def test_a_renewed_lock_begins_again(part: Part) -> None:
    offsets = filled(part, 3)
    part.take()
    part.policy = part.policy._replace(lock_ms=120_000)
    assert not part.acknowledged(offsets[1], type_=RENEW)
    part.expire(offsets[0], offsets[2])
    assert part.take("m2") == [(offsets[0], 2), (offsets[2], 2)]
    assert not part.acknowledged(offsets[1])


def test_types_of_one_range_may_differ(part: Part) -> None:
    offsets = filled(part, 1)
    first = part.bench.append(b"a", b"b", b"c", b"d", b"e")
    part.take()
    part.acknowledged(offsets[0])
    types = [ACCEPT, RELEASE, RENEW, REJECT, GAP]
    assert part.acknowledged(AckRange(first, first + 4, types))
    assert part.state() == (first + 1, first + 5, 2)
    assert part.take("m2") == [(first + 1, 2)]
    assert not part.acknowledged(first + 2)


def test_the_worker_learns_where_to_read_next_and_what_it_read_is_not_acquired_twice(part: Part) -> None:
    offsets = filled(part, 4)
    readable = part.readable(offsets[0])
    assert part.asked("m1", 2, readable=readable).read_next == offsets[2]
    assert part.asked("m1", readable=readable).read_next == offsets[-1] + 1
    assert not part.asked("m2", readable=readable).ranges
    part.acknowledged(offsets[1], type_=RELEASE)
    late = part.asked("m2", at=offsets[-1] + 1)
    assert (late.ranges, late.read_next) == ([], offsets[1])


def test_a_session_releases_what_it_has_acquired_and_not_what_the_next_one_has(part: Part) -> None:
    offsets = filled(part, 8)
    part.take("m1", 3)
    part.acknowledged(offsets[1])
    part.take("m2", 1)
    part.take("m1", 3)
    assert part.release("m1", (offsets[0], offsets[2]))
    assert not part.release("m1", (offsets[0], offsets[2]))
    assert not part.release("m1", (offsets[3], offsets[3]), (offsets[7], offsets[7] + 100))
    assert part.take("m3") == [(offsets[0], 2), (offsets[2], 2), (offsets[7], 1)]
    assert not part.acknowledged(*offsets[4:7], member="m1")
    assert not part.acknowledged(offsets[3], member="m2")


def test_a_session_releases_what_lies_within_ranges_of_others(ranges: Part) -> None:
    first = ranges.bench.append(*(b"v%d" % n for n in range(10)))
    ranges.begin(first)
    ranges.take("m1")
    assert ranges.release("m1", (first + 6, first + 7), (first + 2, first + 3), (first + 3, first + 4))
    assert ranges.take("m2") == [(first + n, 2) for n in (2, 3, 4, 6, 7)]
    for mine in ((first, first + 1), first + 5, (first + 8, first + 9)):
        assert not ranges.acknowledged(mine)


def test_an_acknowledgement_may_come_again_once_all_records_before_it_are_done_with(part: Part) -> None:
    offsets = filled(part, 4)
    part.take("m1")
    for nothing in ((), (AckRange(offsets[1], offsets[1], []),)):
        assert not part.acknowledged(*nothing)
    part.acknowledged(*offsets[1:3])
    assert code_of(part.acknowledge(offsets[1])) is ErrorCode.INVALID_RECORD_STATE
    part.acknowledged(offsets[0])
    for type_ in (ACCEPT, RELEASE, RENEW):
        assert not part.acknowledged(*offsets[:3], type_=type_, member="m2")
    assert not part.acknowledged(*offsets)
    assert not part.acknowledged(*offsets)


def test_records_that_nobody_is_to_get_are_passed_over(part: Part) -> None:
    offsets = filled(part, 5)
    archived = [(offsets[1], offsets[1]), (offsets[4], offsets[4])]
    got = part.asked("m1", readable=part.readable(offsets[0], archived=archived))
    assert offsets_in(got) == [(offsets[0], 1), (offsets[2], 1), (offsets[3], 1)]
    assert got.read_next == offsets[-1] + 1
    part.acknowledged(offsets[0], (offsets[2], offsets[2]), offsets[3])
    assert part.state() == (offsets[-1] + 1, offsets[-1] + 1, 0)


def test_a_record_before_its_last_delivery_is_acquired_alone(part: Part) -> None:
    first, second, third = filled(part, 3)
    part.take("m1", 2)
    part.acknowledged(second, type_=RELEASE)
    part.take("m2", 1)
    part.acknowledged(first, type_=RELEASE)
    part.acknowledged(second, member="m2", type_=RELEASE)
    assert offsets_in(part.asked("m3")) == [(first, 2)]
    assert part.asked("m3", goes_on=True).ranges == []
    assert [offsets_in(part.asked("m3")) for _ in range(2)] == [[(second, 3)], [(third, 1)]]


def test_what_leaves_the_log_while_it_is_released_is_passed_over(part: Part) -> None:
    offsets = filled(part, 4)
    part.take("m1")
    part.acknowledged(offsets[1], offsets[2], type_=RELEASE)
    got = part.asked("m2", readable=part.readable(offsets[0])._replace(runs=[(offsets[2], offsets[2])]))
    assert offsets_in(got) == [(offsets[2], 2)]
    assert part.state()[2] == 3


def test_what_was_read_in_another_leader_epoch_is_not_acquired(part: Part) -> None:
    offsets = filled(part, 2)
    readable = part.readable(offsets[0])
    other = part.asked(readable=readable._replace(epoch=readable.epoch + 1))
    assert (other.ranges, other.read_next) == ([], offsets[0])
    # All is as it was read, but the last record is lost.
    change_log(part.raw, part.partition.state, next_offset=offsets[1])
    assert part.asked(readable=readable).ranges == []
    change_log(part.raw, part.partition.state, next_offset=offsets[1] + 1)
    assert offsets_in(part.asked(readable=readable)) == [(offset, 1) for offset in offsets]


def test_a_group_that_has_no_part_begins_at_the_start_that_is_given(part: Part) -> None:
    offsets = [part.bench.append(b"v") for _ in range(4)]
    assert part.begin(None) is None
    assert part.ask(readable=Readable(0, 0)) is None
    begun = part.begin(offsets[2])
    assert begun is not None
    assert begun.read_next == offsets[2]
    again = part.begin(offsets[0])
    assert again == begun
    assert part.take() == [(offsets[2], 1), (offsets[3], 1)]


def test_waiting_ends_with_the_first_lock(part: Part) -> None:
    offsets = filled(part, 40)
    for lock_ms in (500_000, 100_000, 400_000, 300_000):
        part.policy = part.policy._replace(lock_ms=lock_ms)
        part.take("m1", 10)

    def wake_ms() -> int:
        result = part.asked("m2", at=offsets[-1] + 1)
        assert result.ranges == []
        assert result.wake_ms is not None
        return result.wake_ms

    # The idle times of a Redis group count from the last delivery, whatever the lock was then.
    first = 100_000 if part.kind == "ranges" else 300_000
    assert first - 50_000 < wake_ms() <= first
    part.acknowledged(*offsets[10:20])
    assert 250_000 < wake_ms() <= 300_000


def test_waiting_ends_with_the_first_lock_wherever_it_is(queue: Part) -> None:
    offsets = filled(queue, 60)
    queue.take("m1")
    lock_ms = queue.policy.lock_ms
    for at, offset in enumerate(offsets):
        idle = lock_ms * (at * 37 % 59) // 60
        claim = ("XCLAIM", queue.stream, GROUP, "m1", 0, queue.id_of(offset), "JUSTID", "IDLE", idle)
        queue.raw.eval("return redis.call(unpack(ARGV))", 0, *claim)
    result = queue.asked("m2", at=offsets[-1] + 1)
    assert result.wake_ms is not None
    longest = lock_ms - lock_ms * 58 // 60
    assert longest - 1000 < result.wake_ms <= longest + lock_ms // 100


def test_a_group_may_be_set_to_another_offset_and_deleted(part: Part) -> None:
    offsets = filled(part, 4)
    part.take("m1", 3)
    ask = Begin(part.partition, GROUP, offsets[1], part.kind == "redis", part.policy)
    assert part.store.alter([ask]) == [None]
    assert part.state() == (offsets[1], offsets[1], 0)
    assert part.take() == [(offset, 1) for offset in offsets[1:]]
    assert part.store.delete(GROUP, [part.partition]) == [True]
    assert part.store.delete(GROUP, [part.partition]) == [False]
    assert part.store.offsets(GROUP, [part.partition]) == [None]
    assert part.begin(None) is None
    assert part.store.alter([ask._replace(start=offsets[3])]) == [None]
    assert part.take() == [(offsets[3], 1)]


def test_whole_batches_are_acquired_unless_that_is_not_wanted(ranges: Part) -> None:
    first = ranges.bench.append(b"a", b"b", b"c", b"d", b"e")
    second = ranges.bench.append(b"f", b"g")
    is_batch = ranges.bench.format == "batch"
    ranges.begin(first)
    got = ranges.asked("m1", 3, exact=False)
    assert [tuple(item) for item in got.ranges] == [(first, first + (4 if is_batch else 2), 1)]
    assert got.read_next == first + (5 if is_batch else 3)
    ranges.release("m1")
    got = ranges.asked("m1", 3, exact=True)
    assert [tuple(item) for item in got.ranges] == [(first, first + 2, 2)]
    ranges.acknowledged((first, first + 2))
    ranges.policy = ranges.policy._replace(delivery_limit=9)
    got = ranges.asked("m2", 3, exact=False)
    taken = [(first + 3, 2), (first + 4, 2), (second, 1), (second + 1, 1)]
    assert offsets_in(got) == (taken if is_batch else [(first + 3, 1), (first + 4, 1), (second, 1)])


def test_a_batch_that_is_larger_than_what_may_be_in_flight_comes_in_parts(batch_bench: Bench) -> None:
    part = Part(batch_bench, "ranges", POLICY._replace(in_flight_max=4))
    first = part.bench.append(*[b"v"] * 10)
    part.begin(first)
    got = part.asked("m1", 2, exact=False)
    assert [tuple(item) for item in got.ranges] == [(first, first + 3, 1)]
    assert part.asked("m2", 2, at=first + 4, exact=False).read_next is None
    part.acknowledged((first, first + 3))
    got = part.asked("m1", 100, exact=False)
    assert [tuple(item) for item in got.ranges] == [(first + 4, first + 7, 1)]


@pytest.mark.parametrize(
    "row", [b"", b"garbage", b"\x90\x91\x01", b"\x90\x95\x05\x04\x01\x00\x00", b"\x90\x90"]
)
def test_a_damaged_row_is_named_and_stays(ranges: Part, row: bytes) -> None:
    offsets = filled(ranges, 3)
    ranges.take()
    ranges.raw.hset(ranges.share, f"r:{GROUP}", row)
    for outcome in (
        ranges.ask(readable=ranges.readable(offsets[0])),
        ranges.acknowledge(offsets[0]),
        *ranges.store.release(GROUP, "m1", [ranges.held()], ranges.policy),
    ):
        assert code_of(outcome) is ErrorCode.KAFKA_STORAGE_ERROR
        assert ranges.share in str(outcome)
    assert ranges.raw.hget(ranges.share, f"r:{GROUP}") == row


def test_a_part_goes_with_its_topic(part: Part) -> None:
    filled(part, 3)
    part.take("m1", 2)
    row = part.bench.topics.load().rows[part.bench.topic]
    for _ in TopicDeletion(part.bench.redis, Keys("korvet")).delete({row.name: row.id})[1]:
        pass
    assert not part.raw.exists(part.share, part.stream)
    assert code_of(part.ask(readable=Readable(0, 0))) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_part_is_initial_until_something_of_it_is_done_with_or_it_is_set_to_an_offset(part: Part) -> None:
    [first, second] = filled(part, 2)
    part.take()
    part.acknowledged(first, type_=RENEW)
    assert part.offsets().is_initial
    for act in (
        lambda: part.acknowledged(first),
        lambda: part.acknowledged(second, type_=RELEASE),
        part.release,
        lambda: part.expire().take(),
        lambda: part.store.alter([Begin(part.partition, GROUP, second, part.kind == "redis", part.policy)]),
    ):
        part.store.delete(GROUP, [part.partition])
        part.begin(first)
        part.take()
        assert part.offsets().is_initial
        act()
        assert not part.offsets().is_initial


def test_several_partitions_are_asked_in_one_round_trip(part: Part) -> None:
    offsets = [part.bench.append(b"v", partition=part.bench.at(index)) for index in (0, 1)]
    partitions = [part.bench.at(index) for index in (0, 1)]
    begin = [
        Begin(item, GROUP, offset, part.kind == "redis", part.policy)
        for item, offset in zip(partitions, offsets, strict=True)
    ]
    missing = begin[0]._replace(partition=part.bench.at(0, topic_id="id-2"))
    begun = part.store.begin([begin[0], missing, begin[1]])
    first, wrong, second = (read.read_next if isinstance(read, Acquired) else code_of(read) for read in begun)
    assert (first, wrong, second) == (offsets[0], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, offsets[1])
    results = part.store.offsets(GROUP, [partitions[0], part.bench.at(2), partitions[1]])
    starts = [(result.start, result.leader_epoch) for result in results if isinstance(result, ShareOffsets)]
    assert starts == [(offset, part.bench.epoch) for offset in offsets]


@pytest.mark.parametrize("type_", [ACCEPT, REJECT, GAP, RENEW])
def test_only_a_release_wakes_those_that_wait(part: Part, type_: int) -> None:
    offsets = filled(part, 2)
    part.take()
    with announced(part.raw, part.partition.channel, b"%d" % part.bench.bounds().high_watermark):
        assert not part.acknowledged(offsets[0], type_=type_)
        assert part.acknowledged(offsets[1], type_=RELEASE)


@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("ahead_ms", [30_000, 3_600_000])
def test_locks_that_began_in_the_future_begin_again(part: Part, ahead_ms: int, *, renews: bool) -> None:
    part.bench.append(b"a", b"b")
    part.begin()
    [(first, _), (second, _)] = part.take("m1")
    part.set_clock_back(ahead_ms)
    if renews:
        assert not part.acknowledged(second, type_=RENEW)
    assert part.take("m2") == []
    lock_ms = part.asked("m2", at=first).wake_ms
    assert lock_ms is not None
    assert 0 < lock_ms <= part.policy.lock_ms
    part.expire()
    assert part.take("m2") == [(first, 2), (second, 2)]
