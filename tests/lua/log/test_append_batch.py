"""lua/log/append_batch.lua and expel.lua: dense offsets, one entry per batch, and what others wrote goes."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.support import STATE, STREAM, Appended, BatchLog, announced, contents, unchanged


@pytest.fixture
def log(raw_redis: Any) -> BatchLog:
    return BatchLog(raw_redis)


def test_offsets_are_dense_from_zero_and_an_id_is_where_its_batch_ends(log: BatchLog) -> None:
    assert [log.appended("a", "b", "c"), log.appended("d"), log.appended("e", "f")] == [0, 3, 4]
    assert log.batches() == [(b"0-3", ["a", "b", "c"]), (b"0-4", ["d"]), (b"0-6", ["e", "f"])]
    assert log.next() == 6


def test_all_fields_of_the_entry_are_stored_as_they_are_said(log: BatchLog) -> None:
    content = bytes(range(256)) * 5000
    batch = log.batch(content, count=1_000_000)
    [appended] = log.append_all(batch._replace(args=[*batch.args, "lz4"]))
    assert isinstance(appended, Appended)
    fields = {b"batch": content, b"korvet.encoding": b"lz4"}
    assert log.client.xrange(STREAM) == [(b"0-1000000", fields)]


def test_an_answer_says_how_many_entries_the_append_removed(log: BatchLog) -> None:
    assert log.append("a").moved == 0
    log.client.xdel(STREAM, log.external("*", "gone"))
    assert log.append("b").moved == 0
    for _ in range(3):
        log.external("*", "x")
    assert log.append("c").moved == 3


@pytest.mark.parametrize("deleted", ["nothing", "an entry of the log before"])
def test_an_external_entry_whose_id_lies_below_the_next_one_is_removed(log: BatchLog, deleted: str) -> None:
    for value in "abc":
        log.appended(value)
    if deleted != "nothing":
        log.client.xdel(STREAM, "0-2")
        log.appended("d")
    batches, end = log.batches(), log.next()
    assert log.external("0-*", "x") == f"0-{end + 1}"
    appended = log.append("e", "f", "g")
    assert (appended.base, appended.moved) == (end, 1)
    assert log.batches() == [*batches, (f"0-{end + 3}".encode(), ["e", "f", "g"])]


def test_an_external_entry_stays_if_the_length_does_not_show_it_and_no_batch_of_the_log_moves(
    log: BatchLog,
) -> None:
    log.appended("a")
    log.appended("b")
    log.client.xdel(STREAM, "0-1")
    log.external("0-*", "x")
    assert log.append("c", "d") == Appended(b"APPENDED", 2, 0)
    assert log.append("e") == Appended(b"APPENDED", 4, 0)
    assert [entry_id for entry_id, _ in log.client.xrange(STREAM)] == [b"0-2", b"0-3", b"0-4", b"0-5"]


def test_a_redis_group_that_has_read_an_external_entry_goes_on_at_the_end_of_the_log(log: BatchLog) -> None:
    log.appended("a")
    log.client.xgroup_create(STREAM, "billing", "0")
    log.external("*", "x")
    assert len(log.client.xreadgroup("billing", "worker", {STREAM: ">"})[0][1]) == 2
    log.appended("b")
    [[_, [[entry_id, _]]]] = log.client.xreadgroup("billing", "worker", {STREAM: ">"})
    assert entry_id == b"0-2"


def test_nothing_is_expelled_from_a_stream_that_was_deleted_and_made_again(log: BatchLog) -> None:
    log.appended("a", "b")
    log.client.delete(STREAM)
    log.client.xgroup_create(STREAM, "others", mkstream=True)
    assert log.expel()[:2] == [0, 0]


def test_more_external_entries_than_one_step_removes_are_to_be_expelled_first(log: BatchLog) -> None:
    log.appended("a")
    for n in range(1001):
        log.external("*", str(n))
    before = contents(log.client, [STATE])
    assert log.append("b") == Appended(b"AGAIN", moved=1000)
    assert contents(log.client, [STATE]) == before
    assert log.settle() == 1
    assert log.appended("b") == 1


@pytest.mark.parametrize("refusal", ["FENCED", "OUT_OF_ORDER"])
def test_a_batch_that_is_refused_removes_nothing(log: BatchLog, refusal: str) -> None:
    log.appended("a", producer=7)
    log.external("*", "x")
    with unchanged(log.client), pytest.raises(redis.ResponseError):
        log.append(
            "b", **({"topic_id": "another"} if refusal == "FENCED" else {"producer": 7, "sequence": 5})
        )


def test_a_repeated_batch_is_known_although_external_entries_wait(log: BatchLog) -> None:
    log.appended("a", "b", producer=7)
    log.external("*", "x")
    assert log.append("a", "b", producer=7)[:2] == (b"DUPLICATE", 0)


def burst(log: BatchLog, count: int) -> None:
    with log.client.pipeline(transaction=False) as pipe:
        for n in range(count):
            pipe.execute_command("XADD", STREAM, "*", "value", str(n))
        pipe.execute()


def counters(log: BatchLog) -> tuple[int, int, str]:
    info = log.client.xinfo_stream(STREAM)
    return info["entries-added"], info["length"], info["last-generated-id"].decode()


def test_a_log_with_nothing_external_is_left_as_it_is(log: BatchLog) -> None:
    assert log.expel() == [0, 0, b"0"]
    assert log.client.xlen(STREAM) == 0
    log.appended("a", "b")
    assert log.expel() == [0, 0, b"2"]
    assert log.values() == ["a", "b"]


@pytest.mark.parametrize("limit", [1, 7, 50, 51, 100_000])
def test_all_external_entries_go_in_bounded_steps_and_the_counters_are_those_before(
    log: BatchLog, limit: int
) -> None:
    log.appended("a", "b")
    log.appended("c")
    before = counters(log)
    burst(log, 120)
    removed, more = 0, 1
    while more:
        step, more, end = log.expel(limit)
        assert step <= limit
        assert end == b"3"
        removed += step
    assert removed == 120
    assert counters(log) == before == (2, 2, "0-3")
    assert log.values() == ["a", "b", "c"]


def test_an_empty_log_takes_the_first_id_again(log: BatchLog) -> None:
    burst(log, 3)
    assert log.settle() == 3
    assert counters(log) == (0, 0, "0-0")
    assert log.appended("a") == 0


def test_an_entry_that_looks_like_a_batch_goes_too(log: BatchLog) -> None:
    log.appended("a")
    log.client.xadd(STREAM, {"batch": "forged"}, id="0-2")
    assert log.settle() == 1
    assert log.batches() == [(b"0-1", ["a"])]


def test_entries_of_many_fields_go_too(log: BatchLog) -> None:
    log.client.execute_command("XADD", STREAM, "*", *["field"] * 20_000)
    assert log.settle() == 1


def test_nothing_is_announced_for_no_consumer_has_anything_new(log: BatchLog) -> None:
    log.appended("a")
    burst(log, 1)
    with announced(log.client, STREAM, b"2"):
        log.settle()
        log.appended("b")


def test_a_step_removes_no_more_bytes_than_some_milliseconds_worth(raw_redis: Any) -> None:
    log = BatchLog(raw_redis)
    for n in range(10):
        log.external(f"5-{n}", "v" * 600_000)
    assert log.append("a") == Appended(b"AGAIN", moved=7)
    assert log.expel()[:2] == [3, 0]
    assert log.appended("a") == 0
