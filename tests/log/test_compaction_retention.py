"""A compacted log whose topic is no longer compacted, or is not only that: nothing is lost, and all can be deleted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from korvet.log.index import RowBuilder
from korvet.log.retention import RetainedLog, Retention, policy_of
from korvet.log.trim import Trimmer, TrimStore
from tests.log.compacting import CompactedLog
from tests.support.batches import TIMESTAMP
from tests.support.domain import Domain


@pytest.fixture(params=["record", "batch"])
def log(
    here: Domain, raw_redis: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> CompactedLog:
    """Give a log of records with rising timestamps, half of it compacted."""
    monkeypatch.setattr(RowBuilder, "records_per_row", 5)
    made = CompactedLog(here, raw_redis, request.param)
    for n in range(40):
        made.append((b"key-%d" % (n % 25), b"value-%d" % n), timestamp=TIMESTAMP + n)
    made.forget_compacted(made.compacted().compacted_end)
    for n in range(40, 60):
        made.append((b"key-%d" % n, b"value-%d" % n), timestamp=TIMESTAMP + n)
    return made


def enforce(log: CompactedLog, **limits: int) -> None:
    """Let retention do what it does for a topic whose cleanup.policy is `delete` now."""
    config = msgspec.structs.replace(log.topic.config, compact=False, delete=True, **limits)
    trims = TrimStore(log.here.redis)
    retention = Retention(log.logs, trims, Trimmer(log.logs, trims, lambda _reason, _records: None))
    assert list(retention.enforce([RetainedLog(log.partition, policy_of(config))], lambda: None)) == []


def test_a_compacted_log_is_read_as_before_when_its_topic_is_not_compacted_any_more(
    log: CompactedLog,
) -> None:
    enforce(log, retention_ms=-1, retention_bytes=-1)
    assert log.read() == log.model
    log.append((b"key-1", b"again"))
    assert log.read() == log.model


@pytest.mark.parametrize("oldest", [20, 30, 39, 40, 45, 59])
def test_retention_by_time_lets_go_of_compacted_records_and_of_others(log: CompactedLog, oldest: int) -> None:
    seconds, micros = log.raw.time()
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    for _ in range(2):  # by whole intervals, then by single records
        enforce(log, retention_ms=now_ms - (TIMESTAMP + oldest), retention_bytes=-1)
    start = log.field("start")
    left = log.read(start)
    assert left == [held for held in log.model if held.offset >= start]
    assert all(held.timestamp >= TIMESTAMP + oldest for held in left)


def test_retention_by_size_counts_what_is_left(log: CompactedLog) -> None:
    size = log.field("bytes") - log.field("start_bytes")
    for part in (0.8, 0.5, 0.1):
        enforce(log, retention_ms=-1, retention_bytes=int(size * part))
        start = log.field("start")
        assert log.read(start) == [held for held in log.model if held.offset >= start]
        assert log.field("bytes") - log.field("start_bytes") >= int(size * part)
    assert log.field("start") >= log.field("clean_end")


def test_a_log_that_was_let_go_of_is_compacted_again(log: CompactedLog) -> None:
    enforce(log, retention_ms=-1, retention_bytes=1)
    start = log.field("start")
    log.append(*((b"key-%d" % (n % 2), b"later-%d" % n) for n in range(8)))
    compacted_end = log.compacted().compacted_end
    assert log.read(start) == [held for held in log.expected(compacted_end) if held.offset >= start]
