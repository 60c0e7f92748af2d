"""One broker with two workers for all tests of clients that do not harm it; they keep to topics of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from tests.clients.aio_kafka import AIOKAFKA
from tests.clients.client_library import Admin, Library
from tests.clients.kafka_python import KAFKA_PYTHON
from tests.clients.librdkafka import LIBRDKAFKA
from tests.support import redis_servers
from tests.support.broker import Broker, korvet_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give the broker; it has automatic topic creation on, with three partitions."""
    directory = tmp_path_factory.mktemp("broker")
    flags = ("--set", "num.partitions=3", "--set", "group.initial.rebalance.delay.ms=0")
    with korvet_broker(directory, *flags, workers=2) as running:
        yield running


@pytest.fixture
def stored(broker: Broker) -> Iterator[redis.Redis]:
    """Give a plain redis-py client on the broker's Redis."""
    with redis_servers.connected(broker.redis_url) as client:
        yield client


@pytest.fixture(params=[LIBRDKAFKA, KAFKA_PYTHON, AIOKAFKA], ids=lambda library: str(library.name))
def library(request: pytest.FixtureRequest) -> Library:
    result: Library = request.param
    return result


@pytest.fixture(params=["record", "batch"])
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def admin(library: Library, broker: Broker) -> Iterator[Admin]:
    with closing(library.admin(broker.bootstrap)) as running:
        yield running
