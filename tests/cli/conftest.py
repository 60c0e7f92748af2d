"""A broker in this process for the tests of a file that ask one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fixtures import client, name, topic
from tests.support.in_process import InProcessBroker, only_broker

__all__ = ["broker", "client", "name", "topic"]

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
