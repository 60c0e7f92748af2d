"""One real broker with a console that takes changes, for all of its tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker import Broker, korvet_broker
from tests.support.console import TOKEN, Caller
from tests.support.fixtures import client, name

__all__ = ["broker", "client", "console", "name"]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give the broker; topics are made in format `record` unless said otherwise."""
    directory = tmp_path_factory.mktemp("console")
    (directory / "token").write_text(f"{TOKEN}\n")
    flags = (
        *("--set", f"console.token.file={directory / 'token'}"),
        *("--set", "group.initial.rebalance.delay.ms=0"),
        # More than the console decompresses.
        *("--set", "record.decompressed.max.bytes=33554432"),
    )
    with korvet_broker(directory, *flags, workers=1) as running:
        yield running


@pytest.fixture
def console(broker: Broker) -> Caller:
    """Give a caller who has the token."""
    return Caller(broker.ops_address)
