"""The failed appends of a worker: counted by error, and logged as outages that begin and end."""

from __future__ import annotations

from collections.abc import Mapping

from korvet.clock import CLOCK, Clock
from korvet.errors import ErrorCode
from korvet.logs import Log
from korvet.telemetry import metrics

_log = Log(__name__)

QUIET_SECONDS = 5.0
"""Time without a failure after which a success ends an outage: near a limit some batches fit, and some do not."""


class Failures:
    """The failed appends of one worker."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._began: float | None = None
        self._last = 0.0
        self._failed = 0

    def note(self, counts: Mapping[ErrorCode, int], away: int, reason: str, *, succeeds: bool) -> None:
        """Note how many batches have failed, by error, and for how many of them Redis was away, slow or full, and why.

        `succeeds`: some requests had no failure.
        """
        for error, count in counts.items():
            metrics.PRODUCE_ERRORS.labels(error.name).inc(count)
            metrics.PRODUCE_ERROR_TIME.labels(error.name).set_to_current_time()
        if away:
            self._last = self._clock.monotonic()
            self._failed += away
            if self._began is None:
                self._began = self._last
                _log.error("appends fail", reason=reason)
        elif succeeds and self._began is not None:
            self._end(self._began)

    def _end(self, began: float) -> None:
        now = self._clock.monotonic()
        if now - self._last >= QUIET_SECONDS:
            _log.info("appends succeed again", failed=self._failed, seconds=round(self._last - began, 3))
            self._began, self._failed = None, 0
