"""Until when a question may take, and the pauses between its tries."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

_PAUSE_FIRST = 0.05
_PAUSE_MAX = 1.0

_BROKER_SECONDS_MAX = 10.0
"""What a broker may take for one try: it says itself that it was too long before it is taken for one that hangs."""


class Deadline:
    """A moment `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left, not below 0."""
        return max(0.0, self._end - time.monotonic())

    def broker_ms(self) -> int:
        """Return how many milliseconds to give a broker for what it is asked now."""
        return int(min(self.left(), _BROKER_SECONDS_MAX) * 1000)

    def tries(self) -> Iterator[int]:
        """Yield 0, 1, 2, ...: at least once, then after pauses that grow, as long as the time allows."""
        pause = _PAUSE_FIRST
        number = 0
        while True:
            yield number
            # Clients that lost the same broker are not to come back in step.
            wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - no cryptography
            if wait >= self.left():
                return
            time.sleep(wait)
            pause = min(pause * 2, _PAUSE_MAX)
            number += 1
