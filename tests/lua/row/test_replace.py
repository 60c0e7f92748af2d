"""lua/row/replace against a real server: rows change by compare and set, and are recorded in the topics' feed."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.support import CHANGES, announced, run

CONFIGS = "{korvet:topics}:brokers"
CHANNEL = "korvet:topics"
MEMBER = "/brokers"


def configure(client: Any, whose: str, expected: str, row: str, row_member: str = "") -> int:
    args = (whose, expected, row, MEMBER, CHANNEL, 100, row_member)
    return int(run(client, "row/replace", (CONFIGS, CHANGES), args))


def test_a_row_takes_the_place_of_the_one_that_was_read(raw_redis: Any) -> None:
    assert configure(raw_redis, "default", "", '{"a":"1"}') == 1
    assert configure(raw_redis, "default", '{"a":"1"}', '{"a":"2"}') == 2
    assert raw_redis.hgetall(CONFIGS) == {b"default": b'{"a":"2"}'}


def test_a_row_that_is_another_by_now_stays(raw_redis: Any) -> None:
    configure(raw_redis, "1", "", '{"a":"1"}')
    for expected in ("", '{"a":"0"}'):
        assert configure(raw_redis, "1", expected, '{"a":"2"}') == 0
    assert configure(raw_redis, "2", '{"a":"1"}', '{"a":"2"}') == 0
    assert raw_redis.hgetall(CONFIGS) == {b"1": b'{"a":"1"}'}
    assert raw_redis.zrange(CHANGES, 0, -1, withscores=True) == [(MEMBER.encode(), 1.0)]


def test_an_empty_row_is_none(raw_redis: Any) -> None:
    configure(raw_redis, "1", "", '{"a":"1"}')
    assert configure(raw_redis, "1", '{"a":"1"}', "") == 2
    assert not raw_redis.exists(CONFIGS)


def test_every_change_is_in_the_feed_and_announced(raw_redis: Any) -> None:
    raw_redis.zadd(CHANGES, {"orders": 7})
    with announced(raw_redis, CHANNEL, b"8"):
        assert configure(raw_redis, "default", "", "{}") == 8
    feed = raw_redis.zrange(CHANGES, 0, -1, withscores=True)
    assert feed == [(b"orders", 7.0), (MEMBER.encode(), 8.0)]


def test_a_row_may_have_a_member_of_its_own_which_comes_before_that_of_its_hash(raw_redis: Any) -> None:
    assert configure(raw_redis, "1", "", "{}", f"{MEMBER}/1") == 2
    assert configure(raw_redis, "1", "", "{}", f"{MEMBER}/1") == 0
    feed = raw_redis.zrange(CHANGES, 0, -1, withscores=True)
    assert feed == [(f"{MEMBER}/1".encode(), 1.0), (MEMBER.encode(), 2.0)]


@pytest.mark.parametrize("damaged", [CONFIGS, CHANGES])
def test_a_key_of_the_wrong_type_is_refused_before_anything_is_written(raw_redis: Any, damaged: str) -> None:
    raw_redis.set(damaged, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        configure(raw_redis, "1", "", '{"a":"1"}')
    assert raw_redis.keys() == [damaged.encode()]
