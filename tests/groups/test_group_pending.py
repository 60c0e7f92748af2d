"""Who was told a member id and has not joined with it yet (KIP-394), on a real Redis."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.groups.store import Joined
from korvet.redis.client import Redis
from tests.groups.support import Group, refused


@pytest.fixture
def group(redis: Redis, raw_redis: Any) -> Group:
    return Group(redis, raw_redis)


def told(group: Group, member: str) -> None:
    refused("MEMBER_ID_REQUIRED", lambda: group.ask(new=member, require_known_member_id=True))


def pending(group: Group) -> list[bytes]:
    return [name for name in group.raw.hkeys(group.members) if name.startswith(b"w:")]


def test_who_never_comes_moves_nobody_of_a_stable_group(group: Group) -> None:
    generation = group.stable("a", "b")
    told(group, "ghost")
    group.time_is_up_for("ghost")
    group.advance()
    assert group.summary() == ("Stable", generation, {"a", "b"})
    assert pending(group) == []
    group.heartbeat("a", generation)


def test_who_never_comes_moves_nobody_of_a_group_that_awaits_its_assignments(group: Group) -> None:
    generation = group.joined(new="a").generation
    told(group, "ghost")
    group.time_is_up_for("ghost")
    group.advance()
    assert group.summary() == ("CompletingRebalance", generation, {"a"})
    assert group.part("a", generation, a=b"all") == b"all"


def test_a_rebalance_waits_for_who_was_told_an_id_until_its_session_ends(group: Group) -> None:
    group.stable("a")
    told(group, "ghost")
    waiting = group.waits("a")
    group.time_is_up_for("ghost")
    group.advance()
    assert isinstance(group.store.poll_join(group.name, "", waiting), Joined)


def test_who_was_told_an_id_takes_no_place_before_it_joins(redis: Redis, raw_redis: Any) -> None:
    group = Group(redis, raw_redis, size_max=2)
    group.stable("a")
    told(group, "ghost")
    told(group, "b")
    group.waits("b")


def test_of_more_than_have_room_those_that_join_first_get_in(redis: Redis, raw_redis: Any) -> None:
    group = Group(redis, raw_redis, size_max=2, initial_delay_ms=3000)
    for member in ("a", "b", "c"):
        told(group, member)
    waiting = group.waits("a")
    group.waits("b")
    refused("GROUP_MAX_SIZE_REACHED", lambda: group.ask("c"))
    assert pending(group) == []
    refused("GROUP_MAX_SIZE_REACHED", lambda: group.ask(new="d", require_known_member_id=True))
    group.phase_is_over()
    group.advance()
    group.phase_is_over()
    group.advance()
    assert group.summary() == ("CompletingRebalance", 1, {"a", "b"})
    assert isinstance(group.store.poll_join(group.name, "", waiting), Joined)


def test_who_finds_a_full_group_with_the_id_it_was_told_moves_nobody(redis: Redis, raw_redis: Any) -> None:
    group = Group(redis, raw_redis, size_max=2)
    told(group, "late")
    generation = group.stable("a")
    group.waits(new="b")
    refused("GROUP_MAX_SIZE_REACHED", lambda: Group(redis, raw_redis, size_max=1).ask("late"))
    # It was waited for; now that it is gone the rebalance waits for the others alone.
    assert group.joined("a").generation == generation + 1
    group.part("a", generation + 1, a=b"1", b=b"2")
    told_again = Group(redis, raw_redis)
    told(told_again, "late")
    refused("GROUP_MAX_SIZE_REACHED", lambda: group.ask("late"))
    assert group.summary() == ("Stable", generation + 1, {"a", "b"})
    assert pending(group) == []


def test_an_id_that_a_dynamic_member_was_told_is_not_that_of_a_static_one(group: Group) -> None:
    generation = group.stable("a1", instance="a")
    told(group, "b")
    refused("FENCED_INSTANCE_ID", lambda: group.ask("b", instance="a"))
    refused("UNKNOWN_MEMBER_ID", lambda: group.ask("b", instance="b"))
    assert group.summary() == ("Stable", generation, {"a1"})
    group.heartbeat("a1", generation, "a")
    group.waits("b")


def test_a_group_that_loses_its_last_member_is_empty_whoever_was_told_an_id(group: Group) -> None:
    generation = group.stable("a")
    told(group, "b")
    group.leave(("a", ""))
    assert group.summary() == ("Empty", generation + 1, set())
    assert group.joined("b").generation == generation + 2
