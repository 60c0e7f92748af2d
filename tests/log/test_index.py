"""The index as the store reads it, against a real server and a plain list of what was appended, in both formats."""

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
    LogPosition,
    Search,
    SearchResult,
)
from korvet.redis.scripts import folder
from tests.support.batches import Record
from tests.support.log_bench import Bench, code_of

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


def found(index: IndexStore, bench: Bench, timestamp: int, offset: int = -1) -> SearchResult:
    [outcome] = index.find([Search(bench.partition, timestamp, offset)])
    assert isinstance(outcome, SearchResult), outcome
    return outcome


def after(index: IndexStore, bench: Bench, *offsets: int) -> list[Any]:
    return index.records_from([LogPosition(bench.partition, offset) for offset in offsets])


def set_start(bench: Bench, offset: int) -> None:
    """Let the log start at an offset, as trimming does before it gives memory back."""
    bench.raw.hset(bench.partition.state, "start", offset)


def test_the_distances_of_rows_are_those_of_the_scripts() -> None:
    text = (folder() / "shared" / "index_steps.lua").read_text(encoding="utf-8")
    match = re.search(r"= (\d+), (\d+)", text)
    assert match is not None
    assert (int(match[1]), int(match[2])) == (RECORDS_PER_ROW, BYTES_PER_ROW)


def test_a_timestamp_lies_in_one_interval_of_a_log_in_order(bench: Bench, index: IndexStore) -> None:
    offsets = rising(bench)
    assert bench.raw.zcard(bench.partition.index_key) >= 9
    for number in range(0, len(offsets), 777):
        [(first, end), *_] = found(index, bench, number).intervals
        assert first <= offsets[number] < end
        assert bench_distance(offsets, first, end) <= RECORDS_PER_ROW + RECORDS
    assert found(index, bench, len(offsets)).intervals == []


def bench_distance(offsets: list[int], first: int, end: int) -> int:
    return sum(first <= offset < end for offset in offsets)


