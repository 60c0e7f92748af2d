"""One Spark with Delta Lake for all tests of a process: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.jvm.spark import jars, registry
from tests.support.archives import topics
from tests.support.spark_driver import Driver, spark_driver

__all__ = ["delta", "topics"]


@pytest.fixture(scope="session")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Give a Spark with Delta Lake, in a process of its own."""
    with spark_driver(tmp_path_factory.mktemp("delta"), jars.prepare(), jars.DELTA) as running:
        yield running


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a registry."""
    with registry.running(tmp_path_factory.mktemp("registry")) as result:
        yield result


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[SchemaRegistryClient]:
    """Give Confluent's client; without a rule for that, any schema may follow any other."""
    with SchemaRegistryClient({"url": url}) as result:
        yield result
