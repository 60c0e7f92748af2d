"""lua/group/sync.lua and lua/group/look.lua: parts, those who wait for them, and every error of their heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.group.support import DEADLINES, GROUP, INFINITE, MEMBERS, SESSION_MS, Group
from tests.lua.support import refused, unchanged


@pytest.fixture
def assigning(group: Group) -> Group:
    """Give a group of `a`, its leader, and `b`, in generation 2 without assignments."""
    group.stable("a")
    group.join(new="b")
    group.join("a")
    return group


REFUSALS: dict[str, list[Callable[[Group], Any]]] = {
    "UNKNOWN_MEMBER_ID": [
        lambda group: group.sync("d", 2),
        lambda group: group.sync("a", 2, instance="i"),
        lambda group: group.heartbeat("d", 2),
        lambda group: group.heartbeat("a", 2, "i"),
        lambda group: group.look("sync", "d", 2),
    ],
    "FENCED_INSTANCE_ID": [
        lambda group: group.sync("a", 2, instance="c"),
        lambda group: group.heartbeat("a", 2, "c"),
        lambda group: group.look("sync", "a", 2, "c"),
    ],
    "ILLEGAL_GENERATION": [
        lambda group: group.sync("a", 1),
        lambda group: group.sync("a", 3),
        lambda group: group.heartbeat("a", 1),
    ],
    "INCONSISTENT_GROUP_PROTOCOL": [
        lambda group: group.sync("a", 2, kind="connect"),
        lambda group: group.sync("a", 2, protocol="sticky"),
    ],
    "REBALANCE_IN_PROGRESS": [lambda group: group.look("sync", "b", 1)],
}


@pytest.mark.parametrize(("error", "ask"), [(error, ask) for error in REFUSALS for ask in REFUSALS[error]])
def test_what_members_are_refused_for(assigning: Group, error: str, ask: Callable[[Group], Any]) -> None:
    assigning.client.hset(MEMBERS, "i:c", "c")
    with refused(assigning.client, f"^{error} "):
        ask(assigning)


def test_during_a_rebalance_there_is_nothing_to_sync(assigning: Group) -> None:
    assigning.sync("b", 2)
    assigning.join(new="c")
    with refused(assigning.client, "^REBALANCE_IN_PROGRESS "):
        assigning.sync("a", 2)
    with refused(assigning.client, "^REBALANCE_IN_PROGRESS "):
        assigning.look("sync", "b", 2)
    assert assigning.look("join", "c", 2)[0] == b"WAIT"
    # Somebody else has taken the place of the request: the rebalance goes on without it.
    assigning.client.zadd(DEADLINES, {"c": assigning.now_ms() + SESSION_MS})
    with refused(assigning.client, "^REBALANCE_IN_PROGRESS "):
        assigning.look("join", "c", 2)


def test_a_follower_waits_for_the_leader(assigning: Group) -> None:
    kind, due = assigning.sync("b", 2)
    assert kind == b"WAIT"
    assert 0 < due <= SESSION_MS
    assert assigning.deadline("b") == INFINITE
    assert assigning.look("sync", "b", 2)[0] == b"WAIT"
    before = assigning.now_ms()
    answer = assigning.sync("a", 2, "a", "b", "ghost", kind="consumer", protocol="range")
    assert answer == [b"SYNCED", b"consumer", b"range", b"a"]
    assert assigning.look("sync", "b", 2) == [b"SYNCED", b"consumer", b"range", b"b"]
    assert assigning.state() == "Stable"
    assert all((assigning.deadline(name) or 0) >= before + SESSION_MS for name in "ab")
    assert assigning.fields() == {f"{kind}:{name}" for kind in "mpas" for name in "ab"}


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


def test_a_look_writes_nothing(assigning: Group) -> None:
    assigning.sync("b", 2)
    with unchanged(assigning.client):
        assert assigning.look("sync", "b", 2)[0] == b"WAIT"
        assert assigning.look("join", "b", 1)[0] == b"JOINED"


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
    for name in "ab":
        with pytest.raises(redis.ResponseError, match=r"^REBALANCE_IN_PROGRESS "):
            assigning.heartbeat(name, 2)
    assert 1 < (assigning.deadline("a") or 0) < INFINITE
    assert assigning.deadline("b") == INFINITE
    client.hset(MEMBERS, "m:a", "{}")
    with refused(client, "^KAFKA_STORAGE_ERROR "):
        assigning.heartbeat("a", 2)
