"""Warnings that would come with every request while something is away: one of each kind in a while, and a count.

Knows the clock; nothing of what is told. What is left out is counted in the next line of its kind; who wants to know
each is to count it as a metric.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from korvet.logs import Log

PAUSE_SECONDS = 10.0
"""Without a line of a kind for so long after one: a thousand consumers that try again are one event, not a thousand."""


class Seldom:
    """The warnings of one log that are worth a line now and again."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._told: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warning(self, kind: str, event: str, /, **fields: object) -> None:
        """Write a line, unless one of this `kind` was written less than PAUSE_SECONDS ago; kinds must be few."""
        now = self._clock()
        if now - self._told.get(kind, now - PAUSE_SECONDS) < PAUSE_SECONDS:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._told[kind] = now
        left_out = self._left_out.pop(kind, 0)
        if left_out:
            fields["left_out_before"] = left_out
        self._log.warning(event, **fields)
