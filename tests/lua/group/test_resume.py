"""lua/group/resume.lua: sessions and phases that begin again, and what stays as it is."""

from __future__ import annotations

import pytest
import redis

from tests.lua.group.support import (
    CHANNEL,
    DEADLINES,
    GROUP,
    INFINITE,
    KEYS,
    SESSION_MS,
    Group,
)
from tests.lua.support import run


def resume(group: Group) -> int:
    due: int = run(group.client, "group/resume", KEYS, (CHANNEL,))
    return due if due < 0 else due - group.now_ms()


def test_of_no_group_nothing_is_made(group: Group) -> None:
    assert resume(group) == -1
    assert group.client.exists(*KEYS) == 0


def test_sessions_begin_again_and_none_becomes_shorter(group: Group) -> None:
    group.stable("a", "b", "c")
    later = group.now_ms() + 10 * SESSION_MS
    group.client.zadd(DEADLINES, {"a": 1, "b": later})
    before = group.now_ms()
    assert 0 < resume(group) <= SESSION_MS
    assert (group.deadline("a") or 0) >= before + SESSION_MS
    assert (group.deadline("c") or 0) >= before + SESSION_MS
    assert group.deadline("b") == later
    assert group.state() == "Stable"


def test_waiting_members_stay_and_a_phase_begins_again(group: Group) -> None:
    group.stable("a")
    assert group.join(new="b")[0] == b"WAIT"
    with pytest.raises(redis.ResponseError, match="MEMBER_ID_REQUIRED"):
        group.join(new="c", require_known_member_id=True)
    pending = group.deadline("c")
    group.client.hset(GROUP, "deadline", 1)
    resume(group)
    assert int(group.client.hget(GROUP, "deadline")) > group.now_ms()
    assert (group.deadline("b"), group.deadline("c")) == (INFINITE, pending)
    assert group.advance() > 0
    assert group.state() == "PreparingRebalance"
