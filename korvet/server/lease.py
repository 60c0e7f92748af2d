"""The lease that makes one keeper the acting one, of all that share a Redis.

Knows the lease's script, the clock and the fencing token; nothing of what an acting keeper does.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from korvet import logs
from korvet.server import metrics
from korvet.storage.keeper_store import KeeperStore

_log = logs.Log(__name__)


class LeaseLostError(Exception):
    """The task must stop: another keeper may be acting."""


class Lease:
    """This process's claim to be the acting keeper."""

    def __init__(
        self,
        store: KeeperStore,
        broker_id: int,
        ttl_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.token: int | None = None
        """The fencing token of the present holding, None while there is none."""
        self._store = store
        self._ttl_ms = ttl_ms
        self._clock = clock
        # Whoever reads the lease sees whose keeper acts; two keepers of one broker are told apart all the same.
        self._holder = f"{broker_id}:{uuid.uuid4().hex}"
        self._until = 0.0

    def renew(self) -> bool:
        """Take or keep the lease; returns whether it is held. Raises StorageUnavailableError."""
        # Counted from before the question: Redis starts the time to live later than that, never earlier.
        asked = self._clock()
        token = self._store.hold(self._holder, self._ttl_ms)
        if token is not None:
            self._until = asked + self._ttl_ms / 1000
        if token != self.token:
            if token is not None:
                metrics.KEEPER_LEASES.inc()
            self.token = token
            metrics.KEEPER_LEADER.set(int(token is not None))
            _log.info("lease", held=token is not None, token=token)
        return token is not None

    @property
    def held(self) -> bool:
        """Whether no other keeper can hold the lease now."""
        return self.token is not None and self._clock() < self._until

    def check(self, token: int) -> None:
        """Raise LeaseLostError unless the lease is still the one that came with `token`."""
        if self.token != token or not self.held:
            raise LeaseLostError

    def give_up(self) -> None:
        """Let another keeper act at once. Raises StorageUnavailableError."""
        if self.token is not None:
            self.token = None
            self._store.give_up(self._holder)
