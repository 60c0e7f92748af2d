"""How fast a pipeline decodes JSON of five fields and upserts it, beside Spark on the same JSON in Parquet files.

Run as `python -m loadtest.lake.pipeline [--records 500000] [--rounds 3]` from the repository, with Java 17 and Maven.
The records are orders in a topic of two partitions in format `batch`, each order twice. Both decode them by the same
schema and bring the last row of each order into a new Delta table by MERGE, in one session with two cores, in turn.
Spark's own reads Parquet in one query, as Spark is fastest; the first round is not counted. CPU is that of all
processes, Redis included, for a record.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from korvet.lake.source import LakeSource, LakeStores
from korvet.lake.table import Lake
from korvet.spark.pipelines.runner import Pipeline, PipelineContext
from korvet.spark.pipelines.spec import load
from korvet.spark.pipelines.status import PipelineReporter
from korvet.topics.types import TopicRow
from loadtest.lake import archive
from loadtest.lake.bench import DELTA, SECONDS_MAX
from tests.jvm.spark import jars
from tests.support import redis_servers, spark_driver
from tests.support.appends import append_of, logs_of
from tests.support.batches import Record
from tests.support.spark_driver import Driver

SCHEMA = "id BIGINT, customer STRING, amount DOUBLE, status STRING, at BIGINT"
PIPELINE = """
name = "{name}"
[sources.orders]
topics = ["orders"]
[sources.orders.value]
format = "json"
schema = "{schema}"
[transform]
sql = "SELECT value.*, partition, offset FROM orders"
[target]
type = "delta"
path = "{path}"
mode = "merge"
key = ["id"]
order_by = ["offset"]
[trigger]
available_now = true
"""


def main() -> None:
    """Measure, and print a line for each round and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, redis_servers.embedded_server() as url:
        directory = Path(name)
        source = LakeSource(redis_url=url, lake=Lake(str(directory / "lake")), timeout_ms=60_000)
        (directory / "lake").mkdir()
        with source.opened() as stores:
            _fill(stores, directory / "parquet", args.records)
        spark_driver.SECONDS_MAX = SECONDS_MAX
        with spark_driver.spark_driver(directory, jars.prepare(), DELTA) as driver:
            _measure(driver, source, directory, args.records, args.rounds)


def _measure(driver: Driver, source: LakeSource, directory: Path, records: int, rounds: int) -> None:
    figures: dict[str, list[tuple[float, float]]] = {"pipeline": [], "parquet": []}
    for number in range(rounds + 1):
        for peer, found in figures.items():
            table = directory / "tables" / f"{peer}-{number}"
            began, cpu = time.perf_counter(), archive.cpu_seconds()
            if peer == "pipeline":
                file = directory / "pipeline.toml"
                file.write_text(PIPELINE.format(name=f"orders-{number}", schema=SCHEMA, path=table))
                driver.run(by_pipeline, source, file)
            else:
                driver.run(from_parquet, str(directory / "parquet"), str(table))
            seconds, used = time.perf_counter() - began, archive.cpu_seconds() - cpu
            rows = driver.run(count, str(table))
            assert rows == records // 2, (peer, rows)
            print(
                f"{peer} {number}: {records / seconds:,.0f} records/s, {used / records * 1e6:.1f} us CPU",
                flush=True,
            )
            if number:
                found.append((records / seconds, used / records * 1e6))
    for peer, found in figures.items():
        rate, used = (statistics.median(each) for each in zip(*found, strict=True))
        print(f"{peer}: {rate:,.0f} records/s, {used:.1f} us of CPU a record")
    pairs = zip(figures["pipeline"], figures["parquet"], strict=True)
    ratios = sorted((one[0] / other[0], one[1] / other[1]) for one, other in pairs)
    print("pipeline to parquet, each round: rate", *(f"{rate:.2f}" for rate, _ in ratios), end="")
    print("; CPU", *(f"{used:.2f}" for _, used in ratios))


def by_pipeline(spark: SparkSession, /, source: LakeSource, file: Path) -> None:
    """Run the pipeline in the driver until all is read."""
    spec = load(file)
    with PipelineReporter(source, spec.name, file=str(file), on_lost=lambda: None) as reporter:
        Pipeline(PipelineContext(spark, source, {}), spec).run(threading.Event(), reporter)


def from_parquet(spark: SparkSession, /, files: str, table: str) -> None:
    """Do the same in the driver, by Spark and Delta Lake alone."""
    spark.read.parquet(files).createOrReplaceTempView("lines")
    spark.sql(f"CREATE TABLE delta.`{table}` ({SCHEMA}, partition INT, offset BIGINT) USING delta")
    spark.sql(
        f"""
        MERGE INTO delta.`{table}` AS t USING (
            SELECT r.* FROM (
                SELECT max_by(struct(o.*, partition, offset), offset) AS r
                FROM (SELECT from_json(CAST(value AS STRING), '{SCHEMA}') AS o, partition, offset FROM lines)
                GROUP BY o.id
            )
        ) AS s ON t.id = s.id
        WHEN MATCHED AND s.offset > t.offset THEN UPDATE SET *
        WHEN NOT MATCHED THEN INSERT *
        """  # noqa: S608 - a path of this program's own
    )


def count(spark: SparkSession, /, table: str) -> int:
    """Return how many rows a table has."""
    return spark.read.format("delta").load(table).count()


def _order(at: int, records: int) -> bytes:
    number = at % (records // 2)
    order = {"id": number, "customer": f"customer-{at * 7919 % 10007}", "amount": at % 1000 / 10}
    return json.dumps(order | {"status": "paid" if at % 3 else "open", "at": 1_700_000_000_000 + at}).encode()


def _fill(stores: LakeStores, directory: Path, records: int) -> None:
    """Write the orders to the topic, and to a Parquet file for each partition."""
    topic_id = archive.topic_id("orders")
    stores.topics.create(
        TopicRow(name="orders", id=topic_id, partitions=2, configs={"storage.format": "batch"})
    )
    directory.mkdir()
    for at in range(2):
        partition = stores.logs.partition("orders", at, topic_id, 10, "batch")
        # Both of the same order in one partition, as by its key.
        half = records // 4
        mine = [*range(at * half, (at + 1) * half), *range((at + 2) * half, (at + 3) * half)]
        values = [_order(each, records) for each in mine]
        with logs_of(stores.source) as logs:
            for first in range(0, len(values), archive.BATCH_RECORDS):
                some = values[first : first + archive.BATCH_RECORDS]
                append = append_of(partition, *(Record(each, b"%d" % at) for each in some))
                [appended] = logs.append([append])
                assert not isinstance(appended, Exception), appended
        columns = {
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([at] * len(values), pa.int32()),
            "offset": pa.array(range(len(values)), pa.int64()),
        }
        pq.write_table(pa.table(columns), directory / f"{at}.parquet", compression="zstd")


if __name__ == "__main__":
    main()
