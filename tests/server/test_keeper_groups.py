"""The keeper and groups: sessions end when no member waits, and begin again after a time without a keeper."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.groups.types import Waiting
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.server.keeper import group_tasks
from korvet.server.keeper.context import LeaseLostError
from korvet.server.keeper.due import OUTAGE_MS
from korvet.server.keeper.group_tasks import ExpireGroups
from korvet.server.keeper.keeper import Keeper
from korvet.server.keeper.redis_clocks import JUMP_MS
from tests.groups.support import KEYS, Group
from tests.support.redis_cluster import RedisCluster
from tests.support.virtual_clock import VirtualClock

GROUPS = 250


@pytest.fixture
def no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a keeper take no pause for an outage: a test has a thousand round trips to make between two turns."""
    monkeypatch.setattr(group_tasks, "OUTAGE_MS", 600_000)


def watching(settings: Settings) -> Keeper:
    """Return a keeper with the lease that has had a turn already."""
    keeper = Keeper(settings)
    assert keeper.lease.renew()
    keeper.round()
    return keeper


def expired(redis: Redis, raw: Any, name: str) -> Group:
    """Make a group whose one member has not been heard of for its session timeout."""
    group = Group(redis, raw, name)
    group.stable("a")
    time_is_up(group)
    return group


def time_is_up(group: Group) -> None:
    """Let the session of the member `a` end, and the list of groups know of it."""
    group.time_is_up_for("a")
    group.raw.zadd("korvet:groups", {group.name: 1})


def lease_is_lost() -> None:
    """Fail as the keeper's check does in the middle of a turn."""
    raise LeaseLostError


