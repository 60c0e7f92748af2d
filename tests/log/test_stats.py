"""The statistics of logs in both formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.log.stats import LogStatsReader, LogStatsStore
from korvet.redis.client import Redis
from korvet.telemetry.stats import LogStats
from tests.log.cleaning import compact
from tests.support.batches import Record
from tests.support.log_bench import Bench

HOUR_MS = 3_600_000


@pytest.fixture(params=["record", "batch"])
def bench(redis_url: str, raw_redis: Any, request: pytest.FixtureRequest) -> Iterator[Bench]:
    redis = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield Bench(redis, raw_redis, request.param)
    redis.close()


@pytest.fixture
def reader(bench: Bench) -> LogStatsReader:
    return LogStatsReader(LogStatsStore(bench.redis), bench.logs)


def redis_ms(bench: Bench) -> int:
    seconds, microseconds = bench.raw.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def entries_read(bench: Bench) -> int:
    """Count the XRANGE commands that Redis has run."""
    stats = bench.raw.info("commandstats").get("cmdstat_xrange", {})
    return int(stats.get("calls", 0))


def only(reader: LogStatsReader, bench: Bench) -> LogStats:
    [figures], errors = reader.read([bench.partition])
    assert errors == []
    return figures


def test_an_empty_log_has_no_age(reader: LogStatsReader, bench: Bench) -> None:
    figures = only(reader, bench)
    assert (figures.topic, figures.partition) == ("orders", 0)
    assert (figures.records, figures.size_bytes, figures.index_rows) == (0, 0, 0)
    assert (figures.start_offset, figures.end_offset) == (0, 0)
    assert figures.oldest_age_ms is None


def test_the_age_is_by_the_timestamp_of_the_first_record(reader: LogStatsReader, bench: Bench) -> None:
    before = redis_ms(bench) - HOUR_MS
    base = bench.append(Record(b"a", b"k", before), Record(b"b", b"k", before - HOUR_MS))
    bench.append(Record(b"c", b"k", before - HOUR_MS))
    figures = only(reader, bench)
    assert figures.oldest_age_ms is not None
    assert HOUR_MS <= figures.oldest_age_ms <= redis_ms(bench) - before
    assert (figures.start_offset, figures.end_offset) == (base, bench.bounds().high_watermark)


def test_a_timestamp_in_the_future_is_a_negative_age(reader: LogStatsReader, bench: Bench) -> None:
    bench.append(Record(b"a", b"k", redis_ms(bench) + HOUR_MS))
    age_ms = only(reader, bench).oldest_age_ms
    assert age_ms is not None
    assert age_ms < 0


def test_a_first_record_that_stays_is_read_once(reader: LogStatsReader, bench: Bench) -> None:
    bench.append(b"a")
    reader.begin_round()
    first = only(reader, bench)
    bench.append(b"b")
    before = entries_read(bench)
    reader.begin_round()
    again = only(reader, bench)
    assert entries_read(bench) == before
    assert again.end_offset != first.end_offset
    assert first.oldest_age_ms is not None
    assert again.oldest_age_ms is not None
    assert again.oldest_age_ms >= first.oldest_age_ms


def test_a_log_that_begins_elsewhere_is_looked_at_again(reader: LogStatsReader, bench: Bench) -> None:
    now_ms = redis_ms(bench)
    bench.append(Record(b"a", b"k", now_ms - 10 * HOUR_MS))
    second = bench.append(Record(b"b", b"k", now_ms - HOUR_MS))
    reader.begin_round()
    age_ms = only(reader, bench).oldest_age_ms
    assert age_ms is not None
    assert age_ms >= 10 * HOUR_MS
    bench.raw.hset(bench.partition.state, mapping={"start": second, "first": second})
    reader.begin_round()
    figures = only(reader, bench)
    assert figures.start_offset == second
    assert figures.oldest_age_ms is not None
    assert HOUR_MS <= figures.oldest_age_ms < 10 * HOUR_MS


def test_damaged_and_deleted_logs_are_errors_beside_the_stats_of_the_others(
    reader: LogStatsReader, bench: Bench
) -> None:
    bench.append(b"a")
    damaged, deleted = bench.partitions[1:]
    bench.raw.hset(damaged.state, "next", "many")
    bench.raw.delete(deleted.state)
    figures, errors = reader.read(bench.partitions)
    assert [one.partition for one in figures] == [0]
    codes = [error.code for error in errors]
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert damaged.state in errors[0].message


def test_a_compacted_part_counts_by_what_is_left_of_it(reader: LogStatsReader, bench: Bench) -> None:
    for n in range(10):
        bench.append(b"%d" % n * 100)
    assert only(reader, bench).compacted_bytes is None
    compact(bench, 9)
    bench.append(b"x" * 100)
    figures = only(reader, bench)
    [(_, fields)] = bench.raw.xrange(bench.partition.compacted[0])
    assert figures.compacted_bytes == sum(len(name) + len(value) for name, value in fields.items())
    assert figures.dirty_ratio == 1 - figures.compacted_bytes / figures.size_bytes
