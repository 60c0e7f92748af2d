"""lua/topic/grow.lua against a real server."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.support import CHANGES, REGISTRY, SIDE_KEYS, STATE, STREAM, announced, of_partition, run

BEFORE, AFTER = "one partition", "three partitions"
PER_PARTITION = (STATE, *SIDE_KEYS, STREAM)


def grow(client: Any, expected: str = BEFORE, streams: str = "adopt") -> Any:
    keys = [of_partition(key, partition) for partition in (1, 2) for key in PER_PARTITION]
    args = ["orders", "id-1", expected, AFTER, REGISTRY, 100, streams]
    return run(client, "topic/grow", [REGISTRY, CHANGES, *keys], args)


@pytest.fixture(autouse=True)
def _topic(raw_redis: Any) -> None:
    raw_redis.hset(REGISTRY, "orders", BEFORE)
    raw_redis.zadd(CHANGES, {"orders": 5})
    raw_redis.hset(STATE, mapping={"topic": "id-1", "next": 7})


def test_row_states_feed_and_announcement_are_written_together(raw_redis: Any) -> None:
    with announced(raw_redis, REGISTRY, b"6"):
        assert grow(raw_redis) == b"6"
    assert raw_redis.hgetall(REGISTRY) == {b"orders": AFTER.encode()}
    assert raw_redis.zscore(CHANGES, "orders") == 6
    state = {b"topic": b"id-1", b"next": b"0", b"start": b"0", b"bytes": b"0", b"max_timestamp": b"-1"}
    for partition in (1, 2):
        assert raw_redis.hgetall(of_partition(STATE, partition)) == state
    assert raw_redis.hget(STATE, "next") == b"7"
    assert len(raw_redis.keys()) == 5


def test_a_row_that_is_another_by_now_stays(raw_redis: Any) -> None:
    assert grow(raw_redis, expected="another") == 0
    assert raw_redis.hgetall(REGISTRY) == {b"orders": BEFORE.encode()}
    assert len(raw_redis.keys()) == 3


def test_a_topic_that_is_gone_is_named(raw_redis: Any) -> None:
    raw_redis.hdel(REGISTRY, "orders")
    with pytest.raises(redis.ResponseError, match=r"^UNKNOWN_TOPIC_OR_PARTITION there is no topic orders"):
        grow(raw_redis)
    assert len(raw_redis.keys()) == 2


def test_what_a_former_topic_has_left_of_a_partition_is_replaced(raw_redis: Any) -> None:
    raw_redis.hset(of_partition(STATE, 2), mapping={"topic": "former", "next": 99, "first": 3})
    for key in SIDE_KEYS:
        raw_redis.set(of_partition(key, 2), "x")
    raw_redis.xadd(of_partition(STREAM, 2), {"value": "hello"})
    grow(raw_redis)
    assert raw_redis.hget(of_partition(STATE, 2), "first") is None
    assert not raw_redis.exists(*(of_partition(key, 2) for key in SIDE_KEYS))
    assert raw_redis.xlen(of_partition(STREAM, 2)) == 1


def test_a_stream_that_could_hold_no_records_is_refused_and_nothing_written(raw_redis: Any) -> None:
    raw_redis.xadd(of_partition(STREAM, 2), {"value": "hello"})
    with pytest.raises(
        redis.ResponseError, match=rf"^INVALID_CONFIG {of_partition(STREAM, 2)} exists already"
    ):
        grow(raw_redis, streams="refuse")
    assert raw_redis.hgetall(REGISTRY) == {b"orders": BEFORE.encode()}
    assert len(raw_redis.keys()) == 4
