"""What other users of Redis do to a share group that is a Redis group of the stream: each has a defined result."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.share.types import ACCEPT, RELEASE, RENEW, AckRange
from tests.share.support import GROUP, Part, code_of, offsets_in


@pytest.fixture
def offsets(queue: Part) -> list[int]:
    """Give the offsets of ten records, of which member m1 has acquired the first four."""
    made = [queue.bench.append(b"v%d" % n) for n in range(10)]
    queue.begin(made[0])
    queue.take("m1", 4)
    return made


def read(queue: Part, count: int = 100, worker: str = "worker", start: str = ">") -> list[int]:
    """Read as a plain worker."""
    found: Any = queue.raw.xreadgroup(GROUP, worker, {queue.stream: start}, count=count)
    return [queue.offset_of(entry_id) for _, entries in found for entry_id, _ in entries]


def test_a_plain_worker_and_members_get_each_record_once(queue: Part, offsets: list[int]) -> None:
    assert read(queue, 3) == offsets[4:7]
    assert queue.take("m2") == [(each, 1) for each in offsets[7:]]
    more = queue.bench.append(b"more")
    assert read(queue) == [more]
    assert queue.state()[2] == 11
    queue.raw.xack(queue.stream, GROUP, *(queue.id_of(each) for each in offsets[4:7]))
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
    assert [each for each, _ in queue.take("m3")] == offsets[6:]
    assert offsets[4] not in {queue.offset_of(each["message_id"]) for each in pending(queue)}


def pending(queue: Part) -> list[Any]:
    rows: list[Any] = queue.raw.xpending_range(queue.stream, GROUP, "-", "+", 1000)
    return rows


def test_xack_is_an_acknowledgement(queue: Part, offsets: list[int]) -> None:
    assert queue.raw.xack(queue.stream, GROUP, queue.id_of(offsets[1])) == 1
    assert code_of(queue.acknowledge(offsets[0], offsets[1])) is ErrorCode.INVALID_RECORD_STATE
    assert not queue.acknowledged(offsets[0])
    assert queue.state() == (offsets[2], offsets[4], 2)


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
    assert queue.take("m2") == [(each, 1) for each in offsets[5:]]
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
    assert [each for each, _ in queue.take("m2")] == offsets[6:]
    queue.expire(*offsets[:4])
    assert queue.take("m3") == []
    assert queue.state() == (offsets[6], offsets[9] + 1, 4)


def test_a_group_that_is_destroyed_begins_at_its_last_start(queue: Part, offsets: list[int]) -> None:
    queue.acknowledged(offsets[0], offsets[1], offsets[3])
    queue.raw.xgroup_destroy(queue.stream, GROUP)
    assert code_of(queue.acknowledge(offsets[2])) is ErrorCode.INVALID_RECORD_STATE
    assert not queue.release("m1")
    assert queue.state() == (offsets[2], offsets[2], 0)
    assert [each for each, _ in queue.take("m2")] == offsets[2:]


def test_a_group_that_is_set_forward_passes_records_over(queue: Part, offsets: list[int]) -> None:
    queue.raw.xgroup_setid(queue.stream, GROUP, queue.id_of(offsets[6]))
    assert [each for each, _ in queue.take("m2")] == offsets[7:]
    assert not queue.acknowledged(*offsets[:4])


def test_a_group_that_is_set_back_delivers_again_but_what_is_pending(queue: Part, offsets: list[int]) -> None:
    queue.take("m2", 2)
    queue.acknowledged(offsets[1])
    queue.raw.xgroup_setid(queue.stream, GROUP, "0")
    assert queue.take("m3") == [(offsets[1], 1), *((each, 1) for each in offsets[6:])]
    assert not queue.acknowledged(offsets[0], offsets[2], offsets[3])
    assert not queue.acknowledged(offsets[4], offsets[5], member="m2")


@pytest.mark.parametrize("at", [1, 6])
def test_a_group_that_is_made_again_is_adopted_where_it_is(queue: Part, offsets: list[int], at: int) -> None:
    queue.raw.xgroup_destroy(queue.stream, GROUP)
    queue.raw.xgroup_create(queue.stream, GROUP, queue.id_of(offsets[at]))
    assert [each for each, _ in queue.take("m2")] == offsets[at + 1 :]


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
    found = queue.asked("m2", at=offsets[7])
    assert (found.ranges, found.read_next) == ([], None)
    assert read(queue, 1) == offsets[7:8]
    assert not queue.acknowledged(*offsets[:4])
    assert queue.take("m2") == [(offsets[8], 1)]


def test_what_workers_have_too_much_of_is_found_in_its_order(queue: Part) -> None:
    queue.bench.external(6000)
    queue.bench.logs.external.step(queue.partition)
    queue.begin(0)
    offsets = read(queue, 6000)
    queue.expire(offsets[1], offsets[5000])
    assert queue.take("m1") == [(offsets[1], 2)]
    found = queue.asked("m1", at=offsets[4990])
    assert offsets_in(found) == [(offsets[5000], 2)]
    assert found.read_next is None
    found = queue.asked("m1", at=offsets[0])
    assert found.ranges == []
    assert found.wake_ms is not None
    assert found.wake_ms <= queue.policy.lock_ms


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
    assert queue.take("m1") == [(each, 1) for each in offsets[4:]]
    assert queue.state()[0] == offsets[4]


def test_a_member_leaves_no_consumer_behind(queue: Part, offsets: list[int]) -> None:
    queue.release("m1")
    assert [each["name"] for each in queue.raw.xinfo_consumers(queue.stream, GROUP)] == [b"korvet.released"]
    assert queue.take("m2", 1) == [(offsets[0], 2)]


@pytest.mark.parametrize(
    "content", ["", "garbage", "redis", "redis x 1", "redis 1", "ranges 1 2", "ranges 1 2 x"]
)
def test_a_damaged_header_is_named_and_stays(queue: Part, offsets: list[int], content: str) -> None:
    queue.raw.hset(queue.share, f"h:{GROUP}", content)
    for outcome in (
        queue.ask(readable=queue.readable(offsets[4])),
        queue.acknowledge(offsets[0]),
        *queue.store.release(GROUP, "m1", [queue.partition], queue.policy),
        *queue.store.offsets(GROUP, [queue.partition]),
        *queue.store.delete(GROUP, [queue.partition]),
    ):
        assert isinstance(outcome, KafkaError)
        assert outcome.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert queue.share in outcome.message
    assert queue.raw.hget(queue.share, f"h:{GROUP}") == content.encode()
