"""One Spark with Delta Lake for all tests of a process: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jvm.spark import jars
from tests.support.spark_driver import Driver, spark_driver

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The log of a small table is read by one task, not by fifty.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="session")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Give a Spark with Delta Lake, in a process of its own."""
    with spark_driver(tmp_path_factory.mktemp("delta"), jars.prepare(), _DELTA) as running:
        yield running
