"""Scripts of groups on keys that were damaged: each does its work, or says what is wrong and wrote nothing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from korvet.redis import scripts
from tests.lua.group.support import CHANNEL, DEADLINES, EVERY_KEY, GROUP, KEYS, MEMBERS, PENDING, Group
from tests.lua.support import STATE, STREAM, TOPIC_ID, Saved, run

NUMBERS = ("generation", "size", "deadline", "extend_until", "delay", "s:range")
CONTENTS = ("", "garbage", "nan", "inf", "-5", "1.5", "0x10", "1e300", "99999999999999999999")
ROWS = (
    *("", "{", "[]", "7", "null", "{}"),
    '{"session_ms":"x","rebalance_ms":1,"instance":"","protocols":[]}',
    '{"session_ms":1e300,"rebalance_ms":1,"instance":"","protocols":[]}',
    '{"session_ms":-1,"rebalance_ms":1,"instance":"","protocols":[]}',
    '{"session_ms":1,"rebalance_ms":1,"instance":"","protocols":[{}]}',
    '{"session_ms":1,"rebalance_ms":1,"instance":7,"protocols":[]}',
)
ERRORS = (
    *("KAFKA_STORAGE_ERROR ", "WRONGTYPE ", "ILLEGAL_GENERATION ", "UNKNOWN_MEMBER_ID ", "NON_EMPTY_GROUP "),
    *("INCONSISTENT_GROUP_PROTOCOL ", "REBALANCE_IN_PROGRESS ", "FENCED_INSTANCE_ID "),
)
DONE = ("MEMBER_ID_REQUIRED ", "GROUP_MAX_SIZE_REACHED ")
"""Answers in the form of an error to what was done: an id is kept for the one, a member removed for the other."""

ANSWERED_BY_ERROR = ("join, id required", "join, beyond the limit")
RENEWS = (
    *("look", "heartbeat", "resume", "sync, stable", "commit"),
    *("join, as before", "join, no room", "join, while assigning"),
)
"""What writes nothing, or only the time, which may still be the same."""


def stable(group: Group) -> None:
    """Make a group of three, one of them static, that has committed."""
    group.client.flushall()
    group.client.hset(STATE, "topic", TOPIC_ID)
    group.client.xadd(STREAM, {"batch": "x"}, "9-0")
    group.join(new="a")
    for name in ("b", "c"):
        group.join(new=name, instance="one" if name == "c" else "")
    generation = int(group.join("a")[2])
    for name in ("a", "b", "c"):
        group.sync(name, generation, "a", "b", "c")
    assert group.commit(by=(generation, "a", "")) == [1]


def over(group: Group, *members: str) -> int:
    group.client.zadd(DEADLINES, dict.fromkeys(members, 1), xx=True)
    return group.advance()


def phase_over(group: Group) -> int:
    group.client.hset(GROUP, "deadline", 1)
    return group.advance()


def all_but_a(group: Group) -> None:
    """Have all join again, and leave the leader's place open."""
    stable(group)
    assert group.join("b", metadata="other")[0] == b"WAIT"
    assert group.join("c", instance="one")[0] == b"WAIT"


def assigning(group: Group) -> None:
    all_but_a(group)
    assert group.join("a")[0] == b"JOINED"
    assert group.sync("b", 3)[0] == b"WAIT"


def empty(group: Group) -> None:
    stable(group)
    group.leave(("a", ""), ("b", ""), ("c", "one"))


def ended(group: Group) -> None:
    empty(group)
    group.end_transaction(7)


def to_commit(group: Group) -> None:
    stable(group)
    group.commit_transaction(7)


