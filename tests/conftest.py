"""Fixtures that every test may use: one private Redis per session, emptied before each test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support import redis_servers

# They take long, or need more than the lock files bring, as Maven, a browser, an object store or promtool: make targets
# of their own run them, and fail where something is missing.
collect_ignore = ["browser", "deploy_tools", "faults", "jvm", "lake_processes", "loadtest_runs", "stores"]


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """Give the URL of this session's private Redis, not emptied."""
    with redis_servers.server() as url:
        yield url


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """Give the URL of a private Redis that holds nothing: no keys, no scripts, default configuration."""
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
        client.script_flush()
    return redis_server


@pytest.fixture
def raw_redis(redis_url: str) -> Iterator[redis.Redis]:
    """Give a plain redis-py client on an empty private Redis: what any Redis user would hold."""
    with redis.Redis.from_url(redis_url) as client:
        yield client
