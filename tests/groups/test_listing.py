"""The list of groups: a summary of each, and a damaged one does not affect the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.listing import GroupList, GroupSummary
from korvet.redis.client import Redis
from korvet.redis.keys import Keys

KEYS = Keys("korvet")


@pytest.fixture
def groups(redis_url: str) -> Iterator[GroupList]:
    redis = Redis(redis_url, timeout_ms=20_000, connect_timeout_ms=20_000)
    yield GroupList(redis, KEYS)
    redis.close()


def test_summaries_have_state_generation_and_members(groups: GroupList, raw_redis: Any) -> None:
    raw_redis.hset(
        KEYS.group_state("whole"), mapping={"state": "Stable", "generation": 7, "size": 3, "type": "share"}
    )
    raw_redis.hset(KEYS.group_state("offsets only"), mapping={"state": "Empty", "generation": 0})
    raw_redis.hset(KEYS.group_state("damaged"), mapping={"state": "Stable", "generation": "x"})
    raw_redis.set(KEYS.group_state("no hash"), "x")
    found = groups.summaries(["whole", "gone", "damaged", "offsets only", "no hash"])
    assert [each for each in found if isinstance(each, GroupSummary)] == [
        GroupSummary("whole", "Stable", 7, 3, "share"),
        GroupSummary("offsets only", "Empty", 0, 0),
    ]
    errors = [each for each in found if isinstance(each, KafkaError)]
    assert [error.code for error in errors] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert KEYS.group_state("damaged") in errors[0].message
    assert groups.summaries([]) == []
