"""How fast something may go: so many records in a second, whatever they are taken in.

Knows a clock and how to wait; both are arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """Lets records pass evenly, `per_second` of them, or all at once where that is None."""

    def __init__(
        self,
        per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._due = 0.0

    @property
    def at_once(self) -> int | None:
        """How many records to take at once, at the most, so that none of them is much too early."""
        return None if self._per_second is None else max(1, int(self._per_second))

    def take(self, count: int) -> None:
        """Return when `count` more records may pass: when all before them have had their time."""
        if self._per_second is None:
            return
        now = self._clock()
        if self._due > now:
            self._sleep(self._due - now)
        # Time in which nothing passed is not made up for.
        self._due = max(self._due, now) + count / self._per_second
