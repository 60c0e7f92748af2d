"""Trimming in both formats: states, steps, damaged keys, moving log starts, and work in the background."""

from __future__ import annotations

import operator
import time
from collections import Counter
from typing import Any

import gevent
import pytest
from gevent.event import Event

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.log.index import Row
from korvet.log.retention import Retention, SizeRetentionTrigger
from korvet.log.trim import BackgroundTrims, Reason, Trim, Trimmed, Trimmer, TrimState, TrimStore
from korvet.log.types import LogPosition
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.registry import TopicRegistry
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow
from tests.support.appends import at_rest
from tests.support.log_bench import Bench, code_of
from tests.support.partition_state import change_log
from tests.support.proxy import turn


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
    change_log(bench.raw, bench.partition.state, size_bytes=9000, largest=77, interval=77)
    bench.raw.hset(bench.partition.state, mapping={"start_bytes": 10, "archived": 3, "reindex": "1"})
    end = bench.bounds().high_watermark
    set_rows(bench, (offsets[1], -1), (offsets[3], 12))
    before_ms = int(time.time() * 1000)
    now_ms, [result, other] = store.states([bench.partition, bench.partitions[1]], 10)
    assert before_ms - 1000 <= now_ms <= int(time.time() * 1000) + 1000
    rows = [Row(offsets[1], 1, 1000, 9, -1), Row(offsets[3], 2, 2000, 9, 12)]
    assert isinstance(result, TrimState)
    assert isinstance(other, TrimState)
    assert result[1:] == (rows, False, False)
    assert other[1:] == ([], False, False)
    named = operator.attrgetter("start", "end", "bytes", "start_bytes", "interval", "archived", "reindex")
    assert named(result.totals) == (0, end, 9000, 10, 77, 3, True)
    assert named(other.totals) == (0, 0, 0, 0, -1, 0, False)


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
    change_log(bench.raw, bench.partition.state, start=offsets[5])
    assert look(store, bench).unfinished
    trim(store, bench)
    assert not look(store, bench).unfinished


SECONDS_MAX = 30


@pytest.fixture
def trimmer(bench: Bench) -> Trimmer:
    return Trimmer(bench.logs, TrimStore(bench.redis), lambda _reason, _records: None)


def finish(background: BackgroundTrims) -> None:
    """Wait until nothing is under way."""
    with gevent.Timeout(SECONDS_MAX):
        while background._under_way:
            turn()


def test_many_starts_move_at_once_and_each_has_its_own_answer(bench: Bench, trimmer: Trimmer) -> None:
    ends = [bench.append(b"a", b"b", partition=partition) + 2 for partition in bench.partitions]
    stranger = bench.at(0, topic_id="id-2")
    starts = [LogPosition(partition, end - 1) for partition, end in zip(bench.partitions, ends, strict=True)]
    moved = trimmer.move(
        [*starts, LogPosition(stranger, 1), LogPosition(bench.partition, ends[0] + 1)] * 4, "time"
    )
    assert len(moved) == 20
    for outcome, start in zip(moved, starts, strict=False):
        assert isinstance(outcome, Trimmed)
        assert outcome.start == start.offset
    assert [code_of(outcome) for outcome in moved[3:5]] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ]
    assert bench.bounds().first_offset == ends[0] - 1


def test_records_that_left_are_counted_by_reason(redis: Redis, raw_redis: Any) -> None:
    """To one row of the index; exactly in format batch, whose offsets count records."""
    bench, counted = Bench(redis, raw_redis, "batch"), Counter[Reason]()
    trimmer = Trimmer(bench.logs, TrimStore(redis), lambda reason, records: counted.update({reason: records}))
    bench.append(b"a", b"b", b"c")
    trimmer.move([LogPosition(bench.partition, 1)], "delete_records")
    trimmer.move([LogPosition(bench.partition, 1)], "time")
    trimmer.move([LogPosition(bench.partition, 3)], "size")
    assert counted == {"delete_records": 1, "size": 2}


