"""Two workers that serve one group of the consumer protocol, on an empty server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.groups.consumer.support import Consumers
from tests.support.domain import domain
from tests.support.virtual_clock import VirtualClock


@pytest.fixture
def at(redis_url: str, raw_redis: Any, clock: VirtualClock) -> Iterator[Consumers]:
    """Give a worker, and a topic `orders` of four partitions."""
    with domain(redis_url) as made:
        worker = Consumers(made, raw_redis, clock=clock)
        worker.create("orders", 4)
        yield worker


@pytest.fixture
def other(redis_url: str, raw_redis: Any, clock: VirtualClock, at: Consumers) -> Iterator[Consumers]:
    with domain(redis_url) as made:
        made.topics.refresh()
        assert made.topics.get_cached("orders") == at.domain.topics.get_cached("orders")
        yield Consumers(made, raw_redis, clock=clock)
