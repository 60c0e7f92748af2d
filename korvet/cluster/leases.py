"""The script of a lease: of several processes that may do something, the one that does it.

Knows the script and its replies; nothing of what is done under the lease.

The keeper's own scripts: the lease that lets one keeper act, and the expiry of silent producers.

Knows those scripts and their replies; nothing of when they run or what else a keeper does.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.log.types import Partition
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import Reply

_LEASE = scripts.get("keeper/lease")


class LeaseStore:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis, lease: str, fence: str) -> None:
        """`lease` and `fence` are the keys: of the holder, and of the counter of tokens."""
        self._redis = redis
        self._keys = (lease, fence)

    def hold(self, holder: str, ttl_ms: int) -> int | None:
        """Take or renew the lease for `ttl_ms`; returns the fencing token, None while another one holds it."""
        reply = self._redis.script(_LEASE, self._keys, (holder, ttl_ms))
        match reply:
            case [1, bytes() as token] if token.isdigit():
                return int(token)
            case [0, _]:
                return None
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"keeper/lease: Redis answered {reply!r}")

    def give_up(self, holder: str) -> None:
        """End the lease if it is `holder`'s, so that another one need not wait for its time to run out."""
        self._redis.script(_LEASE, self._keys, (holder, 0))


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