@pytest.mark.usefixtures("no_outage")
def test_a_group_that_cannot_be_read_affects_no_other_and_is_logged_once(
    settings: Settings, redis: Redis, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    keeper = watching(settings)
    damaged = [expired(redis, raw_redis, f"broken-{n}") for n in range(GROUPS)]
    for broken in damaged:
        raw_redis.hset(broken.state, "generation", "x")
    raw_redis.zadd("korvet:groups", {"a{": 1, b"\xff": 1, b"\xfe": 1})
    group = expired(redis, raw_redis, "zz")
    keeper.round()
    keeper.round()
    assert not group.ids()
    assert caplog.text.count("group not advanced") == GROUPS
    assert all(raw_redis.hget(broken.members, "m:a") for broken in damaged)


@pytest.mark.usefixtures("no_outage")
def test_after_a_time_without_a_keeper_sessions_begin_again(
    settings: Settings, redis: Redis, raw_redis: Any
) -> None:
    groups = [expired(redis, raw_redis, f"group-{n}") for n in range(GROUPS)]
    rebalancing = expired(redis, raw_redis, "rebalancing")
    waiting = rebalancing.waits(new="b")
    rebalancing.phase_is_over()
    raw_redis.rename(groups[0].members, "{group-0}")
    raw_redis.set(groups[0].members, "no hash")
    keeper = watching(settings)
    raw_redis.rename("{group-0}", groups[0].members)
    assert [group.summary() for group in groups[1:]] == [("Stable", 1, {"a"})] * (GROUPS - 1)
    assert rebalancing.summary() == ("PreparingRebalance", 1, {"a", "b"})
    assert isinstance(rebalancing.store.poll_join("rebalancing", "", waiting), Waiting)
    groups[1].heartbeat("a", 1)
    time_is_up(groups[2])
    keeper.round()
    assert [group.ids() for group in groups[:3]] == [{"a"}, {"a"}, set()]
    time_is_up(groups[0])
    keeper.round()
    assert groups[0].ids() == set()


@pytest.mark.parametrize(
    ("broker_started", "node", "looked_at", "ends"),
    [
        (-60_000, "", -1_000, True),
        (-500, "", -1_000, False),
        (-60_000, "", -60_000, False),
        (-60_000, "", 60_000, False),
        (-60_000, "another", -1_000, False),
        (None, "", -1_000, False),
    ],
    ids=[
        "keeper replaced",
        "all brokers restarted",
        "long ago",
        "clock set back",
        "another node",
        "brokers unknown",
    ],
)
def test_a_keeper_that_takes_over_ends_sessions_only_if_members_were_served(
    settings: Settings,
    redis: Redis,
    raw_redis: Any,
    *,
    broker_started: int | None,
    node: str,
    looked_at: int,
    ends: bool,
) -> None:
    context = Keeper(settings).context
    ExpireGroups()(context, lambda: None)
    seconds, microseconds = raw_redis.time()
    now_ms = seconds * 1000 + microseconds // 1000
    assert 0 <= now_ms - int(raw_redis.hget(KEYS.groups_looked_at, "")) < OUTAGE_MS
    if broker_started is None:
        raw_redis.set(KEYS.brokers, "no hash")
    else:
        broker = {"host": "a", "port": 9092, "until": now_ms + 60_000, "started": now_ms + broker_started}
        raw_redis.hset(KEYS.brokers, "0", json.dumps(broker))
    raw_redis.delete(KEYS.groups_looked_at)
    raw_redis.hset(KEYS.groups_looked_at, node, now_ms + looked_at)
    group = expired(redis, raw_redis, "billing")
    ExpireGroups()(context, lambda: None)
    assert group.ids() == (set() if ends else {"a"})


@pytest.mark.parametrize("took_over", [False, True], ids=["an outage", "another Redis is the master now"])
def test_a_keeper_after_an_outage_begins_sessions_again(
    settings: Settings, redis: Redis, raw_redis: Any, *, took_over: bool
) -> None:
    context = Keeper(settings).context
    clock = VirtualClock()
    task = ExpireGroups(clock=clock)
    task(context, lambda: None)
    group = expired(redis, raw_redis, "away")
    if took_over:
        context.redis.reconnect("another Redis is the master now")
    else:
        clock.advance(OUTAGE_MS / 1000 + 1)
    task(context, lambda: None)
    assert group.ids() == {"a"}
    time_is_up(group)
    clock.advance(1)
    task(context, lambda: None)
    assert group.ids() == set()


def test_a_keeper_begins_sessions_again_when_the_clock_of_redis_was_set(
    settings: Settings, redis: Redis, raw_redis: Any
) -> None:
    context = Keeper(settings).context
    clock = VirtualClock()
    task = ExpireGroups(clock=clock)
    task(context, lambda: None)
    late, long = expired(redis, raw_redis, "late"), expired(redis, raw_redis, "long")
    hour_s = 3600
    raw_redis.zadd(Keys("korvet").group_deadlines("long"), {"a": (raw_redis.time()[0] + hour_s) * 1000})
    clock.advance(JUMP_MS / 1000 + 1)  # Redis' clock stands where it was
    with pytest.raises(LeaseLostError):
        task(context, lease_is_lost)
    task(context, lambda: None)
    assert (late.ids(), long.ids()) == ({"a"}, {"a"})
    assert (
        raw_redis.zscore(Keys("korvet").group_deadlines("long"), "a") < (raw_redis.time()[0] + hour_s) * 1000
    )
    time_is_up(late)
    clock.advance(JUMP_MS / 1000 - 1)
    task(context, lambda: None)
    assert late.ids() == set()


@pytest.mark.slow
@pytest.mark.parametrize("node_has_list", [True, False])
def test_sessions_begin_again_only_on_the_node_that_was_connected_to_again(
    redis_cluster: RedisCluster, *, node_has_list: bool
) -> None:
    redis = Redis(redis_cluster.url, timeout_ms=5000, connect_timeout_ms=5000)
    listing = redis_cluster.node_of(KEYS.groups)
    names = [f"group-{n}" for n in range(40)]
    at = {name: redis_cluster.node_of(KEYS.group_state(name)) for name in names}
    with_list = next(name for name in names if at[name] is listing)
    without = next(name for name in names if at[name] is not listing)
    groups = {name: Group(redis, at[name].client, name) for name in (with_list, without)}
    context = Keeper(Settings(redis_url=redis_cluster.url)).context
    task = ExpireGroups()
    task(context, lambda: None)
    for name, group in groups.items():
        group.stable("a")
        group.time_is_up_for("a")
        listing.client.zadd(KEYS.groups, {name: 1})
    again, other = (with_list, without) if node_has_list else (without, with_list)
    context.redis.node_of(KEYS.group_state(again)).reconnect("another server may be the master now")
    task(context, lambda: None)
    assert {name: group.ids() for name, group in groups.items()} == {again: {"a"}, other: set()}
    groups[again].time_is_up_for("a")
    listing.client.zadd(KEYS.groups, {again: 1})
    task(context, lambda: None)
    assert not groups[again].ids()
    context.close()
    redis.close()


def test_a_list_of_groups_that_is_none_fails_the_turn_and_nothing_else(
    settings: Settings, redis: Redis, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    keeper = watching(settings)
    raw_redis.set("korvet:groups", "no list")
    keeper.round()
    Keeper(settings).round()
    assert "task failed" in caplog.text
    assert raw_redis.get("korvet:groups") == b"no list"
    raw_redis.delete("korvet:groups")
    group = expired(redis, raw_redis, "billing")
    keeper.round()
    assert group.ids() == set()
