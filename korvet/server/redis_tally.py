"""What a process's connections to Redis tell of themselves, added up and handed to prometheus_client with its tally.

Knows the metrics of Redis that a process counts; nothing of connections.
"""

from __future__ import annotations

from collections import Counter

from korvet.server import metrics
from korvet.server.tally import TALLY, Tally
from korvet.storage.observer import Observer


class RedisTally(Observer):
    """The counts of one process."""

    def __init__(self, tally: Tally) -> None:
        """Be flushed with `tally`."""
        self._tally = tally
        # By operation, the seconds of each since the last flush.
        self._trips: dict[str, list[float]] = {}
        self._failures: Counter[tuple[str, str]] = Counter()
        tally.follow(self.flush)

    def round_trip(self, operation: str, seconds: float) -> None:
        """Count one; see Observer."""
        trips = self._trips.get(operation)
        if trips is None:
            trips = self._trips[operation] = []
            self._tally.flush_soon()
        trips.append(seconds)

    def reconnected(self) -> None:
        """Count one; it is rare."""
        metrics.REDIS_RECONNECTS.inc()

    def connect_failed(self) -> None:
        """Count one; pauses make it rare."""
        metrics.REDIS_CONNECT_FAILURES.inc()

    def script_failed(self, script: str, error: str) -> None:
        """Count one; see Observer."""
        self._failures[script, error] += 1
        self._tally.flush_soon()

    def flush(self) -> None:
        """Hand over what was counted since the last time."""
        trips, self._trips = self._trips, {}
        failures, self._failures = self._failures, Counter()
        for operation, seconds in trips.items():
            metrics.REDIS_ROUND_TRIP.labels(operation).add(seconds)
        for (script, error), count in failures.items():
            metrics.SCRIPT_ERRORS.labels(script, error).inc(count)


REDIS_TALLY = RedisTally(TALLY)
"""The process's own."""
