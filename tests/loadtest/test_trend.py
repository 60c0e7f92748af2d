"""loadtest/locust/watch.py: memory that grows without end against memory of a process that warms up."""

from __future__ import annotations

import random

import pytest

from loadtest.locust.watch import Sample, Trend, trend_of

MIB = 1 << 20


def of(mib: list[float], cpu_share: float = 0.5) -> Trend:
    """Return the trend of a process with this memory, a sample each ten seconds."""
    samples = [
        Sample(number * 10.0, int(item * MIB), number * 10.0 * cpu_share) for number, item in enumerate(mib)
    ]
    result = trend_of(samples)
    assert result is not None
    return result


def test_a_process_that_warms_up_and_stays_does_not_grow() -> None:
    assert of([40, 60, 75, 80, 80, 80, 80, 80, 80, 80, 80, 80]).growth_mib == pytest.approx(0)


def test_a_steady_leak_grows_by_what_is_lost_in_the_last_two_thirds() -> None:
    assert of([50.0 + number for number in range(30)]).growth_mib == pytest.approx(19)


def test_ups_and_downs_are_no_growth() -> None:
    noise = random.Random(7)
    assert abs(of([80 + noise.uniform(-5, 5) for _ in range(300)]).growth_mib) < 2


def test_a_leak_is_seen_through_ups_and_downs() -> None:
    noise = random.Random(7)
    result = of([80 + number / 10 + noise.uniform(-5, 5) for number in range(300)])
    assert result.growth_mib == pytest.approx(20, abs=2)


def test_memory_and_cpu_are_reported_as_measured() -> None:
    result = of([40, 90, 60, 60, 60, 50], cpu_share=0.25)
    assert (result.first_mib, result.last_mib, result.most_mib) == (40, 50, 90)
    assert [result.cpu_first, result.cpu_last] == pytest.approx([0.25, 0.25])


def test_few_samples_have_no_trend() -> None:
    assert trend_of([Sample(number, MIB, 0.0) for number in range(5)]) is None
