"""Placement: the brokers that partitions are assigned to, how an administrator moves them, and what an election does.

The rules are Kafka's. Every broker serves every partition out of the same Redis, so a move copies nothing: it is done
when the topic's row says so, and the leader is always the first live broker of the assignment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from korvet.cluster.brokers import LiveBrokers, Placed, spread_leaders
from korvet.errors import ErrorCode, KafkaError
from korvet.topics.registry import PARTITIONS_MAX, Assignment, Topic, TopicRegistry
from korvet.topics.types import TopicRow

NumberedBrokers = Sequence[tuple[int, Sequence[int]]]
"""Partitions by their index, each with its brokers, the preferred leader first."""

_INDEXES_SHOWN_MAX = 20


class Target(NamedTuple):
    """A partition and the brokers to assign it to, the preferred leader first; None cancels a move."""

    partition: int
    replicas: Sequence[int] | None


def reassign(
    topics: TopicRegistry,
    topic: Topic,
    targets: Sequence[Target],
    live: LiveBrokers,
    *,
    factor_may_change: bool,
) -> list[KafkaError | None]:
    """Assign partitions of `topic` in one step; returns for each target why it is refused, None if it is done.

    The errors are those of `reassigned`. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION if the topic is gone,
    KAFKA_STORAGE_ERROR; StorageUnavailableError.
    """
    outcomes: list[KafkaError | None] = []

    def change(row: TopicRow) -> TopicRow:
        assignment, outcomes[:] = reassigned(row, targets, live, factor_may_change=factor_may_change)
        return msgspec.structs.replace(row, assignment=assignment)

    topics.alter(topic, change)
    return outcomes


def reassigned(
    row: TopicRow, targets: Sequence[Target], live: LiveBrokers, *, factor_may_change: bool
) -> tuple[list[list[int]] | None, list[KafkaError | None]]:
    """Return the assignment with all valid targets applied in order, and for each target why it is refused.

    KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS (no move is ever under way),
    INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR (another number of brokers although that may not change).
    Partitions that no target names stay as they are; partitions without fixed leaders stay without.
    """
    lists = [list(partition) for partition in row.assignment or ()]
    outcomes: list[KafkaError | None] = []
    touched = False
    for target in targets:
        try:
            replicas = _valid_replicas(row, target, live)
            if not factor_may_change:
                _check_factor(row.name, target.partition, replicas, lists)
        except KafkaError as error:
            outcomes.append(error.without_frames())
            continue
        lists += [[] for _ in range(target.partition + 1 - len(lists))]
        lists[target.partition] = replicas
        outcomes.append(None)
        touched = True
    return lists if touched else row.assignment, outcomes


def _valid_replicas(row: TopicRow, target: Target, live: LiveBrokers) -> list[int]:
    what = f"{row.name}-{target.partition}"
    if not 0 <= target.partition < row.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {what}")
    if target.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{what} does not move")
    check_replicas(what, target.replicas, {item.broker_id for item in live.all})
    return list(target.replicas)


def _check_factor(name: str, index: int, replicas: list[int], assignment: Assignment) -> None:
    factor = replication_factor(assignment, index)
    if len(replicas) != factor:
        message = f"{name}-{index} is assigned to {factor} brokers, and would be to {len(replicas)}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def replication_factor(assignment: Assignment, index: int) -> int:
    """Return how many brokers a partition is assigned to; 1 if any broker may lead it."""
    return len(assignment[index]) or 1 if assignment and index < len(assignment) else 1


def election_outcome(placed: Placed, *, unclean: bool) -> KafkaError:
    """Return the result of an election for a partition: it never changes a leader.

    ELECTION_NOT_NEEDED: the preferred leader leads, or for an unclean one any broker does.
    PREFERRED_LEADER_NOT_AVAILABLE: the preferred leader is away, and leads again as soon as it is back. Kafka's
    ELIGIBLE_LEADERS_NOT_AVAILABLE cannot occur: the broker that answers can lead (KIP-460).
    """
    if unclean or placed.leader == placed.replicas[0]:
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"broker {placed.leader} leads already")
    message = f"broker {placed.replicas[0]} is not there; it will lead again when it is"
    return KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)


def new_assignment(topic: str, given: NumberedBrokers, live: Collection[int]) -> list[list[int]]:
    """Return the brokers of every partition of a new topic, in order of the partitions' indexes.

    Raises KafkaError INVALID_REPLICA_ASSIGNMENT unless the partitions are 0, 1, 2, ..., and as `check_brokers` does.
    """
    by_index = sorted(given, key=lambda argument: argument[0])
    for (before, _), (index, _) in pairwise(by_index):
        if index == before:
            raise _refused(f"Found multiple assignments for partition {index} of topic '{topic}'.")
    indexes = [index for index, _ in by_index]
    if indexes != list(range(len(indexes))):
        shown = ", ".join(map(str, indexes[:_INDEXES_SHOWN_MAX]))
        shown += ", ..." if len(indexes) > _INDEXES_SHOWN_MAX else ""
        raise _refused(f"The assigned partitions of topic '{topic}' must be 0, 1, 2, ...: there are {shown}.")
    check_brokers(topic, by_index, live)
    return [list(brokers) for _, brokers in by_index]


def check_brokers(
    topic: str, given: NumberedBrokers, live: Collection[int], factor: int | None = None
) -> None:
    """Raise KafkaError INVALID_REPLICA_ASSIGNMENT if brokers do not exist, are named twice, or are none.

    All partitions must have the same number: `factor`, if the topic has partitions already.
    """
    for index, brokers in given:
        what = f"Partition {topic}-{index}"
        check_replicas(what, brokers, live)
        if factor is None:
            factor = len(brokers)
        if len(brokers) != factor:
            raise _refused(f"{what} is assigned to {len(brokers)} brokers, others of the topic to {factor}.")


def check_replicas(what: str, replicas: Sequence[int], live: Collection[int]) -> None:
    """Raise KafkaError INVALID_REPLICA_ASSIGNMENT unless `replicas` are one or more brokers of `live`, each once."""
    if not replicas:
        problem = "to no broker"
    elif len(set(replicas)) != len(replicas):
        problem = f"to a broker twice: {list(replicas)}"
    elif unknown := sorted(set(replicas) - set(live)):
        problem = f"to brokers that are not there, {unknown}: there are {sorted(live)}"
    else:
        return
    raise _refused(f"{what} is assigned {problem}")


def with_partitions(
    row: TopicRow, count: int, brokers: Sequence[Sequence[int]] | None, live: Collection[int]
) -> TopicRow:
    """Return the row of a topic with `count` partitions in all (KIP-195); a topic never loses one.

    `brokers` are those of each new partition, the preferred leader first; None: any, or as many of the `live` ones as
    the topic's other partitions are assigned to. Raises KafkaError: INVALID_PARTITIONS if that is no increase, or more
    than a topic may have; INVALID_REPLICATION_FACTOR if fewer brokers are live; INVALID_REPLICA_ASSIGNMENT if the
    assignments are not one for each new partition, or are not valid.
    """
    if count == row.partitions:
        raise _invalid(f"Topic already has {row.partitions} partition(s).")
    if count < row.partitions:
        message = f"The topic {row.name} currently has {row.partitions} partition(s); {count} would not be an increase."
        raise _invalid(message)
    if count > PARTITIONS_MAX:
        raise _invalid(f"A topic may have {PARTITIONS_MAX} partitions at most, not {count}.")
    assignment = row.assignment
    if brokers is None and assignment and any(assignment):
        brokers = _chosen(row, count, next(len(item) for item in assignment if item), sorted(live))
    if brokers is not None:
        assignment = _extended(row, count - row.partitions, brokers, live)
    return msgspec.structs.replace(row, partitions=count, assignment=assignment)


def _chosen(row: TopicRow, count: int, factor: int, live: Sequence[int]) -> list[list[int]]:
    """Return brokers for each new partition of a topic: its leader, and those that come after it."""
    if factor > len(live):
        message = (
            f"The other partitions of {row.name} are assigned to {factor} brokers each; {len(live)} are live."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    first = [
        live.index(spread_leader)
        for spread_leader in spread_leaders(tuple(live), row.name, count)[row.partitions :]
    ]
    return [[live[(at + n) % len(live)] for n in range(factor)] for at in first]


def _extended(
    row: TopicRow, more: int, brokers: Sequence[Sequence[int]], live: Collection[int]
) -> list[list[int]]:
    if len(brokers) != more:
        raise _refused(f"{more} partition(s) are added, but {len(brokers)} assignment(s) are given.")
    # If any broker may lead, nobody has said yet how many brokers a partition of this topic is for.
    factor = replication_factor(row.assignment, 0) if row.assignment else None
    check_brokers(row.name, list(enumerate(brokers, row.partitions)), live, factor)
    before = [list(partition) for partition in row.assignment or ()]
    before += [[] for _ in range(row.partitions - len(before))]
    return [*before, *(list(broker) for broker in brokers)]


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_PARTITIONS, message)
