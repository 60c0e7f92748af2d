"""One Spark with Delta Lake for all tests of a process: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jvm.spark import jars
from tests.support.archives import topics
from tests.support.spark_driver import Driver, spark_driver

__all__ = ["delta", "topics"]


@pytest.fixture(scope="session")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Give a Spark with Delta Lake, in a process of its own."""
    with spark_driver(tmp_path_factory.mktemp("delta"), jars.prepare(), jars.DELTA) as running:
        yield running
