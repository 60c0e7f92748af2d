"""lua/topic/claim.lua against a real server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lua.support import CHANGES, REGISTRY, now_ms, refused, run, unchanged

BEFORE, AFTER = '{"id":"id-1","partitions":1}', '{"id":"id-1","partitions":1,"growing":3}'
CLAIM_MS, CLOCKS_MS = 7_000, 2_000


def claim(client: Any, expected: str | bytes = BEFORE, lowest: int = 0) -> Any:
    args = ["orders", expected, AFTER, CLAIM_MS, 100, CLOCKS_MS, lowest]
    return run(client, "topic/claim", [REGISTRY, CHANGES], args)


@pytest.fixture(autouse=True)
def _topic(raw_redis: Any) -> None:
    raw_redis.hset(REGISTRY, "orders", BEFORE)
    raw_redis.zadd(CHANGES, {"orders": 5})


def test_the_new_row_has_a_claim_and_is_in_the_feed(raw_redis: Any) -> None:
    before = now_ms(raw_redis)
    text = claim(raw_redis)
    row = json.loads(text)
    assert before + CLAIM_MS <= row.pop("claim_until") <= now_ms(raw_redis) + CLAIM_MS
    assert row == {"id": "id-1", "partitions": 1, "growing": 3, "claim": 6}
    assert raw_redis.hgetall(REGISTRY) == {b"orders": text}
    assert raw_redis.zscore(CHANGES, "orders") == 6


@pytest.mark.parametrize("row", [None, "another"])
def test_a_row_that_is_another_by_now_stays(raw_redis: Any, row: str | None) -> None:
    raw_redis.delete(REGISTRY)
    if row is not None:
        raw_redis.hset(REGISTRY, "orders", row)
    with unchanged(raw_redis):
        assert claim(raw_redis) == 0


@pytest.mark.parametrize(("ended_ms", "is_free"), [(-5000, False), (1000, False), (CLOCKS_MS + 1, True)])
def test_a_claim_is_taken_over_when_it_has_ended_by_every_clock(
    raw_redis: Any, ended_ms: int, *, is_free: bool
) -> None:
    held = BEFORE[:-1] + f',"claim":5,"claim_until":{now_ms(raw_redis) - ended_ms}}}'
    raw_redis.hset(REGISTRY, "orders", held)
    if is_free:
        assert json.loads(claim(raw_redis, held))["claim"] == 6
    else:
        with unchanged(raw_redis):
            assert claim(raw_redis, held) == 1


def test_text_like_a_claim_in_a_config_is_none(raw_redis: Any) -> None:
    held = json.dumps({"configs": {"a": f'"claim_until":{now_ms(raw_redis)}', "claim_until": "9" * 14}})
    raw_redis.hset(REGISTRY, "orders", held)
    assert json.loads(claim(raw_redis, held))["claim"] == 6


@pytest.mark.parametrize(("lowest", "claimed"), [(3, 7), (7, 7), (90, 90)])
def test_a_process_renews_its_claim_at_a_height_that_it_names(
    raw_redis: Any, lowest: int, claimed: int
) -> None:
    held = claim(raw_redis)
    assert json.loads(claim(raw_redis, held, lowest))["claim"] == claimed


def test_a_registry_of_the_wrong_type_is_refused_before_anything_is_written(raw_redis: Any) -> None:
    raw_redis.delete(CHANGES)
    raw_redis.set(CHANGES, "x")
    with refused(raw_redis, "WRONGTYPE"):
        claim(raw_redis)
