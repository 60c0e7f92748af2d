"""korvet/spark/pipelines/plan.py: which part of a transformation keeps state, as text, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from korvet.spark.pipelines.plan import bad, batch_frame, good, plan
from korvet.spark.pipelines.spec import PipelineError, PipelineSpec, SourceSpec, TargetSpec, TransformSpec
from tests.support.archives import Topics, archive, trim


def decoded(spark: SparkSession) -> DataFrame:
    """Return a stream with the columns of a source that is decoded."""
    null = f.lit(None).cast("string")
    value = f.struct(f.col("value").alias("a_1"), f.col("value").alias("a_2"), "timestamp")
    return (
        spark.readStream.format("rate")
        .load()
        .select(
            null.alias("key"),
            value.alias("value"),
            f.lit("orders").alias("topic"),
            *(f.lit(0).alias(name) for name in ("partition", "offset")),
            "timestamp",
            *(null.alias(name) for name in ("_error", "_raw_key", "_raw_value")),
        )
    )


def state(spark: SparkSession, sql: str | None = None, python: str | None = None) -> str:
    spec = PipelineSpec(
        name="orders",
        sources={"orders": SourceSpec(name="orders", topics=("orders",))},
        transform=TransformSpec(sql=sql, python=python),
        target=TargetSpec(type="delta", path="tables/orders"),
    )
    try:
        return plan(spark, spec, {"orders": decoded(spark)}).state
    finally:
        # Tests of the same session have topics of this name.
        spark.catalog.dropTempView("orders")


COMMON = "WITH some AS (SELECT value.* FROM orders WHERE value.a_1 > 1)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            f"{COMMON} SELECT sum(a_1) s FROM some",
            f"{COMMON.replace('> 1', '> 2')} SELECT sum(a_1) s FROM some",
        ),
        (
            f"{COMMON} SELECT l.a_1 FROM some l JOIN some r ON l.a_1 = r.a_2",
            f"{COMMON.replace('> 1', '> 2')} SELECT l.a_1 FROM some l JOIN some r ON l.a_1 = r.a_2",
        ),
        ("SELECT sum(value.a_1) s FROM orders", "SELECT max(value.a_1) s FROM orders"),
        (
            "SELECT sum(a_1) s FROM (SELECT value.* FROM orders)",
            "SELECT sum(a_2) s FROM (SELECT value.* FROM orders)",
        ),
    ],
    ids=["common table", "common table joined", "aggregate", "numbered columns"],
)
def test_the_text_of_state_changes_with_the_state_only(spark: SparkSession, before: str, after: str) -> None:
    result = state(spark, before)
    assert result
    assert state(spark, before) == result
    assert state(spark, after) != result


def test_a_transformation_without_state_has_no_such_text(spark: SparkSession) -> None:
    assert state(spark, "SELECT value.a_1, -offset o FROM orders WHERE value.a_2 > 2") == ""


def test_numbers_of_lambda_variables_are_no_part_of_the_state(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "most.py"
    file.write_text(
        "from pyspark.sql import functions as f\n"
        "def transform(orders):\n"
        "    values = f.transform(f.array('value.a_1'), lambda each: each + 1)\n"
        "    return orders.groupBy().agg(f.max(values).alias('most'))\n"
    )
    assert state(spark, python=str(file)) == state(spark, python=str(file))


def test_a_watermark_does_not_replace_a_column_of_the_record(spark: SparkSession) -> None:
    source = SourceSpec(name="orders", topics=("orders",), watermark=("value.timestamp", "1 hour"))
    with pytest.raises(
        PipelineError, match=r"orders\.watermark: .*timestamp is a column of the record already"
    ):
        good(decoded(spark), source)
    assert (
        "timestamp"
        in good(decoded(spark), msgspec.structs.replace(source, watermark=("timestamp", "1 hour"))).columns
    )


def test_both_tiers_are_one_source_or_one_is_read_alone(spark: SparkSession, topics: Topics) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, b"1", b"2")
    archive(topics)
    trim(topics, partition)
    topics.produce(partition, b"3")
    for tiers, offsets in (("both", [0, 1, 2]), ("hot", [2]), ("archived", [0, 1])):
        source = SourceSpec(name="orders", topics=("orders",), tiers=tiers)  # type: ignore[arg-type]  # a text
        assert sorted(row.offset for row in batch_frame(spark, topics.source, source).collect()) == offsets


def overwriting(spark: SparkSession, sql: str, **settings: str) -> None:
    """Plan to overwrite partitions."""
    target = TargetSpec(type="delta", path="t", mode="overwrite", partition_by=("day",), **settings)  # type: ignore[arg-type]  # a text
    spec = PipelineSpec(
        name="orders",
        sources={"orders": SourceSpec(name="orders", topics=("orders",))},
        transform=TransformSpec(sql=sql),
        target=target,
    )
    plan(spark, spec, {"orders": decoded(spark)})
    spark.catalog.dropTempView("orders")


def test_rows_that_are_no_aggregate_overwrite_partitions_only_if_the_file_says_so(
    spark: SparkSession,
) -> None:
    item = "SELECT date(timestamp) day, value.a_1 FROM orders"
    with pytest.raises(PipelineError, match=r'^target\.mode: overwrite .* replace = "partitions" .*$'):
        overwriting(spark, item)
    overwriting(spark, item, replace="partitions")
    overwriting(spark, "SELECT date(timestamp) day, count(*) orders FROM orders GROUP BY 1")


def test_records_are_dead_letters_or_end_the_query_by_what_is_expected_of_them(spark: SparkSession) -> None:
    columns = "key STRING, value INT, topic STRING, partition INT, offset BIGINT, _error STRING"
    columns += ", _raw_key STRING, _raw_value STRING"
    values = [(None, "no number"), (5, None), (-5, None), (None, None), (500, None)]
    frame = spark.createDataFrame(
        [("k", value, "orders", 0, at, error, "k", "v") for at, (value, error) in enumerate(values)], columns
    ).withColumn("timestamp", f.current_timestamp())

    def offsets(on_error: str, **expect: str) -> tuple[list[int], dict[int, str]]:
        conditions = {"positive": "value > 0", "known": "value IS NOT NULL", "small": "value < 100"}
        wanted = {conditions[name]: action for name, action in expect.items()}
        source = SourceSpec(name="orders", topics=("orders",), on_error=on_error, expect=wanted)  # type: ignore[arg-type]  # texts
        dead = {row.offset: row.error for row in bad(frame, source).collect()}
        return sorted(row.offset for row in good(frame, source).collect()), dead

    assert offsets("dead_letters", positive="dead_letters", small="count") == (
        [1, 3, 4],
        {0: "no number", 2: "expected value > 0"},
    )
    assert (
        offsets("dead_letters", positive="dead_letters", known="dead_letters")[1][3]
        == "expected value IS NOT NULL"
    )
    with pytest.raises(Exception, match=r"orders-0@4: expected value < 100"):
        offsets("dead_letters", small="fail")
    with pytest.raises(Exception, match=r"cannot decode orders-0@0: no number"):
        offsets("fail", positive="dead_letters")
    with pytest.raises(PipelineError, match=r"^sources\.orders\.expect: valeu > 0: .*valeu"):
        good(frame, SourceSpec(name="orders", topics=("orders",), expect={"valeu > 0": "count"}))
