"""A log store in one format or in both; a test that asks for `bench` runs over both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.storage.resp import Redis
from tests.storage.support import Bench


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    """Give the connection that a worker has."""
    client = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield client
    client.close()


@pytest.fixture(params=["record", "batch"])
def bench(redis: Redis, raw_redis: Any, request: pytest.FixtureRequest) -> Bench:
    """Give a store in each format."""
    return Bench(redis, raw_redis, request.param)


@pytest.fixture
def record_bench(redis: Redis, raw_redis: Any) -> Bench:
    """Give a store in format `record`."""
    return Bench(redis, raw_redis, "record")


@pytest.fixture
def batch_bench(redis: Redis, raw_redis: Any) -> Bench:
    """Give a store in format `batch`."""
    return Bench(redis, raw_redis, "batch")
