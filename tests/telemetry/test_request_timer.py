"""The stopwatch of a request."""

from __future__ import annotations

import time

import pytest

from korvet.telemetry.request_timer import DECODE, ENCODE, NO_TIMER, REDIS, STAGES, request_timer


def test_timer_add_up_to_the_whole_whatever_their_order() -> None:
    begun = time.monotonic() - 1000
    timer = request_timer(begun)
    for stage in (DECODE, REDIS, ENCODE, REDIS):
        timer.end_stage(stage)
    assert sum(timer.seconds) == pytest.approx(timer.at - begun)
    seconds = dict(zip(STAGES, timer.seconds, strict=True))
    # All that was before the first lap is the first lap's.
    assert seconds["decode"] >= 1000
    assert seconds["queue"] == seconds["wait"] == 0


def test_nobody_keeps_the_time_of_what_is_not_timed() -> None:
    NO_TIMER.end_stage(DECODE)
    assert not NO_TIMER.seconds
    assert NO_TIMER.at == 0
