"""Counts of requests: what reaches the metrics, and when."""

from __future__ import annotations

import time

import gevent
from prometheus_client import REGISTRY

from korvet.server.tally import FLUSH_SECONDS, Tally

API = "TestOfTally"


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_what_was_counted_reaches_the_metrics_at_once_when_it_is_flushed() -> None:
    before = sample("korvet_received_bytes_total"), sample("korvet_sent_bytes_total")
    tally = Tally()
    now = time.monotonic()
    for age in (0, 3, 3, 1000):
        tally.begun(10)
        tally.answered(API, "NONE" if age else "INVALID_REQUEST", now - age)
        tally.sent(7)
    tally.ended()
    assert sample("korvet_requests_total", api=API, error="NONE") == 0
    tally.flush()
    assert sample("korvet_requests_total", api=API, error="NONE") == 3
    assert sample("korvet_requests_total", api=API, error="INVALID_REQUEST") == 1
    assert sample("korvet_received_bytes_total") - before[0] == 40
    assert sample("korvet_sent_bytes_total") - before[1] == 28
    assert sample("korvet_requests_in_flight") == 3
    name = "korvet_request_duration_seconds"
    assert sample(f"{name}_bucket", api=API, le="2.5") == 1
    assert sample(f"{name}_bucket", api=API, le="5.0") == 3
    assert sample(f"{name}_bucket", api=API, le="30.0") == 3
    assert sample(f"{name}_bucket", api=API, le="+Inf") == 4
    assert sample(f"{name}_count", api=API) == 4
    assert sample(f"{name}_sum", api=API) >= 1006
    tally.flush()
    assert sample("korvet_requests_total", api=API, error="NONE") == 3


def test_nobody_has_to_ask_for_a_flush() -> None:
    tally = Tally()
    for expected in (1, 0):
        if expected:
            tally.begun(1)
        else:
            tally.ended()
        with gevent.Timeout(100 * FLUSH_SECONDS):
            while sample("korvet_requests_in_flight") != expected:
                gevent.sleep(FLUSH_SECONDS / 10)
