"""The lag of an offset, in records and in time: both formats, every place in which a record may lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from korvet.errors import ErrorCode
from korvet.log.index import IndexStore, Lag, LogPosition
from korvet.log.types import AppendBatch, Appended, AppendRecords
from korvet.protocol.records.batch import produced_batch
from korvet.redis.client import Redis
from korvet.topics.types import AtRest
from tests.support import batches
from tests.support.batches import Record
from tests.support.log_bench import Bench, code_of


@pytest.fixture(params=["record", "batch"])
def bench(redis_url: str, raw_redis: Any, request: pytest.FixtureRequest) -> Iterator[Bench]:
    redis = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield Bench(redis, raw_redis, request.param)
    redis.close()


def now_ms(bench: Bench) -> int:
    seconds, microseconds = bench.raw.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def first_timestamps(bench: Bench, *offsets: int) -> list[tuple[int, int]]:
    """Return for each offset the records from it on, and the timestamp of the first, by which its age goes."""
    before = now_ms(bench)
    lags = IndexStore(bench.redis).lags([LogPosition(bench.partition, offset) for offset in offsets])
    after = now_ms(bench)
    found: list[tuple[int, int]] = []
    for lag in lags:
        assert isinstance(lag, Lag), lag
        # Redis' clock went on by so much meanwhile; timestamps of these tests are further apart.
        found.append((lag.records, round((before - lag.age_ms) / STEP) * STEP))
        assert before - lag.age_ms <= found[-1][1] <= after - lag.age_ms
    return found


STEP = 1_000_000
AT = 1000 * STEP


def record(number: int) -> Record:
    """Return a record of its own time."""
    return Record(b"v" * 2000, b"k", AT + number * STEP)


def test_the_age_is_that_of_the_first_record_from_the_offset_on(bench: Bench) -> None:
    offsets = [bench.append(record(number)) for number in range(4)]
    expected = [(4, AT), (4, AT), (3, AT + STEP), (1, AT + 3 * STEP)]
    assert first_timestamps(bench, -1, offsets[0], offsets[1], offsets[3]) == expected


def test_the_end_of_a_log_has_no_lag(bench: Bench) -> None:
    index = IndexStore(bench.redis)
    assert index.lags([LogPosition(bench.partition, -1)]) == [Lag(0, 0)]
    end = bench.append(record(0)) + 1
    assert (
        index.lags([LogPosition(bench.partition, end), LogPosition(bench.partition, end + 7)])
        == [Lag(0, 0)] * 2
    )
    assert index.lags([]) == []


def test_within_a_batch_kept_whole_it_is_that_of_the_batch(bench: Bench) -> None:
    bench.append(record(0))
    base = bench.append(record(1), record(2), record(3))
    bench.append(record(4))
    middle = AT + (1 if bench.format == "batch" else 2) * STEP
    assert first_timestamps(bench, base, base + 1) == [(4, AT + STEP), (3, middle)]


@pytest.mark.parametrize("codec", [batches.NONE, batches.LZ4])
def test_compression_hides_no_time(bench: Bench, codec: int) -> None:
    offset = bench.append(record(5), codec=codec, at_rest=AtRest("lz4", 0))
    assert first_timestamps(bench, offset) == [(1, AT + 5 * STEP)]


def test_an_age_below_the_start_is_that_of_the_start(bench: Bench) -> None:
    offsets = [bench.append(record(number)) for number in range(3)]
    bench.raw.hset(bench.partition.state, "start", offsets[2])
    assert first_timestamps(bench, -1, offsets[0]) == [(1, AT + 2 * STEP)] * 2


def test_the_compacted_part_comes_first(bench: Bench) -> None:
    offsets = [bench.append(record(number)) for number in range(6)]
    raw, partition = bench.raw, bench.partition
    entries = raw.xrange(partition.stream)
    raw.xadd(partition.compacted[1], entries[2][1], id=entries[2][0])
    raw.hset(partition.state, mapping={"clean": "1", "clean_end": offsets[4]})
    raw.xdel(partition.stream, *(entry_id for entry_id, _ in entries[:4]))
    found = [timestamp for _, timestamp in first_timestamps(bench, offsets[0], offsets[3], offsets[5])]
    assert found == [AT + 2 * STEP, AT + 4 * STEP, AT + 5 * STEP]


def test_a_time_that_lies_ahead_is_a_negative_age_and_none_is_no_age(bench: Bench) -> None:
    ahead = bench.append(Record(b"v", b"k", 2**52))
    index = IndexStore(bench.redis)
    [lag] = index.lags([LogPosition(bench.partition, ahead)])
    assert isinstance(lag, Lag)
    assert lag.age_ms < 0
    nothing = bench.append(Record(b"v", b"k", -1))
    assert index.lags([LogPosition(bench.partition, nothing)]) == [Lag(1, 0)]


def test_the_time_of_the_broker_counts_where_the_topic_says_so(bench: Bench) -> None:
    """LogAppendTime: the header of a batch says its producer's time for the first record all the same."""
    made, at = bench.made(record(1), record(2)), AT + 9 * STEP
    if isinstance(made, AppendBatch):
        header, _ = produced = produced_batch(made.batch, 1 << 20)
        assert header.base_timestamp == AT + STEP
        append: AppendRecords | AppendBatch = replace(
            made, batch=produced.timed(at, log_append_time=True).view
        )
    else:
        append = replace(made, timestamp=at)
    [appended] = bench.logs.append([append])
    assert isinstance(appended, Appended)
    assert first_timestamps(bench, appended.base_offset) == [(2, at)]


def test_many_are_answered_in_their_order_errors_in_their_places(bench: Bench) -> None:
    one, two, _ = bench.partitions
    offsets = [bench.append(record(3), partition=two), bench.append(record(3), partition=one)]
    stranger = bench.at(0, topic_id="another-id")
    lags = IndexStore(bench.redis).lags(
        [LogPosition(one, offsets[1] + 1), LogPosition(stranger, 0), LogPosition(two, offsets[0])]
    )
    assert lags[0] == Lag(0, 0)
    assert code_of(lags[1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert isinstance(lags[2], Lag)
    assert lags[2].records == 1
    assert lags[2].age_ms > 0
