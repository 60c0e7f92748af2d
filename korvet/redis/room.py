"""Callers that wait until less is in flight to a server, first come first served."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import gevent
from gevent.hub import Waiter, get_hub

from korvet.errors import StorageUnavailableError

T = TypeVar("T")


class RoomQueue:
    """Those who found no room. The oldest tries again whenever it is woken."""

    def __init__(self) -> None:
        self.callers: deque[Waiter[None]] = deque()

    def in_turn(self, attempt: Callable[[], T | None], deadline: float) -> T:
        """Return what `attempt` returns once this caller is the oldest and there is room, which None denies.

        Raises what `attempt` raises, and StorageUnavailableError at the deadline (time.monotonic).
        """
        turn: Waiter[None] = Waiter()
        self.callers.append(turn)
        error = StorageUnavailableError("too much is in flight to Redis: timed out before anything was sent")
        try:
            while self.callers[0] is not turn or (result := attempt()) is None:
                with gevent.Timeout(max(deadline - time.monotonic(), 0.001), error):
                    turn.get()
                turn.clear()
            return result
        finally:
            self.callers.remove(turn)
            self.wake()

    def wake(self) -> None:
        """Let the oldest try again, since there may be room."""
        if self.callers:
            get_hub().loop.run_callback(self.callers[0].switch, None)
