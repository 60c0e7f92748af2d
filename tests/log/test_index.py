"""The index against a plain list of what was appended, and the lag of an offset, in both formats."""

from __future__ import annotations

import re
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.log.index import (
    BYTES_PER_ROW,
    RECORDS_PER_ROW,
    TIMESTAMP_MAX,
    IndexStore,
    Interval,
    Lag,
    Search,
    SearchResult,
)
from korvet.log.types import Appended, LogPosition
from korvet.redis.scripts import folder
from tests.support import batches
from tests.support.appends import at_rest, config_of
from tests.support.batches import Record
from tests.support.log_bench import Bench, code_of
from tests.support.partition_state import change_log
from tests.support.redis_servers import now_ms

BATCHES, RECORDS = 40, 500


@pytest.fixture
def index(bench: Bench) -> IndexStore:
    return IndexStore(bench.redis)


def fill(bench: Bench, stamps: list[int]) -> list[int]:
    """Append RECORDS records at a time; return their offsets."""
    offsets: list[int] = []
    for at in range(0, len(stamps), RECORDS):
        some = [Record(b"v", b"k", stamp) for stamp in stamps[at : at + RECORDS]]
        base = bench.append(*some)
        offsets += range(base, base + len(some))
    return offsets


def rising(bench: Bench) -> list[int]:
    """Append records whose timestamps are their numbers."""
    return fill(bench, list(range(BATCHES * RECORDS)))


def searched(index: IndexStore, bench: Bench, timestamp: int, offset: int = -1) -> SearchResult:
    [outcome] = index.find([Search(bench.partition, timestamp, offset)])
    assert isinstance(outcome, SearchResult), outcome
    return outcome


def after(index: IndexStore, bench: Bench, *offsets: int) -> list[Any]:
    return index.records_from([LogPosition(bench.partition, offset) for offset in offsets])


def set_start(bench: Bench, offset: int) -> None:
    """Let the log start at an offset, as trimming does before it gives memory back."""
    change_log(bench.raw, bench.partition.state, start=offset)


def test_the_distances_of_rows_are_those_of_the_scripts() -> None:
    text = (folder() / "shared" / "index_steps.lua").read_text(encoding="utf-8")
    match = re.search(r"= (\d+), (\d+)", text)
    assert match is not None
    assert (int(match[1]), int(match[2])) == (RECORDS_PER_ROW, BYTES_PER_ROW)


def test_a_timestamp_lies_in_one_interval_of_a_log_in_order(bench: Bench, index: IndexStore) -> None:
    offsets = rising(bench)
    assert bench.raw.zcard(bench.partition.index_key) >= 9
    for number in range(0, len(offsets), 777):
        [(first, end), *_] = searched(index, bench, number).intervals
        assert first <= offsets[number] < end
        assert bench_distance(offsets, first, end) <= RECORDS_PER_ROW + RECORDS
    assert searched(index, bench, len(offsets)).intervals == []


def bench_distance(offsets: list[int], first: int, end: int) -> int:
    return sum(first <= offset < end for offset in offsets)


