"""Looking at logs and moving their starts, over both formats, and what damaged keys become."""

from __future__ import annotations

import time
from typing import Any

import pytest

from korvet.errors import ErrorCode, StorageUnavailableError
from korvet.log.index import Row
from korvet.log.store import LogStore
from korvet.log.trim import Trim, Trimmed, TrimState, TrimStore
from korvet.log.types import Fetched, Read
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from tests.support.log_bench import Bench, code_of


@pytest.fixture
def store(redis: Redis) -> TrimStore:
    return TrimStore(redis)


def look(store: TrimStore, bench: Bench, rows_max: int = 10) -> TrimState:
    _, [extent] = store.states([bench.partition], rows_max)
    assert isinstance(extent, TrimState), extent
    return extent


def set_rows(bench: Bench, *rows: tuple[int, int]) -> None:
    """Write index rows of these offsets and intervals, a thousand bytes and one record apart."""
    bench.raw.delete(bench.partition.index_key)
    for count, (offset, interval) in enumerate(rows, 1):
        bench.raw.zadd(bench.partition.index_key, {f"{count}:{count * 1000}:9:{interval}": offset})


def trim(store: TrimStore, bench: Bench, start: int = -1, first: int = -1) -> Trimmed:
    [outcome] = store.trim([Trim(bench.partition, start, first)])
    assert isinstance(outcome, Trimmed), outcome
    return outcome


def test_an_extent_is_what_a_log_holds(bench: Bench, store: TrimStore) -> None:
    offsets = [bench.append(f"v{n}".encode()) for n in range(5)]
    fields = {"bytes": 9000, "start_bytes": 10, "interval": 77, "archived": 3, "reindex": "1"}
    bench.raw.hset(bench.partition.state, mapping=fields)
    end = bench.bounds().high_watermark
    set_rows(bench, (offsets[1], -1), (offsets[3], 12))
    before_ms = int(time.time() * 1000)
    now_ms, [found, other] = store.states([bench.partition, bench.partitions[1]], 10)
    assert before_ms - 1000 <= now_ms <= int(time.time() * 1000) + 1000
    rows = [Row(offsets[1], 1, 1000, 9, -1), Row(offsets[3], 2, 2000, 9, 12)]
    expected = TrimState(
        start=0,
        end=end,
        bytes=9000,
        start_bytes=10,
        interval=77,
        rows=rows,
        more_rows=False,
        archived=3,
        reindex=True,
        unfinished=False,
    )
    assert found == expected
    empty = expected._replace(end=0, bytes=0, start_bytes=0, archived=0)
    assert other == empty._replace(interval=-1, rows=[], reindex=False)


def test_a_look_gives_the_first_rows_above_the_start(bench: Bench, store: TrimStore) -> None:
    offsets = [bench.append(b"v") for _ in range(10)]
    set_rows(bench, *((offset, 1) for offset in offsets[1:]))
    assert [row.offset for row in look(store, bench, 3).rows] == offsets[1:5]
    assert look(store, bench, 3).more_rows
    # One step frees what lies below the start, and drops its rows.
    trim(store, bench, offsets[4], offsets[4])
    extent = look(store, bench, 3)
    assert ([row.offset for row in extent.rows], extent.more_rows) == (offsets[5:8], True)
    extent = look(store, bench, 6)
    assert ([row.offset for row in extent.rows], extent.more_rows) == (offsets[5:10], False)


def test_a_row_past_the_end_is_for_the_next_turn(bench: Bench, store: TrimStore) -> None:
    end = bench.append(b"v") + 1
    set_rows(bench, (end, 1), (end + 5, 1))
    extent = look(store, bench, 1)
    assert ([row.offset for row in extent.rows], extent.more_rows) == ([end], False)


def test_rows_below_the_start_are_work_left(bench: Bench, store: TrimStore) -> None:
    offsets = [bench.append(b"v") for _ in range(10)]
    set_rows(bench, *((offset, 1) for offset in offsets[1:]))
    bench.raw.hset(bench.partition.state, "start", offsets[5])
    assert look(store, bench).unfinished
    trim(store, bench)
    assert not look(store, bench).unfinished


