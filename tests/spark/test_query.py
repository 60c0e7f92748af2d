"""korvet/spark/query.py and how korvet/cli/lake_query.py prints: SQL over topics on a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from korvet.cli import lake_query
from korvet.spark.query import frame_of, result, write_parquet
from korvet.spark.session import SparkError
from tests.support.archives import Topics, topics_in

NAMES = ("orders", "all-customers")


@pytest.fixture
def topics(spark: SparkSession, redis_url: str, tmp_path: Path) -> Iterator[Topics]:
    """Give two topics: of one a batch is archived and one is not, the other one has no remote tier."""
    with topics_in(redis_url, tmp_path / "lake") as found:
        [orders] = found.make("orders", "batch").partitions
        found.produce(orders, b"1")
        assert found.archiver().round(found.run).records == 1
        found.produce(orders, b"20", None)
        customers = found.make("all-customers", "record", number=1, remote_storage_enable="false")
        found.produce(customers.partitions[0], b"1", b"2")
        yield found
    for name in NAMES:
        spark.catalog.dropTempView(name)


def frame(spark: SparkSession, topics: Topics, sql: str, *names: str) -> DataFrame:
    return frame_of(spark, topics.source, sql, names)


def test_topics_are_views_of_the_same_query(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = """
        select count(*) n, sum(cast(cast(o.value as string) as int)) total, map(1, true) m, null as nothing
        from orders o join `all-customers` c on o.value = c.value
    """
    found = result(frame(spark, topics, sql))
    assert (found.titles, found.numbers) == (("n", "total", "m", "nothing"), ("n", "total"))
    lake_query._print_rows(found, as_csv=True, as_json=False)
    assert capsys.readouterr().out == 'n,total,m,nothing\n1,1,"{""1"": true}",\n'


def test_columns_may_have_the_same_name_and_null_is_shown(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = frame(spark, topics, "select offset, value, value from orders order by offset")
    lake_query._print_rows(result(rows), as_csv=False, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line[:1] in (["0"], ["1"], ["2"])] == [
        ["0", "1", "1"],
        ["1", "20", "20"],
        ["2", "NULL", "NULL"],
    ]


def test_a_result_is_written_as_parquet_to_a_new_directory_only(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    directory = tmp_path / "out"
    rows = frame(spark, topics, "select offset, value from orders")
    write_parquet(rows, str(directory))
    found = [row for file in directory.glob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
    assert sorted(row["offset"] for row in found) == [0, 1, 2]
    with pytest.raises(SparkError, match="PATH_ALREADY_EXISTS"):
        write_parquet(rows, str(directory))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from others", r"^\[TABLE_OR_VIEW_NOT_FOUND\].*`others`"),
        ("select * from a.b", r"^\[TABLE_OR_VIEW_NOT_FOUND\]"),
        ("select missing from orders", r"^\[UNRESOLVED_COLUMN"),
        ("selec 1", r"^\[PARSE_SYNTAX_ERROR\]"),
    ],
)
def test_a_wrong_query_is_one_clear_error(spark: SparkSession, topics: Topics, sql: str, said: str) -> None:
    with pytest.raises(SparkError, match=said):
        frame(spark, topics, sql)


def test_topics_that_are_not_named_are_no_views(spark: SparkSession, topics: Topics) -> None:
    with pytest.raises(SparkError, match="`orders`"):
        frame(spark, topics, "select * from orders", "all-customers")
    assert len(list(result(frame(spark, topics, "select * from `all-customers`", "all-customers")).rows)) == 2
