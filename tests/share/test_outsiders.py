"""What other users of Redis do to a share group that is a Redis group of the stream: each has a defined result."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.log.share_parts import convert_redis_groups
from korvet.share.types import ACCEPT, RELEASE, RENEW, AckRange, Begin
from tests.share.support import GROUP, Part, code_of, offsets_in


@pytest.fixture
def offsets(queue: Part) -> list[int]:
    """Give the offsets of ten records, of which member m1 has acquired the first four."""
    made = [queue.bench.append(b"v%d" % n) for n in range(10)]
    queue.begin(made[0])
    queue.take("m1", 4)
    return made


def read(queue: Part, count: int = 100, worker: str = "worker", start: str = ">") -> list[int]:
    result: Any = queue.raw.xreadgroup(GROUP, worker, {queue.stream: start}, count=count)
    return [queue.offset_of(entry_id) for _, entries in result for entry_id, _ in entries]


def test_a_plain_worker_and_members_get_each_record_once(queue: Part, offsets: list[int]) -> None:
    assert read(queue, 3) == offsets[4:7]
    assert queue.take("m2") == [(offset, 1) for offset in offsets[7:]]
    more = queue.bench.append(b"more")
    assert read(queue) == [more]
    assert queue.state()[2] == 11
    queue.raw.xack(queue.stream, GROUP, *(queue.id_of(offset) for offset in offsets[4:7]))
    assert not queue.acknowledged(*offsets[:4])
    assert queue.state()[0] == offsets[7]


def test_what_a_plain_worker_had_too_long_goes_to_a_member_and_back(queue: Part, offsets: list[int]) -> None:
    assert read(queue, 2) == offsets[4:6]
    queue.expire(*offsets[4:6])
    assert queue.take("m2", 2) == [(offsets[4], 2), (offsets[5], 2)]
    queue.acknowledged(offsets[4], member="m2", type_=RELEASE)
    lock_ms = queue.policy.lock_ms
    _, claimed, _ = queue.raw.xautoclaim(queue.stream, GROUP, "worker", lock_ms, "0")
    assert [queue.offset_of(entry_id) for entry_id, _ in claimed] == [offsets[4]]
    [row] = queue.raw.xpending_range(queue.stream, GROUP, "-", "+", 10, consumername="worker")
    assert row["times_delivered"] == 3
    queue.expire(offsets[4])
    # It was delivered as often as the group's limit says.
    assert [item for item, _ in queue.take("m3")] == offsets[6:]
    assert offsets[4] not in {queue.offset_of(item["message_id"]) for item in pending(queue)}


def pending(queue: Part) -> list[Any]:
    rows: list[Any] = queue.raw.xpending_range(queue.stream, GROUP, "-", "+", 1000)
    return rows


def test_xclaim_takes_a_record_from_a_member(queue: Part, offsets: list[int]) -> None:
    queue.raw.xclaim(queue.stream, GROUP, "worker", 0, [queue.id_of(offsets[1])])
    for type_ in (ACCEPT, RELEASE, RENEW):
        outcome = queue.acknowledge(AckRange(offsets[1], offsets[1], [type_]))
        assert code_of(outcome) is ErrorCode.INVALID_RECORD_STATE
    assert queue.state()[2] == 4


def test_a_record_that_is_deleted_leaves_the_group(queue: Part, offsets: list[int]) -> None:
    queue.raw.xdel(queue.stream, *(queue.id_of(offsets[at]) for at in (1, 2, 4)))
    # The member that has it may say of it what it wants.
    assert not queue.acknowledged(offsets[0], offsets[1], type_=ACCEPT)
    assert queue.take("m2") == [(offset, 1) for offset in offsets[5:]]
    queue.expire(offsets[2], offsets[3])
    assert queue.take("m2") == [(offsets[3], 2)]
    assert queue.state() == (offsets[3], offsets[9] + 1, 6)


def test_a_record_that_is_deleted_and_was_claimed_by_others_may_be_acknowledged(
    queue: Part, offsets: list[int]
) -> None:
    queue.raw.xdel(queue.stream, queue.id_of(offsets[1]))
    queue.raw.xautoclaim(queue.stream, GROUP, "worker", 0, "0")  # takes it off the pending entries
    assert code_of(queue.acknowledge(offsets[0], offsets[1])) is ErrorCode.INVALID_RECORD_STATE
    queue.raw.xclaim(queue.stream, GROUP, "m1", 0, [queue.id_of(offsets[0])])
    assert not queue.acknowledged(offsets[0], offsets[1])


def test_what_is_trimmed_leaves_the_group(queue: Part, offsets: list[int]) -> None:
    queue.raw.xtrim(queue.stream, minid=queue.id_of(offsets[6]), approximate=False)
    assert [item for item, _ in queue.take("m2")] == offsets[6:]
    queue.expire(*offsets[:4])
    assert queue.take("m3") == []
    assert queue.state() == (offsets[6], offsets[9] + 1, 4)


def test_a_group_that_is_destroyed_begins_at_its_last_start(queue: Part, offsets: list[int]) -> None:
    queue.acknowledged(offsets[0], offsets[1], offsets[3])
    queue.raw.xgroup_destroy(queue.stream, GROUP)
    assert code_of(queue.acknowledge(offsets[2])) is ErrorCode.INVALID_RECORD_STATE
    assert not queue.release("m1")
    assert queue.state() == (offsets[2], offsets[2], 0)
    assert [item for item, _ in queue.take("m2")] == offsets[2:]


def test_a_group_that_is_set_forward_passes_records_over(queue: Part, offsets: list[int]) -> None:
    queue.raw.xgroup_setid(queue.stream, GROUP, queue.id_of(offsets[6]))
    assert [item for item, _ in queue.take("m2")] == offsets[7:]
    assert not queue.acknowledged(*offsets[:4])


def test_a_group_that_is_set_back_delivers_again_but_what_is_pending(queue: Part, offsets: list[int]) -> None:
    queue.take("m2", 2)
    queue.acknowledged(offsets[1])
    queue.raw.xgroup_setid(queue.stream, GROUP, "0")
    assert queue.take("m3") == [(offsets[1], 1), *((offset, 1) for offset in offsets[6:])]
    assert not queue.acknowledged(offsets[0], offsets[2], offsets[3])
    assert not queue.acknowledged(offsets[4], offsets[5], member="m2")


@pytest.mark.parametrize("at", [1, 6])
def test_a_group_that_is_made_again_is_adopted_where_it_is(queue: Part, offsets: list[int], at: int) -> None:
    queue.raw.xgroup_destroy(queue.stream, GROUP)
    queue.raw.xgroup_create(queue.stream, GROUP, queue.id_of(offsets[at]))
    assert [item for item, _ in queue.take("m2")] == offsets[at + 1 :]


def test_a_group_that_a_worker_has_made_is_adopted_with_what_is_pending(queue: Part) -> None:
    made = [queue.bench.append(b"v") for _ in range(6)]
    queue.raw.xgroup_create(queue.stream, GROUP, "0")
    assert read(queue, 4) == made[:4]
    queue.raw.xack(queue.stream, GROUP, queue.id_of(made[1]))
    begun = queue.begin(made[5])
    assert begun is not None
    assert begun.read_next == made[3] + 1
    assert queue.state() == (made[0], made[3] + 1, 3)
    queue.expire(made[2])
    assert queue.take("m1") == [(made[2], 2), (made[4], 1), (made[5], 1)]


def test_a_stream_that_is_deleted_takes_its_records_with_it(queue: Part, offsets: list[int]) -> None:
    queue.raw.delete(queue.stream)
    assert code_of(queue.acknowledge(offsets[0])) is ErrorCode.INVALID_RECORD_STATE
    assert not queue.release("m1")
    assert queue.state() == (offsets[0], offsets[0], 0)
    assert queue.take("m1") == []
    after = queue.bench.append(b"later")
    assert queue.take("m1") == [(after, 1)]


def test_a_worker_with_more_in_flight_than_members_may_have_stops_them_alone(
    queue: Part, offsets: list[int]
) -> None:
    queue.policy = queue.policy._replace(in_flight_max=5)
    assert read(queue, 3) == offsets[4:7]
    result = queue.asked("m2", at=offsets[7])
    assert (result.ranges, result.read_next) == ([], None)
    assert read(queue, 1) == offsets[7:8]
    assert not queue.acknowledged(*offsets[:4])
    assert queue.take("m2") == [(offsets[8], 1)]


def test_what_workers_have_too_much_of_is_found_in_its_order(queue: Part) -> None:
    # An id each: an idle Redis takes more in a millisecond than fit into one, and they would be moved.
    with queue.raw.pipeline(transaction=False) as pipe:
        for ms in range(1, 6001):
            pipe.xadd(queue.stream, {"value": "v"}, id=f"{ms}-0")
        pipe.execute()
    settle(queue)
    queue.begin(0)
    offsets = read(queue, 6000)
    queue.expire(offsets[1], offsets[5000])
    assert queue.take("m1") == [(offsets[1], 2)]
    result = queue.asked("m1", at=offsets[4990])
    assert offsets_in(result) == [(offsets[5000], 2)]
    assert result.read_next is None
    result = queue.asked("m1", at=offsets[0])
    assert result.ranges == []
    assert result.wake_ms is not None
    assert result.wake_ms <= queue.policy.lock_ms


def test_the_lag_of_the_group_stays_what_redis_reports(queue: Part, offsets: list[int]) -> None:
    [group] = queue.raw.xinfo_groups(queue.stream)
    assert (group["entries-read"], group["lag"], group["pending"]) == (4, 6, 4)
    archived = [(offsets[5], offsets[5])]
    queue.asked("m2", readable=queue.readable(offsets[4], archived=archived))
    [group] = queue.raw.xinfo_groups(queue.stream)
    assert (group["entries-read"], group["lag"], group["pending"]) == (10, 0, 9)


def test_a_consumer_that_is_deleted_takes_with_it_what_it_had(queue: Part, offsets: list[int]) -> None:
    assert queue.raw.xgroup_delconsumer(queue.stream, GROUP, "m1") == 4
    assert code_of(queue.acknowledge(offsets[0])) is ErrorCode.INVALID_RECORD_STATE
    assert queue.take("m1") == [(offset, 1) for offset in offsets[4:]]
    assert queue.state()[0] == offsets[4]


def test_a_member_leaves_no_consumer_behind(queue: Part, offsets: list[int]) -> None:
    queue.release("m1")
    assert [xinfo_consumer["name"] for xinfo_consumer in queue.raw.xinfo_consumers(queue.stream, GROUP)] == [
        b"korvet.released"
    ]
    assert queue.take("m2", 1) == [(offsets[0], 2)]


@pytest.mark.parametrize(
    "content", ["", "garbage", "redis", "redis x 1", "redis 1", "ranges 1 2", "ranges 1 2 x"]
)
def test_a_damaged_header_is_named_and_stays(queue: Part, offsets: list[int], content: str) -> None:
    queue.raw.hset(queue.share, f"h:{GROUP}", content)
    for outcome in (
        queue.ask(readable=queue.readable(offsets[4])),
        queue.acknowledge(offsets[0]),
        *queue.store.release(GROUP, "m1", [queue.held()], queue.policy),
        *queue.store.offsets(GROUP, [queue.partition]),
    ):
        assert code_of(outcome) is ErrorCode.KAFKA_STORAGE_ERROR
        assert queue.share in str(outcome)
    assert queue.raw.hget(queue.share, f"h:{GROUP}") == content.encode()
    # It may be replaced, and deleted.
    asked = Begin(queue.partition, GROUP, offsets[1], redis_group=True, policy=queue.policy)
    assert queue.store.alter([asked]) == [None]
    assert queue.state() == (offsets[1], offsets[1], 0)
    queue.raw.hset(queue.share, f"h:{GROUP}", content)
    assert queue.store.delete(GROUP, [queue.partition]) == [True]
    assert queue.store.offsets(GROUP, [queue.partition]) == [None]


def burst(queue: Part, first: int, count: int, ms: int = 7) -> list[str]:
    """XADD entries of one millisecond from a sequence on; return their values."""
    values = [f"{ms}-{sequence}" for sequence in range(first, first + count)]
    for value in values:
        queue.raw.xadd(queue.stream, {"value": value}, id=value)
    return values


def settle(queue: Part) -> None:
    assert queue.bench.logs.external.settle(queue.partition) is None


def values_of(queue: Part, offsets: list[int]) -> list[str]:
    return [
        queue.raw.xrange(queue.stream, queue.id_of(offset))[0][1][b"value"].decode() for offset in offsets
    ]


# In a log with dense ids every id but the next one is another entry's, and every group is set back: test_dense.py.
TIME = pytest.mark.parametrize("queue", ["record"], indirect=True)


@pytest.fixture
def past(queue: Part) -> list[str]:
    """Give the values of what does not fit into its millisecond, and of what follows in the next one.

    A worker has read all of it, and acknowledged what follows, and died.
    """
    queue.begin(0)
    values = burst(queue, 1020, 14) + burst(queue, 0, 10, ms=8)
    read(queue, 14, "dead")
    read(queue, 10, "quick")
    queue.raw.xack(queue.stream, GROUP, *values[14:])
    return values


@TIME
def test_what_is_moved_after_a_worker_has_read_it_is_delivered_again(queue: Part, past: list[str]) -> None:
    settle(queue)
    taken = queue.take("m1")
    assert values_of(queue, [offset for offset, _ in taken]) == past[4:]
    assert {count for _, count in taken} == {1}
    queue.expire()
    assert values_of(queue, [offset for offset, _ in queue.take("m2")]) == past


@TIME
def test_a_burst_whose_worker_has_deleted_it_hides_nothing_that_comes(queue: Part) -> None:
    # Ahead, so that the clock has no part in ids.
    ms = (queue.bench.append(b"v") >> queue.bench.bits) + 3_600_000
    burst(queue, 5, 1, ms)
    settle(queue)
    offset = (ms << queue.bench.bits) + 5
    queue.begin(offset + 1)
    values = burst(queue, 1024, 3, ms)
    read(queue)
    queue.raw.xack(queue.stream, GROUP, *values)
    queue.raw.xdel(queue.stream, *values)
    settle(queue)
    # They were past the end of the log, where the stream goes on.
    assert queue.bench.append(b"v") == offset + 1
    assert queue.take("m1") == [(offset + 1, 1)]


@pytest.mark.parametrize("queue", ["dense"], indirect=True)
def test_a_worker_that_was_ahead_of_the_log_hides_nothing_after_a_conversion(queue: Part) -> None:
    queue.begin(0)
    entry_id = queue.raw.xadd(queue.stream, {"value": "x"})
    queue.raw.xreadgroup(GROUP, "worker", {queue.stream: ">"})
    queue.raw.xack(queue.stream, GROUP, entry_id)
    convert_redis_groups(queue.bench.redis, queue.partition)
    offsets = [queue.bench.append(b"y"), queue.bench.append(b"z")]
    assert queue.take("m1") == [(offset, 1) for offset in (0, *offsets)]


@TIME
def test_a_group_of_ones_own_is_not_set_back(queue: Part) -> None:
    queue.raw.xgroup_create(queue.stream, GROUP, "0", mkstream=True)
    values = burst(queue, 1020, 14)
    read(queue)
    settle(queue)
    assert len(pending(queue)) == 14
    [group] = queue.raw.xinfo_groups(queue.stream)
    assert group["last-delivered-id"].decode() == values[-1]


@TIME
def test_entries_without_an_offset_hide_nothing_that_is_to_be_delivered_again(queue: Part) -> None:
    queue.begin(0)
    values = burst(queue, 1024, 30, ms=0)
    read(queue, worker="dead")
    queue.raw.xdel(queue.stream, *values)  # not moved, so they stay pending
    settle(queue)
    offsets = [queue.bench.append(b"v%d" % n) for n in range(3)]
    assert queue.take("m1") == [(offset, 1) for offset in offsets]
    # Where the group would begin again is before what is in flight.
    assert queue.state()[0] <= offsets[0]
    queue.expire()
    assert queue.take("m2") == [(offset, 2) for offset in offsets]
    assert [item["consumer"] for item in pending(queue)] == [b"m2"] * 3
    assert queue.state() == (offsets[0], offsets[2] + 1, 3)


def test_who_waits_for_what_cannot_be_read_yet_does_not_ask_at_once(queue: Part, offsets: list[int]) -> None:
    queue.acknowledged(offsets[1], type_=RELEASE)
    readable = queue.readable(offsets[0])._replace(end=offsets[1], runs=[(offsets[0], offsets[0])])
    result = queue.asked("m2", readable=readable)
    assert (result.ranges, result.read_next, result.wake_ms) == ([], offsets[1], 1000)


def test_a_start_past_the_end_of_the_log_is_its_end(part: Part) -> None:
    part.begin(0)
    end = part.bench.append(b"v") + 1
    for start in (1 << 62, (1 << 63) - 1):
        asked = [Begin(part.partition, GROUP, start, part.kind == "redis", part.policy)]
        assert part.store.alter(asked) == [None]
        assert part.state() == (end, end, 0)
    later = part.bench.append(b"v")
    assert part.take() == [(later, 1)]


def test_a_delivery_count_of_0_becomes_1_in_ranges(queue: Part, offsets: list[int]) -> None:
    release = ("XCLAIM", queue.stream, GROUP, "korvet.released", 0, queue.id_of(offsets[1]), "TIME", 0)
    queue.raw.eval("return redis.call(unpack(ARGV))", 0, *release, "RETRYCOUNT", 0, "JUSTID")
    queue.begin(None, "ranges")
    queue.kind = "ranges"
    assert queue.take("m2")[0] == (offsets[1], 2)


def test_a_group_that_is_set_back_begins_there_if_it_is_destroyed(queue: Part, offsets: list[int]) -> None:
    queue.acknowledged(offsets[0], offsets[1])
    queue.raw.xgroup_setid(queue.stream, GROUP, "0-0")
    queue.begin(None)
    assert queue.state()[:2] == (offsets[0], offsets[0])
    queue.raw.xgroup_destroy(queue.stream, GROUP)
    assert queue.take("m2") == [(offset, 1) for offset in offsets]


def test_a_member_that_is_gone_leaves_no_consumer_when_others_have_what_it_had(
    queue: Part, offsets: list[int]
) -> None:
    for member in ("m2", "m3", "m4"):
        queue.expire()
        queue.policy = queue.policy._replace(delivery_limit=9)
        assert [offset for offset, _ in queue.take(member, 4)] == offsets[:4]
    queue.expire(*offsets[:2])
    assert queue.take("m5", 2) == [(offsets[0], 5), (offsets[1], 5)]
    consumers = {
        xinfo_consumer["name"]: xinfo_consumer["pending"]
        for xinfo_consumer in queue.raw.xinfo_consumers(queue.stream, GROUP)
    }
    assert consumers == {b"m4": 2, b"m5": 2}


def test_after_a_trim_the_lag_is_right_or_unknown(queue: Part, offsets: list[int]) -> None:
    queue.trim(offsets[7])
    assert queue.take("m2", 1) == [(offsets[7], 1)]
    [group] = queue.raw.xinfo_groups(queue.stream)
    assert group["lag"] in (None, 2)
    assert [offset for offset, _ in queue.take("m2")] == offsets[8:]
    [group] = queue.raw.xinfo_groups(queue.stream)
    assert group["lag"] == 0


def test_ranges_are_in_order_after_the_group_was_set_back(queue: Part, offsets: list[int]) -> None:
    queue.take("m1")
    assert queue.acknowledged(offsets[5], offsets[6], type_=RELEASE)
    queue.acknowledged(*(offset for offset in offsets if offset not in offsets[5:7]))
    queue.raw.xgroup_setid(queue.stream, GROUP, "0-0")
    result = offsets_in(queue.asked("m2", at=offsets[0]))
    assert (offsets[0], 1) in result
    assert result == sorted(result)
