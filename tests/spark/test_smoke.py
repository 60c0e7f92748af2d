"""The lake on Spark from end to end: what is produced is archived, consumed and decoded, each record once."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from korvet.spark.jobs import archive_rounds
from korvet.spark.pipelines.runner import Pipeline, PipelineContext
from korvet.spark.pipelines.spec import load
from korvet.spark.pipelines.status import PipelineReporter
from tests.support.archives import FORMATS, Topics, all_kinds, archive, trim
from tests.support.reading import read_all
from tests.support.replaying import stage_in

pytestmark = pytest.mark.smoke


def test_what_spark_archives_is_read_by_deltalake_and_by_a_consumer(
    spark: SparkSession, tmp_path: Path
) -> None:
    with stage_in(tmp_path) as stage:
        topics = stage.topics
        made = [stage.make(item, 2) for item in FORMATS]
        for _ in range(2):
            for topic in made:
                all_kinds(topics, topic)
            rounds = archive_rounds(spark, topics.source)
            assert [done and (done.records, done.failures) for done in rounds] == [(2 * 2 * 1520, [])]
        for topic in made:
            topics.check(topic)
            for partition in topic.partitions:
                trim(topics, partition)
            results = read_all(stage.broker.bootstrap, topic.name, (0, 1), 2 * 2 * 1520)
            for partition in topic.partitions:
                assert [
                    (result.offset, result.timestamp, result.key, result.value, list(result.headers))
                    for result in results
                    if result.partition == partition.index
                ] == topics.produced[topic.id, partition.index]


PIPELINE = """
name = "orders"
[sources.orders]
topics = ["orders"]
[sources.orders.value]
format = "json"
schema = "id BIGINT, amount DOUBLE"
[transform]
sql = "SELECT value.id, 2 * value.amount amount, offset FROM orders WHERE value.id > 0"
[target]
type = "parquet"
path = "tables/orders"
[trigger]
available_now = true
"""


def test_a_pipeline_decodes_records_of_both_tiers_and_appends_each_once(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(PIPELINE)
    [partition] = topics.make("orders", "batch").partitions
    rows = []
    for at in range(4):
        topics.produce(partition, b'{"id": %d, "amount": 1.5}' % at)
        rows += [{"id": at, "amount": 3.0, "offset": at}] if at else []
        if at == 1:
            archive(topics)
            trim(topics, partition)
        elif at > 1:
            # The second run goes on where the first one has ended.
            spec = load(file)
            with PipelineReporter(
                topics.source, "orders", file=str(file), stopped=threading.Event()
            ) as reporter:
                Pipeline(PipelineContext(spark, topics.source, {}), spec).run(threading.Event(), reporter)
            result = pq.read_table(Path(topics.lake) / "tables/orders").to_pylist()
            assert sorted(result, key=lambda row: row["offset"]) == rows
