"""The keeper's own scripts: the lease that lets one keeper act, and the expiry of silent producers.

Knows those scripts and their replies; nothing of when they run or what else a keeper does.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.storage import scripts
from korvet.storage.keys import Keys
from korvet.storage.lease_store import LeaseStore
from korvet.storage.log_types import Partition
from korvet.storage.replies import Reply
from korvet.storage.resp import Redis

_EXPIRE = scripts.get("producer/expire")
_ROWS_PER_STEP = 500


class KeeperStore(LeaseStore):
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        super().__init__(redis, keys.keeper_lease, keys.keeper_fence)
        self._redis = redis

    def expire_producers(
        self, cursors: Sequence[tuple[Partition, str]], silence_ms: int
    ) -> list[tuple[str, int] | KafkaError]:
        """Do one step for each partition from its cursor ("0" begins), all in one round trip.

        Returns the next cursor ("0": done) and how many producers were forgotten, or what is wrong with the key.
        """
        calls = [
            (_EXPIRE, (partition.producers,), (cursor, _ROWS_PER_STEP, silence_ms))
            for partition, cursor in cursors
        ]
        replies = self._redis.scripts(calls)
        return [_step(partition, reply) for (partition, _), reply in zip(cursors, replies, strict=True)]


def _step(partition: Partition, reply: Reply) -> tuple[str, int] | KafkaError:
    match reply:
        case [bytes() as cursor, int() as removed] if cursor.isdigit():
            return cursor.decode(), removed
    return _malformed(partition.producers, reply)


def _malformed(what: str, reply: Reply) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: Redis answered {reply!r}")
