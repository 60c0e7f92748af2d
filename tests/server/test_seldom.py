"""Warnings of which there may be thousands a second: one of each kind is written in a while."""

from __future__ import annotations

import logging

import pytest

from korvet.logs import PAUSE_SECONDS, Log, RateLimitedLogger


def test_one_of_each_kind_is_written_in_a_while_and_says_how_many_were_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    seldom = RateLimitedLogger(Log("korvet.test"), lambda: now)

    def lines() -> list[object]:
        found = [vars(record)["korvet_fields"] for record in caplog.records]
        caplog.clear()
        return found

    with caplog.at_level(logging.INFO):
        for number in range(3):
            seldom.warning("Fetch", "away", number=number)
        seldom.warning("Produce", "away", number=9)
        assert lines() == [{"number": 0}, {"number": 9}]
        now += PAUSE_SECONDS
        seldom.warning("Fetch", "away", number=4)
        seldom.warning("Produce", "away", number=5)
        assert lines() == [{"number": 4, "left_out_before": 2}, {"number": 5}]
        now += PAUSE_SECONDS
        seldom.warning("Fetch", "away", number=6)
        assert lines() == [{"number": 6}]
