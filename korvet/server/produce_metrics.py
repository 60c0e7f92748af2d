"""The metrics of requests that the core serves: taken from it whenever those of others are handed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from korvet_core import DataPath

from korvet.errors import ErrorCode
from korvet.log.appends import APPEND_SCRIPTS
from korvet.log.failures import Failures
from korvet.telemetry.request_metrics import RedisMetrics, RequestMetrics
from korvet.telemetry.topic_counters import TopicCounters

_NO_ERROR = ErrorCode.NONE.name


class ProduceMetrics:
    """What `core` has counted, for the metrics of requests, of Redis, of topics and of failed appends."""

    def __init__(
        self,
        core: DataPath[Any],
        requests: RequestMetrics,
        redis: RedisMetrics,
        traffic: TopicCounters,
        failures: Failures,
    ) -> None:
        self._core, self._requests, self._redis = core, requests, redis
        self._traffic, self._failures = traffic, failures

    def flush(self) -> bool:
        """Take what was counted since the last time (RequestMetrics.on_flush)."""
        served, answered, trips, errors, failed, traffic = self._core.take_noted()
        self._requests.served(*served)
        for whole, stages in answered:
            self._requests.answered("Produce", _NO_ERROR, whole, stages)
        for script, seconds, counts in zip(APPEND_SCRIPTS, trips, errors, strict=True):
            self._note_script(script.name, seconds, counts)
        for topic, topic_id, records, size_bytes in traffic:
            self._traffic.received(topic, topic_id, records, size_bytes)
        counts, away, reason, succeeds = failed
        by_error = {ErrorCode(code): count for code, count in counts.items()}
        if by_error or succeeds:
            self._failures.note(by_error, away, reason or "", succeeds=succeeds)
        return True

    def _note_script(self, name: str, seconds: Sequence[float], counts: dict[int, int]) -> None:
        for each in seconds:
            self._redis.round_trip(name, each)
        for code, count in counts.items():
            for _ in range(count):
                self._redis.script_failed(name, ErrorCode(code).name)
