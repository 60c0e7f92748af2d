"""A broker in this process for the tests of a file, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from korvet.admin.client import AdminClient
from tests.support.fixtures import client, name, topic
from tests.support.in_process import InProcessBroker, only_broker

__all__ = ["admin", "broker", "client", "name", "topic"]


@pytest.fixture(scope="module")
def broker(redis_server: str) -> Iterator[InProcessBroker]:
    """Give the broker; topics are made in format `batch`, with dense offsets."""
    with only_broker(redis_server, {"storage.format": "batch"}) as running:
        yield running


@pytest.fixture
def admin(broker: InProcessBroker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap) as connected:
        yield connected
