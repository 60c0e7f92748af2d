"""Workers' handlers on an empty Redis, and one real broker for the tests that need connections.

Of the broker, which has two workers, each test makes topics of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from tests.handlers.scene import Scene
from tests.support import redis_servers
from tests.support.broker import Broker, steady_broker
from tests.support.fixtures import client  # noqa: F401 -- a fixture of these tests
from tests.support.topic_client import Client
from tests.support.wire_client import clients_of_two_workers

_NUMBERS = itertools.count()
GROUPS = ("--set", "group.initial.rebalance.delay.ms=0")
"""The first rebalance of a group waits for nobody but those who are there."""
QUIET = ("--set", "log.figures.interval.ms=3600000", "--set", "log.retention.check.interval.ms=3600000")
"""The keeper does not go through all logs while a test counts what Redis is asked for."""


@pytest.fixture
def storage_format() -> str:
    """Give the format of topics; a module may give others."""
    return "batch"


@pytest.fixture
def scene(redis_url: str, storage_format: str) -> Iterator[Scene]:
    """Give a worker's handlers; a module may create topics first."""
    with closing(Scene(redis_url, storage_format=storage_format)) as made:
        yield made


@pytest.fixture
def other(scene: Scene) -> Iterator[Scene]:
    """Give another worker's handlers, with the ids of the same topics."""
    with closing(Scene(scene.settings.redis_url, storage_format=scene.settings.storage_format)) as made:
        made.ids = scene.ids
        yield made


@pytest.fixture(scope="session")
def broker_redis() -> Iterator[str]:
    with redis_servers.server() as url:
        yield url


@pytest.fixture(scope="session")
def broker(broker_redis: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run the broker; at the end its log must be free of faults of its own."""
    directory: Path = tmp_path_factory.mktemp("broker")
    flags = ("--redis-url", broker_redis, "--set", "storage.format=record", *GROUPS, *QUIET)
    with steady_broker(directory, *flags) as running:
        yield running


@pytest.fixture
def stored(broker_redis: str) -> Iterator[redis.Redis]:
    """Give a plain redis-py client on the broker's Redis."""
    with redis_servers.connected(broker_redis) as connection:
        yield connection


@pytest.fixture
def two_clients(broker: Broker) -> Iterator[tuple[Client, Client]]:
    """Give connections to two different workers."""
    with clients_of_two_workers(broker.address, broker.worker_pids(), Client) as clients:
        yield clients


@pytest.fixture
def topic() -> str:
    """Give a name that no other test uses."""
    return f"topic-{next(_NUMBERS)}"
