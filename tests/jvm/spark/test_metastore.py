"""`korvet lake register`, and Delta Lake under the names that a Hive metastore has then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from korvet.spark.metastore import opened
from korvet.spark.pipelines.spec import PipelineError, TargetSpec
from korvet.spark.pipelines.targets import DeltaTarget
from korvet.spark.session import SparkError
from tests.cli.commands import SPARK_SECONDS_MAX, korvet_process
from tests.jvm.spark import jars
from tests.jvm.spark.metastore import metastore
from tests.support.archives import Topics, where
from tests.support.batches import Record
from tests.support.spark_driver import Driver, spark_driver

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with metastore(tmp_path_factory.mktemp("metastore")) as result:
        yield result


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory, uri: str) -> Iterator[Driver]:
    """Give a Spark with Delta Lake and this metastore."""
    settings = jars.DELTA | {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": uri,
    }
    with spark_driver(tmp_path_factory.mktemp("hive"), jars.prepare(), settings) as running:
        yield running


def produce(topics: Topics, name: str, number: int, *values: bytes, by: str = "partition") -> None:
    """Make a topic, and archive a record of each of these values, each a day later than the one before."""
    topic = topics.make(name, "batch", number=number, lake_partitioning=by)
    records = [Record(item, b"k", 1_700_000_000_000 + at * DAY_MS) for at, item in enumerate(values)]
    topics.produce(topic.partitions[0], *records)
    assert topics.rounds(topics.archiver(names=[name])).failures == []


def register(topics: Topics, uri: str, *flags: str, code: int = 0) -> dict[str, str]:
    """Run the command; returns the changes by their names."""
    place = (*where(topics), "--metastore", uri)
    done = korvet_process("lake", "register", *place, "--json", *flags, seconds_max=SPARK_SECONDS_MAX)
    assert done.returncode == code, done.stderr
    return {load["name"]: load["change"] for load in json.loads(done.stdout)}


def rows(spark: SparkSession, /, statement: str) -> list[dict[str, Any]]:
    """Run SQL; returns what it answers."""
    return [row.asDict() for row in spark.sql(statement).collect()]


def values(spark: SparkSession, /, table: str) -> list[str]:
    """Read a table by its name."""
    return [
        row.text for row in spark.table(table).orderBy("offset").selectExpr("string(value) text").collect()
    ]


def test_engines_read_tables_by_the_names_of_the_topics(hive: Driver, uri: str, topics: Topics) -> None:
    produce(topics, "orders", 0, b"1", b"2")
    produce(topics, "All-customers", 1, b"3", b"4", b"5", by="date")
    assert register(topics, uri, "--dry-run") == {"orders": "add", "all_customers": "add"}
    assert register(topics, uri) == {"orders": "add", "all_customers": "add"}
    assert hive.run(values, "lake.orders") == ["1", "2"]
    sql = "select string(value) v from lake.all_customers where date = '2023-11-15'"
    assert hive.run(rows, sql) == [{"v": "4"}]
    # What another one has under a name stays.
    hive.run(rows, "create table lake.bills (a int) using parquet")
    produce(topics, "bills", 3, b"7")
    assert register(topics, uri, code=1) == {"bills": "taken"}
    assert hive.run(rows, "select * from lake.bills") == []


def test_a_metastore_that_is_only_its_database_is_written_directly(topics: Topics, tmp_path: Path) -> None:
    produce(topics, "orders", 0, b"1")
    derby = f"jdbc:derby:;databaseName={tmp_path}/metastore_db;create=true"
    flags = ("--database", "archive", "--hive-conf", f"hive.metastore.warehouse.dir={tmp_path}/warehouse")
    assert register(topics, derby, *flags) == {"orders": "add"}
    elsewhere = (*flags, "--location", f"file:{tmp_path}/mounted")
    assert register(topics, derby, *elsewhere) == {"orders": "change"}
    [table] = topics.source.lake.tables()
    produce(topics, "others", 1, b"2")
    topics.source.lake.remove_table(table)
    assert register(topics, derby, *elsewhere) == {"others": "add", "orders": "drop"}
    assert register(topics, derby, *elsewhere) == {}


def test_the_error_of_a_metastore_shows_no_password(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    once = {"hive.hmshandler.retry.attempts": "0"}
    place = f"{tmp_path}/file/metastore_db"
    for uri, shown in (
        (f"jdbc:derby:;databaseName={place};user=me;password=hidden", "jdbc:derby:: "),
        (
            "jdbc:none://me:hidden@127.0.0.1:1/hive?user=me&password=hidden",
            "jdbc:none://me:***@127.0.0.1:1/hive: ",
        ),
    ):
        with pytest.raises(SparkError) as raised, opened(uri, once, "korvet"):
            pass
        assert str(raised.value).startswith(shown)
        assert "hidden" not in str(raised.value)


def name_table(spark: SparkSession, /, path: Path, name: str) -> str | None:
    """Prepare the target of a pipeline twice, as two starts do; return why it is refused."""
    schema = StructType([StructField("id", LongType())])
    for _ in range(2):
        try:
            spec = TargetSpec(type="delta", path="t", table=name)
            DeltaTarget(spark, spec, str(path)).prepare(schema)
        except PipelineError as error:
            return str(error)
    return None


def test_the_table_of_a_pipeline_has_a_name(hive: Driver, tmp_path: Path) -> None:
    assert "sales" in (hive.run(name_table, tmp_path / "orders", "sales.orders") or "")
    hive.run(rows, "CREATE DATABASE sales")
    assert hive.run(name_table, tmp_path / "orders", "sales.orders") is None
    write_deltalake(tmp_path / "orders", pa.table({"id": pa.array([7], pa.int64())}), mode="append")
    assert hive.run(rows, "SELECT * FROM sales.orders") == [{"id": 7}]
    taken = hive.run(name_table, tmp_path / "others", "sales.orders") or ""
    assert taken.startswith("target.table: sales.orders is the table at file:")
    assert taken.endswith(f"{tmp_path}/orders, not at file:{tmp_path}/others")
