"""lua/log/append.lua and renumber.lua with dense ids: `0-<offset + 1>`, whatever ids other clients choose."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from korvet.topics.entry_ids import DENSE
from tests.lua.support import MOVING, STREAM, Log

GROUP, WORKER = "billing", "worker-1"


@pytest.fixture
def log(raw_redis: Any) -> Log:
    return Log(raw_redis, DENSE)


def fields(log: Log) -> list[dict[bytes, bytes]]:
    return [content for _, content in log.client.xrange(STREAM)]


def read(log: Log, count: int = 1000) -> list[str]:
    """Read on as a Redis consumer group; return the ids."""
    found: Any = log.client.xreadgroup(GROUP, WORKER, {STREAM: ">"}, count=count)
    return [entry_id.decode() for entry_id, _ in found[0][1]] if found else []


def pending(log: Log) -> list[str]:
    rows = log.client.xpending_range(STREAM, GROUP, "-", "+", 1000)
    return [row["message_id"].decode() for row in rows]


def is_whole(log: Log, deleted: int = 0) -> bool:
    """Tell whether the log is dense from its first entry to its end, and counts what it holds and writers deleted."""
    info, offsets = log.client.xinfo_stream(STREAM), log.offsets()
    assert offsets == list(range(offsets[0], log.next()))
    assert info["last-generated-id"] == b"0-%d" % log.next()
    assert info["entries-added"] == info["length"] + deleted
    assert not log.client.exists(MOVING)
    assert not log.state().keys() & {"moving", "records"}
    return True


def test_offsets_count_records_and_the_id_is_the_offset_plus_one(log: Log) -> None:
    assert [log.appended("a", "b"), log.appended("c")] == [0, 2]
    assert [entry_id for entry_id, _ in log.client.xrange(STREAM)] == [b"0-1", b"0-2", b"0-3"]
    assert is_whole(log)


@pytest.mark.parametrize("before", [0, 2])
def test_what_another_client_adds_at_the_next_id_is_the_next_record(log: Log, before: int) -> None:
    for n in range(before):
        log.appended(str(n))
    assert log.external("0-*", "x") == f"0-{before + 1}"
    assert log.appended("y") == before + 1
    assert log.values() == [*map(str, range(before)), "x", "y"]
    assert is_whole(log)


@pytest.mark.parametrize("by", ["append", "renumber"])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("entry_id", ["*", "7-3", "0-500", f"{2**64 - 1}-1"])
def test_an_entry_with_another_id_gets_the_next_offset(log: Log, entry_id: str, before: int, by: str) -> None:
    for n in range(before):
        log.appended(str(n))
    log.external(entry_id, "x")
    if by == "append":
        assert log.append("y")[:2] == [b"APPENDED", b"%d" % (before + 1)]
    else:
        assert log.renumber()[:2] == [1, 0]
        assert log.appended("y") == before + 1
    assert log.values() == [*map(str, range(before)), "x", "y"]
    assert is_whole(log)


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
    assert log.state()["max_timestamp"] == str(stamps[0])


def test_an_entry_that_keeps_its_id_stays_pending_and_does_not_come_again(log: Log) -> None:
    log.client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    log.external("0-*", "a")
    log.external("0-*", "b")
    assert read(log) == ["0-1", "0-2"]
    log.appended("c")
    assert pending(log) == ["0-1", "0-2"]
    assert read(log) == ["0-3"]


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
    assert read(log) == ["0-3", "0-4", "0-5"]
    assert log.values() == list("abcde")


@pytest.mark.parametrize("before", [0, 2])
def test_an_entry_that_its_writer_has_deleted_leaves_no_gap(log: Log, before: int) -> None:
    for n in range(before):
        log.appended(str(n))
    log.client.xgroup_create(STREAM, GROUP, "$", mkstream=True)
    log.client.xdel(STREAM, log.external("*", "gone"))
    read(log)
    assert log.append("x") == [b"RENUMBER"]
    log.settle()
    # Redis takes no last id below 0-1 once an entry was deleted, so an empty log begins with offset 1.
    assert log.appended("x") == (before or 1)
    assert read(log) == [log.id_of(before or 1)]


def test_an_append_leaves_more_than_it_can_take_in_to_renumber(log: Log) -> None:
    with log.client.pipeline(transaction=False) as pipe:
        for n in range(2001):
            pipe.execute_command("XADD", STREAM, "*", "value", str(n))
        pipe.execute()
    assert log.append("x") == [b"RENUMBER"]
    assert log.settle() == 2001
    assert log.appended("x") == 2001
    assert is_whole(log)


def added(log: Log, values: Sequence[str], kind: str) -> None:
    for value in values:
        log.external("0-*" if kind == "next" and log.last_id().startswith("0-") else "*", value)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_doubled_or_out_of_order_by_any_mix_of_writers(log: Log, seed: int) -> None:
    choose = random.Random(seed)
    log.appended("first")
    written, deleted = ["first"], 0
    for n in range(60):
        values = [f"{n}.{at}" for at in range(choose.randint(1, 4))]
        match choose.choice(["append", "next", "any", "step", "deleted"]):
            case "append":
                if log.append(*values)[0] == b"RENUMBER":
                    log.settle(choose.choice([1, 3, 1000]))
                    log.appended(*values)
                written += values
            case "step":
                log.renumber(choose.choice([1, 2, 5]))
            case "deleted":
                deleted += log.client.xdel(STREAM, log.external("*", "gone"))
            case kind:
                added(log, values, kind)
                written += values
    log.settle()
    assert log.values() == written
    assert is_whole(log, deleted)