def test_all_intervals_are_returned_one_search_after_the_other(bench: Bench, index: IndexStore) -> None:
    offsets = fill(bench, [9, *[5] * (RECORDS - 1)] * 161)
    pieces: list[tuple[int, int]] = []
    looked = -1
    searches = 0
    while not pieces or looked < offsets[-1] + 1:
        step = searched(index, bench, 9, looked)
        pieces += step.intervals
        looked = step.searched
        searches += 1
    assert searches == -(-len(pieces) // 8) > 2
    assert len(pieces) == bench.raw.zcard(bench.partition.index_key) >= 20  # each begins with a row
    assert [end for _, end in pieces[:-1]] == [first for first, _ in pieces[1:]]
    assert (pieces[0][0], pieces[-1][1]) == (0, offsets[-1] + 1)


def test_what_lies_below_the_start_is_not_looked_for(bench: Bench, index: IndexStore) -> None:
    offsets = rising(bench)
    for number in (1, 4000, 4096, 5000, 19_999):
        set_start(bench, offsets[number])
        step = searched(index, bench, 0)
        assert (step.start, step.end) == (offsets[number], offsets[-1] + 1)
        assert step.intervals[0][0] == offsets[number]
    set_start(bench, offsets[-1] + 1)
    assert searched(index, bench, 0).intervals == []


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_where_rows_are_missing_the_rest_of_the_log_is_one_interval(
    bench: Bench, index: IndexStore, kept: int
) -> None:
    offsets = rising(bench)
    key = bench.partition.index_key
    bench.raw.zremrangebyrank(key, kept, -1)
    change_log(bench.raw, bench.partition.state, interval=-1)
    last = int(bench.raw.zrange(key, -1, -1, withscores=True)[0][1]) if kept else 0
    assert searched(index, bench, 19_000).intervals == [(last, offsets[-1] + 1)]
    assert index.intervals(bench.partition)[-1] == Interval(last, offsets[-1] + 1, TIMESTAMP_MAX)


def test_the_pieces_of_a_log_are_all_of_it(bench: Bench, index: IndexStore) -> None:
    offsets = rising(bench)
    set_start(bench, offsets[4800])
    pieces = index.intervals(bench.partition)
    assert (pieces[0].first, pieces[-1].end) == (offsets[4800], offsets[-1] + 1)
    assert [piece.end for piece in pieces[:-1]] == [piece.first for piece in pieces[1:]]
    numbers = {offset: number for number, offset in enumerate(offsets)}
    assert [piece.bound for piece in pieces] == [numbers[piece.end - 1] for piece in pieces]


def test_a_compacted_part_is_counted_where_it_lies(record_bench: Bench) -> None:
    index = IndexStore(record_bench.redis)
    offsets = fill(record_bench, [1] * 2000)
    raw, partition = record_bench.raw, record_bench.partition
    for entry_id, fields in raw.xrange(partition.stream)[:1000:4]:
        raw.xadd(partition.compacted[1], fields, id=entry_id)
    raw.hset(partition.state, mapping={"clean": "1", "clean_end": offsets[1000]})
    assert after(index, record_bench, offsets[0], offsets[997], offsets[1000]) == [1250, 1000, 1000]


def test_many_logs_are_answered_in_their_order(bench: Bench, index: IndexStore) -> None:
    one, two, three = bench.partitions
    bases = [
        bench.append(*[b"v"] * count, partition=item) for count, item in ((1, one), (2, two), (3, three))
    ]
    stranger = bench.at(0, topic_id="another-id")
    places = ((two, bases[1]), (stranger, 0), (three, bases[2] + 1), (one, -1), (one, bases[0] + 1))
    positions = [LogPosition(partition, offset) for partition, offset in places]
    counts, lags = index.records_from(positions), index.lags(positions)
    assert [counts[0], *counts[2:]] == [2, 2, 1, 0]
    assert [lag.records for lag in lags if isinstance(lag, Lag)] == [2, 2, 1, 0]
    assert code_of(counts[1]) == code_of(lags[1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    finds = index.find([Search(three, 5), Search(stranger, 5), Search(one, 6)])
    assert isinstance(finds[0], SearchResult)
    assert code_of(finds[1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert finds[2] == SearchResult(0, bases[0] + 1, bases[0] + 1, [])


@pytest.mark.parametrize("member", ["x", "1:2:3", "1:2:3:", "-1:2:3:4", "1:2:3:4:5", None])
def test_a_malformed_row_and_an_index_of_another_type_are_named(
    bench: Bench, index: IndexStore, member: str | None
) -> None:
    offset = bench.append(b"v")
    if member is None:
        bench.raw.set(bench.partition.index_key, "x")
    else:
        bench.raw.zadd(bench.partition.index_key, {member: offset + 1})
        with pytest.raises(Exception, match="index: a row is malformed"):
            index.intervals(bench.partition)
    outcomes: list[Any] = [*index.find([Search(bench.partition, 0)])]
    if not bench.partition.is_dense:
        outcomes += after(index, bench, offset)
    for outcome in outcomes:
        assert code_of(outcome) == ErrorCode.KAFKA_STORAGE_ERROR
        assert member is None or f"{bench.partition.index_key} is malformed" in outcome.message


def first_timestamps(bench: Bench, *offsets: int) -> list[tuple[int, int]]:
    """Return for each offset the records from it on, and the timestamp of the first, by which its age goes."""
    before = now_ms(bench.raw)
    lags = IndexStore(bench.redis).lags([LogPosition(bench.partition, offset) for offset in offsets])
    after = now_ms(bench.raw)
    result: list[tuple[int, int]] = []
    for lag in lags:
        assert isinstance(lag, Lag), lag
        # Redis' clock went on by so much meanwhile; timestamps of these tests are further apart.
        result.append((lag.records, round((before - lag.age_ms) / STEP) * STEP))
        assert before - lag.age_ms <= result[-1][1] <= after - lag.age_ms
    return result


STEP = 1_000_000
AT = 1000 * STEP


def record(number: int) -> Record:
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
    offset = bench.append(record(5), codec=codec, config=at_rest("lz4", 0))
    assert first_timestamps(bench, offset) == [(1, AT + 5 * STEP)]


def test_an_age_below_the_start_is_that_of_the_start(bench: Bench) -> None:
    offsets = [bench.append(record(number)) for number in range(3)]
    change_log(bench.raw, bench.partition.state, start=offsets[2])
    assert first_timestamps(bench, -1, offsets[0]) == [(1, AT + 2 * STEP)] * 2


def test_the_compacted_part_comes_first(bench: Bench) -> None:
    offsets = [bench.append(record(number)) for number in range(6)]
    raw, partition = bench.raw, bench.partition
    entries = raw.xrange(partition.stream)
    raw.xadd(partition.compacted[1], entries[2][1], id=entries[2][0])
    raw.hset(partition.state, mapping={"clean": "1", "clean_end": offsets[4]})
    raw.xdel(partition.stream, *(entry_id for entry_id, _ in entries[:4]))
    result = [timestamp for _, timestamp in first_timestamps(bench, offsets[0], offsets[3], offsets[5])]
    assert result == [AT + 2 * STEP, AT + 4 * STEP, AT + 5 * STEP]


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
    made = bench.made(record(1), record(2), config=config_of(message_timestamp_type="LogAppendTime"))
    [appended] = bench.logs.append([made])
    assert isinstance(appended, Appended)
    before = now_ms(bench.raw)
    [lag] = IndexStore(bench.redis).lags([LogPosition(bench.partition, appended.base_offset)])
    assert isinstance(lag, Lag)
    assert lag.records == 2
    assert before <= appended.timestamp + lag.age_ms <= now_ms(bench.raw)
