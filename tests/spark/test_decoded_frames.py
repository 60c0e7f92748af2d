"""korvet/spark/decoding.py in jobs of users: any frame with bytes, and what it must not have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from korvet.spark.decoding import Decoding, PipelineError, decode
from tests.support.archives import Topics
from tests.support.batches import Record

DOCS = Path(__file__).parents[2] / "docs/lake/spark.md"

IDS = Decoding(format="json", schema="id INT NOT NULL")


def frame_of(spark: SparkSession, schema: str, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(rows, schema)


def test_columns_of_bytes_or_text_are_decoded_and_others_are_as_they_were(spark: SparkSession) -> None:
    frame = frame_of(
        spark,
        "number INT, body STRING, line BINARY, more STRING",
        (1, '{"id":1}', b"2,x", "kept"),
        (2, "{}", b"3", None),
        (3, None, None, None),
    )
    rows = decode(frame, {"body": IDS, "line": Decoding(format="csv", schema="n INT, name STRING")})
    assert rows.columns == ["number", "body", "line", "more", "_error", "_raw_body", "_raw_line"]
    good, bad, empty = rows.orderBy("number").collect()
    assert good == Row(
        number=1,
        body=Row(id=1),
        line=Row(n=2, name="x"),
        more="kept",
        _error=None,
        _raw_body=b'{"id":1}',
        _raw_line=b"2,x",
    )
    assert bad._error == "body: id is missing; line: not one line of 2 columns"
    assert (bytes(bad._raw_body), bytes(bad._raw_line)) == (b"{}", b"3")
    assert (empty.body, empty.line, empty._error) == (None, None, None)


def test_a_decoded_frame_observes_nothing_unless_it_is_asked_to(spark: SparkSession) -> None:
    frame = frame_of(spark, "value STRING", ('{"id":1,"more":2}',))

    def plan(**more: Any) -> str:
        text: str = decode(frame, {"value": IDS}, **more)._jdf.queryExecution().analyzed().toString()
        return text

    assert "CollectMetrics" not in plan()
    assert "CollectMetrics lost.value" in plan(metrics="lost")


@pytest.mark.parametrize(
    ("schema", "of", "problem"),
    [
        ("other BINARY", IDS, "value: the frame needs one column value of BINARY or STRING: it is missing"),
        ("value INT", IDS, "value: the frame needs one column value of BINARY or STRING: it is int"),
        ("value BINARY, _error INT", IDS, "value: the frame has a column _error already"),
        ("value BINARY, _raw_value INT", IDS, "value: the frame has a column _raw_value already"),
        ("value BINARY", Decoding(format="json"), "value: there is no schema"),
        (
            "value BINARY",
            Decoding(format="avro", registry=True, subject="orders-value"),
            "value.registry: there is no [registry] with its url",
        ),
    ],
)
def test_a_frame_that_cannot_be_decoded_is_refused(
    spark: SparkSession, schema: str, of: Decoding, problem: str
) -> None:
    with pytest.raises(PipelineError, match=f"^{re.escape(problem)}$"):
        decode(frame_of(spark, schema), {"value": of})


def test_the_example_of_the_docs_decodes_records_of_a_topic(spark: SparkSession, topics: Topics) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, Record(b'{"id":1,"amount":2.5}', b"1"), Record(b"half an or", b"2"))
    section = DOCS.read_text().partition("## Decoding records\n")[2].partition("\n## ")[0]
    code = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    options = {"redis.url": topics.source.redis_url, "lake": topics.lake, "topic": "orders"}
    records = spark.read.format("korvet").options(**options).load()
    names: dict[str, Any] = {"records": records}
    exec(code, names)  # noqa: S102 - of the docs
    assert names["good"].collect() == [Row(id=1, amount=2.5, offset=0)]
    assert names["bad"].collect() == [
        Row(offset=1, _raw_value=bytearray(b"half an or"), _error="value: not one JSON text")
    ]
