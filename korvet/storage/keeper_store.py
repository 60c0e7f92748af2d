"""The keeper's own scripts: the lease that lets one keeper act, and the expiry of silent producers.

Knows those scripts and their replies; nothing of when they run or what else a keeper does.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.storage import scripts
from korvet.storage.keys import Keys
from korvet.storage.log_types import Partition
from korvet.storage.replies import Reply
from korvet.storage.resp import Redis

_LEASE = scripts.get("keeper/lease")
_EXPIRE = scripts.get("producer/expire")
_ROWS_PER_STEP = 500


class KeeperStore:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._lease_keys = (keys.keeper_lease, keys.keeper_fence)

    def hold(self, holder: str, ttl_ms: int) -> int | None:
        """Take or renew the lease for `ttl_ms`; returns the fencing token, None while another keeper holds it."""
        reply = self._redis.script(_LEASE, self._lease_keys, (holder, ttl_ms))
        match reply:
            case [1, bytes() as token] if token.isdigit():
                return int(token)
            case [0, _]:
                return None
        raise _malformed("keeper/lease", reply)

    def give_up(self, holder: str) -> None:
        """End the lease if it is `holder`'s, so that another keeper need not wait for its time to run out."""
        self._redis.script(_LEASE, self._lease_keys, (holder, 0))

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
