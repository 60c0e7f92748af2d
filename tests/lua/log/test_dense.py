"""lua/log/append_record.lua and renumber.lua with dense ids: `0-<offset + 1>`, whatever ids other clients choose."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.topics.entry_ids import DENSE
from tests.lua.support import STREAM, Log

GROUP, WORKER = "billing", "worker-1"


@pytest.fixture
def log(raw_redis: Any) -> Log:
    return Log(raw_redis, DENSE)


def fields(log: Log) -> list[dict[bytes, bytes]]:
    return [content for _, content in log.client.xrange(STREAM)]


def read(log: Log) -> list[str]:
    """Read on as a Redis consumer group; return the ids."""
    result: Any = log.client.xreadgroup(GROUP, WORKER, {STREAM: ">"})
    return [entry_id.decode() for entry_id, _ in result[0][1]] if result else []


def pending(log: Log) -> list[str]:
    rows = log.client.xpending_range(STREAM, GROUP, "-", "+", 1000)
    return [row["message_id"].decode() for row in rows]


@pytest.mark.parametrize("by", ["append", "renumber"])
def test_an_entry_without_a_time_gets_the_one_of_its_id_or_of_its_taking_in(log: Log, by: str) -> None:
    log.external("0-*", "now")
    log.client.xadd(STREAM, {"value": "own", "timestamp": "17"}, id="0-*")
    log.external("123456-0", "then")
    if by == "renumber":
        log.settle()
    log.appended("y")
    now_ms = int(log.client.time()[0]) * 1000
    stamps = [int(content[b"timestamp"]) for content in fields(log)]
    assert abs(stamps[0] - now_ms) < 60_000
    assert stamps[1:3] == [17, 123456]
    assert log.log.largest == stamps[0]


@pytest.mark.parametrize("limit", [0, 1, 2, 1000])
def test_a_group_gets_what_has_another_id_now_once_more_and_its_old_id_is_not_pending(
    log: Log, limit: int
) -> None:
    log.client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    log.appended("a")
    log.external("0-*", "b")
    ids = [log.external("*", value) for value in "cd"]
    assert read(log) == ["0-1", "0-2", *ids]
    if limit:
        log.settle(limit)
    log.appended("e")
    assert [log.client.xack(STREAM, GROUP, entry_id) for entry_id in ids] == [0, 0]
    assert pending(log) == ["0-1", "0-2"]
    # Several steps give it again what it has read past the log's end.
    assert read(log) == [*(["0-2"] if limit in (1, 2) else []), "0-3", "0-4", "0-5"]
    assert log.values() == list("abcde")


@pytest.mark.parametrize("before", [0, 2])
def test_an_entry_that_its_writer_has_deleted_leaves_no_gap(log: Log, before: int) -> None:
    for n in range(before):
        log.appended(str(n))
    log.client.xgroup_create(STREAM, GROUP, "$", mkstream=True)
    log.client.xdel(STREAM, log.external("*", "gone"))
    read(log)
    assert log.append("x").outcome == b"AGAIN"
    log.settle()
    # Redis takes no last id below 0-1 once an entry was deleted, so an empty log begins with offset 1.
    assert log.appended("x") == (before or 1)
    assert read(log) == [log.id_of(before or 1)]


def test_an_append_leaves_more_than_it_can_take_in_to_renumber(log: Log) -> None:
    with log.client.pipeline(transaction=False) as pipe:
        for n in range(2001):
            pipe.execute_command("XADD", STREAM, "*", "value", str(n))
        pipe.execute()
    assert log.append("x").outcome == b"AGAIN"
    assert log.settle() == 2001
    assert log.appended("x") == 2001
