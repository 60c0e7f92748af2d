"""What is counted for every request, added up in plain numbers and handed to prometheus_client a few times a second.

Knows the metrics of requests; nothing of who scrapes them. A counter of prometheus_client's multiprocess mode lies in a
memory-mapped file and costs one or two microseconds each time, the seven of a request more than decoding it. What is
shown is at most FLUSH_SECONDS old, and nothing runs while nobody asks anything.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter

from gevent.hub import get_hub

from korvet.server import metrics

FLUSH_SECONDS = 0.1


class _Answers:
    """The answers of one API since the last flush."""

    __slots__ = ("by_bucket", "by_error", "seconds")

    def __init__(self) -> None:
        self.by_error: Counter[str] = Counter()
        self.by_bucket = [0] * (len(metrics.DURATION_BUCKETS) + 1)
        self.seconds = 0.0


class Tally:
    """The counts of one process."""

    __slots__ = ("_answers", "_due", "_in_flight", "_received", "_sent", "_timer")

    def __init__(self) -> None:
        self._answers: dict[str, _Answers] = {}
        self._received = self._sent = self._in_flight = 0
        self._due = False
        self._timer: object = None

    def begun(self, size_bytes: int) -> None:
        """Count a request that has arrived with so many bytes, and is served from now on."""
        self._received += size_bytes
        self._in_flight += 1
        self._flush_soon()

    def ended(self) -> None:
        """Count that a request is served no longer."""
        self._in_flight -= 1
        self._flush_soon()

    def answered(self, api: str, error: str, begun: float) -> None:
        """Count the answer to a request that began at `begun` (time.monotonic)."""
        seconds = time.monotonic() - begun
        answers = self._answers.get(api)
        if answers is None:
            answers = self._answers[api] = _Answers()
        answers.by_error[error] += 1
        answers.by_bucket[bisect_left(metrics.DURATION_BUCKETS, seconds)] += 1
        answers.seconds += seconds

    def sent(self, size_bytes: int) -> None:
        """Count bytes of answers."""
        self._sent += size_bytes

    def flush(self) -> None:
        """Hand over what was counted since the last time."""
        self._due = False
        answers, self._answers = self._answers, {}
        received, self._received = self._received, 0
        sent, self._sent = self._sent, 0
        for api, each in answers.items():
            for error, count in each.by_error.items():
                metrics.REQUESTS.labels(api, error).inc(count)
            metrics.REQUEST_DURATION.labels(api).add(each.by_bucket, each.seconds)
        metrics.RECEIVED_BYTES.inc(received)
        metrics.SENT_BYTES.inc(sent)
        metrics.REQUESTS_IN_FLIGHT.set(self._in_flight)

    def _flush_soon(self) -> None:
        if not self._due:
            self._due = True
            self._timer = timer = get_hub().loop.timer(FLUSH_SECONDS)
            timer.start(self.flush)


TALLY = Tally()
"""The process's own."""
