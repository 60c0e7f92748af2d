"""lua/group/leave.lua, advance.lua and resume.lua: who goes, by itself or with time, and whose time begins again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.group.support import (
    CHANNEL,
    DEADLINES,
    GROUP,
    INFINITE,
    KEYS,
    MEMBERS,
    REBALANCE_MS,
    SESSION_MS,
    Group,
)
from tests.lua.support import run, unchanged

HOUR_MS = 3_600_000
NONE, UNKNOWN, FENCED = b"NONE", b"UNKNOWN_MEMBER_ID", b"FENCED_INSTANCE_ID"


def time_is_up_for(client: Any, *names: str) -> None:
    assert client.zadd(DEADLINES, dict.fromkeys(names, 1), xx=True, ch=True) == len(names)


def test_each_member_gets_its_outcome(group: Group) -> None:
    group.join(new="a", instance="i")
    group.join(new="b")
    group.give_id("c")
    asked = [("nobody", ""), ("b", "i"), ("", "j"), ("", ""), ("", "i"), ("b", ""), ("c", ""), ("b", "")]
    assert group.leave(*asked) == [UNKNOWN, FENCED, UNKNOWN, UNKNOWN, NONE, NONE, NONE, UNKNOWN]
    assert group.client.hgetall(MEMBERS) == {}
    assert group.state() == "Empty"
    assert group.due == -1


def test_who_is_not_there_changes_nothing(group: Group) -> None:
    assert group.leave(("a", ""), ("", "i")) == [UNKNOWN, UNKNOWN]
    assert group.client.exists(GROUP, MEMBERS, DEADLINES) == 0
    group.stable("a")
    with unchanged(group.client):
        assert group.leave() == []
        assert group.leave(("b", "")) == [UNKNOWN]


def test_the_others_are_to_join_again(group: Group) -> None:
    generation = group.stable("a", "b", "c")
    before = group.now_ms()
    assert group.leave(("a", ""), ("c", "")) == [NONE, NONE]
    assert group.state() == "PreparingRebalance"
    state = group.client.hmget(GROUP, "generation", "leader", "size", "s:range")
    assert state == [str(generation).encode(), b"", b"1", b"1"]
    due = int(group.client.hget(GROUP, "deadline"))
    assert before + REBALANCE_MS <= due <= group.now_ms() + REBALANCE_MS
    assert group.join("b")[:6] == [b"JOINED", b"b", b"3", b"consumer", b"range", b"b"]


def test_before_anything_is_due_time_brings_nothing(group: Group) -> None:
    group.stable("a")
    members = group.client.dump(MEMBERS)
    assert 0 < group.advance() <= SESSION_MS
    assert (group.state(), group.client.dump(MEMBERS)) == ("Stable", members)
    assert group.due == group.deadline("a")


def test_the_last_session_leaves_an_empty_group(group: Group) -> None:
    generation = group.stable("a")
    time_is_up_for(group.client, "a")
    assert group.advance() == -1
    assert group.state() == "Empty"
    assert group.client.hmget(GROUP, "generation", "protocol", "leader", "size") == [
        *(str(generation + 1).encode(), b"", b""),
        b"0",
    ]
    assert group.fields() == set()
    assert not [name for name in group.client.hkeys(GROUP) if name.startswith(b"s:")]


def test_the_first_rebalance_waits_longer_where_somebody_came(group: Group) -> None:
    group.join(new="a", delay_ms=3000)
    group.join(new="b", delay_ms=3000)
    group.client.hset(GROUP, "deadline", 1)
    assert 2000 < group.advance() <= 3000
    assert group.state() == "PreparingRebalance"
    group.client.hset(GROUP, "deadline", 1)
    assert group.advance() > 0
    assert group.state() == "CompletingRebalance"


def resume(group: Group) -> int:
    due: int = run(group.client, "group/resume", KEYS, (CHANNEL,))
    return due if due < 0 else due - group.now_ms()


def test_of_no_group_nothing_is_made(group: Group) -> None:
    assert (group.advance(), resume(group)) == (-2, -1)
    assert group.client.exists(*KEYS) == 0


def test_sessions_begin_again_those_too_that_a_clock_set_back_made_long(group: Group) -> None:
    group.stable("a", "b", "c")
    group.client.zadd(DEADLINES, {"a": 1, "b": group.now_ms() + HOUR_MS})
    before = group.now_ms()
    assert 0 < resume(group) <= SESSION_MS
    for member in ("a", "b", "c"):
        assert before + SESSION_MS <= (group.deadline(member) or 0) <= group.now_ms() + SESSION_MS
    assert group.state() == "Stable"


@pytest.mark.parametrize("deadline", [1, HOUR_MS])
def test_a_first_rebalance_begins_again(group: Group, deadline: int) -> None:
    group.join(new="a", delay_ms=3000)
    group.client.hset(
        GROUP, mapping={"deadline": group.now_ms() + deadline, "extend_until": group.now_ms() + HOUR_MS}
    )
    resume(group)
    assert int(group.client.hget(GROUP, "deadline")) <= group.now_ms() + 3000
    assert int(group.client.hget(GROUP, "extend_until")) <= group.now_ms() + REBALANCE_MS


def test_waiting_members_stay_and_a_phase_begins_again(group: Group) -> None:
    group.stable("a")
    assert group.join(new="b")[0] == b"WAIT"
    group.give_id("c")
    pending = group.deadline("c")
    for deadline in (1, group.now_ms() + HOUR_MS):
        group.client.hset(GROUP, "deadline", deadline)
        resume(group)
        assert 0 < int(group.client.hget(GROUP, "deadline")) - group.now_ms() <= REBALANCE_MS
    assert (group.deadline("b"), group.deadline("c")) == (INFINITE, pending)
    group.client.zadd(DEADLINES, {"c": group.now_ms() + HOUR_MS})
    resume(group)
    assert (group.deadline("c") or 0) <= group.now_ms() + SESSION_MS
    assert group.advance() > 0
    assert group.state() == "PreparingRebalance"
