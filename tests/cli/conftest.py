"""A broker in this process for the tests of a file that ask one; each test makes topics and groups of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.in_process import InProcessBroker, only_broker
from tests.support.topic_client import Client

_NUMBERS = itertools.count()
SETTINGS = {
    # ACLs may be changed, and keep nobody from anything.
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "storage.format": "batch",
}


@pytest.fixture(scope="module")
def broker(redis_server: str) -> Iterator[InProcessBroker]:
    """Give the broker; topics are made in format `batch`, with dense offsets."""
    with only_broker(redis_server, SETTINGS) as running:
        yield running


@pytest.fixture
def client(broker: InProcessBroker) -> Iterator[Client]:
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