def test_work_at_a_log_is_begun_once_at_a_time(bench: Bench) -> None:
    background, go_on, begun = BackgroundTrims(), Event(), Counter[str]()

    def work() -> None:
        begun["first"] += 1
        go_on.wait(SECONDS_MAX)

    def other() -> None:
        begun["other"] += 1

    background.begin(bench.partitions[0], work)
    background.begin(bench.partitions[0], work)
    background.begin(bench.partitions[1], other)
    while not begun["other"]:
        turn()
    assert begun == {"first": 1, "other": 1}
    go_on.set()
    finish(background)
    background.begin(bench.partitions[0], other)
    finish(background)
    assert begun == {"first": 1, "other": 2}


def test_a_failure_is_logged_once_until_it_works_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    background = BackgroundTrims()

    def fails(code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        raise KafkaError(code, "as expected")

    def lines_after(*works: Any) -> int:
        for work in works:
            background.begin(bench.partition, work)
            finish(background)
        return len(caplog.records)

    assert lines_after(fails, fails) == 1
    assert lines_after(lambda: None, fails, fails) == 2
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert lines_after(lambda: None, lambda: fails(gone)) == 2, "its topic was deleted: nothing is left to do"


def test_all_memory_is_freed_in_the_background(bench: Bench, trimmer: Trimmer) -> None:
    for _ in range(50):
        bench.append(b"v" * 150_000, config=at_rest("none"))
    end = bench.bounds().high_watermark
    background = BackgroundTrims()
    [moved] = trimmer.move([LogPosition(bench.partition, end)], "size")
    assert isinstance(moved, Trimmed)
    assert moved.more
    background.free(bench.partition, trimmer)
    finish(background)
    assert bench.raw.xlen(bench.partition.stream) == 0


@pytest.mark.parametrize(
    ("configs", "trims"),
    [
        ({"retention.bytes": "1000"}, True),
        ({"retention.bytes": "1000", "cleanup.policy": "compact"}, False),
        ({"retention.bytes": "1000000"}, False),
        ({"retention.ms": "1"}, False),
    ],
)
def test_what_has_grown_too_large_shrinks_beside_the_requests(
    bench: Bench, trimmer: Trimmer, configs: dict[str, str], *, trims: bool
) -> None:
    store, settings = TopicStore(bench.redis, Keys("korvet")), Settings()
    row = TopicRow(
        name="grows", id="A" * 22, partitions=1, configs=configs | {"storage.format": bench.format}
    )
    store.create(row)
    topics = TopicRegistry(store, settings, bench.logs.partition)
    [partition] = topics.get("grows").partitions
    offsets = [bench.append(b"v", partition=partition) for _ in range(10)]
    bench.raw.zadd(partition.index_key, {f"{n}:{n * 600}:5:5": offsets[n] for n in range(1, 10)})
    change_log(bench.raw, partition.state, size_bytes=6000, records=10)
    background = BackgroundTrims()
    retention = Retention(bench.logs, TrimStore(bench.redis), trimmer)
    SizeRetentionTrigger(topics, retention, background).crossed(partition)
    finish(background)
    [bounds] = bench.logs.bounds([partition])
    assert not isinstance(bounds, KafkaError)
    # 6000 bytes less those of a row leave a thousand, or they stay.
    assert bounds.first_offset == (offsets[8] if trims else offsets[0])


def test_a_topic_that_is_gone_is_left_alone(bench: Bench, trimmer: Trimmer) -> None:
    topics = TopicRegistry(TopicStore(bench.redis, Keys("korvet")), Settings(), bench.logs.partition)
    background = BackgroundTrims()
    SizeRetentionTrigger(topics, Retention(bench.logs, TrimStore(bench.redis), trimmer), background).crossed(
        bench.partition
    )
    assert not background._under_way
