"""Avro and Protobuf of pipelines: what Confluent's client writes by Apicurio's registry, and bytes that are neither."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema as RegisteredSchema
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from korvet.spark.decoding import decode as decode_frame
from korvet.spark.pipelines.decoding import DecoderState, decode
from korvet.spark.pipelines.registry import SchemaRegistry
from korvet.spark.pipelines.schemas import NewSchemaError
from korvet.spark.pipelines.spec import Decoding, PipelineError, RegistrySpec, SourceSpec
from tests.jvm.spark import jars
from tests.spark.test_decoding import PART, Files, frame_of, outcome, plain
from tests.spark.test_protobuf import descriptors, files, message_of
from tests.support.spark_driver import Driver, spark_driver


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Give a driver with Spark's Avro."""
    with spark_driver(tmp_path_factory.mktemp("spark"), jars.prepare()) as running:
        yield running


def outcomes(
    spark: SparkSession,
    values: Sequence[bytes | None],
    of: Decoding,
    files: dict[str, bytes],
    url: str | None,
) -> tuple[list[Any], dict[str, bytes]]:
    """Decode values with the pins of `files`; return what comes of them, and the pins."""
    pins = Files(files)
    asked = None if url is None else SchemaRegistry(RegistrySpec(url=url))
    frame = frame_of(spark, values)
    state = DecoderState(pins, lambda _: frame, asked)
    rows = decode(frame, SourceSpec(name="orders", value=of), state).collect()
    return [outcome(row) for row in rows], pins.content


def record(name: str, *fields: dict[str, Any], namespace: str = "shop") -> str:
    return json.dumps({"type": "record", "name": name, "namespace": namespace, "fields": fields})


ID, NAME = {"name": "id", "type": "long"}, {"name": "name", "type": "string"}
ORDER = record("Order", ID, NAME)


def written(schema: str, value: Any) -> bytes:
    """Write a record as fastavro does, without a header."""
    to = io.BytesIO()
    fastavro.schemaless_writer(to, fastavro.parse_schema(json.loads(schema)), value)
    return to.getvalue()


MALFORMED = "value: not one record of the schema"
ORDER_1 = b"\x02\x02x"


def test_avro_of_a_file_is_columns_or_says_what_is_wrong_with_it(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(ORDER)
    expected = [
        (written(ORDER, {"id": 1, "name": "x"}), {"id": 1, "name": "x"}),
        (None, None),
        (b"", MALFORMED),
        (ORDER_1[:-1], MALFORMED),
        (ORDER_1 + b"\0", MALFORMED),
        (ORDER_1 * 2, MALFORMED),
        # Lengths that are negative, of ten bytes and more, and of 2 GiB: memory for that ends Java.
        (b"\x02\x01", MALFORMED),
        (b"\x02" + b"\xff" * 9 + b"\x01", MALFORMED),
        (b"\xff" * 40, MALFORMED),
        (b"\x02\xf0\xff\xff\xff\x0fx", MALFORMED),
        (b"\x02\xf0\xff\xff\xff\x07x", MALFORMED),
        (b"\x02\x02\xff", "value: name is not valid UTF-8"),
    ]
    of = Decoding(format="avro", schema_file=str(file))
    results, _ = driver.run(outcomes, [value for value, _ in expected], of, {}, None)
    assert results == [result for _, result in expected]


def test_texts_anywhere_in_avro_are_valid_or_an_error(driver: Driver, tmp_path: Path) -> None:
    schema = record(
        "Order",
        {"name": "lines", "type": {"type": "array", "items": ["null", json.loads(record("Line", NAME))]}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    )
    file = tmp_path / "order.avsc"
    file.write_text(schema)
    value = {"lines": [None, {"name": "a"}], "tags": {"k": "v"}}
    good = written(schema, value)
    values = [good, good.replace(b"a", b"\xff"), good.replace(b"k", b"\xff"), good.replace(b"v", b"\xff")]
    result, _ = driver.run(outcomes, values, Decoding(format="avro", schema_file=str(file)), {}, None)
    assert result == [
        value,
        "value: lines[].name is not valid UTF-8",
        "value: tags[] is not valid UTF-8",
        "value: tags[] is not valid UTF-8",
    ]


def test_times_of_avro_are_of_the_years_1_to_9999_or_an_error(driver: Driver, tmp_path: Path) -> None:
    time = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}
    file = tmp_path / "order.avsc"
    file.write_text(record("Order", time))
    plain = record("Order", {"name": "at", "type": "long"})
    values = [written(plain, {"at": number}) for number in (1_767_323_045_250, 1_767_323_045_250_000)]
    result, _ = driver.run(outcomes, values, Decoding(format="avro", schema_file=str(file)), {}, None)
    assert result == [{"at": PART}, "value: at is not in the years 1 to 9999"]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "it is no Avro schema: "),
        ('{"type":"record","name":"A"}', "the schema cannot be used: "),
        ('{"type":"what"}', "the schema cannot be used: "),
        (
            record("Node", {"name": "next", "type": ["null", "Node"]}),
            "shop.Node contains itself: recursive schemas are not supported",
        ),
    ],
)
def test_avro_schemas_that_cannot_be_used_are_refused(
    driver: Driver, tmp_path: Path, schema: str, problem: str
) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(schema)
    with pytest.raises(PipelineError, match=f"^sources.orders.value: {problem}"):
        driver.run(outcomes, [b""], Decoding(format="avro", schema_file=str(file)), {}, None)