STEPS: dict[str, tuple[Callable[[Group], None], Callable[[Group], Any]]] = {
    "join, new": (stable, lambda group: group.join(new="d")),
    "join, id required": (stable, lambda group: group.join(new="d", require_known_member_id=True)),
    "join, again": (stable, lambda group: group.join("a")),
    "join, as before": (stable, lambda group: group.join("b")),
    "join, instance restarted": (stable, lambda group: group.join(new="c2", instance="one")),
    "join, no room": (stable, lambda group: group.join("b", size_max=1)),
    "join, beyond the limit": (all_but_a, lambda group: group.join("a", size_max=2)),
    "join, waits": (all_but_a, lambda group: group.join(new="d")),
    "join, last": (all_but_a, lambda group: group.join("a")),
    "join, last, static": (all_but_a, lambda group: group.join(new="c2", instance="one")),
    "join, while assigning": (assigning, lambda group: group.join("a")),
    "sync, leader": (assigning, lambda group: group.sync("a", 3, "a", "b", "c")),
    "sync, follower": (assigning, lambda group: group.sync("c", 3, instance="one")),
    "sync, stable": (stable, lambda group: group.sync("b", 2)),
    "heartbeat": (stable, lambda group: group.heartbeat("b", 2)),
    "leave": (stable, lambda group: group.leave(("a", ""), ("b", ""))),
    "leave, while joining": (all_but_a, lambda group: group.leave(("b", ""), ("", "one"))),
    "leave, last": (all_but_a, lambda group: group.leave(("a", ""))),
    "leave, while assigning": (assigning, lambda group: group.leave(("a", ""))),
    "advance, sessions": (stable, lambda group: over(group, "a", "b")),
    "advance, joining": (all_but_a, phase_over),
    "advance, assigning": (assigning, phase_over),
    "resume": (all_but_a, lambda group: run(group.client, "group/resume", KEYS, (CHANNEL,))),
    "look, join": (all_but_a, lambda group: group.look("join", "b", 2)),
    "look, sync": (assigning, lambda group: group.look("sync", "b", 3)),
    "commit": (stable, lambda group: group.commit(by=(2, "b", ""))),
    "commit, nobody's": (empty, lambda group: group.commit()),
    "commit_transaction": (stable, lambda group: group.commit_transaction(7, by=(2, "b", ""))),
    "end_transaction": (to_commit, lambda group: group.end_transaction(7)),
    "expire_transactions": (
        ended,
        lambda group: run(group.client, "group/expire_transactions", (PENDING,), ("0", 100, -1000)),
    ),
    "delete": (empty, lambda group: group.delete(STREAM)),
    "forget": (empty, lambda group: group.forget(*group.seen(), rows={STREAM: ""})),
}


def wrongs(group: Group, damage: Callable[[], object]) -> list[str]:
    """Do every step on a group with the damage; return what fails in another way than it should."""
    wrong: list[str] = []
    saved: dict[Callable[[Group], None], Saved] = {}
    for name, (begin, step) in STEPS.items():
        if begin not in saved:
            begin(group)
            saved[begin] = Saved(group.client)
        saved[begin].restore()
        damage()
        if name.startswith("advance"):
            # The step makes time pass, which is no writing of the script.
            with_time_passed(group, name)
        before = group.snapshot()
        try:
            step(group)
        except redis.ResponseError as error:
            if str(error).startswith(DONE):
                continue
            # redis-py takes some first words for a class of its own, and drops them.
            if not (str(error).startswith(ERRORS) or "wrong kind of value" in str(error)):
                wrong.append(f"{name}: {error}")
            elif group.snapshot() != before:
                wrong.append(f"{name} has written: {error}")
    return wrong


def with_time_passed(group: Group, name: str) -> None:
    if group.client.type(DEADLINES) == b"zset" and name == "advance, sessions":
        group.client.zadd(DEADLINES, {"a": 1, "b": 1}, xx=True)
    elif group.client.type(GROUP) == b"hash" and name != "advance, sessions":
        group.client.hset(GROUP, "deadline", 1)


def test_every_script_of_a_group_does_its_work_on_one_that_is_whole(group: Group) -> None:
    for name, (begin, step) in STEPS.items():
        begin(group)
        before = group.snapshot()
        with contextlib.ExitStack() as refused:
            if name in ANSWERED_BY_ERROR:
                refused.enter_context(pytest.raises(redis.ResponseError, match="|".join(DONE)))
            step(group)
        assert group.snapshot() != before or name.startswith(RENEWS), name
    done = {name.partition(",")[0] for name in STEPS}
    assert done == {script.name[6:] for script in scripts.all_scripts() if script.name.startswith("group/")}


@pytest.mark.parametrize("key", EVERY_KEY)
def test_a_key_of_another_type(group: Group, key: str) -> None:
    def damage() -> None:
        group.client.delete(key)
        group.client.rpush(key, "of somebody else")

    assert wrongs(group, damage) == []


@pytest.mark.parametrize("key", KEYS)
def test_what_is_of_another_type_is_named(group: Group, key: str) -> None:
    stable(group)
    group.client.delete(key)
    group.client.rpush(key, "of somebody else")
    with pytest.raises(redis.ResponseError, match=f"^KAFKA_STORAGE_ERROR {re.escape(key)}: "):
        group.join(new="d")


DAMAGED = [
    *((GROUP, field, content) for field in NUMBERS for content in CONTENTS),
    (GROUP, "state", "Rebalancing"),
    *((MEMBERS, f"m:{member}", text) for member in "abc" for text in ROWS),
    (MEMBERS, "i:one", "nobody"),
]


@pytest.mark.parametrize(("key", "field", "content"), DAMAGED)
def test_a_field_that_nobody_can_have_written(group: Group, key: str, field: str, content: str) -> None:
    assert wrongs(group, partial(group.client.hset, key, field, content)) == []


@pytest.mark.parametrize("field", ["m:a", "m:b", "m:c", "p:a", "p:b", "i:one"])
def test_a_field_of_a_member_that_is_not_there(group: Group, field: str) -> None:
    assert wrongs(group, partial(group.client.hdel, MEMBERS, field)) == []
