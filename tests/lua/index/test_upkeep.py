"""lua/index against a real server: what the scripts refuse, and how they step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.support import CLEAN, INDEX, STATE, STREAM, TOPIC_ID, Log, run, unchanged

FILL_HEAD = ("", "", "0", "0", "999", "last", "3", "30", "0", "0")


@pytest.fixture
def log(raw_redis: Any) -> Log:
    made = Log(raw_redis)
    made.appended("a", "b")
    return made


def fill(log: Log, *rows: Any, head: tuple[str, ...] = FILL_HEAD) -> int:
    return int(run(log.client, "index/fill", (STATE, INDEX), [TOPIC_ID, *head, *rows]))


def rebase(log: Log, limit: int = 100) -> list[int]:
    reply: list[int] = run(log.client, "index/rebase", (STATE, INDEX), [TOPIC_ID, limit, -1, -1])
    return reply


def test_rows_are_replaced_between_two_offsets_only(log: Log) -> None:
    log.change(largest=5)
    log.client.delete(INDEX)
    log.client.zadd(INDEX, {"1:1:1:1": 10, "2:2:2:2": 20, "3:3:3:3": 30, "4:4:4:4": 40})
    head = ("", "", "0", "10", "30", "", "0", "0", "0", "0")
    assert fill(log, 15, "7:7:7:7", 30, "8:8:8:8", head=head) == 1
    rows = [(b"1:1:1:1", 10.0), (b"7:7:7:7", 15.0), (b"8:8:8:8", 30.0), (b"4:4:4:4", 40.0)]
    assert log.client.zrange(INDEX, 0, -1, withscores=True) == rows
    assert log.log.largest == 8
    assert "start_records" not in log.state()


def test_rows_of_a_log_that_was_compacted_meanwhile_are_not_written(log: Log) -> None:
    log.client.hset(STATE, "clean", "1")
    with unchanged(log.client):
        assert fill(log, 15, "7:7:7:7") == 0


def test_old_timestamps_are_forgotten_in_steps_that_may_end_at_any_row(log: Log) -> None:
    log.client.delete(INDEX)
    rows = {f"{n}:{n}:999:{n % 7}": 10 * n for n in range(1, 30)}
    log.client.zadd(INDEX, rows)
    log.change(largest=999, interval=3, start=50)
    steps = [rebase(log, limit=10)]
    while steps[-1][1]:
        assert log.state()["rebase"] == str(50 + 100 * len(steps))
        steps.append(rebase(log, limit=10))
    assert [changed for changed, _ in steps] == [10, 10, 4]
    members = [member.decode().split(":") for member, _ in log.client.zrange(INDEX, 0, -1, withscores=True)]
    assert [int(item[2]) for item in members] == [999] * 5 + [6] * 24
    assert log.log.largest == 6
    assert "rebase" not in log.state()
    assert rebase(log) == [0, 0]


def test_a_row_that_is_wrong_leaves_a_log_that_takes_records(log: Log) -> None:
    log.client.delete(INDEX)
    log.client.zadd(INDEX, {f"1:1:5:{10**17}": 10})
    assert rebase(log) == [1, 0]
    fill(log, 15, f"7:7:{10**17}:7")
    log.appended("c")


def test_counting_large_entries_without_an_index_takes_steps(log: Log) -> None:
    for n in range(10):
        log.appended(str(n) * 600_000)
    log.client.delete(INDEX)
    steps, offset, records = 0, -1, 0
    while steps == 0 or offset >= 0:
        args = [TOPIC_ID, 10, offset, 1000]
        counted, after = run(log.client, "index/count", (STATE, INDEX, STREAM, *CLEAN), args)
        steps, offset, records = steps + 1, int(after), records + counted
    assert records == 12
    assert steps > 1


def test_a_step_does_not_follow_one_that_was_lost(log: Log) -> None:
    """As on a replica that was promoted: no search would find what lies between, and nothing would show it."""
    head = ("", "", "0", "10", "30", "last", "0", "0", "0", "0")
    assert fill(log, 15, "7:7:7:7", 30, "8:8:8:8", head=head) == 0
    assert log.client.zcard(INDEX) == 1
    assert log.state()["reindex"] == "1"
    log.change(start=10)
    assert fill(log, 15, "7:7:7:7", 30, "8:8:8:8", head=head) == 1
