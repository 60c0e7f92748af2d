"""korvet/spark/pipelines/targets.py: which rows a table takes, and in which of its fields values go."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from korvet.spark.pipelines.spec import PipelineError, TargetSpec
from korvet.spark.pipelines.targets import DeltaTarget, check_place, fitted


def ddl(text: str) -> StructType:
    result = StructType.fromDDL(text)
    assert isinstance(result, StructType)
    return result


def differs(spark: SparkSession, wanted: str, there: str, evolution: str = "none") -> bool | str:
    """Return whether a table has to change for rows, or why it must not."""
    spec = TargetSpec(type="delta", path="t", schema_evolution=evolution)  # type: ignore[arg-type]  # a text of the parameters
    try:
        target = DeltaTarget(spark, spec, "/t")
        return target._differs(ddl(wanted), ddl(there))
    except PipelineError as error:
        return str(error)


@pytest.mark.parametrize(
    ("given", "there", "value", "result"),
    [
        ("STRUCT<last: INT, first: INT>", "STRUCT<first: BIGINT, last: BIGINT>", (1, 2), (2, 1)),
        ("STRUCT<a: INT, c: INT>", "STRUCT<a: INT, b: STRING, c: INT>", (1, 3), (1, None, 3)),
        ("STRUCT<b: INT, a: INT>", "STRUCT<a: INT, b: INT>", None, None),
        ("STRUCT<B: INT, A: INT>", "STRUCT<a: INT, b: INT>", (2, 1), (1, 2)),
        ("ARRAY<STRUCT<b: INT, a: INT>>", "ARRAY<STRUCT<a: INT, b: INT>>", [(2, 1), None], [(1, 2), None]),
        (
            "MAP<STRING, STRUCT<b: INT, a: INT>>",
            "MAP<STRING, STRUCT<a: INT, b: INT>>",
            {"k": (2, 1)},
            {"k": (1, 2)},
        ),
        ("MAP<STRUCT<b: INT, a: INT>, INT>", "MAP<STRUCT<a: INT, b: INT>, INT>", {(2, 1): 0}, {(1, 2): 0}),
        ("MAP<STRING, INT>", "MAP<STRING, BIGINT>", None, None),
        ("STRUCT<`order-id`: INT>", "STRUCT<`order-id`: BIGINT>", (1,), (1,)),
        ("STRUCT<s: STRUCT<b: INT, a: INT>>", "STRUCT<s: STRUCT<a: INT, b: INT>>", ((2, 1),), ((1, 2),)),
    ],
)
def test_values_go_to_the_field_of_their_name(
    spark: SparkSession, given: str, there: str, value: object, result: object
) -> None:
    narrow, wide = ddl(f"v {given}"), ddl(f"v {there}")
    rows = spark.createDataFrame([(value,)], narrow)
    made = rows.select(fitted(col("v"), narrow["v"].dataType, wide["v"].dataType).alias("v"))
    assert made.schema["v"].dataType.simpleString() == wide["v"].dataType.simpleString()
    assert made.collect() == [(result,)]
    # What goes to a table goes there by the same.
    target = DeltaTarget(spark, TargetSpec(type="delta", path="t"), "/t")
    target._types = {"v": wide["v"].dataType}
    assert target._cast(rows).collect() == [(result,)]


@pytest.mark.parametrize("of", ["{}", "ARRAY<{}>", "MAP<STRING, {}>"])
def test_structs_are_compared_by_the_names_of_their_fields(spark: SparkSession, of: str) -> None:
    there = "v " + of.format("STRUCT<first: INT, last: INT>")
    assert differs(spark, "v " + of.format("STRUCT<last: INT, first: INT>"), there) is False
    for other in ("STRUCT<first: INT, family: INT>", "STRUCT<first: INT, middle: INT, last: INT>"):
        assert "has no column v" in str(differs(spark, "v " + of.format(other), there))
        assert differs(spark, "v " + of.format(other), there, "add_columns") is True
    long = "v " + of.format("STRUCT<last: BIGINT>")
    assert 'last of /t is int there, and bigint in the result; "widen"' in str(
        differs(spark, long, there, "add_columns")
    )
    assert differs(spark, long, there, "widen") is True


@pytest.mark.parametrize(
    ("wanted", "there", "takes"),
    [
        ("INT", "BIGINT", True),
        ("INT", "DOUBLE", True),
        ("SMALLINT", "FLOAT", True),
        ("INT", "FLOAT", False),
        ("BIGINT", "FLOAT", False),
        ("BIGINT", "DOUBLE", False),
        ("BIGINT", "DECIMAL(20,0)", True),
        ("BIGINT", "DECIMAL(18,0)", False),
        ("DECIMAL(20,0)", "DOUBLE", False),
        ("BIGINT", "TIMESTAMP", False),
        ("TIMESTAMP", "BIGINT", False),
    ],
)
def test_a_table_takes_what_it_can_hold_without_a_loss(
    spark: SparkSession, wanted: str, there: str, *, takes: bool
) -> None:
    result = differs(spark, f"v {wanted}", f"v {there}")
    assert result is False if takes else "the column v of /t is" in str(result)


def test_a_column_does_not_become_text(spark: SparkSession) -> None:
    result = str(differs(spark, "v STRING", "v BIGINT", "widen"))
    assert result.endswith("is bigint there, and string in the result")


def test_a_table_does_not_lie_over_what_the_lake_has(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for item in ("orders/AAECAwQFBgcICQoLDA0ODw", "tables/customers_dead_letters", "tables/orders"):
        (lake / item / "_delta_log").mkdir(parents=True)
    over = (
        "orders",
        "orders/",
        "orders/AAECAwQFBgcICQoLDA0ODw",
        "orders/sub",
        "tables/../orders",
        "_pipelines/x",
    )
    for path in (*over, ".", "..", str(lake), f"file://{lake}/orders", str(tmp_path)):
        with pytest.raises(PipelineError, match=r"target.path: .* lies over archived topics or pipelines"):
            check_place(spark, str(lake), path, "target")
    for path in (
        "tables",
        "tables/orders",
        "orders_rows",
        "new",
        str(tmp_path / "lake2"),
        "s3://bucket/orders",
    ):
        check_place(spark, str(lake), path, "target")
