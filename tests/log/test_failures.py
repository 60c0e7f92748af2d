"""Failed appends: counted one by one, an outage reported twice."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from korvet.errors import ErrorCode
from korvet.log.failures import QUIET_SECONDS, Failures
from tests.support.virtual_clock import VirtualClock

STORAGE = ErrorCode.KAFKA_STORAGE_ERROR


def counted(error: str) -> float:
    return REGISTRY.get_sample_value("korvet_produce_errors_total", {"error": error}) or 0.0


def test_every_failed_batch_is_counted_by_its_error() -> None:
    before = {error: counted(error) for error in ("KAFKA_STORAGE_ERROR", "MESSAGE_TOO_LARGE")}
    failures = Failures()
    failures.note({STORAGE: 2, ErrorCode.MESSAGE_TOO_LARGE: 1}, 2, "Redis is away", succeeds=True)
    failures.note({}, 0, "", succeeds=True)
    failures.note({STORAGE: 3}, 0, "", succeeds=False)
    added = {error: counted(error) - count for error, count in before.items()}
    assert added == {"KAFKA_STORAGE_ERROR": 5, "MESSAGE_TOO_LARGE": 1}


def test_an_outage_is_reported_at_its_beginning_and_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    failures = Failures(clock)
    with caplog.at_level("INFO"):
        for _ in range(100):
            failures.note({STORAGE: 1}, 1, "Redis is away", succeeds=True)
            failures.note({}, 0, "", succeeds=True)
            clock.advance(QUIET_SECONDS / 10)
        assert [record.message for record in caplog.records] == ["appends fail"]
        clock.advance(QUIET_SECONDS)
        failures.note({}, 0, "", succeeds=False)
        assert [record.message for record in caplog.records] == ["appends fail"]
        failures.note({}, 0, "", succeeds=True)
        failures.note({}, 0, "", succeeds=True)
    assert [record.message for record in caplog.records] == ["appends fail", "appends succeed again"]
    assert caplog.records[0].__dict__["korvet_fields"]["reason"] == "Redis is away"
    assert caplog.records[1].__dict__["korvet_fields"]["failed"] == 100


def test_a_producer_s_own_mistakes_are_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures()
    with caplog.at_level("INFO"):
        failures.note({ErrorCode.CORRUPT_MESSAGE: 1}, 0, "", succeeds=True)
        failures.note({}, 0, "", succeeds=True)
    assert caplog.records == []
