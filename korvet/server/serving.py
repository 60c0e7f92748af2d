"""Joins what serves Produce and Fetch (korvet_core.DataPath) with the worker: what it decides on, and its metrics."""

from __future__ import annotations

from typing import Any

from korvet_core import DataPath

from korvet.cluster.backpressure import Backpressure
from korvet.errors import ErrorCode
from korvet.log.appends import APPEND_SCRIPTS
from korvet.log.failures import Failures
from korvet.server.decisions import FetchDecisions, ProduceDecisions
from korvet.server.net.dispatch import Dispatcher
from korvet.telemetry import metrics
from korvet.telemetry.request_metrics import REQUEST_METRICS
from korvet.telemetry.topic_counters import TopicCounters


def serve_clients(dispatcher: Dispatcher, pressure: Backpressure) -> None:
    """Have the core hear of all that decides on the requests of producers and consumers, and ask for the rest."""
    services, throttle = dispatcher.services, dispatcher.throttle
    appends = services.appends
    core = appends.core

    def forget(topic: str | None) -> None:
        if topic is None:
            core.forget_topics()
        else:
            core.forget_topic(topic)

    appends.clients = ProduceDecisions(dispatcher)
    services.fetches.clients = FetchDecisions(dispatcher)
    services.topics.follow(forget)
    if services.authorizer is not None:
        services.authorizer.report_to(core)
    dispatcher.lease.report_to(core)
    throttle.report_to(core)
    pressure.report_to(core)
    appends.on_pressure = lambda node, is_full: pressure.look(node, is_full=is_full)
    services.live.follow(lambda settings: core.set_fetch_bytes_max(settings.fetch_max_bytes))
    REQUEST_METRICS.others += [CoreMetrics(core, services.traffic), services.traffic]
    appends.on_noted = REQUEST_METRICS.flush_soon


class CoreMetrics:
    """What the core has counted of the requests that it serves, for the metrics of the worker."""

    def __init__(self, core: DataPath[Any], traffic: TopicCounters) -> None:
        self._core, self._traffic = core, traffic
        self._failures = Failures()
        self._parked = self._evictions = 0

    def flush(self) -> bool:
        """Take what was counted since the last time (RequestMetrics)."""
        self._flush_produce()
        self._flush_fetch()
        return True

    def _flush_produce(self) -> None:
        served, answered, trips, errors, failed, traffic = self._core.take_noted()
        REQUEST_METRICS.served(*served)
        for whole, stages in answered:
            REQUEST_METRICS.answered("Produce", ErrorCode.NONE.name, whole, stages)
        for script, seconds, counts in zip(APPEND_SCRIPTS, trips, errors, strict=True):
            for trip in seconds:
                REQUEST_METRICS.round_trip(script.name, trip)
            for code, count in counts.items():
                for _ in range(count):
                    REQUEST_METRICS.script_failed(script.name, ErrorCode(code).name)
        for topic, topic_id, records, size_bytes in traffic:
            self._traffic.received(topic, topic_id, records, size_bytes)
        by_code, away, reason, succeeds = failed
        by_error = {ErrorCode(code): count for code, count in by_code.items()}
        if by_error or succeeds:
            self._failures.note(by_error, away, reason or "", succeeds=succeeds)

    def _flush_fetch(self) -> None:
        served, answered, trips, (away, _), traffic, sessions, _ = self._core.take_fetch_noted()
        REQUEST_METRICS.served(*served)
        for whole, stages, error in answered:
            REQUEST_METRICS.answered("Fetch", ErrorCode(error).name, whole, stages)
        for seconds in trips:
            REQUEST_METRICS.round_trip("XRANGE", seconds)
        for topic, topic_id, records, size_bytes in traffic:
            self._traffic.sent(topic, topic_id, records, size_bytes)
        if away:
            metrics.REDIS_UNAVAILABLE.inc(away)
        parked, count, partitions, evictions = sessions
        if parked != self._parked:
            REQUEST_METRICS.parked("Fetch", parked - self._parked)
            self._parked = parked
        metrics.FETCH_SESSIONS.set(count)
        metrics.FETCH_SESSION_PARTITIONS.set(partitions)
        metrics.FETCH_SESSION_EVICTIONS.inc(evictions - self._evictions)
        self._evictions = evictions
