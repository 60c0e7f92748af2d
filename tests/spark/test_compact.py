"""korvet/spark/jobs.py: merges that a real Spark does, and what happens where one cannot be done."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from korvet.lake.compaction import compact
from korvet.lake.table import Lake
from korvet.spark.jobs import merge_runner
from tests.lake.archives import OF, archive, files, offsets_in_files, path_of

PARTITIONS = 5


def test_spark_compacts_many_partitions_and_tells_of_each(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for partition in range(PARTITIONS):
        archive(lake, 30, partition=partition)
    gone = files(lake)[4]
    path_of(lake, gone.path).unlink()
    outcomes = {each.partition: each for each in compact(lake, OF, run=merge_runner(spark))}
    assert outcomes.keys() == set(range(PARTITIONS))
    assert gone.partition == 1
    assert gone.path in (outcomes[1].error or "")
    assert [each.done for each in outcomes.values()] == [True, False, True, True, True]
    for partition in (0, 2, 3, 4):
        assert offsets_in_files(lake, partition) == list(range(30))
    assert len(files(lake)) == PARTITIONS - 1 + 3


def test_spark_is_not_asked_where_there_is_nothing_to_do(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    archive(lake, 10)
    assert list(compact(lake, OF, run=merge_runner(spark))) == []
