"""How far each log is archived, and where it starts in the remote tier, as the state in Redis knows both.

The tables of the lake are the truth, and the state follows them: so brokers need not read the tables before every
fetch, and trimming never passes what is archived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.errors import KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.replies import parsed
from korvet.topics.types import Partition

_MIRROR = scripts.get("lake/mirror")
_EXPIRE = scripts.get("lake/expire")

NOT_ARCHIVED = -1


class Archived(NamedTuple):
    """The remote tier holds all of the log from `first_offset` up to `next_offset` (exclusive)."""

    partition: Partition
    next_offset: int
    first_offset: int


class Mirrored(NamedTuple):
    """How far a partition is archived, and where its log starts in the remote tier, as Redis knows both now."""

    next_offset: int
    start: int


class RemoteOffsetStore:
    """Writes both offsets; every method raises StorageUnavailableError while Redis is away."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def mirror(self, archived: Sequence[Archived]) -> list[Mirrored | KafkaError]:
        """Record how far partitions are archived, after the commit in the lake; all in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION (deleted, or another incarnation), OFFSET_OUT_OF_RANGE
        (past the end of the log), KAFKA_STORAGE_ERROR.
        """
        replies = self._redis.scripts(
            [
                (_MIRROR, (partition.state,), (partition.topic_id, next_offset, first_offset))
                for partition, next_offset, first_offset in archived
            ]
        )
        what = "the answer of lake/mirror"
        return [
            parsed(position.partition.state, what, reply, lambda r: Mirrored(int(r[0]), int(r[1])))
            for position, reply in zip(archived, replies, strict=True)
        ]

    def expire(self, starts: Sequence[tuple[Partition, int]]) -> list[int | KafkaError]:
        """Start logs at these offsets in the remote tier, unless they start there or later already; one round trip.

        Returns where each starts there now, NOT_ARCHIVED if it is not archived. In the answers KafkaError as from
        `mirror`.
        """
        replies = self._redis.scripts(
            [(_EXPIRE, (partition.state,), (partition.topic_id, offset)) for partition, offset in starts]
        )
        what = "the answer of lake/expire"
        return [
            parsed(partition.state, what, reply, int)
            for (partition, _), reply in zip(starts, replies, strict=True)
        ]
