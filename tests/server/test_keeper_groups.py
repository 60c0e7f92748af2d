"""The keeper and groups: sessions end where no member waits, whatever one of the groups looks like."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from korvet.config import Settings, load
from korvet.server.keeper import Keeper
from korvet.storage.keeper_store import KeeperStore
from korvet.storage.keys import Keys
from korvet.storage.resp import Redis
from tests.storage.groups import Group

GROUPS = 250


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return load(None, {}, {"redis.url": redis_url}).settings


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    client = Redis(redis_url, timeout_ms=5000, connect_timeout_ms=5000)
    yield client
    client.close()


def expired(redis: Redis, raw: Any, name: str) -> Group:
    """Make a group whose one member has not been heard of for its session time-out."""
    group = Group(redis, raw, name)
    group.stable("a")
    group.time_is_up_for("a")
    raw.zadd("korvet:groups", {name: 1})
    return group


def test_a_round_ends_the_sessions_of_members_that_were_silent(
    settings: Settings, redis: Redis, raw_redis: Any
) -> None:
    keeper = Keeper(settings)
    groups = [expired(redis, raw_redis, f"group-{n}") for n in range(GROUPS)]
    living = Group(redis, raw_redis, "living")
    living.stable("a")
    assert keeper.lease.renew()
    keeper.round()
    assert not any(group.ids() for group in groups)
    assert living.summary() == ("Stable", 1, {"a"})


def test_a_group_that_cannot_be_read_keeps_no_other_from_it_and_is_told_once(
    settings: Settings, redis: Redis, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    keeper = Keeper(settings)
    damaged = [expired(redis, raw_redis, f"broken-{n}") for n in range(GROUPS)]
    for broken in damaged:
        raw_redis.hset(broken.state, "generation", "x")
    raw_redis.zadd("korvet:groups", {"a{": 1, b"\xff": 1, b"\xfe": 1})
    group = expired(redis, raw_redis, "zz")
    assert keeper.lease.renew()
    keeper.round()
    keeper.round()
    assert not group.ids()
    assert caplog.text.count("group not advanced") == GROUPS
    assert all(raw_redis.hget(broken.members, "m:a") for broken in damaged)


def test_without_the_lease_nobody_is_expired_and_who_takes_it_over_does_it(
    settings: Settings, redis: Redis, raw_redis: Any
) -> None:
    group = expired(redis, raw_redis, "billing")
    other = KeeperStore(redis, Keys("korvet"))
    other.hold("other", 60_000)
    keeper = Keeper(settings)
    assert not keeper.lease.renew()
    keeper.round()
    assert group.summary()[2] == {"a"}
    other.hold("other", 0)
    assert keeper.lease.renew()
    keeper.round()
    assert group.summary()[2] == set()
