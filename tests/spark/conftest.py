"""One Spark and one broker for all tests of a process: Spark takes seconds to start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from korvet.spark.session import session
from tests.support.archives import topics
from tests.support.broker import Broker, korvet_broker
from tests.support.reading import create_topic

__all__ = ["broker", "spark", "topic", "topics"]

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give a session as jobs have it, on two cores; joins of a few rows need no more parts than cores."""
    with session("tests", master="local[2,4]", configs={"spark.sql.shuffle.partitions": "2"}) as started:
        yield started


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker for what Spark writes."""
    with korvet_broker(
        tmp_path_factory.mktemp("broker"), "--set", "storage.format=batch", workers=1
    ) as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    """Give a topic with three partitions."""
    name = f"topic-{next(_NUMBERS)}"
    create_topic(broker.bootstrap, name, 3)
    return name
