"""Fixtures: a share group's part of a partition, of each kind, in each format that can have it."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.redis.client import Redis
from tests.share.support import Part
from tests.support.log_bench import LAYOUTS, Bench


@pytest.fixture(params=["record-redis", "record-ranges", "batch-ranges"])
def part(redis: Redis, raw_redis: Any, request: pytest.FixtureRequest) -> Part:
    storage_format, _, kind = request.param.partition("-")
    return Part(Bench(redis, raw_redis, storage_format), kind)


@pytest.fixture(params=["record", "dense"])
def queue(redis: Redis, raw_redis: Any, request: pytest.FixtureRequest) -> Part:
    return Part(Bench(redis, raw_redis, request.param), "redis")


@pytest.fixture(params=LAYOUTS)
def ranges(redis: Redis, raw_redis: Any, request: pytest.FixtureRequest) -> Part:
    return Part(Bench(redis, raw_redis, request.param), "ranges")
