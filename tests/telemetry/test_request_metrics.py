"""Counts of requests: what reaches the metrics, and when; and the stopwatch of one request."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from korvet.telemetry.request_metrics import FLUSH_SECONDS, RequestMetrics
from korvet.telemetry.request_timer import DECODE, ENCODE, NO_TIMER, REDIS, STAGES, request_timer
from tests.support.virtual_clock import VirtualClock

API = "TestOfRequests"


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_a_flush_hands_all_counts_over() -> None:
    before = sample("korvet_received_bytes_total"), sample("korvet_sent_bytes_total")
    requests = RequestMetrics(clock=VirtualClock())
    for seconds in (0.0001, 3, 3, 1000):
        requests.begun(10)
        requests.answered(API, "NONE" if seconds >= 1 else "INVALID_REQUEST", seconds)
        requests.sent(7)
    requests.ended()
    assert sample("korvet_requests_total", api=API, error="NONE") == 0
    requests.flush()
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
    assert sample(f"{name}_sum", api=API) == 1006.0001
    assert sample("korvet_request_stage_duration_seconds_count", api=API, stage="redis") == 0
    requests.flush()
    assert sample("korvet_requests_total", api=API, error="NONE") == 3


def test_stages_are_counted_apart_and_those_that_a_request_did_not_have_are_not() -> None:
    requests = RequestMetrics(clock=VirtualClock())
    name, api = "korvet_request_stage_duration_seconds", "TestOfStages"
    requests.answered(api, "NONE", 1.5, (0.25, 0.5, 0.0, 0.0, 0.75))
    requests.answered(api, "NONE", 4.0, (0.0, 0.0, 4.0, 0.0, 0.0))
    requests.flush()
    sums = {stage: sample(f"{name}_sum", api=api, stage=stage) for stage in STAGES}
    assert sums == {"queue": 0.25, "decode": 0.5, "redis": 4.0, "wait": 0.0, "encode": 0.75}
    counts = [sample(f"{name}_count", api=api, stage=stage) for stage in STAGES]
    assert counts == [1, 1, 1, 0, 1]
    assert sample(f"{name}_bucket", api=api, stage="redis", le="2.5") == 0
    assert sample(f"{name}_bucket", api=api, stage="redis", le="5.0") == 1


def test_parked_requests_are_a_gauge() -> None:
    requests = RequestMetrics(clock=VirtualClock())
    for change, expected in ((1, 1), (1, 2), (-1, 1), (-1, 0)):
        requests.parked("TestOfParking", change)
        requests.flush()
        assert sample("korvet_requests_parked", api="TestOfParking") == expected


def test_other_counts_come_first_and_may_ask_for_another_flush() -> None:
    clock = VirtualClock()
    requests = RequestMetrics(clock=clock)
    seen: list[float] = []

    class Others:
        def flush(self) -> bool:
            seen.append(sample("korvet_requests_total", api="TestOfCallbacks", error="NONE"))
            return len(seen) > 1

    requests.others.append(Others())
    requests.begun(1)
    requests.answered("TestOfCallbacks", "NONE", 0.5)
    clock.advance(FLUSH_SECONDS)
    assert seen == [0]
    clock.advance(FLUSH_SECONDS)
    assert seen == [0, 1]


def test_counting_schedules_a_flush() -> None:
    clock = VirtualClock()
    requests = RequestMetrics(clock=clock)
    for expected in (1, 0):
        if expected:
            requests.begun(1)
        else:
            requests.ended()
        clock.advance(FLUSH_SECONDS)
        assert sample("korvet_requests_in_flight") == expected


def test_timer_add_up_to_the_whole_whatever_their_order() -> None:
    begun = 0.0
    timer = request_timer(begun)
    for stage in (DECODE, REDIS, ENCODE, REDIS):
        timer.end_stage(stage)
    assert sum(timer.seconds) == pytest.approx(timer.at - begun)
    seconds = dict(zip(STAGES, timer.seconds, strict=True))
    # All that was before the first lap is the first lap's.
    assert seconds["decode"] > 0
    assert seconds["queue"] == seconds["wait"] == 0


def test_nobody_keeps_the_time_of_what_is_not_timed() -> None:
    NO_TIMER.end_stage(DECODE)
    assert not NO_TIMER.seconds
    assert NO_TIMER.at == 0
