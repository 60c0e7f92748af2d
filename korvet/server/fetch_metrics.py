"""The metrics of consumers' requests, which the core serves: taken from it whenever those of others are handed over."""

from __future__ import annotations

from typing import Any

from korvet_core import DataPath

from korvet.errors import ErrorCode
from korvet.telemetry import metrics
from korvet.telemetry.request_metrics import RedisMetrics, RequestMetrics
from korvet.telemetry.topic_counters import TopicCounters

READ = "XRANGE"
"""The name of the round trips."""


class FetchMetrics:
    """What `core` has counted, for the metrics of requests, of Redis, of topics and of sessions."""

    def __init__(
        self, core: DataPath[Any], requests: RequestMetrics, redis: RedisMetrics, traffic: TopicCounters
    ) -> None:
        self._core, self._requests, self._redis, self._traffic = core, requests, redis, traffic
        self._parked = self._evictions = 0

    def flush(self) -> bool:
        """Take what was counted since the last time (RequestMetrics.on_flush)."""
        served, answered, trips, (away, _), traffic, sessions, _ = self._core.take_fetch_noted()
        self._requests.served(*served)
        for whole, stages, error in answered:
            self._requests.answered("Fetch", ErrorCode(error).name, whole, stages)
        for seconds in trips:
            self._redis.round_trip(READ, seconds)
        for topic, topic_id, records, size_bytes in traffic:
            self._traffic.sent(topic, topic_id, records, size_bytes)
        if away:
            metrics.REDIS_UNAVAILABLE.inc(away)
        parked, count, partitions, evictions = sessions
        if parked != self._parked:
            self._requests.parked("Fetch", parked - self._parked)
            self._parked = parked
        metrics.FETCH_SESSIONS.set(count)
        metrics.FETCH_SESSION_PARTITIONS.set(partitions)
        metrics.FETCH_SESSION_EVICTIONS.inc(evictions - self._evictions)
        self._evictions = evictions
        return True
