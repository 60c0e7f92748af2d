"""How topics grow: the rules for numbers and brokers, and growth in the registry of a real Redis."""

from __future__ import annotations

from functools import partial

import gevent
import pytest
import redis
from msgspec.structs import replace

from korvet.errors import ErrorCode, KafkaError
from korvet.topics.placement import with_partitions
from korvet.topics.registry import TopicSpec
from korvet.topics.types import TopicRef, TopicRow
from tests.support.domain import Domain

LIVE = {0, 1, 2}
ROW = TopicRow(name="orders", id="id", partitions=2, configs={"retention.ms": "5"})


def to(count: int, brokers: list[list[int]] | None = None, row: TopicRow = ROW) -> TopicRow:
    return with_partitions(row, count, brokers, LIVE)


def refusal(count: int, brokers: list[list[int]] | None = None, row: TopicRow = ROW) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as refused:
        to(count, brokers, row)
    return refused.value.code, refused.value.message


def test_more_partitions_are_for_any_broker_unless_it_is_said_for_which() -> None:
    assert to(4) == replace(ROW, partitions=4)
    assert to(4, [[1], [2]]) == replace(ROW, partitions=4, assignment=[[], [], [1], [2]])


def test_brokers_of_the_partitions_that_are_there_stay_as_they_are() -> None:
    assigned = replace(ROW, assignment=[[0, 1], [1, 2]])
    assert to(3, [[2, 0]], assigned).assignment == [[0, 1], [1, 2], [2, 0]]
    in_part = replace(ROW, assignment=[[0]])
    assert to(4, [[1], [2]], in_part).assignment == [[0], [], [1], [2]]


def test_new_partitions_are_assigned_to_as_many_brokers_as_the_others() -> None:
    assigned = replace(ROW, assignment=[[0, 1], [1, 2]])
    grown = to(8, row=assigned)
    assert grown.assignment is not None
    assert grown.assignment[:2] == [[0, 1], [1, 2]]
    added = grown.assignment[2:]
    assert len(added) == 6
    assert {len(set(item)) for item in added} == {2}
    assert {item[0] for item in added} == LIVE
    with pytest.raises(KafkaError, match="assigned to 2 brokers each; 1 are live") as refused:
        with_partitions(assigned, 3, None, {0})
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert to(3, row=replace(ROW, assignment=[[], []])).assignment == [[], []]


@pytest.mark.parametrize("count", [2, 1, 0, -1, 10_001, 2**31 - 1])
def test_a_topic_grows_within_bounds_and_never_shrinks(count: int) -> None:
    code, message = refusal(count)
    assert code == ErrorCode.INVALID_PARTITIONS
    assert "2 partition(s)" in message or str(count) in message
    assert to(10_000).partitions == 10_000


@pytest.mark.parametrize(
    ("brokers", "problem"),
    [
        ([], "0 assignment"),
        ([[0]], "1 assignment"),
        ([[0], [1], [2]], "3 assignment"),
        ([[0], []], "orders-3 is assigned to no broker"),
        ([[0], [1, 1]], "orders-3 is assigned to a broker twice"),
        ([[7], [0]], "orders-2 is assigned to brokers that are not there"),
        ([[0], [1, 2]], "orders-3 is assigned to 2 brokers, others of the topic to 1"),
    ],
)
def test_assignments_that_do_not_hold_are_refused(brokers: list[list[int]], problem: str) -> None:
    code, message = refusal(4, brokers)
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert problem in message


def test_new_partitions_are_for_as_many_brokers_as_those_that_are_there() -> None:
    code, message = refusal(3, [[0]], replace(ROW, assignment=[[0, 1], [1, 2]]))
    assert (code, message) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Partition orders-2 is assigned to 1 brokers, others of the topic to 2.",
    )


def test_new_partitions_are_there_and_the_old_ones_as_they_were(here: Domain, there: Domain) -> None:
    made = here.topics.create(TopicSpec(name="orders", configs={"retention.ms": "-1"}))
    offset = here.append("orders", b"before")
    assert len(there.topics.get("orders").partitions) == 1
    now = here.topics.add_partitions(made, partial(with_partitions, count=3, brokers=None, live=LIVE))
    assert (now.id, len(now.partitions), now.overrides) == (made.id, 3, made.overrides)
    assert here.topics.get("orders") == now
    topic, _ = there.topics.partition(TopicRef("orders"), 2)  # finds it without a notification
    assert topic == now
    for index in range(1, 3):
        assert there.append("orders", b"new", partition=index) >= 0
    [result] = there.fetch(there.wanted("orders", 0, offset))
    assert result.high_watermark == offset + 1


def test_growth_that_is_only_validated_changes_nothing(here: Domain, raw_redis: redis.Redis) -> None:
    made = here.topics.create(TopicSpec(name="orders"))
    before = {key: raw_redis.dump(key) for key in raw_redis.scan_iter()}
    would_be = here.topics.add_partitions(
        made, partial(with_partitions, count=4, brokers=[[0], [1], [2]], live=LIVE), validate_only=True
    )
    assert (len(would_be.partitions), would_be.assignment) == (4, [[], [0], [1], [2]])
    with pytest.raises(KafkaError, match="INVALID_PARTITIONS"):
        here.topics.add_partitions(
            made, partial(with_partitions, count=1, brokers=None, live=LIVE), validate_only=True
        )
    assert {key: raw_redis.dump(key) for key in raw_redis.scan_iter()} == before


def test_of_two_that_grow_a_topic_at_once_one_finds_it_grown(here: Domain, there: Domain) -> None:
    topic = here.topics.create(TopicSpec(name="orders"))
    there.topics.refresh()

    def grow(view: Domain) -> ErrorCode:
        try:
            view.topics.add_partitions(topic, partial(with_partitions, count=5, brokers=None, live=LIVE))
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    greenlets = [gevent.spawn(grow, view) for view in (here, there) for _ in range(5)]
    assert (
        sorted(greenlet.get(timeout=30) for greenlet in greenlets)
        == [ErrorCode.NONE] + [ErrorCode.INVALID_PARTITIONS] * 9
    )
    there.topics.refresh()
    assert len(there.topics.get("orders").partitions) == 5
