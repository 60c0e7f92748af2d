"""Spark with an Iceberg catalog, in a process of its own and of the version that Iceberg has a runtime for.

Run as `python -m tests.jvm.iceberg.queries JARS CATALOG`, with that version's directory on PYTHONPATH: takes a JSON
list of queries on stdin, and writes their rows, or their errors, as a list to stdout. A query that begins with `stream`
names a table, whose rows it reads as a stream up to the present.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession


def main(jars: str, catalog: str) -> None:
    """Run the queries."""
    settings = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "768m",
        # Few threads, and no code compiled for so few rows.
        "spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.korvet": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.korvet.type": "jdbc",
        "spark.sql.catalog.korvet.uri": f"jdbc:sqlite:{catalog}",
        "spark.sql.catalog.korvet.warehouse": "none",
        "spark.sql.catalog.korvet.cache-enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    answers = [_answer(spark, query) for query in json.load(sys.stdin)]
    spark.stop()
    json.dump({"version": spark.version, "answers": answers}, sys.stdout)


def _answer(spark: SparkSession, query: str) -> Any:
    try:
        if query.startswith("stream "):
            frame = (
                spark.readStream.format("iceberg")
                .option("streaming-skip-overwrite-snapshots", "true")
                .load(query.removeprefix("stream "))
            )
            started = frame.writeStream.format("memory").queryName("read").trigger(availableNow=True).start()
            started.awaitTermination()
            query = "select partition, offset from read order by 1, 2"
        return [[_plain(item) for item in row] for row in spark.sql(query).collect()]
    except (PySparkException, Py4JJavaError) as error:
        return str(error)


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (Row, list)):
        return [_plain(element) for element in value]
    return value


if __name__ == "__main__":
    main(*sys.argv[1:])
