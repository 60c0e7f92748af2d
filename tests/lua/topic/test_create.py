"""lua/topic/create.lua against a real server."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.support import (
    CHANGES,
    CLEAN,
    INDEX,
    MOVING,
    PRODUCERS,
    REGISTRY,
    SIDE_KEYS,
    STATE,
    STREAM,
    announced,
    run,
    unchanged,
)

ROW = '{"id":"id-1","partitions":1}'


def create(
    client: Any,
    name: str = "orders",
    topic_id: str = "id-1",
    changes_max: int = 100,
    streams: str = "adopt",
    known_epoch: int = 0,
) -> Any:
    keys = [REGISTRY, CHANGES, STATE, *SIDE_KEYS, STREAM]
    keys = [key.replace("orders", name) for key in keys]
    return run(
        client, "topic/create", keys, [name, topic_id, ROW, REGISTRY, changes_max, streams, known_epoch]
    )


def test_row_state_feed_and_announcement_are_written_together(raw_redis: Any) -> None:
    with announced(raw_redis, REGISTRY, b"1"):
        assert create(raw_redis) == b"1"
    assert raw_redis.hgetall(REGISTRY) == {b"orders": ROW.encode()}
    assert raw_redis.zrange(CHANGES, 0, -1, withscores=True) == [(b"orders", 1.0)]
    state = {b"topic": b"id-1", b"next": b"0", b"start": b"0", b"bytes": b"0", b"max_timestamp": b"-1"}
    assert raw_redis.hgetall(STATE) == state
    assert not raw_redis.exists(STREAM)


def test_a_topic_that_exists_is_refused_and_left_alone(raw_redis: Any) -> None:
    create(raw_redis)
    raw_redis.hset(STATE, "next", "77")
    with pytest.raises(redis.ResponseError, match=r"^TOPIC_ALREADY_EXISTS "):
        create(raw_redis, topic_id="id-2")
    assert raw_redis.hget(STATE, "next") == b"77"
    assert raw_redis.zscore(CHANGES, "orders") == 1


def test_side_keys_of_a_former_topic_are_replaced(raw_redis: Any) -> None:
    raw_redis.hset(STATE, mapping={"topic": "former", "next": 99, "moving": 1, "first": 3})
    raw_redis.hset(PRODUCERS, "7", "0 1 0-0@5")
    raw_redis.zadd(INDEX, {"row": 1})
    for stream in (MOVING, *CLEAN):
        raw_redis.xadd(stream, {"id": "5-5"})
    create(raw_redis)
    assert not raw_redis.exists(*SIDE_KEYS)
    assert raw_redis.hget(STATE, "next") == b"0"
    assert raw_redis.hget(STATE, "first") is None


def test_an_existing_stream_is_adopted_as_it_is(raw_redis: Any) -> None:
    raw_redis.xadd(STREAM, {"value": "hello"})
    before = raw_redis.dump(STREAM)
    create(raw_redis)
    assert raw_redis.dump(STREAM) == before


@pytest.mark.parametrize("kind", ["stream", "emptied stream", "string"])
def test_an_existing_stream_is_refused_where_it_could_hold_no_records(raw_redis: Any, kind: str) -> None:
    if kind == "string":
        raw_redis.set(STREAM, "x")
    else:
        raw_redis.xadd(STREAM, {"value": "hello"})
    if kind == "emptied stream":
        raw_redis.xtrim(STREAM, maxlen=0)
    with unchanged(raw_redis):
        with pytest.raises(redis.ResponseError, match=rf"^INVALID_CONFIG {STREAM} exists already"):
            create(raw_redis, streams="refuse")
        assert raw_redis.keys() == [STREAM.encode()]


def test_side_keys_of_a_former_topic_are_no_stream(raw_redis: Any) -> None:
    raw_redis.hset(STATE, mapping={"topic": "former", "next": 99})
    assert create(raw_redis, streams="refuse") == b"1"
    assert raw_redis.hget(STATE, "next") == b"0"


def test_the_feed_drops_its_oldest_members_and_keeps_how_far(raw_redis: Any) -> None:
    for n in range(8):
        create(raw_redis, f"t{n}", changes_max=5)
    feed = raw_redis.zrange(CHANGES, 0, -1, withscores=True)
    assert feed == [(b"", 3.0), *((f"t{n}".encode(), n + 1.0) for n in range(3, 8))]


def test_a_registry_of_the_wrong_type_is_refused_before_anything_is_written(raw_redis: Any) -> None:
    raw_redis.set(CHANGES, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        create(raw_redis)
    assert raw_redis.keys() == [CHANGES.encode()]


@pytest.mark.parametrize(
    ("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c"), (".", "_")]
)
def test_names_that_differ_in_dots_and_underscores_alone_collide(
    raw_redis: Any, first: str, second: str
) -> None:
    create(raw_redis, first)
    with pytest.raises(redis.ResponseError) as refused:
        create(raw_redis, second)
    # redis-py drops no first word but those of classes of its own.
    assert str(refused.value) == (
        f"INVALID_TOPIC_EXCEPTION Topic '{second}' collides with existing topic: {first}"
    )
    assert raw_redis.hkeys(REGISTRY) == [first.encode()]
    assert not raw_redis.exists(STATE.replace("orders", second))


@pytest.mark.parametrize(
    ("first", "second"), [("a.b", "a.c"), ("a.b", "ab"), ("a-b", "a_b"), ("a.b", "a__b")]
)
def test_other_names_do_not(raw_redis: Any, first: str, second: str) -> None:
    assert (create(raw_redis, first), create(raw_redis, second)) == (b"1", b"2")


def test_a_topic_that_was_deleted_collides_with_nothing(raw_redis: Any) -> None:
    raw_redis.zadd(CHANGES, {"a.b": 1, "a.b.c": 2})
    raw_redis.hset(REGISTRY, "a.b.c", '{"id":"x","partitions":1,"state":"deleting"}')
    assert (create(raw_redis, "a_b"), create(raw_redis, "a_b_c")) == (b"3", b"4")


def test_what_the_caller_knows_is_not_looked_at_again(raw_redis: Any) -> None:
    create(raw_redis, "a.b")
    assert create(raw_redis, "a_b", known_epoch=1) == b"2"


def test_a_caller_of_an_old_epoch_or_another_feed_has_to_refresh(raw_redis: Any) -> None:
    for n in range(8):
        create(raw_redis, f"t{n}", changes_max=5)
    assert create(raw_redis, "a.b", known_epoch=2) == 0
    assert create(raw_redis, "a.b", known_epoch=9) == 0
    assert not raw_redis.hexists(REGISTRY, "a.b")
    assert create(raw_redis, "a.b", known_epoch=3, changes_max=5) == b"9"
