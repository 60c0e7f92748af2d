"""Groups on a real Redis: transitions of several steps, and what is read; single ones are in tests/lua/group."""

from __future__ import annotations

import json
from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.listing import GroupList, GroupSummary
from korvet.groups.types import Joined, StoredGroup
from korvet.redis.client import Redis
from tests.groups.support import KEYS, REBALANCE_MS, SESSION_MS, Group, refused

BOTH = (("range", b"r"), ("roundrobin", b"o"))


@pytest.fixture
def group(redis: Redis, raw_redis: Any) -> Group:
    return Group(redis, raw_redis)


def test_the_protocol_with_most_votes_of_those_that_all_support_is_taken(group: Group) -> None:
    of = {"a": ("x", "y", "z"), "b": ("q", "z", "y"), "c": ("z", "y")}
    protocols = {name: tuple((item, b"") for item in names) for name, names in of.items()}
    group.joined(new="a", protocols=protocols["a"])
    group.waits(new="b", protocols=protocols["b"])
    group.waits(new="c", protocols=protocols["c"])
    assert group.joined("a", protocols=protocols["a"]).protocol == "z"


def test_the_first_rebalance_waits_no_longer_than_a_rebalance_may_take(redis: Redis, raw_redis: Any) -> None:
    group = Group(redis, raw_redis, initial_delay_ms=3000)
    group.waits(new="a")
    group.waits(new="b")
    raw_redis.hset(group.state, "extend_until", 2)
    group.phase_is_over()
    group.advance()
    assert group.summary() == ("CompletingRebalance", 1, {"a", "b"})


def test_what_is_due_first_is_in_the_list_of_groups_and_never_too_late(group: Group, raw_redis: Any) -> None:
    def due_in() -> float:
        group.store.schedule.flush()
        seconds, microseconds = raw_redis.time()
        due: float = raw_redis.zscore("korvet:groups", "billing")
        return due - float(seconds * 1000 + microseconds // 1000)

    generation = group.stable("a", session_ms=7000)
    assert due_in() <= 7000
    for _ in range(2):
        raw_redis.zadd("korvet:groups", {"billing": 1})
        due = group.store.schedule.take_due(10)
        assert due.times_ms == {b"billing": 1}
        assert raw_redis.zscore("korvet:groups", "billing") == due.again_ms
        group.heartbeat("a", generation)
        assert group.store.schedule.take_due(10).times_ms == {}
        group.advance()
        assert 0 < due_in() <= 7000


def test_groups_are_described_in_their_order_whatever_one_of_them_is(group: Group, raw_redis: Any) -> None:
    group.stable("a")
    raw_redis.set("{korvet:group:other:offsets}:group", "no hash")
    first, second, third = group.store.describe(["none", "other", "billing"])
    assert isinstance(first, StoredGroup)
    assert isinstance(third, StoredGroup)
    assert (first.state, third.state) == ("Dead", "Stable")
    assert isinstance(second, KafkaError)


def test_rows_say_what_another_reader_needs(group: Group, raw_redis: Any) -> None:
    group.stable("a1", instance="a")
    assert json.loads(raw_redis.hget(group.members, "m:a1")) == {
        "session_ms": SESSION_MS,
        "rebalance_ms": REBALANCE_MS,
        "instance": "a",
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "protocols": ["range"],
    }


def test_a_static_member_with_another_protocol_moves_all(group: Group) -> None:
    generation = group.stable("a1", instance="a", protocols=BOTH)
    assert group.joined(new="a2", instance="a", protocols=BOTH[1:]).generation == generation + 1


def test_a_static_member_stays_one_where_it_joins_again_without_naming_its_instance(group: Group) -> None:
    generation = group.stable("a1", instance="a", client_id='"session_ms":1,')
    assert group.joined("a1").generation == generation + 1
    group.heartbeat("a1", generation + 1, "a")
    assert [member.instance for member in group.described().members] == ["a"]
    assert group.leave(("", "a")) == ["NONE"]
    assert group.raw.exists(group.members, group.deadlines) == 0


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


def give_id(group: Group, member: str) -> None:
    refused("MEMBER_ID_REQUIRED", lambda: group.ask(new=member, require_known_member_id=True))


def pending(group: Group) -> list[bytes]:
    return [name for name in group.raw.hkeys(group.members) if name.startswith(b"w:")]


def test_of_more_than_have_room_those_that_join_first_get_in(redis: Redis, raw_redis: Any) -> None:
    group = Group(redis, raw_redis, size_max=2, initial_delay_ms=3000)
    for member in ("a", "b", "c"):
        give_id(group, member)
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


def test_a_pending_id_that_finds_a_full_group_does_not_disturb_it(redis: Redis, raw_redis: Any) -> None:
    group = Group(redis, raw_redis, size_max=2)
    give_id(group, "late")
    generation = group.stable("a")
    group.waits(new="b")
    refused("GROUP_MAX_SIZE_REACHED", lambda: Group(redis, raw_redis, size_max=1).ask("late"))
    # It was waited for; now that it is gone the rebalance waits for the others alone.
    assert group.joined("a").generation == generation + 1
    group.part("a", generation + 1, a=b"1", b=b"2")
    roomy = Group(redis, raw_redis)
    give_id(roomy, "late")
    refused("GROUP_MAX_SIZE_REACHED", lambda: group.ask("late"))
    assert group.summary() == ("Stable", generation + 1, {"a", "b"})
    assert pending(group) == []


def test_the_pending_id_of_a_dynamic_member_is_not_that_of_a_static_one(group: Group) -> None:
    generation = group.stable("a1", instance="a")
    give_id(group, "b")
    refused("FENCED_INSTANCE_ID", lambda: group.ask("b", instance="a"))
    refused("UNKNOWN_MEMBER_ID", lambda: group.ask("b", instance="b"))
    assert group.summary() == ("Stable", generation, {"a1"})
    group.heartbeat("a1", generation, "a")
    group.waits("b")


def test_summaries_have_state_generation_and_members(redis: Redis, raw_redis: Any) -> None:
    groups = GroupList(redis, KEYS)
    raw_redis.hset(
        KEYS.group_state("whole"), mapping={"state": "Stable", "generation": 7, "size": 3, "type": "share"}
    )
    raw_redis.hset(KEYS.group_state("offsets only"), mapping={"state": "Empty", "generation": 0})
    raw_redis.hset(KEYS.group_state("damaged"), mapping={"state": "Stable", "generation": "x"})
    raw_redis.set(KEYS.group_state("no hash"), "x")
    results = groups.summaries(["whole", "gone", "damaged", "offsets only", "no hash"])
    assert [result for result in results if isinstance(result, GroupSummary)] == [
        GroupSummary("whole", "Stable", 7, 3, "share"),
        GroupSummary("offsets only", "Empty", 0, 0),
    ]
    errors = [result for result in results if isinstance(result, KafkaError)]
    assert [error.code for error in errors] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert KEYS.group_state("damaged") in errors[0].message
    assert groups.summaries([]) == []
