"""What appending and taking in count: records, bytes and timestamps in the state, and the rows of the index.

A model counts the same entries one by one; rows may lie only where a multiple of their distances was crossed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from tests.lua.support import INDEX, STREAM, Log

ROW_RECORDS, ROW_BYTES = 2048, 512 * 1024


class Row(NamedTuple):
    """A row of the index."""

    offset: int
    records: int
    bytes: int
    largest: int
    interval: int


def rows(log: Log) -> list[Row]:
    """Return the rows but the first, which the creation of the log has written."""
    members = log.client.zrange(INDEX, 0, -1, withscores=True)
    first, *others = [Row(int(score), *map(int, member.split(b":"))) for member, score in members]
    assert first == Row(0, 0, 0, -1, -1)
    return others


def counters(log: Log) -> tuple[int, int, int, int]:
    """Return records, bytes, largest timestamp and that of the interval, as the state has them."""
    held = log.log
    return held.records, held.size_bytes, held.largest, held.interval


def entries(log: Log) -> list[tuple[int, dict[bytes, bytes]]]:
    """Return offset and fields of every entry of format `record`."""
    return list(zip(log.offsets(), (fields for _, fields in log.client.xrange(STREAM)), strict=True))


def size_of(fields: dict[bytes, bytes]) -> int:
    return sum(len(name) + len(value) for name, value in fields.items())


def expected_state(result: Iterable[tuple[int, dict[bytes, bytes]]], bits: int) -> tuple[int, int, int]:
    """Return records, bytes and the largest timestamp of these entries."""
    listed = list(result)
    stamps = [int(fields.get(b"timestamp", offset >> bits)) for offset, fields in listed]
    return len(listed), sum(size_of(fields) for _, fields in listed), max(stamps)


def test_bytes_and_timestamps_add_up_and_no_row_is_written_before_its_distance(log: Log) -> None:
    assert log.append("a", "b", max_timestamp=9).row_bytes == 0
    assert log.append("c", max_timestamp=7).row_bytes == 0
    assert counters(log) == (3, 200, 9, 9)
    assert rows(log) == []


def test_a_row_is_written_by_the_append_that_crosses_the_distance_in_records(log: Log) -> None:
    log.appended(*["v"] * 2000, max_timestamp=50)
    log.appended(*["v"] * 47, max_timestamp=20)
    assert rows(log) == []
    assert log.append("v", max_timestamp=30).row_bytes == 300
    first = Row(log.next(), 2048, 300, 50, 50)
    assert rows(log) == [first]
    assert counters(log) == (2048, 300, 50, -1)
    assert log.append("v", max_timestamp=20).row_bytes == 0
    assert log.append(*["v"] * 9000, max_timestamp=40).row_bytes == 500
    assert rows(log) == [first, Row(log.next(), 11_049, 500, 50, 40)]


def test_a_row_is_written_by_the_append_that_crosses_the_distance_in_bytes(log: Log) -> None:
    log.change(size_bytes=ROW_BYTES - 150)
    assert log.append("a").row_bytes == 0
    assert log.append("b", max_timestamp=-7).row_bytes == ROW_BYTES + 50
    assert rows(log) == [Row(log.next(), 2, ROW_BYTES + 50, 5, 5)]


def test_timestamps_are_exact(log: Log) -> None:
    log.appended("a", max_timestamp=2**53)
    log.appended(*["v"] * 4096, max_timestamp=2**53 - 1)
    assert rows(log)[0][3:] == (2**53, 2**53)
    log.appended(*["v"] * 4096, max_timestamp=2**53 - 1)
    assert rows(log)[1][3:] == (2**53, 2**53 - 1)


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [
        ("77", 77),
        ("-5", -5),
        ("0007", 7),
        (str(2**63 - 1), 2**53),
        (str(2**63), 1000),
        (str(-(2**63)), -(2**63)),
        (str(-(2**63) - 1), 1000),
        ("", 1000),
        ("1e3", 1000),
        ("0x10", 1000),
        (" 7", 1000),
        ("1" * 200_000, 1000),
    ],
)
@pytest.mark.parametrize("by", ["append", "renumber"])
def test_an_external_entry_counts_with_the_timestamp_that_readers_see(
    raw_redis: Any, text: str, timestamp: int, by: str
) -> None:
    log = Log(raw_redis)
    raw_redis.xadd(STREAM, {"value": "v", "timestamp": text}, id="1000-3")
    log.change(largest=-(2**63), interval=-(2**63))
    if by == "renumber":
        assert log.renumber()[:2] == [0, 0]
    else:
        log.append("own", max_timestamp=-(2**63))
        log.change(records=log.log.records - 1, size_bytes=log.log.size_bytes - 100)
    assert counters(log) == (1, 15 + len(text), timestamp, timestamp)


def test_the_first_usable_timestamp_of_an_external_entry_counts(raw_redis: Any) -> None:
    log = Log(raw_redis)
    raw_redis.execute_command("XADD", STREAM, "9-0", "timestamp", "x", "timestamp", "3", "timestamp", "8")
    log.settle()
    assert counters(log) == (1, 30, 3, 3)


@pytest.mark.parametrize("limit", [70, 1000])
def test_external_entries_are_counted_once_whether_they_move_or_stay(raw_redis: Any, limit: int) -> None:
    log = Log(raw_redis, 8)
    choose = random.Random(3)
    with raw_redis.pipeline(transaction=False) as pipe:
        for n in range(10_000):
            fields = {"value": "x" * choose.randint(0, 300)}
            if n % 3:
                fields["timestamp"] = str(choose.randint(0, 10**12))
            # Behind sequence 255 ids are no offsets: half of these entries must move.
            pipe.xadd(STREAM, fields, id=f"{1000 + n // 512}-{n % 512}")
        pipe.execute()
    log.settle(limit)
    log.settle(limit)
    result = entries(log)
    assert len(result) == 10_000
    assert counters(log)[:3] == expected_state(result, 8)
    check_rows(log, result)


def check_rows(log: Log, result: list[tuple[int, dict[bytes, bytes]]]) -> None:
    """Compare the index with the entries one by one."""
    records = size = 0
    largest = interval = -1
    index = {row.offset: row for row in rows(log)}
    for offset, fields in result:
        stamp = int(fields.get(b"timestamp", offset >> log.bits))
        floors = records // ROW_RECORDS, size // ROW_BYTES
        records, size = records + 1, size + size_of(fields)
        largest, interval = max(largest, stamp), max(interval, stamp)
        crossed = floors != (records // ROW_RECORDS, size // ROW_BYTES)
        row = index.pop(offset + 1, None)
        assert (row is not None) == crossed
        if row is not None:
            assert row == Row(offset + 1, records, size, largest, interval)
            interval = -1
    assert index == {}
    assert counters(log)[3] == interval


def test_an_append_counts_the_external_entries_that_it_takes_in(raw_redis: Any) -> None:
    log = Log(raw_redis)
    log.appended(*["v"] * 1900, max_timestamp=3)
    log.change(size_bytes=0)
    for n in range(200):
        raw_redis.xadd(STREAM, {"value": "v" * n, "timestamp": "9"})
    size = sum(5 + n + 9 + 1 for n in range(200)) + 100
    assert log.append("own", max_timestamp=5).row_bytes == size
    assert counters(log) == (2101, size, 9, -1)
    assert rows(log) == [Row(log.next(), 2101, size, 9, 9)]
