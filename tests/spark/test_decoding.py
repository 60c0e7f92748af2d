"""korvet/spark/decoding.py, by pipelines: texts, JSON, CSV and headers as columns, and why bytes do not decode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from korvet.spark.pipelines import avro
from korvet.spark.pipelines.decoding import DecoderState, decode, digest
from korvet.spark.pipelines.registry import Schema
from korvet.spark.pipelines.spec import Decoding, PipelineError, SourceSpec, Unit
from korvet.spark.pipelines.status import _counts_of

READ = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,"
    " headers array<struct<key: string, value: binary>>"
)
NOW = datetime(2026, 11, 27, tzinfo=UTC)


class Files:
    """The pins of a pipeline, in memory."""

    def __init__(self, content: dict[str, bytes] | None = None) -> None:
        self.content = dict(content or {})

    def read(self, name: str) -> bytes | None:
        return self.content.get(name)

    def write(self, name: str, data: bytes) -> None:
        self.content[name] = data


def frame_of(
    spark: SparkSession, values: Sequence[bytes | None], key: bytes | None = b"k", **more: Any
) -> DataFrame:
    rows = [
        (key, value, "orders", 0, offset, NOW, 0, more.get("headers")) for offset, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, READ)


def decoded(spark: SparkSession, values: list[bytes | None], of: Decoding) -> list[Row]:
    frame = frame_of(spark, values)
    state = DecoderState(Files(), lambda _: frame)
    return decode(frame, SourceSpec(name="orders", value=of), state).collect()


def plain(value: Any) -> Any:
    return value.asDict(recursive=True) if isinstance(value, Row) else value


def outcome(row: Row) -> Any:
    """Return the error of a row, else its value."""
    return plain(row.value) if row._error is None else row._error


def check(spark: SparkSession, of: Decoding, expected: Sequence[tuple[bytes | None, Any]]) -> None:
    rows = decoded(spark, [value for value, _ in expected], of)
    assert [bytes(row._raw_value) if row._raw_value is not None else None for row in rows] == [
        value for value, _ in expected
    ]
    assert [outcome(row) for row in rows] == [result for _, result in expected]


ORDERS = (
    "id BIGINT NOT NULL, amount DOUBLE, at TIMESTAMP, to STRUCT<city: STRING NOT NULL, zip: INT>,"
    " lines ARRAY<STRUCT<sku: STRING NOT NULL>>, tags MAP<STRING, STRUCT<weight: INT NOT NULL>>"
)
EMPTY = {"amount": None, "at": None, "to": None, "lines": None, "tags": None}
WHOLE = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - as Spark gives them to Python
NO_JSON = "value: not one JSON text"
NO_TIME = "is not TIMESTAMP (years 1 to 9999"
DEEP = b"[" * 5000 + b"]" * 5000


def test_json_is_columns_or_says_what_is_wrong_with_it(spark: SparkSession) -> None:
    time = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - as Spark gives them to Python
    whole = {
        "id": 1,
        "amount": 2.5,
        "at": time,
        "to": {"city": "Oslo", "zip": None},
        "lines": [{"sku": "a"}, None],
        "tags": {"x": {"weight": 3}},
    }
    text = (
        b'{"id":1,"amount":2.5,"at":"2026-01-02T03:04:05Z","to":{"city":"Oslo"},"lines":[{"sku":"a"},null],'
        b'"tags":{"x":{"weight":3}},"other":' + b"[" * 900 + b"]" * 900 + b"}"
    )
    check(
        spark,
        Decoding(format="json", schema=ORDERS),
        [
            (text, whole),
            (b' {"id":1,"amount":null}\r\n', {"id": 1} | EMPTY),
            (None, None),
            # Not JSON, or more than that.
            (b"", NO_JSON),
            (b"{'id':1}", NO_JSON),
            (b'{"id":1', NO_JSON),
            (b'{"id":1} {"id":2}', NO_JSON),
            (b'{"id":1}, "id":2', "value: it does not fit the schema"),
            (b'{"id":1},{"id":2}', NO_JSON),
            (b'{"id":1}]', NO_JSON),
            (b'{"id":1}}', NO_JSON),
            (b'{"id":1}],"end":"","value":[{"id":2}', NO_JSON),
            (b'{"id":1}],"other":[{"id":2}', NO_JSON),
            (b'{"id":1}},"other":{"value":{"id":2}', NO_JSON),
            (b'{"id":1},"value":{"id":2}', NO_JSON),
            (b'{"id":' + DEEP + b"}", NO_JSON),
            (b'{"other":' + DEEP + b"}", NO_JSON),
            (b'\x00\x00\x00\x00\x01{"id":1}', NO_JSON),
            (b'{"id":1,"other":"\xff"}', "value: not valid UTF-8"),
            # JSON of other types.
            (b"null", "value: null"),
            (b"[1]", "value: it does not fit the schema"),
            (b'[{"id":1}]', "value: it does not fit the schema"),
            (b'{"id":"1","amount":"x"}', "value: id is not BIGINT, amount is not DOUBLE"),
            (b'{"id":1.5}', "value: id is not BIGINT"),
            (b'{"id":99999999999999999999}', "value: id is not BIGINT"),
            (b'{"id":' + b"9" * 2000 + b"}", NO_JSON),
            (b'{"id":1,"at":"tomorrow"}', f"value: at {NO_TIME}, numbers in seconds)"),
            (b'{"id":1,"to":{"city":"Oslo","zip":"x"}}', "value: it does not fit the schema"),
            # Fields that are required.
            (b"{}", "value: id is missing"),
            (b'{"id":null,"to":{}}', "value: id is missing, to.city is missing"),
            (b'{"id":1,"lines":[{"sku":"a"},{}]}', "value: lines[].sku is missing"),
            (b'{"id":1,"tags":{"x":{}}}', "value: tags[].weight is missing"),
        ],
    )


def test_json_may_be_of_any_type(spark: SparkSession) -> None:
    expected = [(b"5", 5), (b"null", "value: null"), (b'"5"', "value: not BIGINT"), (b"5 6", NO_JSON)]
    check(spark, Decoding(format="json", schema="BIGINT"), expected)
    check(
        spark,
        Decoding(format="json", schema="ARRAY<INT>"),
        [(b"[1,2]", [1, 2]), (b"[1,{}]", "value: not ARRAY<INT>")],
    )


def test_options_of_spark_are_those_of_its_parsers(spark: SparkSession) -> None:
    options = {"allowSingleQuotes": "true", "timestampFormat": "dd.MM.yyyy"}
    time = datetime(2026, 1, 2)  # noqa: DTZ001 - as Spark gives them to Python
    # The text is no date, but the parser of Spark 2 took it for one: Spark would end the query.
    expected = [
        (b"{'at':'02.01.2026'}", {"at": time}),
        (b"{'at':1767323045}", {"at": WHOLE}),
        (b'{"at":"02.01.2026 and more"}', f"value: at {NO_TIME}, numbers in seconds)"),
    ]
    check(spark, Decoding(format="json", schema="at TIMESTAMP", options=options), expected)


def test_lines_of_csv_are_columns_or_say_what_is_wrong_with_them(spark: SparkSession) -> None:
    def row(number: int, end: float | None, corrupt: str | None) -> dict[str, Any]:
        return {"id": number, "end": end, "corrupt": corrupt}

    columns = "value: not one line of 3 columns"
    check(
        spark,
        Decoding(format="csv", schema="id BIGINT NOT NULL, `end` DOUBLE, corrupt STRING"),
        [
            (b"1,2.5,x", row(1, 2.5, "x")),
            (b'1,,"x,\ny"\r\n', row(1, None, "x,\ny")),
            (None, None),
            (b"", columns),
            (b"1,2.5", columns),
            (b"1,2.5,x,y", columns),
            (b"1,2.5,x\n2,2.5,x", columns),
            (b"1,2.5,x,end\n2,2.5,x", columns),
            (b'1,2.5,"x', columns),
            (b"one,two,x", "value: id is not BIGINT, end is not DOUBLE"),
            (b",2.5,x", "value: id is missing"),
            (b"1,2.5,\xff", "value: not valid UTF-8"),
        ],
    )
    semicolons = Decoding(
        format="csv", schema="id INT, name STRING", options={"delimiter": ";", "comment": "#"}
    )
    check(
        spark,
        semicolons,
        [(b"1;a,b", {"id": 1, "name": "a,b"}), (b"#1;a", "value: not one line of 2 columns")],
    )


TIMES = (
    "at TIMESTAMP, to STRUCT<at: TIMESTAMP, zip: INT>, lines ARRAY<STRUCT<at: TIMESTAMP NOT NULL>>,"
    " tags MAP<STRING, TIMESTAMP>"
)
PART = WHOLE.replace(microsecond=250_000)


@pytest.mark.parametrize(
    ("unit", "number", "other", "time"),
    [
        (None, b"1767323045", b"1767323045000", WHOLE),
        # As seconds they wrap around to a year between 1 and 9999.
        (None, b"1767323045.25", b"1767323045017384", PART),
        ("seconds", b"253402300799", b"253402300800", datetime(9999, 12, 31, 23, 59, 59)),  # noqa: DTZ001 - the same
        ("milliseconds", b"1767323045250", b"1767323045250000", PART),
        ("milliseconds", b"1.767323045E12", b"1e300", WHOLE),
        ("microseconds", b"1767323045250000", b"1767323045250000000", PART),
    ],
)
def test_a_number_of_json_is_a_time_of_the_years_1_to_9999_in_its_unit_or_an_error(
    spark: SparkSession, unit: Unit | None, number: bytes, other: bytes, time: datetime
) -> None:
    problem = f"{NO_TIME}, numbers in {unit or 'seconds'})"
    whole = b'{"at":%b,"to":{"at":%b},"lines":[{"at":%b},null],"tags":{"a":%b,"b":null}}'
    none = {"at": None, "to": None, "lines": None, "tags": None}
    expected: list[tuple[bytes, Any]] = [
        (
            whole % ((number,) * 4),
            {
                "at": time,
                "to": {"at": time, "zip": None},
                "lines": [{"at": time}, None],
                "tags": {"a": time, "b": None},
            },
        ),
        (
            whole % ((other,) * 4),
            f"value: at {problem}, to.at {problem}, lines[].at {problem}, tags[] {problem}",
        ),
        (b'{"at":"2026-01-02T03:04:05.25Z"}', none | {"at": PART}),
        (b'{"at":"+58692-01-02T03:04:05Z"}', f"value: at {problem}"),
        (b'{"at":null}', none),
        (b'{"at":true}', f"value: at {problem}"),
        (b'{"at":[1]}', f"value: at {problem}"),
        (b'{"lines":[{"at":null}]}', "value: lines[].at is missing"),
        (b'{"at":%b,"to":1}' % other, f"value: at {problem}, to is not STRUCT<AT:TIMESTAMP,ZIP:INT>"),
    ]
    check(spark, Decoding(format="json", schema=TIMES, unit=unit), expected)


def test_numbers_of_csv_are_times_if_their_unit_is_given(spark: SparkSession) -> None:
    problem = f"value: at {NO_TIME}"
    check(
        spark,
        Decoding(format="csv", schema="id INT, at TIMESTAMP", unit="milliseconds"),
        [
            (b"1,1767323045250", {"id": 1, "at": PART}),
            (b"1,", {"id": 1, "at": None}),
            (b"1,2026-01-02T03:04:05Z", f"{problem}, numbers in milliseconds)"),
            (b"1,1767323045250000", f"{problem}, numbers in milliseconds)"),
            (b"x,1e99", f"value: id is not INT, at {NO_TIME}, numbers in milliseconds)"),
        ],
    )
    check(
        spark,
        Decoding(format="csv", schema="id INT, at TIMESTAMP"),
        [
            (b"1,2026-01-02T03:04:05Z", {"id": 1, "at": WHOLE}),
            (b"1,1767323045250", f"{problem})"),
            (b"1,+58692-01-02", f"{problem})"),
        ],
    )


def test_fields_that_a_schema_lacks_are_errors_or_a_column(spark: SparkSession) -> None:
    texts = [
        b'{"id":1}',
        b'{"id":2,"more":[1.50,{"a":null}],"at":"x"}',
        b'{"id":3,"' + b'":0,"'.join(b"f%02d" % number for number in range(22)) + b'":0}',
        b'{"id":4,"more":{"a":1,"a":2}}',
        b"[1]",
        None,
    ]
    misfit = "value: it does not fit the schema"
    named = ", ".join(f"f{number:02}" for number in range(20))
    lacks = ["at, more", f"{named} and 2 more", "more"]
    errors = [f"value: the schema lacks {fields}" for fields in lacks]
    check(
        spark,
        Decoding(format="json", schema="id INT", unknown="dead_letters"),
        list(zip(texts, [{"id": 1}, *errors, misfit, None], strict=True)),
    )
    kept = [
        None,
        '{"more":[1.5,{"a":null}],"at":"x"}',
        json.dumps({f"f{number:02}": 0 for number in range(22)}),
    ]
    rows = [
        {"id": number + 1, "_unknown": text and text.replace(" ", "")} for number, text in enumerate(kept)
    ]
    lost = "value: the schema lacks fields that are no JSON to keep: more"
    check(
        spark,
        Decoding(format="json", schema="id INT", unknown="column"),
        list(zip(texts, [*rows, lost, misfit, None], strict=True)),
    )
    quoted = Decoding(
        format="json",
        schema="id INT, at TIMESTAMP",
        unknown="column",
        options={"allowSingleQuotes": "true"},
    )
    check(spark, quoted, [(b"{'id':1,'x':2}", {"id": 1, "at": None, "_unknown": '{"x":2}'})])


def test_fields_of_json_that_are_not_read_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    texts = [b'{"id":1}', b'{"b":0,"a":0}', b'\0\0\0\0\1{"a":0,"b":1}', b'{"c":1}', b"no JSON", None]
    source = SourceSpec(name="orders", key=Decoding(format="json", schema="id INT"))
    source = msgspec.structs.replace(source, value=msgspec.structs.replace(source.key, registry=True))
    frame = frame_of(spark, texts)
    frame.withColumn("key", f.col("value")).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(READ).parquet(str(tmp_path / "rows"))
    rows = decode(stream, source, DecoderState(Files(), lambda _: frame))
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    [progress] = [progress for progress in query.recentProgress if progress.numInputRows]
    result = {
        name: dict(_counts_of(metrics))
        for name, metrics in json.loads(progress.json)["observedMetrics"].items()
    }
    assert result == {
        "unread orders.key": {"a, b": 1, "c": 1, "other fields": 0},
        "unread orders.value": {"a, b": 1, "other fields": 0},
    }


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (
            {},
            {
                b'1,"a ""quoted"" word"': 'a "quoted" word',
                b'1,"""all"""': '"all"',
                b'1,"two\nlines, ""one""\r\nrecord"\r\n': 'two\nlines, "one"\r\nrecord',
                b'1,"C:\\dir\\"': "C:\\dir\\",
                b'1,"open""': None,
            },
        ),
        ({"quote": "'"}, {b"1,'it''s, \"so\"'": 'it\'s, "so"'}),
        ({"ESCAPE": "\\"}, {b'1,"a \\"quoted\\" word"': 'a "quoted" word'}),
    ],
)
def test_quotes_of_csv_are_doubled_within_quotes_unless_an_option_says_otherwise(
    spark: SparkSession, options: dict[str, str], texts: dict[bytes, str | None]
) -> None:
    wrong = "value: not one line of 2 columns"
    expected = [(line, wrong if text is None else {"id": 1, "note": text}) for line, text in texts.items()]
    check(spark, Decoding(format="csv", schema="id INT, note STRING", options=options), expected)


def test_keys_and_headers_are_decoded_too(spark: SparkSession) -> None:
    source = SourceSpec(
        name="orders",
        key=Decoding(format="json", schema="BIGINT"),
        value=Decoding(format="string"),
        headers={"trace": "string", "sign": "bytes"},
    )

    def row(key: bytes | None, value: bytes, headers: Sequence[tuple[str, bytes | None]] | None) -> Row:
        frame = frame_of(spark, [value], key, headers=headers)
        (result,) = decode(frame, source, DecoderState(Files(), lambda _: frame)).collect()
        return result

    headers = [("trace", b"first"), ("sign", b"\xff"), ("trace", b"last"), ("other", b"\xff")]
    result = row(b"7", b"text", headers)
    assert (result.key, result.value, plain(result.headers)) == (
        7,
        "text",
        {"trace": "last", "sign": b"\xff"},
    )
    assert (result.topic, result.partition, result.offset, result._error) == ("orders", 0, 0, None)
    assert (bytes(result._raw_key), bytes(result._raw_value)) == (b"7", b"text")
    for missing in (None, [("trace", None)]):
        result = row(None, b"", missing)
        assert (result.key, result.value, plain(result.headers)) == (None, "", {"trace": None, "sign": None})
        assert result._error is None
    result = row(b"x", b"\xff", [("trace", b"\xff")])
    assert result._error == "key: not one JSON text; value: not valid UTF-8; header trace: not valid UTF-8"


def test_records_without_formats_are_as_they_were(spark: SparkSession) -> None:
    frame = frame_of(spark, [b"\xff", None], headers=[("a", b"b")])
    rows = decode(frame, SourceSpec(name="orders"), DecoderState(Files(), lambda _: frame)).collect()
    assert [(row.value, row._raw_value, row._error) for row in rows] == [
        (b"\xff", b"\xff", None),
        (None, None, None),
    ]
    assert [plain(header) for header in rows[0].headers] == [{"key": "a", "value": b"b"}]


def test_a_schema_is_inferred_once(spark: SparkSession) -> None:
    files, asked = Files(), []
    first = frame_of(spark, [b'{"id":1}', None, b"no JSON", b'{"id":2.5,"name":"x"}'])
    source = SourceSpec(name="orders", value=Decoding(format="json", infer=True))

    def records(of: SourceSpec) -> DataFrame:
        asked.append(of)
        return first

    state = DecoderState(files, records)
    later = frame_of(spark, [b'{"id":3,"more":1}', b'{"id":"x"}'])
    for _ in range(2):
        rows = decode(later, source, state).collect()
        assert [outcome(row) for row in rows] == [{"id": 3.0, "name": None}, "value: id is not DOUBLE"]
    assert asked == [source]
    assert list(files.content) == ["schemas/orders.value.json"]
    empty = DecoderState(Files(), lambda _: frame_of(spark, [b"no JSON"]))
    with pytest.raises(PipelineError, match=r"^sources.orders.value.infer: none of the first 1 records is"):
        decode(later, source, empty)


def test_a_schema_may_be_in_a_file(spark: SparkSession, tmp_path: Path) -> None:
    ddl, structure = tmp_path / "orders.ddl", tmp_path / "orders.json"
    ddl.write_text("id BIGINT NOT NULL,\n  name STRING\n")
    structure.write_text(
        '{"type":"struct","fields":[{"name":"ids","nullable":true,"metadata":{},'
        '"type":{"type":"array","elementType":"long","containsNull":false}}]}'
    )
    check(
        spark,
        Decoding(format="json", schema_file=str(ddl)),
        [(b'{"id":1}', {"id": 1, "name": None}), (b"{}", "value: id is missing")],
    )
    check(
        spark,
        Decoding(format="json", schema_file=str(structure)),
        [(b'{"ids":[1]}', {"ids": [1]}), (b'{"ids":[1,null]}', "value: ids[] is missing")],
    )


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        (Decoding(format="json", schema="id NUMBER"), "value: the schema is not Spark's: .*NUMBER"),
        (Decoding(format="json", schema='{"type":"struct"}'), "value: the schema is not Spark's: "),
        (Decoding(format="json", schema="ids ARRAY<TINYINT>"), "value: JSON has no TINYINT: use SMALLINT"),
        (
            Decoding(format="json", schema="ARRAY<INT>", unknown="column"),
            'value: unknown = "column": only objects have fields',
        ),
        (
            Decoding(format="json", schema="_unknown INT", unknown="column"),
            'value: unknown = "column": the schema has a field _unknown of its own',
        ),
        (
            Decoding(format="json", schema="at DATE", unit="seconds"),
            'value: unit = "seconds": the schema has no TIMESTAMP',
        ),
        (Decoding(format="csv", schema="ids ARRAY<INT>"), "value: a line of CSV has columns of numbers"),
        (
            Decoding(format="json", schema="id INT", options={"Mode": "FAILFAST"}),
            "value.options: Mode cannot be given: what does not decode is an error, by on_error or in _error",
        ),
    ],
)
def test_schemas_and_options_that_cannot_be_used_are_refused(
    spark: SparkSession, of: Decoding, problem: str
) -> None:
    with pytest.raises(PipelineError, match=f"^sources.orders.{problem}"):
        decoded(spark, [b""], of)


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_schema_in_another_encoding_is_refused(spark: SparkSession, tmp_path: Path, kind: Any) -> None:
    file = tmp_path / "orders.ddl"
    file.write_bytes("größe INT".encode("latin-1"))
    problem = f"^sources.orders.value.schema_file: cannot read {file}: .*utf-8"
    with pytest.raises(PipelineError, match=problem):
        decoded(spark, [b""], Decoding(format=kind, schema_file=str(file)))


def test_records_are_parsed_once_whatever_a_query_does_with_them(spark: SparkSession) -> None:
    source = SourceSpec(name="orders", value=Decoding(format="json", schema=ORDERS))
    frame = frame_of(spark, [b'{"id":1}'])
    good = decode(frame, source, DecoderState(Files(), lambda _: frame)).where("_error IS NULL")
    rows = good.where("value.id > 0 AND offset = 0").select("value.id", "value.to.city").where("city IS NULL")
    plan = rows._jdf.queryExecution().optimizedPlan().toString()
    generator = plan.index("Generate explode(")
    assert plan.count("from_json(", generator) == 1
    # What needs no decoding is filtered before.
    assert "(offset#" in plan[generator:]
    assert rows.collect() == [Row(id=1, city=None)]


def test_json_after_the_header_of_a_registry_needs_that_header(spark: SparkSession) -> None:
    """As Confluent's serializers of JSON Schema write it: a zero, four bytes of the schema's id, the text."""
    one, missing = b"\0\0\0\1\xff", "value: no header of a schema registry"
    expected = [
        (one + b'{"id":1,"amount":2.5}', {"id": 1, "amount": 2.5}),
        (one.replace(b"\0", b"\x7f", 1)[:4] + b'{"id":1}', missing),
        (one, NO_JSON),
        (one + b'{"id":1', NO_JSON),
        (one[:4], missing),
        (b"", missing),
        (b'{"id":1,"amount":2.5}', missing),
        (None, None),
    ]
    check(spark, Decoding(format="json", registry=True, infer=True), expected)
    expected.append((one + b'{"id":"x"}', "value: id is not BIGINT"))
    check(spark, Decoding(format="json", registry=True, schema="id BIGINT, amount DOUBLE"), expected)


def test_a_digest_says_whether_records_are_decoded_in_another_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = frame_of(spark, [])
    file, same, other = (tmp_path / name for name in ("a.ddl", "b.ddl", "c.ddl"))
    for path, schema in ((file, "id INT"), (same, "id INT"), (other, "id INT NOT NULL")):
        path.write_text(schema)

    def of(value: Decoding, **more: Any) -> str:
        source = SourceSpec(name="orders", value=value, **more)
        return digest(source, decode(frame, source, DecoderState(Files(), lambda _: frame)), Files())

    text = Decoding(format="json", schema_file=str(file), options={"a": "1", "b": "2"})

    def changed(**changes: Any) -> str:
        return of(msgspec.structs.replace(text, **changes))

    first = of(text)
    assert changed(schema_file=str(same)) == changed(options={"b": "2", "a": "1"}) == first
    assert of(text, starting="latest", watermark=("value.id", "1 hour"), max_records_per_trigger=7) == first
    others = [
        changed(schema_file=str(other)),
        changed(schema_file=None, schema="id INT"),
        changed(format="csv"),
        changed(options={"a": "1"}),
        of(text, key=Decoding(format="string")),
        of(text, headers={"trace": "bytes"}),
        of(text, headers={"trace": "string"}),
    ]
    assert len({first, *others}) == 1 + len(others)


def avro_record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": fields[field]} for field in fields],
    }


RENAMED = avro_record("Order", id="int") | {"namespace": "old", "aliases": ["shop.Purchase"]}
RENAMED["fields"][0]["aliases"] = ["number"]


@pytest.mark.parametrize(
    ("reader", "writer", "fields"),
    [
        (avro_record("A", x="int"), avro_record("A", x="int", y="int", z="int"), ["A.y", "A.z"]),
        (avro_record("A", x="int", y="int"), avro_record("A", x="int"), []),
        (avro_record("A"), avro_record("A", b=avro_record("B", x="int")), ["A.b"]),
        (RENAMED, avro_record("shop.Purchase", number="int", more="int"), ["Purchase.more"]),
        *(
            (
                avro_record("A", b=at(avro_record("B", x="int"))),
                avro_record("A", b=at(avro_record("B", y="int"))),
                ["B.y"],
            )
            for at in (
                lambda of: ["null", of],
                lambda of: {"type": "array", "items": of},
                lambda of: {"type": "map", "values": ["null", of]},
            )
        ),
        # Two records of one simple name.
        (
            avro_record("A", b=avro_record("b.X", x="int"), c=avro_record("c.X", y="int")),
            avro_record("A", b=avro_record("b.X", x="int", y="int"), c=avro_record("c.X", y="int")),
            ["X.y"],
        ),
    ],
)
def test_fields_of_avro_that_are_not_read_are_known(
    spark: SparkSession, reader: dict[str, Any], writer: dict[str, Any], fields: list[str]
) -> None:
    schemas = [Schema(id=1, kind="AVRO", text=json.dumps(item)) for item in (reader, writer)]
    texts = [avro.whole_schema(spark, schema) for schema in schemas]
    assert avro.unread(*texts) == fields
