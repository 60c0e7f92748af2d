"""Assignments of partitions that are to be made: which brokers an administrator may say they are for.

Knows Kafka's rules for them; nothing of messages or of partitions that are there already, which placement.py moves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from korvet.domain.placement import check_replicas
from korvet.errors import ErrorCode, KafkaError

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
