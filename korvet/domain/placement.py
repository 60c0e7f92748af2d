"""Placement: the brokers that partitions are assigned to, how an administrator moves them, and what an election says.

Knows the rules for assignments and elections; nothing of messages. Every broker serves every partition out of the same
Redis, so a move copies nothing: it is done when the topic's row says so, and a leader is never another than the first
live broker of the assignment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from korvet.domain.cluster import LiveBrokers, Placed
from korvet.domain.topics import Assignment, Topic, Topics
from korvet.errors import ErrorCode, KafkaError
from korvet.storage.topic_rows import TopicRow


class Target(NamedTuple):
    """A partition and the brokers that it is to be assigned to, the preferred leader first; None gives up a move."""

    partition: int
    replicas: Sequence[int] | None


class Placement:
    """Moves the partitions of one worker's registry."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def move(
        self, topic: Topic, targets: Sequence[Target], live: LiveBrokers, *, factor_may_change: bool
    ) -> list[KafkaError | None]:
        """Assign partitions of `topic` in one step; returns for each target why it is refused, None where it is done.

        The errors are those of `moved`. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION where the topic is gone,
        KAFKA_STORAGE_ERROR; StorageUnavailableError.
        """
        outcomes: list[KafkaError | None] = []

        def change(row: TopicRow) -> TopicRow:
            assignment, outcomes[:] = moved(row, targets, live, factor_may_change=factor_may_change)
            return msgspec.structs.replace(row, assignment=assignment)

        self._topics.alter(topic, change)
        return outcomes


def moved(
    row: TopicRow, targets: Sequence[Target], live: LiveBrokers, *, factor_may_change: bool
) -> tuple[list[list[int]] | None, list[KafkaError | None]]:
    """Return the assignment with all targets that hold, in their order, and for each why it does not.

    KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS (no move is ever under way),
    INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR (another number of brokers where that must not change).
    Partitions that no target names stay as they are, and those that any broker may lead stay so.
    """
    lists = [list(each) for each in row.assignment or ()]
    outcomes: list[KafkaError | None] = []
    touched = False
    for target in targets:
        try:
            replicas = _checked(row, target, live)
            if not factor_may_change:
                _check_factor(row.name, target.partition, replicas, lists)
        except KafkaError as error:
            outcomes.append(error)
            continue
        lists += [[] for _ in range(target.partition + 1 - len(lists))]
        lists[target.partition] = replicas
        outcomes.append(None)
        touched = True
    return lists if touched else row.assignment, outcomes


def replication_factor(assignment: Assignment, index: int) -> int:
    """Return how many brokers a partition is assigned to; 1 where any broker will do."""
    return len(assignment[index]) or 1 if assignment and index < len(assignment) else 1


def check_replicas(what: str, replicas: Sequence[int], live: Collection[int]) -> None:
    """Raise KafkaError INVALID_REPLICA_ASSIGNMENT unless `replicas` are brokers of `live`, one at least, none twice."""
    if not replicas:
        problem = "to no broker"
    elif len(set(replicas)) != len(replicas):
        problem = f"to a broker twice: {list(replicas)}"
    elif unknown := sorted(set(replicas) - set(live)):
        problem = f"to brokers that are not there, {unknown}: there are {sorted(live)}"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{what} is assigned {problem}")


def election(placed: Placed, *, unclean: bool) -> KafkaError:
    """Return what an election comes to for a partition: it never changes a leader.

    ELECTION_NOT_NEEDED: the preferred leader leads, or for an unclean one anybody does. PREFERRED_LEADER_NOT_AVAILABLE:
    it is away, and leads from the moment on that it is back. Kafka's ELIGIBLE_LEADERS_NOT_AVAILABLE is no outcome: who
    answers this can lead (KIP-460).
    """
    if unclean or placed.leader == placed.replicas[0]:
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"broker {placed.leader} leads already")
    message = f"broker {placed.replicas[0]} is not there; it will lead again when it is"
    return KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)


def _checked(row: TopicRow, target: Target, live: LiveBrokers) -> list[int]:
    what = f"{row.name}-{target.partition}"
    if not 0 <= target.partition < row.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {what}")
    if target.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{what} does not move")
    check_replicas(what, target.replicas, {each.broker_id for each in live.all})
    return list(target.replicas)


def _check_factor(name: str, index: int, replicas: list[int], assignment: Assignment) -> None:
    factor = replication_factor(assignment, index)
    if len(replicas) != factor:
        message = f"{name}-{index} is assigned to {factor} brokers, and would be to {len(replicas)}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
