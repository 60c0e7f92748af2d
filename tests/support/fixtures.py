"""Fixtures of tests with a broker, whatever it runs in, that their conftest imports; each test has names of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.broker import Broker
from tests.support.in_process import InProcessBroker
from tests.support.topic_client import Client

_NUMBERS = itertools.count()


@pytest.fixture
def client(broker: Broker | InProcessBroker) -> Iterator[Client]:
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