class Subject:
    """A subject of a registry, written to by Confluent's client."""

    def __init__(self, client: SchemaRegistryClient, name: str) -> None:
        self.client = client
        self.name = name

    def write(self, schema: str, value: Any, references: Sequence[SchemaReference] = ()) -> bytes:
        """Register a schema, and return a record of it."""
        serialize = AvroSerializer(self.client, RegisteredSchema(schema, "AVRO", list(references)))
        data = serialize(value, SerializationContext(self.name, MessageField.VALUE))
        assert isinstance(data, bytes)
        return data


def id_of(data: bytes) -> int:
    return int.from_bytes(data[1:5], "big")


def test_each_schema_of_a_subject_is_read_by_the_newest(
    driver: Driver, url: str, client: SchemaRegistryClient
) -> None:
    subject = Subject(client, "evolving")
    amount = {"name": "amount", "type": ["null", "double"], "default": None}
    more = record("Order", ID, NAME, {"name": "more", "type": "int"})
    nested = record("Order", ID, NAME, {"name": "next", "type": ["null", "Order"]})
    values = [
        subject.write(ORDER, {"id": 1, "name": "x"}),
        subject.write(more, {"id": 2, "name": "y", "more": 1}),
        other := subject.write(record("Order", NAME), {"name": "z"}),
        recursive := subject.write(nested, {"id": 4, "name": "n", "next": None}),
        subject.write(record("Order", ID, NAME, amount), {"id": 5, "name": "z", "amount": 2.5}),
    ]
    of = Decoding(format="avro", registry=True, subject="evolving-value")
    result, files = driver.run(outcomes, values, of, {}, url)
    assert result == [
        {"id": 1, "name": "x", "amount": None},
        {"id": 2, "name": "y", "amount": None},
        f"value: schema id {id_of(other)}: READER_FIELD_MISSING_DEFAULT_VALUE at /fields/0: id",
        f"value: schema id {id_of(recursive)}: shop.Order contains itself: recursive schemas are not supported",
        {"id": 5, "name": "z", "amount": 2.5},
    ]
    # What is pinned needs no registry any more.
    assert driver.run(outcomes, values, of, files, "http://127.0.0.1:9")[0] == result


def of_a_frame(
    spark: SparkSession, /, values: Sequence[bytes], of: Decoding, url: str, schema_ids: Sequence[int] = ()
) -> list[Any] | str:
    """Decode a column of bytes as any job does; return values or errors, or why the query ends."""
    frame = spark.createDataFrame([(value,) for value in values], "body BINARY")
    decoded = decode_frame(frame, {"body": of}, registry=RegistrySpec(url=url), schema_ids=schema_ids)
    try:
        return [row._error or plain(row.body) for row in decoded.collect()]
    except PySparkException as error:
        new = NewSchemaError.of(error)
        assert new is not None
        return str(new)


def test_any_frame_is_decoded_by_a_registry_which_is_asked_when_the_plan_is_made(
    driver: Driver, url: str, client: SchemaRegistryClient
) -> None:
    frames, elsewhere = Subject(client, "frames"), Subject(client, "elsewhere")
    values = [frames.write(ORDER, {"id": 1, "name": "x"}), b"no header"]
    of = Decoding(format="avro", registry=True, subject="frames-value")
    expected = [{"id": 1, "name": "x"}, "body: no header of a schema registry"]
    assert driver.run(of_a_frame, values, of, url) == expected
    more = record("Order", ID, NAME, {"name": "more", "type": "int"})
    values.append(elsewhere.write(more, {"id": 2, "name": "y", "more": 7}))
    new = id_of(values[-1])
    assert driver.run(of_a_frame, values, of, url) == f"new schema: body: id {new}"
    expected.append({"id": 2, "name": "y"})
    assert driver.run(of_a_frame, values, of, url, [new]) == expected
    # As a version of the subject it is known, and read by.
    frames.write(more, {"id": 3, "name": "z", "more": 8})
    assert driver.run(of_a_frame, values[2:], of, url) == [{"id": 2, "name": "y", "more": 7}]


