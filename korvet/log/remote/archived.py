"""What Redis knows of the lake: how far each partition is archived, and where its log starts there.

Knows the scripts under lua/lake; nothing of tables. The lake is what is true: the state in Redis follows it, so that
brokers need not look there before every fetch, and trimming never passes what is archived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.errors import KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.replies import Reply, RespError, malformed, refused
from korvet.redis.scripts import Script
from korvet.topics.types import Partition

_MIRROR = scripts.get("lake/mirror")
_EXPIRE = scripts.get("lake/expire")

NOT_ARCHIVED = -1


class Archived(NamedTuple):
    """All below `next_offset` is in the lake, which holds nothing of the log below `first_offset`."""

    partition: Partition
    next_offset: int
    first_offset: int


class Mirrored(NamedTuple):
    """How far a partition is archived, and where its log starts in the lake, as Redis knows both now."""

    next_offset: int
    start: int


class RemoteOffsetStore:
    """Writes what is known of the lake; every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def mirror(self, archived: Sequence[Archived]) -> list[Mirrored | KafkaError]:
        """Say how far partitions are archived, behind the commit in the lake; all in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION (deleted, or another incarnation), OFFSET_OUT_OF_RANGE
        (behind the end of the log), KAFKA_STORAGE_ERROR.
        """
        calls: list[tuple[Script, tuple[str, ...], list[Arg]]] = [
            (_MIRROR, (each.partition.state,), [each.partition.topic_id, each.next_offset, each.first_offset])
            for each in archived
        ]
        replies = self._redis.scripts(calls)
        return [_mirrored(each.partition, reply) for each, reply in zip(archived, replies, strict=True)]

    def expire(self, starts: Sequence[tuple[Partition, int]]) -> list[int | KafkaError]:
        """Let logs start at these offsets in the lake, unless they start there or behind already; one round trip.

        Returns where each starts there now, NOT_ARCHIVED where nothing of it is in the lake. In the answers KafkaError
        as from `mirror`.
        """
        calls: list[tuple[Script, tuple[str, ...], list[Arg]]] = [
            (_EXPIRE, (partition.state,), [partition.topic_id, offset]) for partition, offset in starts
        ]
        replies = self._redis.scripts(calls)
        return [_offset(partition, reply) for (partition, _), reply in zip(starts, replies, strict=True)]


def _mirrored(partition: Partition, reply: Reply) -> Mirrored | KafkaError:
    if isinstance(reply, KafkaError):
        return reply
    if isinstance(reply, RespError):
        return refused(partition.state, reply)
    match reply:
        case [bytes() as archived, bytes() as start] if archived.isdigit() and start.isdigit():
            return Mirrored(int(archived), int(start))
    return malformed(partition.state, "the answer of lake/mirror")


def _offset(partition: Partition, reply: Reply) -> int | KafkaError:
    if isinstance(reply, KafkaError):
        return reply
    if isinstance(reply, RespError):
        return refused(partition.state, reply)
    match reply:
        case bytes() as start if start == b"-1" or start.isdigit():
            return int(start)
    return malformed(partition.state, "the answer of lake/expire")
