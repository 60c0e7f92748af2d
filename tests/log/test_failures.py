"""Failed appends: counted one by one, an outage reported twice."""

from __future__ import annotations

from collections import Counter

import pytest

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.failures import QUIET_SECONDS, Failures
from korvet.log.types import Appended
from korvet.redis.replies import error_of

FINE = Appended(0, 0, duplicate=False)
AWAY = StorageUnavailableError("Redis is away")


class Clock:
    """Time that passes when it is reported to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def full() -> KafkaError:
    error = error_of("OOM command not allowed when used memory > 'maxmemory'.")
    assert isinstance(error, KafkaError)
    return error


def test_every_failed_batch_is_counted_by_its_error() -> None:
    counted: Counter[str] = Counter()
    failures = Failures(lambda error: counted.update([error]))
    failures.note([FINE, AWAY, KafkaError(ErrorCode.MESSAGE_TOO_LARGE), AWAY])
    failures.note([FINE])
    failures.refused(full(), 3)
    assert counted == {"KAFKA_STORAGE_ERROR": 5, "MESSAGE_TOO_LARGE": 1}


def test_an_outage_is_reported_at_its_beginning_and_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = Failures(clock=clock)
    with caplog.at_level("INFO"):
        for _ in range(100):
            failures.note([AWAY, FINE])
            failures.note([FINE])
            clock.now += QUIET_SECONDS / 10
        assert [record.message for record in caplog.records] == ["appends fail"]
        clock.now += QUIET_SECONDS
        failures.note([FINE])
        failures.note([FINE])
    assert [record.message for record in caplog.records] == ["appends fail", "appends succeed again"]
    assert caplog.records[1].__dict__["korvet_fields"]["failed"] == 100


def test_a_producer_s_own_mistakes_are_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures()
    with caplog.at_level("INFO"):
        failures.note([KafkaError(ErrorCode.CORRUPT_MESSAGE, "crc")])
        failures.refused(full(), 1)
        failures.note([FINE])
    assert caplog.records == []


def test_only_redis_that_is_full_is_reported_apart() -> None:
    failures = Failures()
    assert failures.note([FINE, full()])
    assert not failures.note([FINE, AWAY])
    assert not failures.note([FINE])
