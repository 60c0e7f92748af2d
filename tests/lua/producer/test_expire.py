"""lua/producer/expire.lua against a real server: rows that an append wrote, and others."""

from __future__ import annotations

from typing import Any

from korvet.log.packed import KeptBatch, ProducerRow
from tests.lua.support import STATE, Log, now_ms, run
from tests.support.partition_state import producers_of, set_producer

HOUR_MS = 3_600_000


def expire(client: Any, silence_ms: int, count: int = 100) -> int:
    cursor: str | bytes = "0"
    total = 0
    while True:
        args = (cursor, count, now_ms(client), silence_ms)
        cursor, removed = run(client, "producer/expire", (STATE,), args)
        total += int(removed)
        if cursor == b"0":
            return total


def test_a_producer_that_just_appended_stays(raw_redis: Any) -> None:
    log = Log(raw_redis)
    log.appended("x", producer=7)
    assert expire(raw_redis, HOUR_MS) == 0
    assert list(log.producers) == [7]


def test_a_producer_that_was_silent_for_longer_is_forgotten(raw_redis: Any) -> None:
    log = Log(raw_redis)
    log.appended("x", producer=7)
    log.appended("x", producer=8)
    row = log.producers[7]
    set_producer(raw_redis, STATE, 7, row._replace(last_ms=row.last_ms - 2 * HOUR_MS))
    assert expire(raw_redis, HOUR_MS) == 1
    assert list(log.producers) == [8]
    # KIP-360: what is forgotten is accepted again at any sequence.
    log.appended("y", producer=7, sequence=100)


def test_a_producer_whose_last_batch_is_of_the_future_is_silent_from_now_on(raw_redis: Any) -> None:
    batches = (KeptBatch(2, 5), KeptBatch(3, 2))
    row = ProducerRow(3, 9, now_ms(raw_redis) + 2 * HOUR_MS, 2**40, -1, batches)
    set_producer(raw_redis, STATE, 7, row)
    assert expire(raw_redis, HOUR_MS) == 0
    changed = producers_of(raw_redis, STATE)[7]
    assert changed._replace(last_ms=row.last_ms) == row
    assert row.last_ms - 3 * HOUR_MS < changed.last_ms < row.last_ms - HOUR_MS


def test_a_malformed_row_stays_for_append_to_name(raw_redis: Any) -> None:
    for length in range(100):
        raw_redis.hset(STATE, str(length), b"\0" * length)
    # Of a producer, with and without a transaction, and up to five batches; its transaction ends before offset 0.
    rows = {12 + 12 * kept for kept in range(6)}
    assert expire(raw_redis, 0) == len(rows)
    assert {int(name) for name in raw_redis.hkeys(STATE)} == set(range(100)) - rows


def test_many_producers_are_looked_at_in_bounded_steps(raw_redis: Any) -> None:
    log = Log(raw_redis)
    state = raw_redis.hgetall(STATE)
    row = ProducerRow(0, 1, 1, batches=(KeptBatch(1, 0),)).pack()
    raw_redis.hset(STATE, mapping={str(n): row for n in range(5000)})
    _, removed = run(raw_redis, "producer/expire", (STATE,), ("0", 100, now_ms(raw_redis), HOUR_MS))
    assert 0 < removed < 1000
    assert removed + expire(raw_redis, HOUR_MS) == 5000
    assert raw_redis.hgetall(STATE) == state
    assert log.producers == {}


def test_a_partition_without_producers_is_done_at_once(raw_redis: Any) -> None:
    assert expire(raw_redis, 0) == 0
