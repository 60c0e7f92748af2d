"""A broker for kcat."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.support.broker import Broker, korvet_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker with automatic topic creation, with three partitions."""
    if shutil.which("kcat") is None:
        pytest.fail("these tests need kcat (on Debian or Ubuntu: apt-get install kcat)")
    with korvet_broker(tmp_path_factory.mktemp("broker"), "--set", "num.partitions=3", workers=2) as running:
        yield running
