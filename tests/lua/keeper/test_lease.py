"""lua/keeper/lease.lua against a real server: one holder at a time, and tokens that only grow."""

from __future__ import annotations

from typing import Any

from tests.lua.support import run

LEASE, FENCE = "korvet:keeper", "{korvet:keeper}:fence"
HELD_MS = 60_000


def lease(client: Any, holder: str, ttl_ms: int = HELD_MS) -> tuple[bool, int]:
    held, token = run(client, "keeper/lease", (LEASE, FENCE), (holder, ttl_ms))
    return bool(held), int(token)


def test_the_first_to_ask_holds_the_lease_and_others_do_not(raw_redis: Any) -> None:
    assert lease(raw_redis, "a") == (True, 1)
    assert lease(raw_redis, "b") == (False, 0)
    assert 0 < raw_redis.pttl(LEASE) <= HELD_MS


def test_a_renewal_keeps_the_token_and_prolongs_the_time(raw_redis: Any) -> None:
    lease(raw_redis, "a", 1000)
    assert lease(raw_redis, "a") == (True, 1)
    assert raw_redis.pttl(LEASE) > 1000


def test_a_new_holder_gets_a_larger_token(raw_redis: Any) -> None:
    lease(raw_redis, "a")
    raw_redis.delete(LEASE)  # what its time to live does
    assert lease(raw_redis, "b") == (True, 2)
    raw_redis.delete(LEASE)
    assert lease(raw_redis, "a") == (True, 3)


def test_a_lease_that_was_given_up_is_free_at_once(raw_redis: Any) -> None:
    lease(raw_redis, "a")
    assert lease(raw_redis, "a", 0) == (False, 0)
    assert lease(raw_redis, "b") == (True, 2)


def test_only_the_holder_releases_a_lease(raw_redis: Any) -> None:
    lease(raw_redis, "a")
    lease(raw_redis, "b", 0)
    assert lease(raw_redis, "b") == (False, 0)


def test_a_lease_that_a_clock_set_back_made_long_ends_soon(raw_redis: Any) -> None:
    lease(raw_redis, "a", 3_600_000 + HELD_MS)
    assert lease(raw_redis, "b") == (False, 0)
    assert 0 < raw_redis.pttl(LEASE) <= 2 * HELD_MS
    assert lease(raw_redis, "a") == (True, 1)
