"""Requests and round trips to Redis, counted in plain numbers and handed to prometheus_client a few times a second.

A counter of prometheus_client's multiprocess mode lies in a memory-mapped file and costs one or two microseconds each
time: the seven of a request would cost more than decoding it. The values in /metrics are at most FLUSH_SECONDS old,
and nothing runs while there are no requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Protocol

from korvet.clock import CLOCK, Clock
from korvet.redis.observer import Observer
from korvet.telemetry import metrics
from korvet.telemetry.request_timer import STAGES

FLUSH_SECONDS = 0.1


class _Answers:
    """The answers of one API since the last flush: how long each took, and its stages if these are known."""

    __slots__ = ("by_error", "seconds", "stages")

    def __init__(self) -> None:
        self.by_error: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.stages: list[Sequence[float]] = []


class CountSource(Protocol):
    """Counts that are kept elsewhere and handed over with those of requests."""

    def flush(self) -> bool:
        """Hand over what was counted; returns False if there must be another flush soon."""


class RequestMetrics(Observer):
    """The requests of one process, and its round trips to Redis."""

    def __init__(self, *, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self.others: list[CountSource] = []
        """What each flush begins with."""
        self._parked: Counter[str] = Counter()
        self._answers: dict[str, _Answers] = defaultdict(_Answers)
        # By operation, the seconds of each since the last flush.
        self._trips: dict[str, list[float]] = defaultdict(list)
        self._failures: Counter[tuple[str, str]] = Counter()
        self._received = self._sent = self._in_flight = 0
        self._due = False

    def begun(self, size_bytes: int) -> None:
        """Count a request of this size that has arrived and is now in progress."""
        self._received += size_bytes
        self._in_flight += 1
        if not self._due:
            self.flush_soon()

    def ended(self) -> None:
        self._in_flight -= 1
        if not self._due:
            self.flush_soon()

    def served(self, begun: int, received_bytes: int, ended: int, sent_bytes: int) -> None:
        """Count requests that have begun or ended without `begun` and `ended`, and the bytes of their responses."""
        self._received += received_bytes
        self._sent += sent_bytes
        self._in_flight += begun - ended

    def parked(self, api: str, change: int) -> None:
        """Count a request that waits (1), or no longer does (-1)."""
        self._parked[api] += change
        self.flush_soon()

    def answered(self, api: str, error: str, seconds: float, stages: Sequence[float] = ()) -> None:
        answers = self._answers[api]
        answers.by_error[error] += 1
        answers.seconds.append(seconds)
        if stages:
            answers.stages.append(stages)

    def sent(self, size_bytes: int) -> None:
        self._sent += size_bytes

    def round_trip(self, operation: str, seconds: float) -> None:
        self._trips[operation].append(seconds)
        if not self._due:
            self.flush_soon()

    def reconnected(self) -> None:
        """Count a reconnect, at once since it is rare."""
        metrics.REDIS_RECONNECTS.inc()

    def connect_failed(self) -> None:
        """Count a failed connect, at once: back-off makes it rare."""
        metrics.REDIS_CONNECT_FAILURES.inc()

    def script_failed(self, script: str, error: str) -> None:
        self._failures[script, error] += 1
        self.flush_soon()

    def flush(self) -> None:
        self._due = False
        for counts in self.others:
            if not counts.flush():
                self.flush_soon()
        answers, self._answers = self._answers, defaultdict(_Answers)
        trips, self._trips = self._trips, defaultdict(list)
        failures, self._failures = self._failures, Counter()
        received, self._received = self._received, 0
        sent, self._sent = self._sent, 0
        for api, count in self._parked.items():
            metrics.REQUESTS_PARKED.labels(api).set(count)
        for api, of_api in answers.items():
            # Stages that a request did not have are 0, and no observation.
            for stage, column in zip(STAGES, zip(*of_api.stages, strict=True), strict=False):
                if seconds := list(filter(None, column)):
                    metrics.STAGE_DURATION.labels(api, stage).add(seconds)
            metrics.REQUEST_DURATION.labels(api).add(of_api.seconds)
            for error, count in of_api.by_error.items():
                metrics.REQUESTS.labels(api, error).inc(count)
        for operation, seconds in trips.items():
            metrics.REDIS_ROUND_TRIP.labels(operation).add(seconds)
        for (script, error), count in failures.items():
            metrics.SCRIPT_ERRORS.labels(script, error).inc(count)
        metrics.RECEIVED_BYTES.inc(received)
        metrics.SENT_BYTES.inc(sent)
        metrics.REQUESTS_IN_FLIGHT.set(self._in_flight)

    def flush_soon(self) -> None:
        """Flush within FLUSH_SECONDS."""
        if not self._due:
            self._due = True
            self._clock.spawn_later(FLUSH_SECONDS, self.flush)


REQUEST_METRICS = RequestMetrics()
"""Those of this process."""
