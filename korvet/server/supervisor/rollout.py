"""A rollout: one slot after another gets a child with the settings of now, while the child before goes on serving.

The successor is started first, and only when it is ready does its predecessor get SIGTERM: at every moment as many
workers accept connections as before. The first successor that fails ends the rollout.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterable

from korvet.server.supervisor.process_pool import Child, ProcessPool, Slot

# Imports and a connection to Redis take well under a second; beyond this the successor hangs.
_READY_SECONDS_MAX = 30.0


class Rollout:
    """One pass over `slots`, from `start` until `done`; then `failure` says why it ended early, "" if it did not."""

    def __init__(self, pool: ProcessPool, slots: Iterable[Slot]) -> None:
        self.done = False
        self.failure = ""
        self.replaced: list[Slot] = []
        self.deadline: float | None = None
        """When a successor that is not ready counts as failed, in monotonic seconds."""
        self._pool = pool
        self._waiting = deque(slots)
        self._slot: Slot | None = None
        self._successor: Child | None = None

    def start(self) -> None:
        self._successor = self.deadline = None
        if not self._waiting:
            self.done = True
            return
        self._slot = self._waiting.popleft()
        self._successor = self._pool.start(self._slot)
        if self._successor is None:
            self._fail("cannot start a process")
        else:
            self.deadline = time.monotonic() + _READY_SECONDS_MAX

    def on_ready(self, child: Child) -> None:
        """Go on if `child` is the successor."""
        slot = self._slot
        if child is not self._successor or slot is None:
            return
        predecessor = slot.child
        # A predecessor that died meanwhile is replaced by this child: start no other.
        self._pool.assign(slot, child)
        self.replaced.append(slot)
        self._pool.retire(predecessor)
        self.start()

    def on_exit(self, child: Child, how: str) -> bool:
        """Fail if `child` is the successor; returns whether it is."""
        if child is not self._successor:
            return False
        self._fail(how)
        return True

    def act_on_deadline(self) -> None:
        """Kill a successor that is not ready in time: its end is then the rollout's failure."""
        if self._successor and self.deadline is not None and self.deadline <= time.monotonic():
            self.deadline = None
            self._pool.send(self._successor, signal.SIGKILL)

    def _fail(self, how: str) -> None:
        self._successor = self.deadline = None
        self.failure, self.done = how, True
