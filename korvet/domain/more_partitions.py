"""More partitions for a topic that is there (KIP-195): how many, and which brokers they are for.

Knows Kafka's rules for CreatePartitions; nothing of messages. A topic never loses a partition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from korvet.domain.assignments import check_brokers
from korvet.domain.placement import replication_factor
from korvet.domain.topics import PARTITIONS_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.storage.topic_rows import TopicRow

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
