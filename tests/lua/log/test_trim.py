"""lua/log/trim.lua against a real server: the start moves at once, memory follows in steps, nothing else goes."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from korvet.topics.entry_ids import DENSE
from tests.lua.support import (
    ABORTED,
    CLEAN,
    INDEX,
    STATE,
    STREAM,
    TOPIC_ID,
    BatchLog,
    Log,
    nodes_of,
    run,
    unchanged,
)

ENTRIES, BYTES = 100, 1 << 20


def trim(
    log: Log, start: int = -1, first: int = -1, entries: int = ENTRIES, step_bytes: int = BYTES
) -> list[Any]:
    bits = -1 if isinstance(log, BatchLog) else log.bits
    args = [TOPIC_ID, bits, start, first, entries, step_bytes]
    reply: list[Any] = run(log.client, "log/trim", (STREAM, STATE, INDEX, *CLEAN, ABORTED), args)
    return reply


def trim_all(log: Log, start: int = -1, first: int = -1, entries: int = ENTRIES) -> tuple[int, int, int]:
    """Do all steps; return the steps, the records that left the log and the entries that were freed."""
    left = given = 0
    for step in range(1, 10_000):
        _, step_left, step_given, more = trim(log, start, first, entries)
        left, given = left + step_left, given + step_given
        if not more:
            return step, left, given
        start = first = -1
    raise AssertionError("trimming does not end")


def filled(log: Log, count: int, of: int = 1, value: str = "v") -> list[int]:
    """Append `count` batches of `of` records; return their base offsets and the end."""
    return [*(log.appended(*[f"{value}{n}"] * of) for n in range(count)), log.next()]


def set_rows(log: Log, *rows: tuple[int, int, int]) -> None:
    """Write index rows: offset, cumulative records, cumulative bytes."""
    log.client.delete(INDEX)
    for offset, records, size in rows:
        log.client.zadd(INDEX, {f"{records}:{size}:5:5": offset})


def rows(log: Log) -> list[int]:
    return [int(score) for _, score in log.client.zrange(INDEX, 0, -1, withscores=True)]


def test_the_start_moves_and_what_lies_below_goes_at_once_where_it_is_little(
    raw_redis: Any, log: Log
) -> None:
    offsets = filled(log, 1000)
    set_rows(log, (offsets[200], 200, 2000), (offsets[400], 400, 4000), (offsets[800], 800, 8000))
    log.change(records=1000, size_bytes=10_000)
    steps, left, given = trim_all(log, offsets[600], offsets[600])
    state = log.state()
    assert (log.log.start, log.log.first, log.next()) == (offsets[600], offsets[600], offsets[-1])
    # To one row, except where the offset is the count.
    assert (left, int(state["start_records"])) == ((600, 600) if log.bits == DENSE else (400, 400))
    assert int(state["start_bytes"]) == 4000
    assert rows(log) == [offsets[400], offsets[800]]
    kept = log.offsets()
    assert kept[-400:] == offsets[600:1000]
    assert len(kept) == 1000 - given < 400 + 100  # of the node that holds the start nothing goes
    assert steps < 12
    # Nothing is left to do: a further step changes nothing.
    with unchanged(raw_redis):
        assert trim(log) == [str(offsets[600]).encode(), 0, 0, 0]


def test_the_whole_log_goes_to_its_last_entry_and_the_next_append_is_its_first(
    raw_redis: Any, log: Log
) -> None:
    end = filled(log, 250, of=3)[-1]
    log.change(records=750, size_bytes=7500)
    _, left, given = trim_all(log, end)
    assert (left, given) == (750, 750 if not isinstance(log, BatchLog) else 250)
    assert raw_redis.xlen(STREAM) == 0
    state = log.state()
    assert (log.log.start, state["start_records"], state["start_bytes"]) == (end, "750", "7500")
    assert log.log.first == -1
    appended = log.append("next")
    assert appended.base == appended.log_start >= end
    assert log.values() == ["next"]


def test_the_start_never_moves_back_and_never_past_the_end(log: Log) -> None:
    offsets = filled(log, 10)
    trim_all(log, offsets[5], offsets[-1] + 1)  # nor the first record, whatever the caller has read
    assert (log.log.start, log.log.first) == (offsets[5], offsets[-1])
    with unchanged(log.client):
        assert trim(log, offsets[3], offsets[3])[:2] == [str(offsets[5]).encode(), 0]
        with pytest.raises(redis.ResponseError, match="OFFSET_OUT_OF_RANGE"):
            trim(log, offsets[-1] + 1)


def test_a_batch_that_holds_the_start_stays(raw_redis: Any) -> None:
    log = BatchLog(raw_redis)
    with nodes_of(raw_redis, 1):
        filled(log, 20, of=10)
    trim_all(log, 55, 55)
    assert log.offsets()[0] == 50
    assert log.log.first == 55


@pytest.mark.parametrize("node_entries", [1, 100, 250])
def test_nodes_of_every_size_are_freed(raw_redis: Any, node_entries: int) -> None:
    log = Log(raw_redis)
    with nodes_of(raw_redis, node_entries):
        offsets = filled(log, 1100)
    trim_all(log, offsets[1000], offsets[1000])
    assert 100 <= raw_redis.xlen(STREAM) < 100 + node_entries


def test_a_step_frees_no_more_than_it_may(raw_redis: Any) -> None:
    """Entries of unknown size count by the limit of entries, known ones by the limit of bytes."""
    log = Log(raw_redis)
    with nodes_of(raw_redis, 10):
        offsets = filled(log, 1000)
    end = offsets[-1]
    log.change(records=1000, size_bytes=100_000)
    raw_redis.delete(INDEX)
    assert trim(log, end, entries=50)[1:] == [1000, 50, 1]
    assert trim(log, entries=50)[1:] == [0, 50, 1]
    assert log.log.start == end
    set_rows(log, *((offsets[n], n, n * 100) for n in range(100, 1000, 100)))
    # The first row is where the last caller stopped; 10,000 bytes lie between two rows.
    assert trim(log, entries=50, step_bytes=25_000)[1:] == [0, 200 + 50, 1]
    assert rows(log)[0] == offsets[300]
    assert trim(log, entries=50, step_bytes=25_000)[1:] == [0, 50 + 100 + 50, 1]
    assert rows(log)[0] == offsets[500]
    _, _, given = trim_all(log)
    assert (given, raw_redis.xlen(STREAM), rows(log)) == (450, 0, [offsets[900]])


def test_more_rows_than_one_step_looks_at(raw_redis: Any) -> None:
    log = Log(raw_redis)
    offsets = filled(log, 300)
    set_rows(log, *((offsets[n], n, n) for n in range(1, 300)))
    trim_all(log, offsets[250], offsets[250])
    assert rows(log)[0] == offsets[250]
    assert log.offsets()[-50:] == offsets[250:300]


def test_what_a_step_that_never_came_has_left_is_found_by_the_next_caller(raw_redis: Any) -> None:
    log = Log(raw_redis)
    offsets = filled(log, 1000)
    set_rows(log, *((offsets[n], n, n * 100) for n in range(100, 1000, 100)))
    assert trim(log, offsets[950], offsets[950])[3] == 1
    assert raw_redis.xlen(STREAM) > 800
    trim_all(log)
    assert raw_redis.xlen(STREAM) < 50 + 100


def test_compacted_records_below_the_start_go_too(raw_redis: Any, log: Log) -> None:
    offsets = filled(log, 500)
    ids = [entry_id for entry_id, _ in raw_redis.xrange(STREAM)]
    for key, step in zip(CLEAN, (2, 3), strict=True):
        for entry_id in ids[::step]:
            raw_redis.xadd(key, {"value": "v"}, id=entry_id)
    raw_redis.hset(STATE, mapping={"clean": "0", "clean_end": offsets[-1]})
    trim_all(log, offsets[400], offsets[400])
    for key, step in zip((STREAM, *CLEAN), (1, 2, 3), strict=True):
        kept = [entry_id for entry_id, _ in raw_redis.xrange(key)]
        wanted = [entry_id for n, entry_id in enumerate(ids) if n >= 400 and n % step == 0]
        assert kept[-len(wanted) :] == wanted
        assert len(kept) < len(wanted) + 100


def test_what_was_compacted_and_is_not_freed_yet_goes_by_the_limit_of_entries(raw_redis: Any) -> None:
    """Between two rows there is little, for they speak of what compaction has kept; in the log itself all is left."""
    log = Log(raw_redis)
    with nodes_of(raw_redis, 10):
        offsets = filled(log, 1000)
    for entry_id, _ in raw_redis.xrange(STREAM)[::100]:
        raw_redis.xadd(CLEAN[0], {"value": "v"}, id=entry_id)
    raw_redis.hset(STATE, mapping={"clean": "0", "clean_end": offsets[-1]})
    log.change(records=1000, size_bytes=100_000)
    set_rows(log, (offsets[10], 990, 99_000), (offsets[900], 1000, 100_000))
    # The first step ends at the first row, the second begins after it.
    assert trim(log, offsets[950], entries=50)[2:] == [10, 1]
    assert trim(log, entries=50)[2:] == [50, 1]
    while trim(log, entries=50)[3]:
        assert raw_redis.xlen(STREAM) > 0
    assert raw_redis.xlen(STREAM) == 50
    assert raw_redis.xlen(CLEAN[0]) == 0


def test_external_entries_past_the_end_stay(raw_redis: Any) -> None:
    """They have no offset yet, or none at all, and are taken in later."""
    log = Log(raw_redis)
    # The last offset of a millisecond: what others add to that millisecond lies between two offsets.
    ahead_ms = int(raw_redis.time()[0]) * 1000 + 3_600_000
    with nodes_of(raw_redis, 1):
        log.external(f"{ahead_ms}-1023", "ours")
        log.settle()
        log.external(f"{ahead_ms}-5000", "unreadable")
    trim_all(log, log.next())
    assert log.values() == ["unreadable"]
    log.settle()
    assert log.appended("more") > 0
    assert log.values() == ["unreadable", "more"]


def test_entries_that_are_no_batches_are_left_to_be_counted(raw_redis: Any) -> None:
    log = BatchLog(raw_redis)
    with nodes_of(raw_redis, 1):
        filled(log, 3)
        log.external("3-7", "external")
    trim_all(log, 3)
    assert log.expel() == [1, 0, b"3"]
    log.appended("more")
    assert log.values() == ["more"]


def test_what_was_trimmed_hides_no_external_entry(raw_redis: Any) -> None:
    log = BatchLog(raw_redis)
    with nodes_of(raw_redis, 1):
        filled(log, 5)
    trim_all(log, 1)
    assert raw_redis.xlen(STREAM) == 4
    log.external("0-*", "external")
    assert log.append("a", "b").moved == 1


def test_aborted_transactions_leave_with_their_markers(log: Log) -> None:
    offsets = filled(log, 6)
    log.client.zadd(ABORTED, {f"7:{offsets[0]}": offsets[2], f"8:{offsets[1]}": offsets[4]})
    log.client.hset(STATE, "aborted", offsets[4])
    trim(log, offsets[2])
    assert log.client.zcard(ABORTED) == 2, "a marker at the start is still there"
    trim(log, offsets[3])
    assert log.client.zrange(ABORTED, 0, -1) == [f"8:{offsets[1]}".encode()]
