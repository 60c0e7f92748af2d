"""Placement: the brokers that partitions are assigned to, how an administrator moves them, and what an election says.

Knows the rules for assignments and elections; nothing of messages. Every broker serves every partition out of the same
Redis, so a move copies nothing: it is done when the topic's row says so, and a leader is never another than the first
live broker of the assignment.

Assignments of partitions that are to be made: which brokers an administrator may say they are for.

Knows Kafka's rules for them; nothing of messages or of partitions that are there already, which placement.py moves.

More partitions for a topic that is there (KIP-195): how many, and which brokers they are for.

Knows Kafka's rules for CreatePartitions; nothing of messages. A topic never loses a partition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from korvet.cluster.brokers import LiveBrokers, Placed
from korvet.errors import ErrorCode, KafkaError
from korvet.topics.registry import PARTITIONS_MAX, Assignment, Topic, Topics
from korvet.topics.types import TopicRow


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


Numbered = Sequence[tuple[int, Sequence[int]]]
"""Partitions by their index, each with its brokers, the preferred leader first."""


def in_order(topic: str, given: Numbered, live: Collection[int]) -> list[list[int]]:
    """Return the brokers of every partition of a new topic, in order of the partitions' indexes.

    Raises KafkaError INVALID_REPLICA_ASSIGNMENT unless the partitions are 0, 1, 2, ..., and as `check_brokers` does.
    """
    by_index = sorted(given, key=lambda each: each[0])
    for (before, _), (index, _) in pairwise(by_index):
        if index == before:
            raise _refused(f"Found multiple assignments for partition {index} of topic '{topic}'.")
    if [index for index, _ in by_index] != list(range(len(by_index))):
        indexes = _some([index for index, _ in by_index])
        raise _refused(
            f"The assigned partitions of topic '{topic}' must be 0, 1, 2, ...: there are {indexes}."
        )
    check_brokers(topic, by_index, live)
    return [list(brokers) for _, brokers in by_index]


def check_brokers(topic: str, given: Numbered, live: Collection[int], factor: int | None = None) -> None:
    """Raise KafkaError INVALID_REPLICA_ASSIGNMENT where brokers do not exist, are named twice, or are none.

    All partitions must have as many: `factor`, that of partitions which are there already, where it is given.
    """
    for index, brokers in given:
        what = f"Partition {topic}-{index}"
        check_replicas(what, brokers, live)
        if factor is None:
            factor = len(brokers)
        if len(brokers) != factor:
            raise _refused(f"{what} is assigned to {len(brokers)} brokers, others of the topic to {factor}.")


def _some(indexes: list[int], most: int = 20) -> str:
    """Return indexes as text, of very many the first ones."""
    text = ", ".join(map(str, indexes[:most]))
    return f"{text}, ..." if len(indexes) > most else text


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


Brokers = Sequence[Sequence[int]] | None
"""For each new partition, in order, the brokers that it is for, the preferred leader first; None: any."""


def grown(row: TopicRow, count: int, brokers: Brokers, live: Collection[int]) -> TopicRow:
    """Return the row of a topic with `count` partitions in all; `live` are the brokers that there are.

    Raises KafkaError: INVALID_PARTITIONS where that is no increase, or more than a topic may have;
    INVALID_REPLICA_ASSIGNMENT where the assignments are not one for each new partition, or do not hold.
    """
    if count == row.partitions:
        raise _invalid(f"Topic already has {row.partitions} partition(s).")
    if count < row.partitions:
        message = f"The topic {row.name} currently has {row.partitions} partition(s); {count} would not be an increase."
        raise _invalid(message)
    if count > PARTITIONS_MAX:
        raise _invalid(f"A topic may have {PARTITIONS_MAX} partitions at most, not {count}.")
    assignment = row.assignment
    if brokers is not None:
        assignment = _extended(row, count - row.partitions, brokers, live)
    return msgspec.structs.replace(row, partitions=count, assignment=assignment)


def _extended(
    row: TopicRow, more: int, brokers: Sequence[Sequence[int]], live: Collection[int]
) -> list[list[int]]:
    if len(brokers) != more:
        message = f"There are to be {more} more partition(s), but {len(brokers)} assignment(s) are given."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    # Where any broker leads, nobody has said yet how many brokers a partition of this topic is for.
    factor = replication_factor(row.assignment, 0) if row.assignment else None
    check_brokers(row.name, list(enumerate(brokers, row.partitions)), live, factor)
    before = [list(each) for each in row.assignment or ()]
    before += [[] for _ in range(row.partitions - len(before))]
    return [*before, *(list(each) for each in brokers)]


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_PARTITIONS, message)
