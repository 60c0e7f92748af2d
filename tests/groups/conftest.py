"""Two workers' stores of one group, and the death of the first one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.groups.offsets import OffsetStore
from korvet.redis.client import Redis
from tests.groups.stores import NAME, Stores
from tests.groups.support import KEYS, Group
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
    made = object.__new__(Stores)
    made.__dict__.update(vars(worker))
    made.redis = with_own_connection
    made.group = Group(with_own_connection, raw_redis, NAME)
    made.store = OffsetStore(with_own_connection, KEYS, mirror=True)
    yield made
    with_own_connection.close()


@pytest.fixture
def dying(redis: Redis) -> Iterator[Dying]:
    """Give a way to let this worker be killed at its n-th request to Redis."""
    made = Dying(redis)
    yield made
    made.lives()
