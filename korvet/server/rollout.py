"""A reload in progress: which workers are replaced, which one is next, and what to go back to when one fails.

Knows seats and children as names on a list; starts and ends nothing itself. A seat's successor is started first, and
only when it is ready does the one before it get its SIGTERM: at every moment as many workers accept as before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from korvet.config import Settings
from korvet.server.children import Child, Seat

# Imports and a connection to Redis take well under a second; beyond this the successor hangs.
_READY_SECONDS_MAX = 30.0


class Rollout:
    """One pass over the workers' seats; `previous` are the settings to go back to, None when this is going back."""

    def __init__(self, seats: Iterable[Seat], previous: Settings | None) -> None:
        self.previous = previous
        self.replaced: list[Seat] = []
        self.successor: Child | None = None
        self.deadline: float | None = None
        """When a successor that is not ready counts as failed, in monotonic seconds."""
        self._waiting = deque(seats)
        self._seat: Seat | None = None

    def next_seat(self) -> Seat | None:
        """Return the seat whose child is to be replaced now, None after the last."""
        return self._waiting.popleft() if self._waiting else None

    def begin(self, seat: Seat, successor: Child) -> None:
        """Note that `successor` was started for `seat`."""
        self._seat, self.successor = seat, successor
        self.deadline = time.monotonic() + _READY_SECONDS_MAX

    def succeed(self) -> Child | None:
        """Give the seat to its successor, which is ready; returns the child that is to end, if it still lives."""
        seat, successor = self._seat, self.successor
        if seat is None or successor is None:
            return None
        before = seat.child
        # A child that died meanwhile is replaced by this one: nobody else is to be started.
        seat.child, seat.respawn_at = successor, None
        self.replaced.append(seat)
        self._seat = self.successor = self.deadline = None
        return before
