"""lua/compaction/* against a real server: whose pass it is, what the switch leaves, and what is freed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis

from tests.lua.compaction.support import DirtyLog
from tests.lua.support import ABORTED, CLEAN, INDEX, STATE, STREAM, nodes_of, unchanged
from tests.support.partition_state import change_log, log_of


@pytest.fixture
def log(raw_redis: Any) -> DirtyLog:
    return DirtyLog(raw_redis)


def test_a_pass_begins_with_an_empty_stream_that_is_not_in_use(log: DirtyLog) -> None:
    log.client.xadd(CLEAN[0], {"value": "left by a pass that was killed"})
    assert log.begin("mine", 31) == [b"BEGUN", 0, b"0", b"41", b"30:3000:300:300"]
    assert not log.client.exists(CLEAN[0])
    assert log.state()["clean_token"] == "mine"


@pytest.mark.parametrize(("in_use", "target"), [("0", 1), ("1", 0)])
def test_a_pass_writes_the_other_stream_than_the_one_in_use(log: DirtyLog, in_use: str, target: int) -> None:
    for key in CLEAN:
        log.client.xadd(key, {"value": key})
    log.client.hset(STATE, mapping={"clean": in_use, "clean_end": "11"})
    assert log.begin("mine", 31, known_end=11)[1] == target
    assert log.client.exists(CLEAN[int(in_use)])
    assert not log.client.exists(CLEAN[target])


def test_a_pass_up_to_the_end_of_the_log_seals_its_tail_with_a_row(log: DirtyLog) -> None:
    change_log(log.client, STATE, interval=350)
    assert log.begin("mine", 41)[4] == b"40:4000:400:350"
    assert log.index()[41] == "40:4000:400:350"
    assert log_of(log.client, STATE).interval == -1


@pytest.mark.parametrize(
    ("known_end", "wanted"), [(11, 31), (0, 35), (0, 50)], ids=["another pass", "no row", "past the end"]
)
def test_a_pass_does_not_begin_on_a_log_that_has_changed(log: DirtyLog, known_end: int, wanted: int) -> None:
    with unchanged(log.client):
        assert log.begin("mine", wanted, known_end)[0] == b"CHANGED"


def test_survivors_are_written_in_order_by_the_pass_that_was_begun_last(log: DirtyLog) -> None:
    log.begin("first", 31)
    assert log.write("first", 3, 5) == 1
    log.begin("second", 31)
    assert log.write("first", 8) == 0
    assert log.write("second", 2, 4) == 1
    assert log.clean(0) == [2, 4]
    with pytest.raises(redis.ResponseError, match=r"KAFKA_STORAGE_ERROR.*0-3 is out of order"):
        log.write("second", 3)


def test_a_switch_puts_the_kept_records_and_their_rows_in_the_place_of_all(log: DirtyLog) -> None:
    log.begin("mine", 31)
    log.write("mine", 15, 29, 30)
    assert log.switch("mine", 31, (16, 2, 150, 150, 150), kept=(3, 250, 300)) == 1
    assert log.index() == {16: "28:2850:150:150", 31: "30:3000:300:300"}
    state = log.state()
    assert (state["clean"], state["clean_end"]) == ("0", "31")
    # What is above the start: three compacted records and the ten after them.
    assert (state["start_records"], state["start_bytes"]) == ("27", "2750")
    assert "clean_token" not in state
    assert (state["clean_history"], state["clean_bytes"]) == ("", "3000")
    assert log.clean(0) == [15, 29, 30]


def test_the_second_switch_removes_what_the_first_one_made(log: DirtyLog) -> None:
    log.begin("one", 21)
    log.write("one", 15, 20)
    log.switch("one", 21, kept=(2, 200, 200))
    log.begin("two", 31, known_end=21)
    log.write("two", 15, 30, which=1)
    assert log.switch("two", 31, which=1, kept=(2, 200, 300)) == 1
    assert not log.client.exists(CLEAN[0])
    assert log.clean(1) == [15, 30]
    assert log.index() == {31: "30:3000:300:300"}
    assert log.state()["start_records"] == "28"


def test_the_row_at_the_end_of_a_pass_counts_what_is_left_after_the_last_row(log: DirtyLog) -> None:
    log.begin("mine", 31)
    log.switch("mine", 31, kept=(0, 0, -1))
    assert log.index() == {31: "30:3000:300:-1"}


def test_tombstones_are_remembered_by_when_they_were_compacted(log: DirtyLog) -> None:
    log.begin("one", 21)
    log.switch("one", 21, tombstones=True)
    first = log.state()["clean_history"]
    assert re.fullmatch(r"21@\d{13}", first)
    log.begin("two", 31, known_end=21)
    log.switch("two", 31, which=1, history=first, tombstones=True)
    assert re.fullmatch(first + r" 31@\d{13}", log.state()["clean_history"])


def test_a_start_that_moved_meanwhile_is_counted_from_the_row_at_or_below_it(log: DirtyLog) -> None:
    log.begin("mine", 31)
    log.write("mine", 5, 15, 29)
    log.client.hset(STATE, mapping={"start_records": "10", "start_bytes": "1000"})
    change_log(log.client, STATE, start=18)
    log.switch("mine", 31, (6, 2, 200, 50, 50), (16, 1, 100, 150, 150), kept=(3, 300, 290))
    assert (log.state()["start_records"], log.state()["start_bytes"]) == ("29", "2900")


def test_nothing_is_compacted_where_the_start_came_past_all_of_it_meanwhile(log: DirtyLog) -> None:
    log.client.hset(STATE, mapping={"clean": "1", "clean_end": "21", "clean_history": "21@5"})
    log.client.xadd(CLEAN[1], {"value": "old"})
    log.begin("mine", 31, known_end=21)
    log.write("mine", 5)
    moved = {"start_records": "30", "start_bytes": "3000"}
    log.client.hset(STATE, mapping=moved)
    counters = change_log(log.client, STATE, start=31)
    assert log.switch("mine", 31, kept=(1, 100, 50)) == 1
    state = log.state()
    assert not {"clean", "clean_end", "clean_bytes", "clean_history", "clean_token"} & state.keys()
    assert {name: state[name] for name in moved} == moved
    assert log_of(log.client, STATE) == counters
    assert not log.client.exists(*CLEAN)


def test_counters_that_are_too_small_make_no_row_and_no_negative_size(log: DirtyLog) -> None:
    log.begin("mine", 11)
    log.switch("mine", 11, (3, 20, 2000, 1, 1), (8, 4, 400, 1, 1), kept=(30, 3000, -1))
    assert log.index()[8] == "6:600:1:1"
    assert 3 not in log.index()
    assert (log.state()["start_records"], log.state()["start_bytes"]) == ("0", "0")


def test_a_pass_that_another_one_overtook_switches_nothing(log: DirtyLog) -> None:
    log.begin("first", 31)
    log.begin("second", 31)
    with unchanged(log.client):
        assert log.switch("first", 31, kept=(1, 1, 1)) == 0
        assert log.give_up("first") == 0


def test_giving_up_removes_what_was_written_and_nothing_in_use(log: DirtyLog) -> None:
    log.begin("one", 21)
    log.write("one", 15)
    log.switch("one", 21, kept=(1, 100, 150))
    with unchanged(log.client):
        log.begin("two", 31, known_end=21)
        log.write("two", 15, 30, which=1)
        assert log.give_up("two") == 1


def test_what_was_compacted_is_freed_in_steps_and_nothing_else(log: DirtyLog) -> None:
    with nodes_of(log.client, 10):
        log = emptied(log)
        assert log.free() == [0, 0]
        log.client.hset(STATE, "clean_end", "31")
        assert log.free(limit=10) == [10, 1]
        assert log.free(limit=20) == [20, 1]
        assert log.free() == [0, 0]
    assert [entry_id for entry_id, _ in log.client.xrange(STREAM, count=1)] == [b"0-31"]


def test_nodes_of_more_entries_than_a_step_takes_are_freed_too(log: DirtyLog) -> None:
    with nodes_of(log.client, 30):
        log = emptied(log)
        log.client.hset(STATE, "clean_end", "31")
        assert log.free(limit=2) == [30, 1]


def test_of_large_entries_a_step_takes_fewer(log: DirtyLog) -> None:
    log.client.delete(STREAM)
    for end in range(1, 9):
        log.client.execute_command("XADD", STREAM, f"0-{end}", "batch", "b" * 100_000)
    log.client.hset(STATE, "clean_end", "7")
    assert [log.free(bits=-1, bytes_max=250_000) for _ in range(4)] == [[2, 1], [2, 1], [2, 1], [1, 1]]
    assert log.free(bits=-1, bytes_max=250_000) == [0, 0]
    assert [entry_id for entry_id, _ in log.client.xrange(STREAM)] == [b"0-8"]


def test_a_batch_that_ends_where_the_compacted_part_does_is_freed(log: DirtyLog) -> None:
    with nodes_of(log.client, 1):
        log.client.delete(STREAM)
        for end in (5, 10, 15):
            log.client.execute_command("XADD", STREAM, f"0-{end}", "batch", "b")
        log.client.hset(STATE, "clean_end", "10")
        change_log(log.client, STATE, entries=3)
        assert log.free(bits=-1) == [2, 1]
    assert log_of(log.client, STATE).entries == 1
    assert [entry_id for entry_id, _ in log.client.xrange(STREAM)] == [b"0-15"]


def emptied(log: DirtyLog) -> DirtyLog:
    """Make a new log, with the nodes that the server is configured to make now."""
    log.client.delete(STREAM, STATE, INDEX)
    return DirtyLog(log.client)


def test_the_switch_removes_the_rows_of_markers_that_are_gone(log: DirtyLog) -> None:
    log.client.zadd(ABORTED, {"7:1": 9, "8:3": 20, "7:12": 30})
    log.begin("mine", 31)
    log.write("mine", 20, 30)
    assert log.switch("mine", 31, kept=(2, 200, 300), markers_end=20) == 1
    assert log.client.zrange(ABORTED, 0, -1) == [b"8:3", b"7:12"]
