"""Two workers that serve one share group, on an empty server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.groups.share.support import Shares
from tests.support.domain import domain


@pytest.fixture
def at(redis_url: str, raw_redis: Any) -> Iterator[Shares]:
    """Give a worker, and a topic `orders` of four partitions."""
    with domain(redis_url) as made:
        worker = Shares(made, raw_redis)
        worker.create("orders", 4)
        yield worker


@pytest.fixture
def other(redis_url: str, raw_redis: Any, at: Shares) -> Iterator[Shares]:
    with domain(redis_url) as made:
        made.topics.refresh()
        assert made.topics.get_cached("orders") == at.domain.topics.get_cached("orders")
        yield Shares(made, raw_redis)
