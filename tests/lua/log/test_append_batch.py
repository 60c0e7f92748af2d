"""lua/log/append_batch.lua against a real server: dense offsets, one entry per batch, nothing external in between."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.support import (
    STREAM,
    BatchLog,
    unchanged,
)


@pytest.fixture
def log(raw_redis: Any) -> BatchLog:
    return BatchLog(raw_redis)


def test_offsets_are_dense_from_zero_and_an_id_is_where_its_batch_ends(log: BatchLog) -> None:
    assert [log.appended("a", "b", "c"), log.appended("d"), log.appended("e", "f")] == [0, 3, 4]
    assert log.batches() == [(b"3-0", ["a", "b", "c"]), (b"4-0", ["d"]), (b"6-0", ["e", "f"])]
    assert log.next() == 6


def test_all_fields_of_the_entry_are_stored_as_they_are_said(log: BatchLog) -> None:
    content = bytes(range(256)) * 5000
    entry = ["batch", content, "korvet.encoding", "lz4"]
    assert log.append_all([-1, 0, 0, 0, 1_000_000, 100, 5, "0", len(entry), *entry])[0] == b"APPENDED"
    fields = {b"batch": content, b"korvet.encoding": b"lz4"}
    assert log.client.xrange(STREAM) == [(b"1000000-0", fields)]


@pytest.mark.parametrize(
    "entry_id", ["*", "2-1", f"2-{2**64 - 1}", "3-0", "4-0", "4-1", f"{2**60}-0", f"{2**64 - 1}-{2**64 - 1}"]
)
def test_an_external_entry_past_the_end_is_removed(log: BatchLog, entry_id: str) -> None:
    log.appended("a", "b")
    log.external(entry_id, "x")
    assert log.append("c", "d")[:2] == [b"APPENDED", b"2"]
    assert log.batches() == [(b"2-0", ["a", "b"]), (b"4-0", ["c", "d"])]
    info = log.client.xinfo_stream(STREAM)
    assert (info["entries-added"], info["last-generated-id"]) == (2, b"4-0")


@pytest.mark.parametrize("end", [0, 2])
def test_a_deleted_external_entry_above_the_log_does_not_block_it(log: BatchLog, end: int) -> None:
    if end:
        log.appended("a", "b")
    log.client.xdel(STREAM, log.external("*", "gone"))
    assert log.append("c")[:2] == [b"APPENDED", str(end).encode()]
    assert log.values()[-1] == "c"


def test_an_answer_says_how_many_entries_the_append_removed(log: BatchLog) -> None:
    assert log.append("a")[5:] == []
    log.client.xdel(STREAM, log.external("*", "gone"))
    assert log.append("b")[5:] == []
    for _ in range(3):
        log.external("*", "x")
    assert log.append("c")[5:] == [3]


def test_more_external_entries_than_one_step_removes_are_to_be_expelled_first(log: BatchLog) -> None:
    log.appended("a")
    for n in range(1001):
        log.external("*", str(n))
    before = log.state()
    assert log.append("b") == [b"EXPEL", 1000]
    assert log.state() == before
    assert log.settle() == 1
    assert log.append("b")[:2] == [b"APPENDED", b"1"]


@pytest.mark.parametrize("refusal", ["FENCED", "OUT_OF_ORDER"])
def test_a_batch_that_is_refused_removes_nothing(log: BatchLog, refusal: str) -> None:
    log.appended("a", producer=7)
    log.external("*", "x")
    with unchanged(log.client), pytest.raises(redis.ResponseError):
        log.append(
            "b", **({"topic_id": "another"} if refusal == "FENCED" else {"producer": 7, "sequence": 5})
        )


def test_a_stream_that_was_deleted_goes_on_at_the_next_offset(log: BatchLog) -> None:
    log.appended("a", "b")
    log.client.delete(STREAM)
    assert log.appended("c") == 2
    assert log.batches() == [(b"3-0", ["c"])]


def test_a_repeated_batch_is_known_although_external_entries_wait(log: BatchLog) -> None:
    log.appended("a", "b", producer=7)
    log.external("*", "x")
    assert log.append("a", "b", producer=7)[:2] == [b"DUPLICATE", b"0"]
