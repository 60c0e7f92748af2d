"""Pauses between attempts, and between restarts of what ended. Pure: it knows no clock and no process."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double from failure to failure, up to a limit."""

    def __init__(
        self, *, first_s: float = 0.1, max_s: float = 10.0, jitter: float = 0.0, lived_s: float = 0.5
    ) -> None:
        """`jitter` is the share by which pauses differ, `lived_s` how long a run must be to be no crash loop."""
        self.failures = 0
        self._first_s, self._max_s, self._jitter, self._lived_s = first_s, max_s, jitter, lived_s

    def next_s(self) -> float:
        """Count a failure and return the pause after it."""
        # The exponent is bounded too: a loop of a week must not compute 2 to the ten thousandth.
        pause_s = min(self._max_s, self._first_s * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return pause_s * random.uniform(1 - self._jitter, 1 + self._jitter)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self.failures = 0

    def delay_s(self, worked_s: float) -> float:
        """Return the pause before a restart after `worked_s` seconds of work (0.0: it never began)."""
        if worked_s >= self._lived_s:
            self.reset()
            return 0.0
        return self.next_s()
