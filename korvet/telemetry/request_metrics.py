"""What is counted for every request, added up in plain numbers and handed to prometheus_client a few times a second.

Knows the metrics of requests; nothing of who scrapes them. A counter of prometheus_client's multiprocess mode lies in a
memory-mapped file and costs one or two microseconds each time, the seven of a request more than decoding it. What is
shown is at most FLUSH_SECONDS old, and nothing runs while nobody asks anything.

What a process's connections to Redis tell of themselves, added up and handed to prometheus_client with its tally.

Knows the metrics of Redis that a process counts; nothing of connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gevent.hub import get_hub

from korvet.redis.connection import Observer
from korvet.telemetry import metrics
from korvet.telemetry.request_timer import STAGES

FLUSH_SECONDS = 0.1


class _Answers:
    """The answers of one API since the last flush: how long each took, and its stages where these are known."""

    __slots__ = ("by_error", "seconds", "stages")

    def __init__(self) -> None:
        self.by_error: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.stages: list[Sequence[float]] = []


class RequestMetrics:
    """The counts of one process."""

    __slots__ = ("_answers", "_due", "_followers", "_in_flight", "_parked", "_received", "_sent", "_timer")

    def __init__(self) -> None:
        self._followers: list[Callable[[], object]] = []
        self._parked: Counter[str] = Counter()
        self._answers: dict[str, _Answers] = {}
        self._received = self._sent = self._in_flight = 0
        self._due = False
        self._timer: object = None

    def follow(self, flush: Callable[[], object]) -> None:
        """Call `flush` at each flush, before what is counted here is handed over; it may ask for another."""
        self._followers.append(flush)

    def begun(self, size_bytes: int) -> None:
        """Count a request that has arrived with so many bytes, and is served from now on."""
        self._received += size_bytes
        self._in_flight += 1
        self.flush_soon()

    def ended(self) -> None:
        """Count that a request is served no longer."""
        self._in_flight -= 1
        self.flush_soon()

    def parked(self, api: str, change: int) -> None:
        """Count requests that wait for others from now on (1), or do so no longer (-1)."""
        self._parked[api] += change
        self.flush_soon()

    def answered(self, api: str, error: str, seconds: float, stages: Sequence[float] = ()) -> None:
        """Count the answer to a request that took so long, and how long each of its stages took."""
        answers = self._answers.get(api)
        if answers is None:
            answers = self._answers[api] = _Answers()
        answers.by_error[error] += 1
        answers.seconds.append(seconds)
        if stages:
            answers.stages.append(stages)

    def sent(self, size_bytes: int) -> None:
        """Count bytes of answers."""
        self._sent += size_bytes

    def flush(self) -> None:
        """Hand over what was counted since the last time."""
        self._due = False
        for each in self._followers:
            each()
        answers, self._answers = self._answers, {}
        received, self._received = self._received, 0
        sent, self._sent = self._sent, 0
        for api, count in self._parked.items():
            metrics.REQUESTS_PARKED.labels(api).set(count)
        for api, of_api in answers.items():
            # Those that a request did not have are 0, and no observation.
            for stage, column in zip(STAGES, zip(*of_api.stages, strict=True), strict=False):
                if seconds := list(filter(None, column)):
                    metrics.STAGE_DURATION.labels(api, stage).add(seconds)
            metrics.REQUEST_DURATION.labels(api).add(of_api.seconds)
            for error, count in of_api.by_error.items():
                metrics.REQUESTS.labels(api, error).inc(count)
        metrics.RECEIVED_BYTES.inc(received)
        metrics.SENT_BYTES.inc(sent)
        metrics.REQUESTS_IN_FLIGHT.set(self._in_flight)

    def flush_soon(self) -> None:
        """Have what was counted handed over within FLUSH_SECONDS."""
        if not self._due:
            self._due = True
            self._timer = timer = get_hub().loop.timer(FLUSH_SECONDS)
            timer.start(self.flush)


REQUEST_METRICS = RequestMetrics()
"""The process's own."""


class RedisMetrics(Observer):
    """The counts of one process."""

    def __init__(self, tally: RequestMetrics) -> None:
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


REDIS_METRICS = RedisMetrics(REQUEST_METRICS)
"""The process's own."""
