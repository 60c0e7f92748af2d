"""One real broker for all tests of commands that ask one; each test makes topics and groups of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client

_NUMBERS = itertools.count()
ACLS = ("authorizer.class.name=StandardAuthorizer", "super.users=User:ANONYMOUS")
"""ACLs may be changed, and keep nobody from anything."""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give the broker; topics are made in format `batch`, with dense offsets."""
    values = (
        *ACLS,
        "storage.format=batch",
        "group.initial.rebalance.delay.ms=0",
        "log.figures.interval.ms=100",
    )
    flags = [word for value in values for word in ("--set", value)]
    with korvet_broker(tmp_path_factory.mktemp("broker"), *flags, workers=1) as running:
        yield running


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