def test_a_moved_start_is_everybodys(bench: Bench, store: TrimStore, redis_url: str) -> None:
    offsets = [bench.append(f"v{n}".encode()) for n in range(10)]
    others = Redis(redis_url, timeout_ms=5000, connect_timeout_ms=5000)
    there = LogStore(others, others, Keys("korvet"))
    trim(store, bench, offsets[6], offsets[6])
    for logs in (bench.logs, there):
        [fetched] = logs.read([Read(bench.partition, offsets[6], 100)])
        assert isinstance(fetched, Fetched)
        assert (fetched.log_start, fetched.first_offset) == (offsets[6], offsets[6])
    others.close()
    assert bench.values()[-4:] == [b"v6", b"v7", b"v8", b"v9"]
    bounds = bench.bounds()
    assert (bounds.log_start, bounds.first_offset) == (offsets[6], offsets[6])


def test_an_emptied_log_goes_on(bench: Bench, store: TrimStore) -> None:
    bench.append(b"a", b"b")
    end = bench.bounds().high_watermark
    assert trim(store, bench, end).start == end
    assert bench.nothing(end) == (end, end, end)
    assert bench.bounds()[:3] == (end, end, end)
    offset = bench.append(b"c")
    # A consumer that waits at the end, which in format record is not the next record's offset, gets it.
    assert bench.read_all(end) == [(offset, b"c")]
    assert bench.bounds()[:3] == (end, offset, offset + 1)


def test_the_start_may_lie_between_two_records(record_bench: Bench, store: TrimStore) -> None:
    bench = record_bench
    first = bench.append(b"a")
    bench.raw.hset(bench.partition.state, "next", first + 2000)
    second = bench.append(b"b")
    trim(store, bench, first + 1, second)
    bounds = bench.bounds()
    assert (bounds.log_start, bounds.first_offset) == (first + 1, second)
    assert [offset for offset, _ in bench.read_all(first + 1)] == [second]


def test_errors_stand_in_their_places(bench: Bench, store: TrimStore) -> None:
    end = bench.append(b"v") + 1
    stranger = bench.at(0, topic_id="id-2")
    damaged, good = bench.partitions[1:]
    bench.raw.hset(damaged.state, "bytes", "many")
    _, extents = store.states([stranger, damaged, good], 5)
    assert [code_of(each) for each in extents[:2]] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ]
    assert isinstance(extents[2], TrimState)
    outcomes = store.trim([Trim(stranger, 1), Trim(damaged), Trim(bench.partition, end + 1), Trim(good)])
    assert [code_of(each) for each in outcomes[:3]] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ]
    assert outcomes[3] == Trimmed(0, 0, more=False)


@pytest.mark.parametrize("member", ["1:2:3", "a:b:c:d", "1:2:3:4:5", ""])
def test_a_damaged_row_is_named(bench: Bench, store: TrimStore, member: str) -> None:
    bench.append(b"v")
    bench.raw.zadd(bench.partition.index_key, {member: 1})
    _, extents = store.states([bench.partition], 5)
    for outcome in (*extents, *store.trim([Trim(bench.partition, 1)])):
        assert code_of(outcome) == ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.partition.index_key in str(outcome)
    assert bench.bounds().log_start == 0


@pytest.mark.parametrize("key", ["state", "index_key", "stream"])
def test_a_key_of_another_type_is_named(bench: Bench, store: TrimStore, key: str) -> None:
    bench.append(b"v")
    name: Any = getattr(bench.partition, key)
    bench.raw.delete(name)
    bench.raw.set(name, "no log")
    [outcome] = store.trim([Trim(bench.partition, 1)])
    assert code_of(outcome) == ErrorCode.KAFKA_STORAGE_ERROR
    _, [extent] = store.states([bench.partition], 5)
    assert isinstance(extent, TrimState) == (key == "stream")


def test_a_redis_that_is_away_is_said_so() -> None:
    away = TrimStore(Redis("redis://127.0.0.1:1", timeout_ms=500, connect_timeout_ms=500))
    with pytest.raises(StorageUnavailableError):
        away.states([], 5)
