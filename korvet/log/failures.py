"""The failed appends of a worker: counted by error, and logged as outages that begin and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from korvet.errors import ErrorCode
from korvet.logs import Log

_log = Log(__name__)

QUIET_SECONDS = 5.0
"""Time without a failure after which a success ends an outage: near a limit some batches fit, and some do not."""


class Failures:
    """The failed appends of one worker. `count` is called with the name of an error, and how many batches had it."""

    def __init__(
        self,
        count: Callable[[str, int], None] = lambda _error, _count: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._clock = count, clock
        self._began: float | None = None
        self._last = 0.0
        self._failed = 0

    def note(self, counts: Mapping[ErrorCode, int], away: int, reason: str, *, succeeds: bool) -> None:
        """Note how many batches have failed, by error, and for how many of them Redis was away, slow or full, and why.

        `succeeds`: some requests had no failure.
        """
        for error, count in counts.items():
            self._count(error.name, count)
        if away:
            self._last = self._clock()
            self._failed += away
            if self._began is None:
                self._began = self._last
                _log.error("appends fail", reason=reason)
        elif succeeds and self._began is not None:
            self._end(self._began)

    def _end(self, began: float) -> None:
        now = self._clock()
        if now - self._last >= QUIET_SECONDS:
            _log.info("appends succeed again", failed=self._failed, seconds=round(self._last - began, 3))
            self._began, self._failed = None, 0