def test_records_without_a_header_or_a_known_schema_are_errors(
    driver: Driver, url: str, client: SchemaRegistryClient
) -> None:
    subject = Subject(client, "headers")
    good = subject.write(ORDER, {"id": 1, "name": "x"})
    short = "value: no header of a schema registry"
    malformed = f"value: not one record of schema id {id_of(good)}"
    expected = [
        (good, {"id": 1, "name": "x"}),
        (None, None),
        (b"", short),
        (b"\0\0\0\1", short),
        (b"\1" + good[1:], short),
        (b"\0\0\1\0\0" + good[5:], "value: schema id 65536 is not in the registry"),
        (b"\0\xff\xff\xff\xff" + good[5:], "value: schema id 4294967295 is not in the registry"),
        (good[:5], malformed),
        (good[:-1], malformed),
        (good + b"\0", malformed),
        (good[:6] + b"\xf0\xff\xff\xff\x07x", malformed),
    ]
    of = Decoding(format="avro", registry=True, subject="headers-value")
    results, _ = driver.run(outcomes, [value for value, _ in expected], of, {}, url)
    assert results == [result for _, result in expected]


def test_a_schema_may_need_others(driver: Driver, url: str, client: SchemaRegistryClient) -> None:
    subject = Subject(client, "references")
    city = record("City", NAME, namespace="places")
    address = record("Address", {"name": "city", "type": "places.City"}, namespace="geo")
    order = record(
        "Order",
        {"name": "to", "type": "geo.Address"},
        {"name": "from", "type": ["null", "geo.Address"]},
        {"name": "in", "type": "places.City"},
    )
    to_city = SchemaReference("places.City", "city", 1)
    to_address = SchemaReference("geo.Address", "address", 1)
    subject.client.register_schema("city", RegisteredSchema(city, "AVRO"))
    subject.client.register_schema("address", RegisteredSchema(address, "AVRO", [to_city]))
    oslo = {"city": {"name": "Oslo"}}
    value = {"to": oslo, "from": oslo, "in": {"name": "Rome"}}
    data = subject.write(order, value, [to_city, to_address])
    of = Decoding(format="avro", registry=True, subject="references-value")
    result, _ = driver.run(outcomes, [data], of, {}, url)
    assert result == [value]


PLACE = """
syntax = "proto3";
package geo;
message Place { string city = 1; }
"""
MESSAGES = """
syntax = "proto3";
package shop;
import "geo/place.proto";
import "google/protobuf/timestamp.proto";
message Other { message Inner { int32 n = 1; } }
message Order { int64 id = 1; geo.Place to = 2; google.protobuf.Timestamp at = 3; }
"""


def test_protobuf_is_read_by_the_message_that_its_schema_has(
    driver: Driver, url: str, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    files(tmp_path, order=MESSAGES, geo__place=PLACE)
    compiled = descriptors(tmp_path, "order.proto")
    context = SerializationContext("messages", MessageField.VALUE)

    def data(name: str, **fields: Any) -> bytes:
        kind: Any = message_of(compiled, name)
        serialize = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
        results = serialize(kind(**fields), context)
        assert isinstance(results, bytes)
        return results

    good = data("shop.Order", id=1, to={"city": "Oslo"})
    inner = data("shop.Other.Inner", n=1)
    assert id_of(inner) == id_of(good)
    expected = [
        (good, {"id": 1, "to": {"city": "Oslo"}, "at": None}),
        (None, None),
        (inner, "value: a message shop.Other.Inner, not shop.Order"),
        (b"", "value: no header of a schema registry"),
        (good[:5], "value: no indexes of a message"),
        (good[:5] + b"\xff" * 20, "value: no indexes of a message"),
        (good[:5] + b"\x02\x08", f"value: schema id {id_of(good)} has no message 4"),
        (good[:-1], "value: not a message shop.Order"),
        (b"\0\xff\xff\xff\xff\0", "value: schema id 4294967295 is not in the registry"),
    ]
    # As text, which clients of Java register.
    reference = SchemaReference("geo/place.proto", "geo/place.proto", 1)
    text = client.register_schema("messages-value", RegisteredSchema(MESSAGES, "PROTOBUF", [reference]))
    expected.append((b"\0" + text.to_bytes(4, "big") + good[5:], expected[0][1]))
    of = Decoding(format="protobuf", registry=True, subject="messages-value", message="shop.Order")
    values = [value for value, _ in expected]
    results, _ = driver.run(outcomes, values, of, {}, url)
    assert results == [result for _, result in expected]
