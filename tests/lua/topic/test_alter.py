"""lua/topic/alter.lua against a real server."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.support import CHANGES, REGISTRY, announced, memory_left, run


def alter(client: Any, expected: str, row: str) -> Any:
    return run(client, "topic/alter", [REGISTRY, CHANGES], ["orders", expected, row, REGISTRY, 100])


def test_row_feed_and_announcement_are_written_together(raw_redis: Any) -> None:
    raw_redis.hset(REGISTRY, "orders", "before")
    raw_redis.zadd(CHANGES, {"orders": 5})
    with announced(raw_redis, REGISTRY, b"6"):
        assert alter(raw_redis, "before", "after") == b"6"
    assert raw_redis.hgetall(REGISTRY) == {b"orders": b"after"}
    assert raw_redis.zrange(CHANGES, 0, -1, withscores=True) == [(b"orders", 6.0)]


def test_a_row_that_is_another_by_now_stays(raw_redis: Any) -> None:
    raw_redis.hset(REGISTRY, "orders", "another")
    assert alter(raw_redis, "before", "after") == 0
    assert raw_redis.hgetall(REGISTRY) == {b"orders": b"another"}
    assert not raw_redis.exists(CHANGES)


def test_a_topic_that_is_gone_is_named(raw_redis: Any) -> None:
    with pytest.raises(redis.ResponseError, match=r"^UNKNOWN_TOPIC_OR_PARTITION there is no topic orders"):
        alter(raw_redis, "before", "after")
    assert raw_redis.keys() == []


def test_a_registry_of_the_wrong_type_is_refused_before_anything_is_written(raw_redis: Any) -> None:
    raw_redis.hset(REGISTRY, "orders", "before")
    raw_redis.set(CHANGES, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        alter(raw_redis, "before", "after")
    assert raw_redis.hgetall(REGISTRY) == {b"orders": b"before"}


def test_retention_can_be_shortened_where_memory_is_full(raw_redis: Any) -> None:
    raw_redis.hset(REGISTRY, "orders", "before")
    with memory_left(raw_redis, -1):
        assert alter(raw_redis, "before", "after") == b"1"
    assert raw_redis.hgetall(REGISTRY) == {b"orders": b"after"}
