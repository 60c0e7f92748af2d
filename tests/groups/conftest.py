"""Two workers' stores of one group, and the death of the first one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from korvet.errors import StorageUnavailableError
from korvet.groups.offsets import (
    OffsetStore,
)
from korvet.redis.client import Redis
from tests.groups.stores import NAME, Stores
from tests.groups.support import KEYS, Group
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
def dies_at(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give a way to let this worker be killed at its n-th request to Redis, before or after Redis has served it."""
    begins = {node: node._begin for node in redis.nodes()}

    def arm(at: int, *, served: bool = False) -> None:
        left = itertools.count(at, -1)

        def killed(begin: Callable[..., Any], *args: Any, **options: Any) -> Any:
            remaining = next(left)
            if remaining > 0 or (remaining == 0 and served):
                waiter = begin(*args, **options)
                if remaining > 0:
                    return waiter
                waiter.get()
            raise StorageUnavailableError("killed")

        for node, begin in begins.items():
            monkeypatch.setattr(node, "_begin", partial(killed, begin))

    return arm
