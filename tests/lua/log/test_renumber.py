"""lua/log/renumber.lua against a real server: every external entry once, in order, at an offset that stays."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from korvet.topics.entry_ids import OFFSETS_END
from tests.lua.support import MOVING, SHARE, STREAM, Log, announced, unchanged

BITS = (8, 10, 12)
AHEAD_MS = 3_600_000


@pytest.fixture
def log(raw_redis: Any) -> Log:
    return Log(raw_redis)


def future_ms(log: Log) -> int:
    seconds, _ = log.client.time()
    return int(seconds) * 1000 + AHEAD_MS


def burst(log: Log, ms: int, *counts: int, value: str = "") -> list[str]:
    """XADD `counts` entries in the milliseconds from `ms` on; return their values."""
    values = []
    with log.client.pipeline(transaction=False) as pipe:
        for at, count in enumerate(counts, ms):
            for sequence in range(count):
                values.append(f"{value}{at}-{sequence}")
                pipe.execute_command("XADD", STREAM, f"{at}-{sequence}", "value", values[-1])
        pipe.execute()
    return values


def is_consistent(log: Log) -> bool:
    """Tell whether state, stream and its counters agree, with nothing on its way."""
    info = log.client.xinfo_stream(STREAM)
    assert info["entries-added"] == info["length"]
    assert not log.client.exists(MOVING)
    assert "moving" not in log.state()
    assert log.next() == log.offsets()[-1] + 1
    assert info["last-generated-id"].decode() == log.id_of(log.next() - 1)
    return True


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("limit", [1, 7, 64, 100_000])
def test_a_millisecond_too_full_moves_what_follows_it(raw_redis: Any, bits: int, limit: int) -> None:
    log = Log(raw_redis, bits)
    width = 1 << bits
    ms = future_ms(log)
    expected = burst(log, ms, width + 20, 30, 0, 0, 5)
    log.external(f"{ms + 4}-77", "after a gap")
    expected.append("after a gap")
    moved = log.settle(limit)
    assert log.values() == expected
    assert moved == 50  # the 20 without offsets and the 30 after them; what lies further on keeps its ids
    assert log.offsets()[:width] == list(range(ms << bits, (ms << bits) + width))
    kept = (ms + 4) << bits
    assert log.offsets()[-6:] == [*range(kept, kept + 5), kept + 77]
    assert is_consistent(log)


@pytest.mark.parametrize("limit", [1, 100_000])
def test_ids_too_far_ahead_come_back_to_the_present(log: Log, limit: int) -> None:
    now = future_ms(log)
    for value, entry_id in enumerate(
        (f"{2**43}-0", f"{2**53}-7", f"{2**64 - 1}-0", f"{2**64 - 1}-{2**64 - 1}")
    ):
        log.external(entry_id, str(value))
    log.settle(limit)
    assert log.values() == ["0", "1", "2", "3"]
    assert all(offset >> 10 <= now for offset in log.offsets())
    assert is_consistent(log)
    log.external("*", "4")
    log.settle()
    assert log.values() == ["0", "1", "2", "3", "4"]


def test_readable_entries_keep_their_ids_and_move_only_the_end(log: Log) -> None:
    burst(log, 1000, 1024, 3, 1)
    ids = [entry_id for entry_id, _ in log.client.xrange(STREAM)]
    assert log.renumber(limit=10_000) == [0, 0, str((1002 << 10) + 1).encode()]
    assert [entry_id for entry_id, _ in log.client.xrange(STREAM)] == ids
    assert log.log.first == 1000 << 10


def test_taking_in_is_bounded_and_goes_on(log: Log) -> None:
    burst(log, 1000, *[2] * 50)
    ends = []
    more = 1
    while more:
        moved, more, end = log.renumber(limit=20)
        assert not moved
        ends.append(int(end))
    assert ends == [(ms << 10) + 2 for ms in (1009, 1019, 1029, 1039, 1049)]


def test_fields_survive_a_move_byte_for_byte(log: Log) -> None:
    fields = {b"id": b"mine", b"value": b"\x00\xff\n", b"": b"", b"header.a": b"1"}
    flat = [part for pair in fields.items() for part in pair]
    log.client.execute_command("XADD", STREAM, "5-1024", *flat)
    assert log.settle() == 1
    [(_, stored)] = log.client.xrange(STREAM)
    assert list(stored.items()) == list(fields.items())


def test_entries_added_and_max_deleted_are_those_before_the_move(log: Log) -> None:
    log.appended("a", "b", "c")
    [first_id, second_id, _] = [entry_id for entry_id, _ in log.client.xrange(STREAM)]
    log.client.xdel(STREAM, second_id)
    burst(log, future_ms(log), 1030)
    log.settle(limit=100)
    info = log.client.xinfo_stream(STREAM)
    assert info["entries-added"] == 3 + 1030
    assert info["max-deleted-entry-id"] == second_id
    assert info["recorded-first-entry-id"] == first_id


def test_a_log_with_nothing_external_is_left_as_it_is(log: Log) -> None:
    assert log.renumber() == [0, 0, b"0"]
    log.appended("a")
    with unchanged(log.client):
        assert log.renumber() == [0, 0, str(log.next()).encode()]


def test_external_entries_are_announced_when_they_come_in(log: Log) -> None:
    log.external("5-1", "x")
    with announced(log.client, STREAM, str((5 << 10) + 2).encode()):
        log.renumber()


def test_an_entry_of_too_many_fields_is_named_and_nothing_is_lost(log: Log) -> None:
    ms = future_ms(log)
    log.external(f"{ms}-1024", "before")
    big = f"{ms}-1025"
    log.client.execute_command("XADD", STREAM, big, *["field"] * 8000)
    log.external(f"{ms}-1026", "after")
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match=rf"^KAFKA_STORAGE_ERROR .*entry {big} has 4000 fields"):
            log.renumber()
    assert log.append("a").outcome == b"AGAIN"
    log.client.xdel(STREAM, big)
    log.settle()
    assert log.values() == ["before", "after"]


def test_used_up_offsets_are_an_error_and_the_entries_stay(log: Log) -> None:
    log.external(log.id_of(OFFSETS_END - 2), "last but one")
    top = OFFSETS_END >> 10
    for sequence in range(3):
        log.external(f"{top}-{sequence}", str(sequence))
    with pytest.raises(
        redis.ResponseError, match=r"^KAFKA_STORAGE_ERROR the offsets of korvet:orders:0 are used up"
    ):
        log.renumber()
    assert log.values() == ["last but one", "0"]
    assert log.client.xlen(MOVING) == 2


def test_a_step_moves_no_more_bytes_than_it_may(raw_redis: Any) -> None:
    """But for the last entry, which it knows only when it has it."""
    log = Log(raw_redis)
    values = [str(n) * 600_000 for n in range(5)]
    for n, value in enumerate(values):
        log.external(f"5-{5000 + n}", value)
    moved = []
    while log.renumber()[1]:
        moved.append(raw_redis.xlen(MOVING))
    assert moved == [2, 4, 4, 2]
    assert log.values() == values


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_a_share_group_still_has_all_that_is_moved_whenever_it_reads(log: Log, limit: int) -> None:
    log.client.xgroup_create(STREAM, "workers", "0", mkstream=True)
    log.client.hset(SHARE, "h:workers", "redis 0 1000")
    ms = future_ms(log)
    burst(log, ms, 3)
    log.settle()
    values = burst(log, ms + 1, (1 << log.bits) + 5)
    done = burst(log, ms + 2, 9, value="done ")
    count, more = 10_000, 1
    while more:
        # Nothing else is acknowledged, so each other entry is to be pending, or to come.
        result: Any = log.client.xreadgroup("workers", "worker", {STREAM: ">"}, count=count)
        for entry_id, fields in result[0][1] if result else ():
            if fields[b"value"].decode() in done:
                log.client.xack(STREAM, "workers", entry_id)
        _, more, _ = log.renumber(limit)
        count = 20
    rows = log.client.xpending_range(STREAM, "workers", "-", "+", 10_000)
    [group] = log.client.xinfo_groups(STREAM)
    to_come = log.client.xrange(STREAM, b"(" + group["last-delivered-id"])
    held = [log.client.xrange(STREAM, row["message_id"], row["message_id"]) for row in rows]
    had = [entries[0][1][b"value"].decode() for entries in (*held, *([item] for item in to_come)) if entries]
    assert [item for item in had[3:] if item not in done] == values
