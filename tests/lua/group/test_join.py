"""lua/group/join.lua: its answers field by field, every error of its head, and what each leaves in Redis."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lua.group.support import CHANNEL, DEADLINES, GROUP, INFINITE, KEYS, MEMBERS, SESSION_MS, Group, row
from tests.lua.support import announced, refused

BOTH = ("range", "sticky")


@pytest.mark.parametrize(
    ("asked", "given", "error"),
    [
        ("nobody", {}, "UNKNOWN_MEMBER_ID"),
        ("b", {"instance": "other"}, "UNKNOWN_MEMBER_ID"),
        ("a", {"instance": "i"}, "FENCED_INSTANCE_ID"),
        ("", {"kind": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ("", {"kind": ""}, "INCONSISTENT_GROUP_PROTOCOL"),
        ("", {"names": ("sticky",)}, "INCONSISTENT_GROUP_PROTOCOL"),
        ("", {"names": ()}, "INCONSISTENT_GROUP_PROTOCOL"),
        ("", {"size_max": 2}, "GROUP_MAX_SIZE_REACHED .* 2 members"),
    ],
)
def test_what_a_join_is_refused_for(group: Group, asked: str, given: dict[str, Any], error: str) -> None:
    group.join(new="a", instance="i")
    group.join(new="a2", instance="i")
    group.join(new="b")
    group.join("a2", instance="i")
    with refused(group.client, f"^{error}"):
        group.join(asked, **given)


def test_of_no_group_nobody_has_an_id(group: Group) -> None:
    with refused(group.client, "^UNKNOWN_MEMBER_ID "):
        group.join("nobody")


def test_the_first_member_leads_and_gets_itself(group: Group) -> None:
    before = group.now_ms()
    answer = group.join(new="a", metadata="\x00topics")
    assert answer == [b"JOINED", b"a", b"1", b"consumer", b"range", b"a", 0, b"a", b"", b"\x00topics"]
    assert group.state() == "CompletingRebalance"
    assert group.client.hmget(GROUP, "size", "leader", "s:range") == [b"1", b"a", b"1"]
    assert json.loads(group.client.hget(MEMBERS, "m:a")) == json.loads(row("range"))
    assert before + SESSION_MS <= (group.deadline("a") or 0) <= group.now_ms() + SESSION_MS
    assert group.due == group.deadline("a")


def test_who_has_to_wait_has_no_end_of_its_session(group: Group) -> None:
    group.stable("a")
    kind, member, generation, due = group.join(new="b")
    assert (kind, member, generation) == (b"WAIT", b"b", b"1")
    assert 0 < due <= SESSION_MS
    assert group.deadline("b") == INFINITE
    assert group.state() == "PreparingRebalance"


def test_the_last_one_is_answered_and_only_the_leader_hears_of_all(group: Group) -> None:
    group.stable("a")
    group.join(new="b", instance="i", metadata="of b")
    answer = group.join("a", metadata="of a")
    assert answer[:7] == [b"JOINED", b"a", b"2", b"consumer", b"range", b"a", 0]
    assert group.members_in(answer) == {b"a": (b"", b"of a"), b"b": (b"i", b"of b")}
    assert group.look("join", "a", 1) == answer
    assert group.look("join", "b", 1, "i") == [b"JOINED", b"b", b"2", b"consumer", b"range", b"a", 0]


def test_the_first_rebalance_waits_for_the_initial_delay(group: Group) -> None:
    kind, _, generation, due = group.join(new="a", delay_ms=3000)
    assert (kind, generation) == (b"WAIT", b"0")
    assert 2000 < due <= 3000


def test_a_new_member_gets_an_id_that_is_kept_for_a_session(group: Group) -> None:
    before = group.now_ms()
    group.give_id("a")
    assert group.fields() == {"w:a"}
    assert (group.deadline("a") or 0) >= before + SESSION_MS
    assert group.due == group.deadline("a")
    assert group.join("a", require_known_member_id=True)[:3] == [b"JOINED", b"a", b"1"]
    assert group.fields() == {"m:a", "p:a"}
    assert group.join(new="s", require_known_member_id=True, instance="i")[0] == b"WAIT", "it is static"


@pytest.mark.parametrize("listed_ms", [0, -10_001])
def test_a_group_that_was_not_listed_just_now_is_not_created(group: Group, listed_ms: int) -> None:
    now = group.now_ms()
    answer = group.join(new="a", listed_ms=listed_ms and now + listed_ms)
    assert answer == [b"UNLISTED", answer[1]]
    assert now <= answer[1] <= group.now_ms()
    assert group.client.exists(*KEYS) == 0
    with refused(group.client, "^INCONSISTENT_GROUP_PROTOCOL "):
        group.join(new="a", names=(), listed_ms=0)
    assert group.join(new="a", listed_ms=answer[1])[0] == b"JOINED"
    assert group.join(new="b", listed_ms=0)[0] == b"WAIT"


def test_an_instance_that_restarts_keeps_its_assignment(group: Group) -> None:
    group.join(new="a", instance="i")
    group.sync("a", 1, "a", instance="i")
    assert group.join(new="a2", instance="i", supports_skip_assignment=False)[:7] == [
        *(b"JOINED", b"a2", b"1", b"consumer", b"range"),
        *(b"a", 0),
    ]
    assert group.join(new="a3", instance="i")[5:9] == [b"a3", 1, b"a3", b"i"]
    assert group.sync("a3", 1, instance="i")[3] == b"a"
    assert group.fields() == {"m:a3", "p:a3", "a:a3", "s:a3", "i:i"}
    assert group.client.zrange(DEADLINES, 0, -1) == [b"a3"]
    assert group.client.hmget(GROUP, "size", "s:range") == [b"1", b"1"]


def test_protocols_are_counted_as_members_come_change_and_go(group: Group) -> None:
    group.join(new="a", names=(*BOTH, "range"))
    group.join(new="b", names=BOTH)
    assert group.client.hmget(GROUP, "s:range", "s:sticky") == [b"2", b"2"]
    group.join("b", names=("sticky",), metadata="other")
    assert group.client.hmget(GROUP, "s:range", "s:sticky") == [b"1", b"2"]
    with refused(group.client, "^INCONSISTENT_GROUP_PROTOCOL "):
        group.join(new="c", names=("range",))
    group.leave(("b", ""))
    assert group.client.hmget(GROUP, "s:range", "s:sticky") == [b"1", b"1"]
    group.leave(("a", ""))
    assert group.client.hmget(GROUP, "s:range", "s:sticky") == [None, None]


def test_every_transition_is_announced_once(group: Group) -> None:
    changes = [b"1 CompletingRebalance", b"1 Stable", b"1 PreparingRebalance", b"2 CompletingRebalance"]
    with announced(group.client, CHANNEL, *changes):
        group.stable("a")
        for given in ({"new": "b"}, {"new": "c"}, {"asked": "b"}, {"asked": "a"}):
            group.join(**given)


def test_who_only_waits_reads_nobody_elses_row(group: Group) -> None:
    """A group of thousands would else be read for each of them."""
    group.stable("a", "b", "c", "e")
    group.join("b", metadata="other")
    group.client.hset(MEMBERS, "m:b", "no row")
    assert group.join(new="d")[0] == b"WAIT"
    assert group.join("d")[0] == b"WAIT"
    assert group.join("c")[0] == b"WAIT"
    group.give_id("f")
    assert group.leave(*((name, "") for name in "cdef")) == [b"NONE"] * 4
    assert group.join(new="g")[0] == b"WAIT"
    with refused(group.client, "^KAFKA_STORAGE_ERROR "):
        group.join("a")
