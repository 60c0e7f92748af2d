"""Two workers' stores of one group, and the death of the first one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.redis.client import Redis
from tests.groups.stores import Stores
from tests.support.dying import Dying
from tests.support.virtual_clock import VirtualClock


@pytest.fixture
def worker(redis: Redis, raw_redis: Any, clock: VirtualClock) -> Stores:
    made = Stores(redis, raw_redis, clock=clock)
    made.bench.append(b"v")
    return made


@pytest.fixture
def other(redis_url: str, raw_redis: Any, worker: Stores) -> Iterator[Stores]:
    """Give another worker, of the same topic."""
    with_own_connection = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield Stores(with_own_connection, raw_redis, bench=worker.bench)
    with_own_connection.close()


@pytest.fixture
def dying(redis: Redis) -> Iterator[Dying]:
    """Give a way to let this worker be killed at its n-th request to Redis."""
    made = Dying(redis)
    yield made
    made.lives()
