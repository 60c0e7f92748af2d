"""lua/producer/expire.lua against a real server: rows that lua/log/append.lua wrote, and others."""

from __future__ import annotations

from typing import Any

from tests.lua.support import PRODUCERS, Log, run

HOUR_MS = 3_600_000


def expire(client: Any, silence_ms: int, count: int = 100) -> int:
    cursor: str | bytes = "0"
    total = 0
    while True:
        cursor, removed = run(client, "producer/expire", (PRODUCERS,), (cursor, count, silence_ms))
        total += int(removed)
        if cursor == b"0":
            return total


def test_a_producer_that_just_appended_stays(raw_redis: Any) -> None:
    Log(raw_redis).appended("x", producer=7)
    assert expire(raw_redis, HOUR_MS) == 0
    assert raw_redis.hkeys(PRODUCERS) == [b"7"]


def test_a_producer_that_was_silent_for_longer_is_forgotten(raw_redis: Any) -> None:
    log = Log(raw_redis)
    log.appended("x", producer=7)
    log.appended("x", producer=8)
    epoch, at_ms, rest = raw_redis.hget(PRODUCERS, "7").decode().split(" ", 2)
    raw_redis.hset(PRODUCERS, "7", f"{epoch} {int(at_ms) - 2 * HOUR_MS} {rest}")
    assert expire(raw_redis, HOUR_MS) == 1
    assert raw_redis.hkeys(PRODUCERS) == [b"8"]
    # KIP-360: what is forgotten is accepted again at any sequence.
    log.appended("y", producer=7, sequence=100)


def test_a_producer_whose_last_batch_is_of_the_future_is_silent_from_now_on(raw_redis: Any) -> None:
    Log(raw_redis).appended("x", producer=7)
    epoch, at_ms, rest = raw_redis.hget(PRODUCERS, "7").decode().split(" ", 2)
    raw_redis.hset(PRODUCERS, "7", f"{epoch} {int(at_ms) + 2 * HOUR_MS} {rest}")
    assert expire(raw_redis, HOUR_MS) == 0
    found = raw_redis.hget(PRODUCERS, "7").decode().split(" ", 2)
    assert (found[0], found[2]) == (epoch, rest)
    assert int(at_ms) <= int(found[1]) < int(at_ms) + HOUR_MS


def test_a_malformed_row_stays_for_append_to_name(raw_redis: Any) -> None:
    raw_redis.hset(PRODUCERS, "7", "garbage")
    assert expire(raw_redis, 0) == 0
    assert raw_redis.hexists(PRODUCERS, "7")


def test_many_producers_are_looked_at_in_bounded_steps(raw_redis: Any) -> None:
    raw_redis.hset(PRODUCERS, mapping={str(n): f"0 {n} 0-0@0" for n in range(5000)})
    _, removed = run(raw_redis, "producer/expire", (PRODUCERS,), ("0", 100, HOUR_MS))
    assert 0 < removed < 1000
    assert removed + expire(raw_redis, HOUR_MS) == 5000
    assert not raw_redis.exists(PRODUCERS)


def test_a_partition_without_producers_is_done_at_once(raw_redis: Any) -> None:
    assert expire(raw_redis, 0) == 0
