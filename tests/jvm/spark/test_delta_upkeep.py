"""Tables that Korvet maintains, beside Delta Lake's own Spark: streams go on, and its OPTIMIZE is put in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from korvet.lake.compaction import compact, is_own
from korvet.lake.reader import LakeReader
from korvet.lake.table import Lake
from tests.lake.archives import OF, append, archive, consumed, files, offsets_in_files, opened, record
from tests.support.spark_driver import Driver

ROWS = 200


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Give a lake with a table of twenty files."""
    made = Lake(str(tmp_path / "lake"))
    archive(made, ROWS)
    return made


def stream(spark: SparkSession, uri: str, directory: str) -> list[int]:
    """Carry what is new in a table on, and return all that was carried by now."""
    rows = spark.readStream.format("delta").load(uri)
    writing = rows.select("offset").writeStream.format("parquet")
    checkpoint = writing.option("checkpointLocation", f"{directory}/checkpoint")
    checkpoint.trigger(availableNow=True).start(f"{directory}/carried").awaitTermination()
    return [row.offset for row in spark.read.parquet(f"{directory}/carried").collect()]


def optimize(spark: SparkSession, uri: str) -> list[int]:
    """Let Delta Lake compact a table; returns its offsets."""
    # A column without statistics, which are all in order.
    spark.conf.set("spark.databricks.delta.optimize.zorder.checkStatsCollection.enabled", "false")
    spark.sql(f"OPTIMIZE delta.`{uri}` ZORDER BY (value)").collect()
    return [row.offset for row in spark.read.format("delta").load(uri).select("offset").collect()]


def test_a_stream_over_the_table_goes_on_past_compactions(delta: Driver, lake: Lake, tmp_path: Path) -> None:
    where = (opened(lake).uri, str(tmp_path / "stream"))
    assert sorted(delta.run(stream, *where)) == list(range(ROWS))
    append(lake, [record(ROWS)], ROWS + 1)
    assert [each.done for each in compact(lake, OF)] == [True]
    append(lake, [record(ROWS + 1)], ROWS + 2)
    assert sorted(delta.run(stream, *where)) == list(range(ROWS + 2))


def test_what_spark_has_optimized_is_put_in_order_again(delta: Driver, lake: Lake) -> None:
    assert sorted(delta.run(optimize, opened(lake).uri)) == list(range(ROWS))
    assert not all(is_own(file.path) for file in files(lake))
    before = offsets_in_files(lake)
    assert before != sorted(before)
    assert [(each.done, each.error) for each in compact(lake, OF)] == [(True, None)]
    assert offsets_in_files(lake) == list(range(ROWS))
    assert all(is_own(file.path) for file in files(lake))
    [file] = files(lake)
    assert (file.first_timestamp, file.last_timestamp) == (1_000_000, (1000 + ROWS - 1) * 1000)
    assert consumed(LakeReader(lake), ROWS) == list(range(ROWS))