def test_all_intervals_are_returned_one_search_after_the_other(bench: Bench, index: IndexStore) -> None:
    offsets = fill(bench, [9, *[5] * (RECORDS - 1)] * 161)
    pieces: list[tuple[int, int]] = []
    looked = -1
    searches = 0
    while not pieces or looked < offsets[-1] + 1:
        step = found(index, bench, 9, looked)
        pieces += step.intervals
        looked = step.searched
        searches += 1
    assert searches == -(-len(pieces) // 8) > 2
    assert len(pieces) == bench.raw.zcard(bench.partition.index_key) + 1 >= 20
    assert [end for _, end in pieces[:-1]] == [first for first, _ in pieces[1:]]
    assert (pieces[0][0], pieces[-1][1]) == (0, offsets[-1] + 1)


def test_what_lies_below_the_start_is_not_looked_for(bench: Bench, index: IndexStore) -> None:
    offsets = rising(bench)
    for number in (1, 4000, 4096, 5000, 19_999):
        set_start(bench, offsets[number])
        step = found(index, bench, 0)
        assert (step.start, step.end) == (offsets[number], offsets[-1] + 1)
        assert step.intervals[0][0] == offsets[number]
    set_start(bench, offsets[-1] + 1)
    assert found(index, bench, 0).intervals == []


@pytest.mark.parametrize("kept", [0, 2])
def test_where_rows_are_missing_the_rest_of_the_log_is_one_interval(
    bench: Bench, index: IndexStore, kept: int
) -> None:
    offsets = rising(bench)
    key = bench.partition.index_key
    bench.raw.zremrangebyrank(key, kept, -1)
    bench.raw.hset(bench.partition.state, "interval", -1)
    last = int(bench.raw.zrange(key, -1, -1, withscores=True)[0][1]) if kept else 0
    assert found(index, bench, 19_000).intervals == [(last, offsets[-1] + 1)]
    assert index.intervals(bench.partition)[-1] == Interval(last, offsets[-1] + 1, TIMESTAMP_MAX)


def test_the_pieces_of_a_log_are_all_of_it(bench: Bench, index: IndexStore) -> None:
    offsets = rising(bench)
    set_start(bench, offsets[4800])
    pieces = index.intervals(bench.partition)
    assert (pieces[0].first, pieces[-1].end) == (offsets[4800], offsets[-1] + 1)
    assert [piece.end for piece in pieces[:-1]] == [piece.first for piece in pieces[1:]]
    numbers = {offset: number for number, offset in enumerate(offsets)}
    assert [piece.bound for piece in pieces] == [numbers[piece.end - 1] for piece in pieces]


def test_records_after_an_offset_are_counted_to_the_last_one(bench: Bench, index: IndexStore) -> None:
    offsets = rising(bench)
    numbers = [0, 1, 4095, 4096, 4499, 4500, 4501, 12_345, 19_998, 19_999]
    lags = after(index, bench, -1, *(offsets[number] for number in numbers), offsets[-1] + 1, offsets[-1] + 9)
    assert lags == [20_000, *(20_000 - number for number in numbers), 0, 0]


def test_records_after_an_offset_below_the_start_are_those_from_the_start(
    bench: Bench, index: IndexStore
) -> None:
    offsets = rising(bench)
    set_start(bench, offsets[5000])
    assert after(index, bench, offsets[3], offsets[5001]) == [15_000, 14_999]


def test_without_an_index_records_are_counted_one_by_one(bench: Bench, index: IndexStore) -> None:
    offsets = rising(bench)
    bench.raw.delete(bench.partition.index_key)
    assert after(index, bench, offsets[3], offsets[-3]) == [19_997, 3]


def test_external_entries_are_records_after_an_offset_once_they_are_taken_in(record_bench: Bench) -> None:
    index = IndexStore(record_bench.redis)
    base = record_bench.append(b"a", b"b")
    record_bench.external(5000)
    assert after(index, record_bench, base + 1) == [1]
    record_bench.append(b"c")
    assert after(index, record_bench, base + 1) == [5002]


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
        bench.append(*[b"v"] * count, partition=each) for count, each in ((1, one), (2, two), (3, three))
    ]
    stranger = bench.at(0, topic_id="another-id")
    lags = index.records_from(
        [
            LogPosition(two, bases[1]),
            LogPosition(stranger, 0),
            LogPosition(three, bases[2] + 1),
            LogPosition(one, -1),
        ]
    )
    assert lags[0] == 2
    assert code_of(lags[1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert lags[2:] == [2, 1]
    finds = index.find([Search(three, 5), Search(stranger, 5), Search(one, 6)])
    assert isinstance(finds[0], SearchResult)
    assert code_of(finds[1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert finds[2] == SearchResult(0, bases[0] + 1, bases[0] + 1, [])


@pytest.mark.parametrize("member", ["x", "1:2:3", "1:2:3:", "-1:2:3:4", "1:2:3:4:5"])
def test_a_malformed_row_is_named(bench: Bench, index: IndexStore, member: str) -> None:
    offset = bench.append(b"v")
    bench.raw.zadd(bench.partition.index_key, {member: offset + 1})
    outcomes: list[Any] = [*index.find([Search(bench.partition, 0)])]
    if bench.format == "record":
        outcomes += after(index, bench, offset)
    with pytest.raises(Exception, match="index: a row is malformed"):
        index.intervals(bench.partition)
    for outcome in outcomes:
        assert code_of(outcome) == ErrorCode.KAFKA_STORAGE_ERROR
        assert f"{bench.partition.index_key} is malformed" in outcome.message


def test_an_index_of_another_type_is_named(bench: Bench, index: IndexStore) -> None:
    offset = bench.append(b"v")
    bench.raw.set(bench.partition.index_key, "x")
    [outcome] = index.find([Search(bench.partition, 0)])
    assert code_of(outcome) == ErrorCode.KAFKA_STORAGE_ERROR
    if bench.format == "record":
        assert code_of(after(index, bench, offset)[0]) == ErrorCode.KAFKA_STORAGE_ERROR
