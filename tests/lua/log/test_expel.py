"""lua/log/expel.lua against a real server: what others wrote goes, and the log is as if it had never been there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.support import STREAM, BatchLog, announced


@pytest.fixture
def log(raw_redis: Any) -> BatchLog:
    return BatchLog(raw_redis)


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
    assert not log.client.exists(STREAM)
    log.appended("a", "b")
    before = log.snapshot()
    assert log.expel() == [0, 0, b"2"]
    assert log.values() == ["a", "b"]
    assert log.snapshot()[1:] == before[1:]


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
    assert counters(log) == before == (2, 2, "3-0")
    assert log.values() == ["a", "b", "c"]


def test_an_empty_log_takes_the_first_id_again(log: BatchLog) -> None:
    burst(log, 3)
    assert log.settle() == 3
    assert counters(log) == (0, 0, "0-1")
    assert log.appended("a") == 0


def test_entries_that_arrive_between_steps_go_too(log: BatchLog) -> None:
    log.appended("a")
    burst(log, 10)
    assert log.expel(5)[:2] == [5, 1]
    burst(log, 10)
    assert log.settle() == 15
    log.appended("b")
    assert log.values() == ["a", "b"]


def test_an_entry_that_looks_like_a_batch_goes_too(log: BatchLog) -> None:
    log.appended("a")
    log.client.xadd(STREAM, {"batch": "forged"}, id="2-0")
    assert log.settle() == 1
    assert log.batches() == [(b"1-0", ["a"])]


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
    assert log.append("a") == [b"EXPEL", 7]
    assert log.expel()[:2] == [3, 0]
    assert log.appended("a") == 0
