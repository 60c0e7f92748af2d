"""The stopwatch of a request."""

from __future__ import annotations

import time

import pytest

from korvet.telemetry.request_timer import DECODE, ENCODE, NO_TIMER, REDIS, STAGES, request_timer


def test_laps_add_up_to_the_whole_whatever_their_order() -> None:
    begun = time.monotonic() - 1000
    laps = request_timer(begun)
    for stage in (DECODE, REDIS, ENCODE, REDIS):
        laps.lap(stage)
    assert sum(laps.seconds) == pytest.approx(laps.at - begun)
    seconds = dict(zip(STAGES, laps.seconds, strict=True))
    # All that was before the first lap is the first lap's.
    assert seconds["decode"] >= 1000
    assert seconds["queue"] == seconds["wait"] == 0


def test_nobody_keeps_the_time_of_what_is_not_timed() -> None:
    NO_TIMER.lap(DECODE)
    assert not NO_TIMER.seconds
    assert NO_TIMER.at == 0
