"""One real broker, and a client of it, for all tests of the admin client, each with names of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from korvet.admin.client import AdminClient
from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give the broker; topics are made in format `batch`, with dense offsets."""
    flags = ("--set", "storage.format=batch", "--set", "group.initial.rebalance.delay.ms=0")
    with korvet_broker(tmp_path_factory.mktemp("broker"), *flags, workers=1) as running:
        yield running


@pytest.fixture
def admin(broker: Broker) -> Iterator[AdminClient]:
    """Give an admin client."""
    with AdminClient(broker.bootstrap) as client:
        yield client


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    """Give a connection to the broker."""
    with Client(broker.address) as connection:
        yield connection


@pytest.fixture
def name() -> str:
    """Give a name that no other test uses, for topics and groups."""
    return f"name-{next(_NUMBERS)}"


@pytest.fixture
def topic(client: Client, name: str) -> str:
    """Give a topic with one partition."""
    client.create(name)
    return name
