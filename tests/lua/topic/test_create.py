"""lua/topic/create.lua against a real server."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from korvet.redis.replies import time_ms
from tests.lua.support import CHANGES, REGISTRY, refused, run

ROW = '{"id":"id-1","partitions":1,"state":"creating"}'
CLAIM_MS = 7_000


def create(client: Any, name: str = "orders", changes_max: int = 100, known_epoch: int = 0) -> Any:
    args = [name, ROW, CLAIM_MS, changes_max, known_epoch]
    return run(client, "topic/create", [REGISTRY, CHANGES], args)


def claim_of(text: bytes) -> int:
    return int(json.loads(text)["claim"])


def test_the_row_is_written_with_a_claim_and_is_in_the_feed(raw_redis: Any) -> None:
    raw_redis.zadd(CHANGES, {"others": 4})
    before = time_ms(raw_redis.execute_command("TIME"))
    text = create(raw_redis)
    row = json.loads(text)
    assert (
        before + CLAIM_MS <= row.pop("claim_until") <= time_ms(raw_redis.execute_command("TIME")) + CLAIM_MS
    )
    assert row == {"id": "id-1", "partitions": 1, "state": "creating", "claim": 5}
    assert raw_redis.hgetall(REGISTRY) == {b"orders": text}
    assert raw_redis.zrange(CHANGES, 0, -1, withscores=True) == [(b"others", 4.0), (b"orders", 5.0)]
    assert len(raw_redis.keys()) == 2


def test_a_topic_that_exists_is_refused_and_left_alone(raw_redis: Any) -> None:
    create(raw_redis)
    with refused(raw_redis, "^TOPIC_ALREADY_EXISTS "):
        create(raw_redis)


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


@pytest.mark.parametrize(
    ("first", "second"), [("a.b", "a.c"), ("a.b", "ab"), ("a-b", "a_b"), ("a.b", "a__b")]
)
def test_other_names_do_not(raw_redis: Any, first: str, second: str) -> None:
    assert [claim_of(create(raw_redis, name)) for name in (first, second)] == [1, 2]


def test_a_topic_that_was_deleted_collides_with_nothing(raw_redis: Any) -> None:
    raw_redis.zadd(CHANGES, {"a.b": 1, "a.b.c": 2})
    raw_redis.hset(REGISTRY, "a.b.c", '{"id":"x","partitions":1,"state":"deleting"}')
    assert [claim_of(create(raw_redis, name)) for name in ("a_b", "a_b_c")] == [3, 4]


def test_what_the_caller_knows_is_not_looked_at_again(raw_redis: Any) -> None:
    create(raw_redis, "a.b")
    assert claim_of(create(raw_redis, "a_b", known_epoch=1)) == 2


def test_a_caller_of_an_old_epoch_or_another_feed_has_to_refresh(raw_redis: Any) -> None:
    for n in range(8):
        create(raw_redis, f"t{n}", changes_max=5)
    assert create(raw_redis, "a.b", known_epoch=2) == 0
    assert create(raw_redis, "a.b", known_epoch=9) == 0
    assert not raw_redis.hexists(REGISTRY, "a.b")
    assert claim_of(create(raw_redis, "a.b", known_epoch=3, changes_max=5)) == 9
