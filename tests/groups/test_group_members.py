"""Static members (KIP-345) and full groups, on a real Redis."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.groups.store import Joined, Synced
from korvet.redis.client import Redis
from tests.groups.support import Group, refused

BOTH = (("range", b"r"), ("roundrobin", b"o"))


@pytest.fixture
def group(redis: Redis, raw_redis: Any) -> Group:
    return Group(redis, raw_redis)


def test_a_static_member_that_begins_anew_keeps_its_part_and_moves_nobody(group: Group) -> None:
    group.joined(new="a1", instance="a")
    group.waits(new="b1", instance="b")
    generation = group.joined("a1", instance="a").generation
    group.sync("a1", generation, "a", a1=b"1", b1=b"2")
    group.sync("b1", generation, "b")
    joined = group.joined(new="b2", instance="b")
    assert (joined.generation, joined.leader, joined.skip_assignment) == (generation, "a1", False)
    assert group.sync("b2", generation, "b") == Synced("consumer", "range", b"2")
    assert group.summary() == ("Stable", generation, {"a1", "b2"})
    refused("FENCED_INSTANCE_ID", lambda: group.heartbeat("b1", generation, "b"))
    refused("FENCED_INSTANCE_ID", lambda: group.sync("b1", generation, "b"))
    refused("FENCED_INSTANCE_ID", lambda: group.ask("b1", instance="b"))
    refused("UNKNOWN_MEMBER_ID", lambda: group.heartbeat("b1", generation))
    assert group.leave(("b1", "b"), ("", "b"), ("", "nobody")) == [
        "FENCED_INSTANCE_ID",
        "NONE",
        "UNKNOWN_MEMBER_ID",
    ]


@pytest.mark.parametrize("skips", [True, False])
def test_a_static_leader_that_begins_anew_assigns_nothing(group: Group, *, skips: bool) -> None:
    generation = group.stable("a1", instance="a")
    joined = group.joined(new="a2", instance="a", supports_skip_assignment=skips)
    assert (joined.generation, joined.member_id, joined.skip_assignment) == (generation, "a2", skips)
    # Who cannot be told to skip is not told that it leads.
    assert joined.leader == ("a2" if skips else "a1")
    assert [each.member_id for each in joined.members] == (["a2"] if skips else [])
    assert group.sync("a2", generation, "a") == Synced("consumer", "range", b"a1")


def test_a_static_member_with_another_protocol_moves_all(group: Group) -> None:
    generation = group.stable("a1", instance="a", protocols=BOTH)
    assert group.joined(new="a2", instance="a", protocols=BOTH[1:]).generation == generation + 1


def test_a_static_member_stays_one_where_it_joins_again_without_naming_its_instance(group: Group) -> None:
    generation = group.stable("a1", instance="a", client_id='"session_ms":1,')
    assert group.joined("a1").generation == generation + 1
    group.heartbeat("a1", generation + 1, "a")
    assert [each.instance for each in group.described().members] == ["a"]
    assert group.leave(("", "a")) == ["NONE"]
    assert group.raw.exists(group.members, group.deadlines) == 0


def test_a_static_member_is_waited_for_until_its_session_ends(group: Group) -> None:
    generation = group.stable("a1", instance="a")
    waiting = group.waits(new="b")
    group.phase_is_over()
    group.advance()
    assert group.summary() == ("CompletingRebalance", generation + 1, {"a1", "b"})
    assert isinstance(group.store.poll_join(group.name, "", waiting), Joined)


def test_a_static_member_that_is_replaced_while_it_waits_is_fenced(group: Group) -> None:
    group.stable("a")
    waiting = group.waits(new="b1", instance="b")
    group.waits(new="b2", instance="b")
    refused("FENCED_INSTANCE_ID", lambda: group.store.poll_join(group.name, "b", waiting))


def test_a_full_group_takes_nobody_else(redis: Redis, raw_redis: Any) -> None:
    group = Group(redis, raw_redis, size_max=2)
    generation = group.stable("a", "b")
    refused("GROUP_MAX_SIZE_REACHED", lambda: group.ask(new="c"))
    assert group.summary() == ("Stable", generation, {"a", "b"})
    assert group.joined("b").generation == generation
    group.leave(("b", ""))
    group.waits(new="c")
    assert group.joined("a").generation == generation + 1


def test_members_beyond_a_limit_that_was_lowered_are_removed_when_they_join_again(
    redis: Redis, raw_redis: Any
) -> None:
    Group(redis, raw_redis).stable("a", "b", "c")
    group = Group(redis, raw_redis, size_max=2)
    group.waits("a")
    group.waits("b")
    refused("GROUP_MAX_SIZE_REACHED", lambda: group.ask("c"))
    assert group.summary()[2] == {"a", "b"}
    assert group.summary()[0] == "CompletingRebalance"
