"""One broker with two workers for all tests of clients that do not harm it; they keep to topics of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support import redis_servers
from tests.support.broker import Broker, korvet_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give the broker; it has automatic topic creation on, with three partitions."""
    directory = tmp_path_factory.mktemp("broker")
    with korvet_broker(directory, "--set", "num.partitions=3", workers=2) as running:
        yield running


@pytest.fixture
def stored(broker: Broker) -> Iterator[redis.Redis]:
    """Give a plain redis-py client on the broker's Redis."""
    with redis_servers.connected(broker.redis_url) as client:
        yield client
