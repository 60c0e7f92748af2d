"""Placement: which assignments hold, what an election comes to, and moves in the registry of a real Redis."""

from __future__ import annotations

import pytest

from korvet.cluster.brokers import LiveBroker, LiveBrokers, Placed
from korvet.errors import ErrorCode, KafkaError
from korvet.topics.placement import Target, election_outcome, reassigned, replication_factor
from korvet.topics.types import TopicRow

LIVE = LiveBrokers([LiveBroker(item, {}) for item in (0, 1, 2)], None)


def row(*assignment: list[int], partitions: int = 3) -> TopicRow:
    return TopicRow(name="orders", id="id", partitions=partitions, assignment=list(assignment) or None)


def outcome(target: Target, before: TopicRow | None = None, *, factor_may_change: bool = True) -> KafkaError:
    """Return why a target is refused, which changes nothing."""
    before = before or row()
    assignment, [refused] = reassigned(before, [target], LIVE, factor_may_change=factor_may_change)
    assert assignment == before.assignment
    assert refused is not None
    return refused


def test_a_move_changes_the_partitions_that_it_names() -> None:
    targets = [Target(2, [1]), Target(0, [2, 0])]
    assert reassigned(row([0], [1], [2]), targets, LIVE, factor_may_change=True) == (
        [[2, 0], [1], [1]],
        [None, None],
    )


def test_where_any_broker_leads_a_move_leaves_it_so_for_the_other_partitions() -> None:
    assert reassigned(row(), [Target(1, [2])], LIVE, factor_may_change=True)[0] == [[], [2]]
    assert reassigned(row([0]), [Target(2, [2])], LIVE, factor_may_change=True)[0] == [[0], [], [2]]


def test_a_target_that_is_refused_does_not_keep_the_others_from_it() -> None:
    targets = [Target(0, [9]), Target(1, [1]), Target(7, [0])]
    assignment, outcomes = reassigned(row(), targets, LIVE, factor_may_change=True)
    assert assignment == [[], [1]]
    assert [item and item.code for item in outcomes] == [
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


@pytest.mark.parametrize("index", [-1, 3])
def test_a_partition_that_is_not_there_cannot_move(index: int) -> None:
    refused = outcome(Target(index, [0]))
    assert (refused.code, f"orders-{index}" in refused.message) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        True,
    )


@pytest.mark.parametrize(
    ("replicas", "said"),
    [([], "to no broker"), ([1, 0, 1], "to a broker twice"), ([0, 7, -1], "[-1, 7]: there are [0, 1, 2]")],
)
def test_an_assignment_that_cannot_be_is_refused(replicas: list[int], said: str) -> None:
    refused = outcome(Target(0, replicas))
    assert refused.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert said in refused.message


def test_there_is_no_move_to_give_up() -> None:
    assert outcome(Target(0, None)).code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize(
    ("before", "replicas"), [(row(), [0, 1]), (row([0, 1]), [2]), (row([0, 1], []), [0, 1, 2])]
)
def test_another_number_of_replicas_is_refused_where_it_must_not_change(
    before: TopicRow, replicas: list[int]
) -> None:
    refused = outcome(Target(0, replicas), before, factor_may_change=False)
    assert refused.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassigned(before, [Target(0, replicas)], LIVE, factor_may_change=True)[1] == [None]


@pytest.mark.parametrize(("before", "replicas"), [(row(), [2]), (row([0, 1]), [2, 0])])
def test_as_many_replicas_as_before_may_be_others(before: TopicRow, replicas: list[int]) -> None:
    assert reassigned(before, [Target(0, replicas)], LIVE, factor_may_change=False)[1] == [None]


def test_the_replication_factor_is_the_number_of_assigned_brokers() -> None:
    assert [replication_factor([[0, 1], []], index) for index in range(3)] == [2, 1, 1]
    assert replication_factor(None, 0) == 1


@pytest.mark.parametrize(
    ("placed", "preferred", "unclean"),
    [
        (Placed(0, [0, 1], [0, 1], []), ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED),
        (Placed(0, [0], [0], []), ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED),
        (
            Placed(1, [0, 1], [1], [0]),
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.ELECTION_NOT_NEEDED,
        ),
    ],
)
def test_an_election_says_why_it_changes_nothing(
    placed: Placed, preferred: ErrorCode, unclean: ErrorCode
) -> None:
    assert election_outcome(placed, unclean=False).code is preferred
    assert election_outcome(placed, unclean=True).code is unclean
