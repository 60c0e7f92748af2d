"""lua/partition/create.lua against a real server: once, twice, late, and over what a former topic has left."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.log.packed import PackedLog
from korvet.redis.replies import time_ms
from tests.lua.support import CLEAN, INDEX, MOVING, SIDE_KEYS, STATE, STREAM, refused, run, unchanged
from tests.support.partition_state import change_log

FRESH = {b"topic": b"id-1", b"log": PackedLog().pack(), b"claim": b"5"}


def create(
    client: Any, topic_id: str = "id-1", claim: int = 5, left_ms: int = 60_000, existing: str = "adopt"
) -> Any:
    until = time_ms(client.execute_command("TIME")) + left_ms
    return run(client, "partition/create", [STATE, *SIDE_KEYS, STREAM], [topic_id, claim, until, existing])


def is_fresh(client: Any) -> bool:
    """Tell whether a partition is as it is created: its state, an empty stream, a row of the index, and no more."""
    assert client.hgetall(STATE) == FRESH
    info = client.xinfo_stream(STREAM)
    assert (info["length"], info["last-generated-id"], info["groups"]) == (0, b"0-0", 0)
    assert client.zrange(INDEX, 0, -1, withscores=True) == [(b"0:0:-1:-1", 0)]
    return sorted(client.keys()) == sorted(key.encode() for key in (STATE, STREAM, INDEX))


@pytest.mark.parametrize("existing", ["adopt", "refuse"])
def test_a_partition_is_its_state_an_empty_stream_and_a_row_of_the_index(
    raw_redis: Any, existing: str
) -> None:
    assert create(raw_redis, existing=existing) == 0
    assert is_fresh(raw_redis)


@pytest.mark.parametrize("claim", [4, 5, 6])
def test_one_that_is_there_stays_as_it_is(raw_redis: Any, claim: int) -> None:
    create(raw_redis)
    change_log(raw_redis, STATE, next_offset=77)
    raw_redis.xadd(STREAM, {"value": "hello"})
    with unchanged(raw_redis):
        assert create(raw_redis, claim=claim, existing="refuse") == 0


def test_after_the_end_of_its_claim_nothing_is_created(raw_redis: Any) -> None:
    with refused(raw_redis, f"^REQUEST_TIMED_OUT creating {STREAM} took too long"):
        create(raw_redis, left_ms=-1)


@pytest.mark.parametrize("claimed", [{}, {"claim": 4}])
def test_side_keys_of_a_former_topic_are_replaced(raw_redis: Any, claimed: dict[str, int]) -> None:
    raw_redis.hset(STATE, mapping={"topic": "former", "7": "a producer", "open": 3, **claimed})
    change_log(raw_redis, STATE, next_offset=99, moving=1, first=3)
    raw_redis.zadd(INDEX, {"row": 1})
    for stream in (MOVING, *CLEAN):
        raw_redis.xadd(stream, {"id": "5-5"})
    assert create(raw_redis, existing="refuse") == 0
    assert is_fresh(raw_redis)


@pytest.mark.parametrize("claim", [5, 6])
def test_a_partition_of_a_later_claim_stays_and_is_named(raw_redis: Any, claim: int) -> None:
    create(raw_redis, topic_id="id-2", claim=claim)
    with unchanged(raw_redis):
        assert create(raw_redis) == claim


def test_keys_of_another_type_are_replaced(raw_redis: Any) -> None:
    for key in (STATE, *SIDE_KEYS):
        raw_redis.rpush(key, "x")
    assert create(raw_redis) == 0
    assert is_fresh(raw_redis)


def test_an_existing_stream_is_adopted_as_it_is(raw_redis: Any) -> None:
    raw_redis.xadd(STREAM, {"value": "hello"})
    before = raw_redis.dump(STREAM)
    assert create(raw_redis) == 0
    assert raw_redis.dump(STREAM) == before


def test_an_existing_stream_without_an_entry_is_one_that_a_partition_without_records_has_left(
    raw_redis: Any,
) -> None:
    create(raw_redis, topic_id="former", claim=4)
    raw_redis.delete(STATE)
    assert create(raw_redis, existing="refuse") == 0
    assert is_fresh(raw_redis)


@pytest.mark.parametrize("kind", ["stream", "string"])
def test_an_existing_stream_is_refused_where_it_could_hold_no_records(raw_redis: Any, kind: str) -> None:
    if kind == "string":
        raw_redis.set(STREAM, "x")
    else:
        raw_redis.xadd(STREAM, {"value": "hello"})
    with refused(raw_redis, rf"^INVALID_CONFIG {STREAM} exists already"):
        create(raw_redis, existing="refuse")
