"""korvet/spark/query.py and how korvet/cli/lake_query.py prints: SQL over topics on a real Spark.

korvet/spark/names.py too, with what docs/lake/sql.md says of names.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from korvet.cli import lake_query
from korvet.redis.keys import Keys
from korvet.spark.names import literal, register_topics
from korvet.spark.query import frame_of, result, write_parquet
from korvet.spark.session import SparkError
from korvet.topics.deletion import TopicDeletion
from tests.support.archives import Topics, topics_in
from tests.support.batches import MALFORMED

NAMES = ("orders", "all-customers")


@pytest.fixture
def topics(spark: SparkSession, redis_url: str, tmp_path: Path) -> Iterator[Topics]:
    """Give two topics: of one a batch is archived and one is not, the other one has no remote tier."""
    with topics_in(redis_url, tmp_path / "lake") as results:
        [orders] = results.make("orders", "batch").partitions
        results.produce(orders, b"1")
        assert results.archiver().round(results.run).records == 1
        results.produce(orders, b"20", None)
        results.put(orders, MALFORMED["zeros"])
        customers = results.make("all-customers", "record", number=1, remote_storage_enable="false")
        results.produce(customers.partitions[0], b"1", b"2")
        yield results
    # A later query of the session would find them.
    assert not [listTable.name for listTable in spark.catalog.listTables() if listTable.name in NAMES]
    for name in views(spark):
        assert spark.catalog.dropGlobalTempView(name)


def views(spark: SparkSession) -> list[str]:
    """Return the names of views in the database; Spark shows those without one too."""
    shown = spark.sql("show views in korvet").collect()
    return [row.viewName for row in shown if row.namespace == "korvet"]


def frame(spark: SparkSession, topics: Topics, sql: str, *names: str) -> DataFrame:
    return frame_of(spark, topics.source, sql, names)


def test_topics_are_views_of_the_same_query(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = """
        select count(*) n, sum(cast(cast(o.value as string) as int)) total, map(1, true) m, null as nothing
        from orders o join `all-customers` c on o.value = c.value
    """
    results = result(frame(spark, topics, sql))
    assert (results.titles, results.numbers) == (("n", "total", "m", "nothing"), ("n", "total"))
    lake_query._print_rows(results, as_csv=True, as_json=False)
    assert capsys.readouterr().out == 'n,total,m,nothing\n1,1,"{""1"": true}",\n'


ALL = "key value topic partition offset timestamp timestampType headers timestamp_ms attributes producer_id"


@pytest.mark.parametrize(
    ("sql", "rows", "read"),
    [
        ("select count(*) from orders", [(3,)], [""]),
        ("select sum(offset), max(topic) from orders", [(3, "orders")], ["topic offset"]),
        ("select count(*), sum(length(value)) from orders where offset > 0", [(2, 2)], ["value offset"]),
        # The second of all columns is the value, however few are read.
        ("select offset from (select * from orders order by 2 desc limit 1)", [(1,)], ["value offset"]),
        (
            "select max(partition), count(*) from (select * from orders union all select * from `all-customers`)",
            [(0, 5)],
            ["partition", "partition"],
        ),
        (
            "select (select count(value) from `all-customers`), offset from orders order by offset limit 1",
            [(2, 0)],
            ["offset", "value"],
        ),
        ("select count(*) from orders a join orders b using (offset)", [(3,)], ["offset", "offset"]),
        ("select count(*) from (select * except (key) from orders where value is null)", [(1,)], ["value"]),
        (
            "select count(*) from (select distinct * except (headers) from orders)",
            [(3,)],
            [f"{ALL} producer_epoch timestamp_type".replace(" headers", "")],
        ),
    ],
)
def test_only_the_columns_that_a_query_needs_are_read(
    spark: SparkSession, topics: Topics, sql: str, rows: list[tuple[object, ...]], read: list[str]
) -> None:
    results = frame(spark, topics, sql)
    assert [tuple(item) for item in results.collect()] == rows
    plan = results._jdf.queryExecution().optimizedPlan().toString()
    relations = [re.sub("#[0-9]+L?,?", "", item) for item in re.findall(r"RelationV2 ?\[(.*?)\]", plan)]
    assert sorted(relations) == sorted(read)


def test_each_read_of_a_topic_has_the_rows_of_its_own_filter(spark: SparkSession, topics: Topics) -> None:
    sql = "select offset from orders where offset < 1 union all select offset from orders where offset > 1"
    assert sorted(row.offset for row in frame(spark, topics, sql).collect()) == [0, 2]
    # A topic that is read once is read within its filter.
    many = topics.make("many", "batch", partitions=3, number=2)
    for partition in many.partitions:
        topics.produce(partition, b"1", b"2")
    results = frame(spark, topics, "select offset from many where partition = 1 and offset > 0")
    assert results.rdd.getNumPartitions() == 1
    assert [row.offset for row in results.collect()] == [1]


def test_a_command_runs_once_and_over_all_columns(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    directory = (tmp_path / "out").as_uri()
    select = "select offset, cast(value as string) from orders"
    spark.sql(f"create table copied (at bigint, text string) using parquet location '{directory}'")
    try:
        frame(spark, topics, f"insert into copied {select}")
        frame(spark, topics, f"with o as ({select}) insert into copied select * from o where offset = 0")
        rows = spark.table("copied").orderBy("at").collect()
        assert [tuple(row) for row in rows] == [(0, "1"), (0, "1"), (1, "20"), (2, None)]
    finally:
        spark.sql("drop table copied")
    other = tmp_path / "other"
    frame(spark, topics, f"insert overwrite directory '{other.as_uri()}' using csv {select}")
    assert sorted("".join(item.read_text() for item in other.glob("*.csv")).split()) == ["0,1", "1,20", "2,"]


def test_commands_that_show_something_have_rows(spark: SparkSession, topics: Topics) -> None:
    described = list(result(frame(spark, topics, "describe orders")).rows)
    assert ("value", "binary", None) in described
    assert list(result(frame(spark, topics, "set spark.sql.shuffle.partitions")).rows) == [
        ("spark.sql.shuffle.partitions", "2")
    ]


@pytest.mark.parametrize(
    "sql",
    ["begin select 1; select * from orders; end", "execute immediate 'select 1'", "call some.procedure()"],
)
def test_what_would_run_twice_is_refused(spark: SparkSession, topics: Topics, sql: str) -> None:
    with pytest.raises(SparkError, match="give one query or command"):
        frame(spark, topics, sql)


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
    results = [row for file in directory.glob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
    assert sorted(row["offset"] for row in results) == [0, 1, 2]
    with pytest.raises(SparkError, match="PATH_ALREADY_EXISTS"):
        write_parquet(rows, str(directory))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from others", r"^\[TABLE_OR_VIEW_NOT_FOUND\].*`others`"),
        ("select * from a.b", r"^\[TABLE_OR_VIEW_NOT_FOUND\]"),
        ("select * from korvet.others", r"^\[UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY\]"),
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


def test_topics_are_in_the_database_korvet_too(spark: SparkSession, topics: Topics) -> None:
    sql = """
        select o.offset, 'korvet.others' as text from korvet.orders o
        join KORVET . `all-customers` c on o.value = c.value
    """
    assert list(result(frame(spark, topics, sql)).rows) == [(0, "korvet.others")]
    assert views(spark) == []


def test_topics_that_differ_only_in_case_are_not_taken_for_each_other(
    spark: SparkSession, topics: Topics
) -> None:
    other = topics.make("Orders", "batch", number=2, remote_storage_enable="false")
    topics.produce(other.partitions[0], b"other")
    assert list(result(frame(spark, topics, "select count(*) from korvet.orders")).rows) == [(3,)]
    assert list(result(frame(spark, topics, "select count(*) from korvet.Orders")).rows) == [(1,)]
    assert list(result(frame(spark, topics, "select count(*) from Orders")).rows) == [(1,)]
    said = "the topics Orders and orders differ only in case"
    with pytest.raises(SparkError, match=said):
        frame(spark, topics, "select count(*) from orders a join korvet.Orders b using (offset)")
    options = {"redis.url": topics.source.redis_url}
    with pytest.raises(ValueError, match=said):
        register_topics(spark, **options)
    assert register_topics(spark, "O.*", **options) == ["korvet.`Orders`"]


def test_a_session_has_views_of_topics_which_are_read_as_they_are(
    spark: SparkSession, topics: Topics
) -> None:
    options = {"redis.url": topics.source.redis_url, "lake": topics.lake}
    topics.make("dotted.name", "batch", number=2)
    everything = ["korvet.`all-customers`", "korvet.`dotted.name`", "korvet.`orders`"]
    assert register_topics(spark, **options) == everything
    assert {row.viewName for row in spark.sql("show views in korvet").collect()} >= {"orders", "dotted.name"}

    def values() -> list[bytes | None]:
        rows = spark.sql("select value from korvet.orders where offset > 0 order by offset").collect()
        return [None if row.value is None else bytes(row.value) for row in rows]

    assert values() == [b"20", None]
    deletion = TopicDeletion(topics.stores.redis, Keys("korvet"))
    list(deletion.delete({"orders": topics.stores.topic("orders").id})[1])
    orders = topics.make("orders", "batch", number=3)
    topics.produce(orders.partitions[0], b"new", b"newer")
    assert values() == [b"newer"]
    assert register_topics(spark, "d.*", **options) == everything[1:2]
    assert spark.table("korvet.`dotted.name`").count() == 0
    with pytest.raises(ValueError, match="one of the options topic"):
        register_topics(spark, topic="orders", **options)


def test_a_literal_may_have_any_characters(spark: SparkSession) -> None:
    text = 'it\'s \\n \\ a "lake"'
    assert [row[0] for row in spark.sql(f"select {literal(text)}").collect()] == [text]


def test_views_take_any_options_and_show_none_of_them(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    lake = tmp_path / "it's a lake"
    shutil.copytree(topics.lake, lake)
    [orders] = topics.stores.topic("orders").partitions
    topics.trim(orders, 1)
    secret = {"lake.storage.options": "AWS_REGION=it's, AWS_SECRET_ACCESS_KEY=hidden"}
    [name] = register_topics(
        spark, "orders", lake=str(lake), **{"redis.url": topics.source.redis_url}, **secret
    )
    assert [row.offset for row in spark.sql(f"select offset from {name} order by 1").collect()] == [0, 1, 2]
    for shown in (f"explain extended select * from {name}", f"describe extended {name}"):
        text = str(spark.sql(shown).collect())
        assert "offset" in text
        assert "hidden" not in text
