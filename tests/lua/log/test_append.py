"""lua/log/append_record.lua with ids that are times: offsets, external entries, and fields as they are stored."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.support import MOVING, STREAM, Appended, Log, now_ms, unchanged
from tests.support.append_scripts import Batch

BITS = range(8, 13)
AHEAD_MS = 3_600_000


@pytest.fixture
def log(raw_redis: Any) -> Log:
    return Log(raw_redis)


@pytest.mark.parametrize("bits", BITS)
def test_a_batch_lies_at_contiguous_offsets_that_begin_with_redis_clock(raw_redis: Any, bits: int) -> None:
    log = Log(raw_redis, bits)
    before_ms = now_ms(raw_redis)
    _, base, log_start, *_ = log.append(*(str(n) for n in range(5000)))
    assert before_ms <= base >> bits <= now_ms(raw_redis)
    assert base == base >> bits << bits == log_start
    assert log.offsets() == list(range(base, base + 5000))
    assert log.values() == [str(n) for n in range(5000)]
    assert log.next() == base + 5000


@pytest.mark.parametrize("bits", BITS)
def test_offsets_go_on_contiguously_when_the_clock_goes_back(raw_redis: Any, bits: int) -> None:
    log = Log(raw_redis, bits)
    ahead = now_ms(raw_redis) + AHEAD_MS
    last = (ahead << bits) + (1 << bits) - 2
    log.external(log.id_of(last), "from the future")
    assert log.appended("a", "b", "c") == last + 1
    assert log.appended("d") == last + 4
    assert log.offsets() == list(range(last, last + 5))


def test_the_first_offset_is_that_of_an_adopted_entry(log: Log) -> None:
    log.external("5-1", "old")
    assert log.append("new").log_start == (5 << 10) + 1


@pytest.mark.parametrize("unreadable", ["0-1024", "1-1024", f"{2**43}-0", f"{2**64 - 1}-{2**64 - 1}"])
def test_an_entry_without_an_offset_must_be_renumbered_first(log: Log, unreadable: str) -> None:
    log.external(unreadable, "x")
    with unchanged(log.client):
        assert log.append("a").outcome == b"AGAIN"
    log.settle()
    log.appended("a")
    assert log.values() == ["x", "a"]


def test_more_external_entries_than_an_append_takes_in_are_left_to_renumber(log: Log) -> None:
    values = [str(ms) for ms in range(1, 2001)]
    for value in values:
        log.external(f"{value}-0", value)
    log.appended("a")
    base = log.next() >> log.bits
    for n in range(2001):
        log.external(f"{base + 1 + n}-0", "f")
    assert log.append("b").outcome == b"AGAIN"
    log.settle()
    log.appended("b")
    assert log.values() == [*values, "a", *["f"] * 2001, "b"]


def test_larger_external_entries_than_an_append_takes_in_are_left_to_renumber(log: Log) -> None:
    log.external("1-0", "x" * 4_200_000)
    log.external("2-0", "x")
    assert log.append("a").outcome == b"AGAIN"
    log.settle()
    log.appended("a")
    assert len(log.values()) == 3


def test_nothing_is_appended_while_entries_are_on_their_way(log: Log) -> None:
    log.change(moving=1)
    with unchanged(log.client):
        assert log.append("a").outcome == b"AGAIN"
    assert not log.client.exists(MOVING)


def append_records(client: Any, count: int, shared: int, *args: Any) -> list[list[bytes]]:
    """Append `count` records given as the script takes them; return the fields of all entries as they lie."""
    log = Log(client)
    [appended] = log.append_all(Batch(args, count, 100, shared))
    assert isinstance(appended, Appended)
    # Under its real command name redis-py would turn the fields into a dict, which keeps no repeats.
    entries = client.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, STREAM)
    return [fields for _, fields in entries]


def test_a_record_of_as_many_fields_as_the_limit_is_stored(raw_redis: Any) -> None:
    fields = [arg for n in range(3950) for arg in (f"header.{n}", "v")]
    [stored] = append_records(raw_redis, 1, 0, len(fields), *fields)
    assert len(stored) == 7900


def test_records_that_share_their_fields_lie_as_if_each_had_said_them(raw_redis: Any) -> None:
    three = ["key", "value", "timestamp", b"\x00", "", "5", "", b"\xff", "6"]
    assert append_records(raw_redis, 2, 3, *three) == [
        [b"key", b"\x00", b"value", b"", b"timestamp", b"5"],
        [b"key", b"", b"value", b"\xff", b"timestamp", b"6"],
    ]
    raw_redis.flushdb()
    assert append_records(raw_redis, 2, 2, "value", "timestamp", "2", "5", "3", "6") == [
        [b"value", b"2", b"timestamp", b"5"],
        [b"value", b"3", b"timestamp", b"6"],
    ]


def test_records_that_differ_lie_with_their_own_fields(raw_redis: Any) -> None:
    records = [
        ["timestamp", "5"],
        ["value", "2", "timestamp", "5", "korvet.encoding", "lz4"],
        ["value", "v", "timestamp", "5", "header.a", "1", "header.a", "2", "nullheader.a", ""],
    ]
    args = [arg for fields in records for arg in (len(fields), *fields)]
    expected = [[text.encode() for text in fields] for fields in records]
    assert append_records(raw_redis, 3, 0, *args) == expected
