"""Leases: of several processes that may do a task, the one that does it."""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis

_LEASE = scripts.get("keeper/lease")


class LeaseStore:
    """One lease. Every method raises StorageUnavailableError if Redis is away."""

    def __init__(self, redis: Redis, lease: str, fence: str) -> None:
        """`lease` and `fence` are the keys: of the holder, and of the counter of tokens."""
        self._redis = redis
        self._keys = (lease, fence)

    def acquire(self, holder: str, ttl_ms: int) -> int | None:
        """Take or renew the lease for `ttl_ms`; returns the fencing token, None while another one holds it."""
        reply = self._redis.script(_LEASE, self._keys, (holder, ttl_ms))
        match reply:
            case [1, bytes() as token] if token.isdigit():
                return int(token)
            case [0, _]:
                return None
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"keeper/lease: Redis answered {reply!r}")

    def release(self, holder: str) -> None:
        """End the lease if it is `holder`'s, so that another one need not wait for its time to run out."""
        self._redis.script(_LEASE, self._keys, (holder, 0))
