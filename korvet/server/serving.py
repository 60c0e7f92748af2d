"""Joins what serves Produce and Fetch (korvet_core.DataPath) with what a worker decides on: rights, topics, quotas."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from korvet.cluster.backpressure import Backpressure, BackpressureState
from korvet.handlers.context import Services
from korvet.handlers.fetch import FetchDecisions
from korvet.handlers.produce import ProduceDecisions
from korvet.log.failures import Failures
from korvet.server.fetch_metrics import FetchMetrics
from korvet.server.net.throttle import Throttle
from korvet.server.produce_metrics import ProduceMetrics
from korvet.server.serving_lease import ServingLease
from korvet.telemetry import metrics
from korvet.telemetry.request_metrics import REDIS_METRICS, REQUEST_METRICS


def serve_clients(
    services: Services, pressure: Backpressure, lease: ServingLease, throttle: Throttle
) -> None:
    """Have the core hear of all that decides on the requests of producers and consumers, and ask for the rest."""
    appends, authorizer = services.appends, services.authorizer
    core = appends.core
    appends.clients = ProduceDecisions(services, authorizer, lease.is_late, throttle.charge_produce)
    services.fetches.clients = FetchDecisions(
        services, authorizer, throttle.fetch_limit, throttle.charge_fetch
    )
    services.topics.follow(partial(_forget, appends.core.forget_topic, appends.core.forget_topics))
    if authorizer is not None:
        authorizer.follow(partial(_trust, core.trust_rights, core.forget_rights))
    lease.follow(core.set_lease)
    throttle.follow(core.set_metered)

    def press(node: int, state: BackpressureState, due: float, until: float) -> None:
        core.put_pressure(node, state.throttle_ms, state.refusal or None, due, until)

    pressure.on_reading = press
    appends.on_pressure = lambda node, is_full: pressure.look(node, is_full=is_full)
    services.live.follow(lambda _settings: core.set_full_throttle(pressure.full_throttle_ms))
    services.live.follow(lambda settings: core.set_fetch_bytes_max(settings.fetch_max_bytes))

    noted = ProduceMetrics(core, REQUEST_METRICS, REDIS_METRICS, services.traffic, Failures(_count_failure))
    REQUEST_METRICS.on_flush(noted.flush)
    fetched = FetchMetrics(core, REQUEST_METRICS, REDIS_METRICS, services.traffic)
    REQUEST_METRICS.on_flush(fetched.flush)
    appends.on_noted = REQUEST_METRICS.flush_soon


def _forget(
    forget_topic: Callable[[str], object], forget_topics: Callable[[], object], name: str | None
) -> None:
    if name is None:
        forget_topics()
    else:
        forget_topic(name)


def _trust(
    trust: Callable[[float], object],
    forget: Callable[[], object],
    until: float,
    changed: bool,  # noqa: FBT001 - as the authorizer says it
) -> None:
    if changed:
        forget()
    trust(until)


def _count_failure(error: str, count: int) -> None:
    metrics.PRODUCE_ERRORS.labels(error).inc(count)
    metrics.PRODUCE_ERROR_TIME.labels(error).set_to_current_time()
