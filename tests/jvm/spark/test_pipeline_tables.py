"""korvet/spark/pipelines/tables.py: tables that others write to as well, and their upkeep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import udf

from korvet.spark.pipelines.spec import PipelineError, TargetSpec
from korvet.spark.pipelines.tables import TableUpkeep, commit
from korvet.spark.pipelines.targets import Batch, DeltaTarget
from tests.support.spark_driver import Driver

pytestmark = pytest.mark.timeout(600)

DAY_MS = 24 * 3_600_000
SCHEMA = "id BIGINT, value STRING"


def append(path: Path, number: int, value: str) -> None:
    """Append a row as another writer."""
    write_deltalake(path, pa.table({"id": pa.array([number], pa.int64()), "value": [value]}), mode="append")


def rows(path: Path) -> list[tuple[int, str]]:
    return sorted((row["id"], row["value"]) for row in DeltaTable(path).to_pyarrow_table().to_pylist())


def files_on_disk(path: Path) -> int:
    return len(list(path.glob("*.parquet")))


def changing(path: Path, change: Literal["rows", "metadata"], times_max: int) -> Column:
    """Return the column `id`; as often as that another writer changes the table while a row of it is read."""

    def changed(number: int) -> int:
        table = DeltaTable(path)
        versions = path.parent / "changes"
        if not versions.exists() or len(versions.read_text()) < times_max:
            with versions.open("a") as file:
                file.write(".")
            if change == "rows":
                append(path, number, "other")
            else:
                table.alter.set_table_properties({"delta.checkpointInterval": "7"})
        return number

    return udf(changed, "bigint")("id").alias("id")


def batch_of(
    spark: SparkSession, path: Path, change: Literal["rows", "metadata"], times_max: int
) -> DataFrame:
    return spark.createDataFrame([(1, "new")], SCHEMA).select(changing(path, change, times_max), "value")


def write_meanwhile(
    spark: SparkSession,
    /,
    path: Path,
    mode: Literal["append", "merge"],
    change: Literal["rows", "metadata"],
) -> None:
    """Write a batch to a table that another writer changes meanwhile, twice."""
    spec = TargetSpec(type="delta", path="t", mode=mode, key=("id",) if mode == "merge" else (), upkeep=False)
    target = DeltaTarget(spark, spec, str(path))
    target.prepare(spark.createDataFrame([], SCHEMA).schema)
    target.write(batch_of(spark, path, change, 2), Batch("app", 0))


@pytest.mark.parametrize(("mode", "change"), [("merge", "rows"), ("append", "metadata")])
def test_a_batch_is_written_beside_another_writer_of_the_table(
    delta: Driver, tmp_path: Path, mode: Literal["append", "merge"], change: Literal["rows", "metadata"]
) -> None:
    path = tmp_path / "table"
    append(path, 1, "old")
    delta.run(write_meanwhile, path, mode, change)
    # The rows of the other writer came before the batch did, which has replaced them all.
    assert rows(path) == ([(1, "new")] * 3 if mode == "merge" else [(1, "new"), (1, "old")])


def pauses_of(spark: SparkSession, /, path: Path) -> tuple[str, list[float]]:
    """Merge into a table that another writer changes each time; return the error, and the pauses before each try."""
    pauses: list[float] = []

    def transaction() -> None:
        batch_of(spark, path, "rows", 99).createOrReplaceTempView("changed")
        merge = f"MERGE INTO delta.`{path}` t USING changed s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"
        spark.sql(merge)

    try:
        commit(str(path), transaction, pauses.append)
    except PipelineError as error:
        return str(error), pauses
    return "", pauses


def test_another_writer_that_is_always_faster_is_one_error_in_one_line(delta: Driver, tmp_path: Path) -> None:
    path = tmp_path / "table"
    append(path, 1, "old")
    error, pauses = delta.run(pauses_of, path)
    assert error.startswith(f"{path}: other writers were faster 8 times: [DELTA_CONCURRENT_APPEND")
    assert "\n" not in error
    assert len(pauses) == 7
    assert all(0 <= pause <= 5 for pause in pauses)
    assert files_on_disk(path) == len(DeltaTable(path).file_uris()) + 8


def prepare_at_once(spark: SparkSession, /, paths: Sequence[Path]) -> None:
    """Create each table by two pipelines at the same time."""
    schema = spark.createDataFrame([], SCHEMA).schema
    barrier = Barrier(2)

    def prepare(path: Path) -> None:
        target = DeltaTarget(spark, TargetSpec(type="delta", path="t"), str(path))
        barrier.wait()
        target.prepare(schema)

    with ThreadPoolExecutor(2) as pool:
        for path in paths:
            list(pool.map(prepare, [path, path]))


def test_two_pipelines_create_a_table_at_the_same_time(delta: Driver, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second", "third")]
    delta.run(prepare_at_once, paths)
    for path in paths:
        assert DeltaTable(path).schema().to_arrow().names == ["id", "value"]


def write_batch(spark: SparkSession, /, path: Path, *, upkeep: bool) -> None:
    target = DeltaTarget(spark, TargetSpec(type="delta", path="t", upkeep=upkeep), str(path))
    target.prepare(spark.createDataFrame([], SCHEMA).schema)
    target.write(spark.createDataFrame([(0, "new")], SCHEMA), Batch("app", 0))


def look(spark: SparkSession, /, path: Path, now_ms: int) -> None:
    TableUpkeep(spark, str(path), lambda: now_ms).after_batch()


@pytest.mark.parametrize("has_table_below", [False, True])
def test_small_files_are_merged_after_a_batch_and_replaced_ones_are_deleted_a_day_later(
    delta: Driver, tmp_path: Path, *, has_table_below: bool
) -> None:
    path = tmp_path / "table"
    for number in range(20):
        append(path, number, "old")
    DeltaTable(path).alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 0 seconds"}, raise_if_not_exists=False
    )
    if has_table_below:
        append(path / "below", 1, "other")
    delta.run(write_batch, path, upkeep=False)
    assert len(DeltaTable(path).file_uris()) == 21
    delta.run(write_batch, path, upkeep=True)
    wanted = sorted([(number, "old") for number in range(20)] + [(0, "new")])
    assert rows(path) == wanted
    assert len(DeltaTable(path).file_uris()) == 1
    now_ms = time.time_ns() // 1_000_000
    delta.run(look, path, now_ms)
    assert files_on_disk(path) >= 22
    delta.run(look, path, now_ms + DAY_MS + 600_000)
    # A day has passed since the table was created, and not since then.
    delta.run(look, path, now_ms + DAY_MS)
    # Of a batch with few rows Spark writes files without any, which the table's log does not know.
    assert files_on_disk(path) == (2 if has_table_below else 1)
    assert rows(path) == wanted
    if has_table_below:
        assert rows(path / "below") == [(1, "other")]
    assert [item["operation"] for item in DeltaTable(path).history()].count("VACUUM END") == 1


def named(spark: SparkSession, /, path: Path, table: str) -> str | None:
    try:
        target = DeltaTarget(spark, TargetSpec(type="delta", path="t", table=table), str(path))
        target.prepare(spark.createDataFrame([], SCHEMA).schema)
    except PipelineError as error:
        return str(error)
    return None


def test_a_name_without_a_catalog_is_refused(delta: Driver, tmp_path: Path) -> None:
    refused = delta.run(named, tmp_path / "table", "sales.orders") or ""
    assert refused.startswith("target.table: sales.orders: there is no catalog: spark.conf needs spark.sql")
