"""lua/group/sync.lua and lua/group/look.lua: parts, those who wait for them, and every error of their heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.group.support import DEADLINES, GROUP, INFINITE, MEMBERS, SESSION_MS, Group


@pytest.fixture
def assigning(group: Group) -> Group:
    """Give a group of `a`, its leader, and `b`, in generation 2 without assignments."""
    group.stable("a")
    group.join(new="b")
    group.join("a")
    return group


def refused(error: str, act: Callable[[], Any]) -> None:
    with pytest.raises(redis.ResponseError, match=f"^{error} "):
        act()


def test_a_follower_waits_for_the_leader(assigning: Group) -> None:
    kind, due = assigning.sync("b", 2)
    assert kind == b"WAIT"
    assert 0 < due <= SESSION_MS
    assert assigning.deadline("b") == INFINITE
    assert assigning.look("sync", "b", 2)[0] == b"WAIT"
    before = assigning.now_ms()
    assert assigning.sync("a", 2, "a", "b", "ghost") == [b"SYNCED", b"consumer", b"range", b"a"]
    assert assigning.look("sync", "b", 2) == [b"SYNCED", b"consumer", b"range", b"b"]
    assert assigning.state() == "Stable"
    assert all((assigning.deadline(name) or 0) >= before + SESSION_MS for name in "ab")
    assert assigning.fields() == {f"{kind}:{name}" for kind in "mpas" for name in "ab"}


def test_who_is_given_no_part_has_an_empty_one(assigning: Group) -> None:
    assigning.sync("b", 2)
    assert assigning.sync("a", 2, "b")[3] == b""
    assert assigning.sync("a", 2)[3] == b""
    assert assigning.sync("b", 2)[3] == b"b"


def test_the_last_assignments_stay_until_the_next_ones_come(assigning: Group) -> None:
    assigning.sync("a", 2, "a", "b")
    for generation in (3, 4):
        assigning.join("a", metadata=f"as of {generation}")
        assigning.join("b", metadata=f"as of {generation}")
        assert assigning.state() == "CompletingRebalance"
        assert {f"a:{name}" for name in "ab"} <= assigning.fields()
        assert assigning.sync("b", generation)[0] == b"WAIT"
    assert assigning.sync("a", 4, "b")[3] == b""
    assert assigning.sync("b", 4)[3] == b"b"
    assert "a:a" not in assigning.fields()


def test_of_many_members_each_gets_its_own(group: Group) -> None:
    names = [f"m{n}" for n in range(2100)]
    for name in names:
        group.join(new=name, size_max=3000, metadata=name)
    answer = group.join(names[0], size_max=3000, metadata=names[0])
    assert group.members_in(answer) == {name.encode(): (b"", name.encode()) for name in names}
    assert group.sync(names[0], 2, *names)[3] == b"m0"
    assert [group.look("sync", name, 2)[3] for name in names[::500]] == [n.encode() for n in names[::500]]


def test_what_a_sync_is_refused_for(assigning: Group) -> None:
    before = assigning.snapshot()
    refused("UNKNOWN_MEMBER_ID", lambda: assigning.sync("c", 2))
    refused("UNKNOWN_MEMBER_ID", lambda: assigning.sync("a", 2, instance="i"))
    refused("ILLEGAL_GENERATION", lambda: assigning.sync("a", 1))
    refused("ILLEGAL_GENERATION", lambda: assigning.sync("a", 3))
    refused("INCONSISTENT_GROUP_PROTOCOL", lambda: assigning.sync("a", 2, kind="connect"))
    refused("INCONSISTENT_GROUP_PROTOCOL", lambda: assigning.sync("a", 2, protocol="sticky"))
    assert assigning.snapshot() == before
    assert assigning.sync("a", 2, "a", kind="consumer", protocol="range")[0] == b"SYNCED"
    assigning.join("b", metadata="other")
    before = assigning.snapshot()
    refused("REBALANCE_IN_PROGRESS", lambda: assigning.sync("a", 2))
    assert assigning.snapshot() == before


def test_a_static_member_that_was_replaced_is_fenced(group: Group) -> None:
    group.join(new="a", instance="i")
    group.join(new="a2", instance="i")
    refused("FENCED_INSTANCE_ID", lambda: group.sync("a", 1, instance="i"))
    refused("FENCED_INSTANCE_ID", lambda: group.look("join", "a", 0, "i"))
    refused("FENCED_INSTANCE_ID", lambda: group.heartbeat("a", 1, "i"))


def test_what_one_who_waits_is_refused_for(assigning: Group) -> None:
    assigning.sync("b", 2)
    refused("UNKNOWN_MEMBER_ID", lambda: assigning.look("sync", "c", 2))
    refused("REBALANCE_IN_PROGRESS", lambda: assigning.look("sync", "b", 1))
    assigning.join(new="c")
    refused("REBALANCE_IN_PROGRESS", lambda: assigning.look("sync", "b", 2))
    assert assigning.look("join", "c", 2)[0] == b"WAIT"
    # Somebody else has taken the place of the request: the rebalance goes on without it.
    assigning.client.zadd(DEADLINES, {"c": assigning.now_ms() + SESSION_MS})
    refused("REBALANCE_IN_PROGRESS", lambda: assigning.look("join", "c", 2))


def test_a_look_writes_nothing(assigning: Group) -> None:
    assigning.sync("b", 2)
    before = assigning.snapshot()
    assert assigning.look("sync", "b", 2)[0] == b"WAIT"
    assert assigning.look("join", "b", 1)[0] == b"JOINED"
    assert assigning.snapshot() == before


def test_a_leader_that_waited_gets_all_members_by_a_poll(group: Group) -> None:
    group.stable("a")
    group.join(new="b", instance="i", metadata="of b")
    assert group.join("a", metadata="of a")[0] == b"JOINED"
    answer = group.look("join", "a", 1)
    assert answer[:7] == [b"JOINED", b"a", b"2", b"consumer", b"range", b"a", 0]
    assert group.members_in(answer) == {b"a": (b"", b"of a"), b"b": (b"i", b"of b")}


def test_a_heartbeat_renews_and_says_what_is_to_be_done(assigning: Group) -> None:
    client = assigning.client
    for state in ("CompletingRebalance", "Stable"):
        client.hset(GROUP, "state", state)
        client.zadd(DEADLINES, {"a": 1})
        before = assigning.now_ms()
        assert assigning.heartbeat("a", 2) == 1
        assert (assigning.deadline("a") or 0) >= before + SESSION_MS
    client.hset(GROUP, "state", "PreparingRebalance")
    client.zadd(DEADLINES, {"a": 1, "b": INFINITE})
    refused("REBALANCE_IN_PROGRESS", lambda: assigning.heartbeat("a", 2))
    refused("REBALANCE_IN_PROGRESS", lambda: assigning.heartbeat("b", 2))
    assert 1 < (assigning.deadline("a") or 0) < INFINITE
    assert assigning.deadline("b") == INFINITE


def test_what_a_heartbeat_is_refused_for(assigning: Group) -> None:
    before = assigning.snapshot()
    refused("UNKNOWN_MEMBER_ID", lambda: assigning.heartbeat("c", 2))
    refused("UNKNOWN_MEMBER_ID", lambda: assigning.heartbeat("a", 2, "i"))
    refused("ILLEGAL_GENERATION", lambda: assigning.heartbeat("a", 1))
    assert assigning.snapshot() == before
    assigning.client.hset(MEMBERS, "m:a", "{}")
    refused("KAFKA_STORAGE_ERROR", lambda: assigning.heartbeat("a", 2))
