"""One Spark for all tests of a process, and one with Delta Lake: they take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from korvet.spark.session import session
from tests.spark import jars
from tests.support.spark_driver import Driver, spark_driver

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The log of a small table is read by one task, not by fifty.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give a session as jobs have it, on two cores."""
    with session("tests", master="local[2,4]") as started:
        yield started


@pytest.fixture(scope="session")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Give a Spark with Delta Lake, in a process of its own."""
    with spark_driver(tmp_path_factory.mktemp("delta"), jars.prepare(), _DELTA) as running:
        yield running
