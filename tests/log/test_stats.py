"""Statistics of logs, and the log directory of DescribeLogDirs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.log.packed import LOG_FIELD
from korvet.log.stats import LogDirs, LogDirSpace, LogDirUsage, LogStatsReader
from korvet.telemetry.stats import LogStats
from korvet.topics.registry import Topic, TopicSpec
from korvet.topics.types import Partition
from tests.log.cleaning import compact
from tests.support.batches import Record
from tests.support.commands import commands_of
from tests.support.domain import Domain
from tests.support.log_bench import Bench
from tests.support.partition_state import change_log
from tests.support.redis_servers import now_ms

HOUR_MS = 3_600_000


@pytest.fixture
def reader(bench: Bench) -> LogStatsReader:
    return LogStatsReader(bench.redis, bench.logs)


def only(reader: LogStatsReader, bench: Bench) -> LogStats:
    [figures], errors = reader.read([bench.partition])
    assert errors == []
    return figures


def age(reader: LogStatsReader, bench: Bench) -> int:
    age_ms = only(reader, bench).oldest_age_ms
    assert age_ms is not None
    return age_ms


def test_an_empty_log_has_no_age(reader: LogStatsReader, bench: Bench) -> None:
    figures = only(reader, bench)
    assert (figures.topic, figures.partition) == ("orders", 0)
    assert (figures.records, figures.size_bytes, figures.index_rows) == (0, 0, 1)
    assert (figures.start_offset, figures.end_offset) == (0, 0)
    assert figures.oldest_age_ms is None


def test_the_age_is_by_the_timestamp_of_the_first_record(reader: LogStatsReader, bench: Bench) -> None:
    before = now_ms(bench.raw) - HOUR_MS
    base = bench.append(Record(b"a", b"k", before), Record(b"b", b"k", before - HOUR_MS))
    bench.append(Record(b"c", b"k", before - HOUR_MS))
    assert HOUR_MS <= age(reader, bench) <= now_ms(bench.raw) - before
    figures = only(reader, bench)
    assert (figures.start_offset, figures.end_offset) == (base, bench.bounds().high_watermark)


def test_a_timestamp_in_the_future_is_a_negative_age(reader: LogStatsReader, bench: Bench) -> None:
    bench.append(Record(b"a", b"k", now_ms(bench.raw) + HOUR_MS))
    assert age(reader, bench) < 0


def test_a_first_record_that_stays_is_read_once(reader: LogStatsReader, bench: Bench) -> None:
    bench.append(b"a")
    reader.begin_round()
    first = age(reader, bench)
    bench.append(b"b")
    reader.begin_round()
    with commands_of(bench.raw) as ran:
        again = only(reader, bench)
    assert not ran["xrange"]
    assert again.end_offset == bench.bounds().high_watermark
    assert (again.oldest_age_ms or 0) >= first


def test_a_log_that_begins_elsewhere_is_looked_at_again(reader: LogStatsReader, bench: Bench) -> None:
    today = now_ms(bench.raw)
    bench.append(Record(b"a", b"k", today - 10 * HOUR_MS))
    second = bench.append(Record(b"b", b"k", today - HOUR_MS))
    reader.begin_round()
    assert age(reader, bench) >= 10 * HOUR_MS
    change_log(bench.raw, bench.partition.state, start=second, first=second)
    reader.begin_round()
    assert HOUR_MS <= age(reader, bench) < 10 * HOUR_MS
    assert only(reader, bench).start_offset == second


def test_damaged_and_deleted_logs_are_errors_beside_the_stats_of_the_others(
    reader: LogStatsReader, bench: Bench
) -> None:
    bench.append(b"a")
    damaged, deleted = bench.partitions[1:]
    bench.raw.hset(damaged.state, LOG_FIELD, "many")
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


MEBIBYTE = 1 << 20
Describe = Callable[..., LogDirUsage]
# Each master of a cluster is a directory: tests/server/test_nodes_of_redis.py.
ONE_DIRECTORY = pytest.mark.embedded


@pytest.fixture
def log_dir(here: Domain) -> Describe:
    def describe(partitions: Sequence[Partition] = ()) -> LogDirUsage:
        [result] = LogDirs(here.redis).describe(partitions)
        return result

    return describe


def sizes_of(result: LogDirUsage) -> list[int | None]:
    return [size for _, size in result.sizes]


@pytest.fixture
def limited(raw_redis: Any) -> Iterator[Any]:
    """Give a client of a Redis with maxmemory, and take that away again."""
    raw_redis.config_set("maxmemory", 100 * MEBIBYTE)
    yield raw_redis
    raw_redis.config_set("maxmemory", 0)


def made(here: Domain, storage_format: str, partitions: int = 1) -> Topic:
    return here.topics.create(
        TopicSpec(name="orders", partitions=partitions, configs={"storage.format": storage_format})
    )


@ONE_DIRECTORY
@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_size_is_what_the_entries_hold(
    here: Domain, log_dir: Describe, raw_redis: Any, storage_format: str
) -> None:
    topic = made(here, storage_format, 3)
    for size in (10, 500):
        here.append("orders", b"x" * size, partition=1)
    entries = raw_redis.xrange("korvet:orders:1")
    held = sum(len(name) + len(value) for _, fields in entries for name, value in fields.items())
    assert held > 510
    assert sizes_of(log_dir(topic.partitions)) == [0, held, 0]


@ONE_DIRECTORY
def test_more_logs_than_one_round_trip_holds_are_returned_in_order(here: Domain, log_dir: Describe) -> None:
    topic = made(here, "batch", 201)
    here.append("orders", b"x", partition=200)
    sizes = sizes_of(log_dir(topic.partitions))
    assert (len(sizes), set(sizes[:200])) == (201, {0})
    assert sizes[200]


@ONE_DIRECTORY
def test_a_log_that_is_gone_has_no_size(here: Domain, log_dir: Describe) -> None:
    topic = made(here, "record")
    here.topics.delete([topic])
    assert sizes_of(log_dir(topic.partitions)) == [None]


@ONE_DIRECTORY
def test_a_log_whose_state_cannot_be_read_has_no_size_and_a_line_in_the_log(
    here: Domain, log_dir: Describe, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = made(here, "record", 2)
    raw_redis.hset("{korvet:orders:0}:state", LOG_FIELD, "many")
    with caplog.at_level(logging.WARNING):
        assert sizes_of(log_dir(topic.partitions)) == [None, 0]
    assert "size of a log unknown" in caplog.text


@ONE_DIRECTORY
def test_without_a_limit_the_room_is_not_known(log_dir: Describe) -> None:
    assert log_dir().space == LogDirSpace(-1, -1)


@ONE_DIRECTORY
def test_the_room_is_what_maxmemory_leaves(log_dir: Describe, limited: Any) -> None:
    before = log_dir().space
    assert before.total_bytes == 100 * MEBIBYTE
    assert 50 * MEBIBYTE < before.usable_bytes < 100 * MEBIBYTE
    limited.set("other", b"x" * 10 * MEBIBYTE)
    assert log_dir().space.usable_bytes <= before.usable_bytes - 10 * MEBIBYTE
    limited.config_set("maxmemory", MEBIBYTE)
    assert log_dir().space == LogDirSpace(MEBIBYTE, 0)


@ONE_DIRECTORY
def test_where_redis_is_away_there_is_no_size_and_the_room_is_not_known(
    here: Domain, log_dir: Describe
) -> None:
    topic = made(here, "record")
    here.redis.close()
    result = log_dir(topic.partitions)
    assert (result.sizes, result.space) == ((), LogDirSpace(-1, -1))
    assert result.error
