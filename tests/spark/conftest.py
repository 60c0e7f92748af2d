"""One Spark for all tests of a process: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from korvet.spark.session import session
from tests.support.archives import topics

__all__ = ["spark", "topics"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give a session as jobs have it, on two cores; joins of a few rows need no more parts than cores."""
    with session("tests", master="local[2,4]", configs={"spark.sql.shuffle.partitions": "2"}) as started:
        yield started
