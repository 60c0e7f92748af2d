"""The server that a test kills."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_servers import DurableServer


@pytest.fixture
def server() -> Iterator[DurableServer]:
    """Give a server of the test's own."""
    with DurableServer() as running:
        yield running
