"""korvet/spark/pipelines/protobuf.py: messages as columns, and why bytes are none."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from grpc_tools import protoc  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import SparkSession

from korvet.spark.pipelines import protobuf
from korvet.spark.pipelines.registry import Schema
from korvet.spark.pipelines.spec import Decoding, PipelineError
from tests.spark.test_decoding import check, decoded

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "geo/place.proto";

enum State { NEW = 0; PAID = 1; }
message Other { message Inner { int32 n = 1; } }
message Order {
  int64 id = 1;
  optional double amount = 2;
  string name = 3;
  bytes sign = 4;
  State state = 5;
  repeated Line lines = 6;
  map<string, uint32> tags = 7;
  geo.Place to = 8;
  google.protobuf.Timestamp at = 9;
  google.protobuf.Duration took = 10;
  uint64 large = 11;
  oneof pay { bool cash = 12; string card = 13; }
  message Line { string sku = 1; float price = 2; }
}
"""
PLACE = """
syntax = "proto3";
package geo;
message Place { string city = 1; }
"""


def files(directory: Path, **texts: str) -> Path:
    """Write files, and return the first one."""
    for name, text in texts.items():
        path = directory / f"{name.replace('__', '/')}.proto"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory / f"{next(iter(texts))}.proto"


def descriptors(directory: Path, name: str) -> Path:
    """Compile a file with what it imports, as an operator would."""
    result = directory / "compiled.desc"
    common = Path(protoc.__file__).parent / "_proto"
    arguments = [f"-I{directory}", f"-I{common}", "--include_imports", f"--descriptor_set_out={result}", name]
    assert protoc.main(["protoc", *arguments]) == 0
    return result


def message_of(file: Path, name: str) -> type[Message]:
    """Return the class of a message of a .desc file."""
    pool = descriptor_pool.DescriptorPool()
    for item in descriptor_pb2.FileDescriptorSet.FromString(file.read_bytes()).file:
        pool.Add(item)
    result: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    return result


EMPTY: dict[str, Any] = {
    "id": 0,
    "amount": None,
    "name": "",
    "sign": b"",
    "state": "NEW",
    "lines": [],
    "tags": {},
    "to": None,
    "at": None,
    "took": None,
    "large": Decimal(0),
    "cash": None,
    "card": None,
}
NO_MESSAGE = "value: not a message shop.Order"


def test_messages_are_columns_or_say_what_is_wrong_with_them(spark: SparkSession, tmp_path: Path) -> None:
    source = files(tmp_path, order=ORDER, geo__place=PLACE)
    order: Any = message_of(descriptors(tmp_path, "order.proto"), "shop.Order")
    full = order(id=-1, amount=0.0, name="x", sign=b"\xff", state=1, large=(1 << 64) - 1, cash=False)
    full.lines.add(sku="a", price=1.5)
    full.tags["k"] = (1 << 32) - 1
    full.to.city = "Oslo"
    full.at.seconds, full.at.nanos = 1_767_322_800, 1000
    full.took.seconds = 90
    row = {
        "id": -1,
        "amount": 0.0,
        "name": "x",
        "sign": b"\xff",
        "state": "PAID",
        "lines": [{"sku": "a", "price": 1.5}],
        "tags": {"k": (1 << 32) - 1},
        "to": {"city": "Oslo"},
        "at": datetime(2026, 1, 2, 3, 0, 0, 1),  # noqa: DTZ001 - as Spark gives them to Python
        "took": timedelta(seconds=90),
        "large": Decimal((1 << 64) - 1),
        "cash": False,
        "card": None,
    }
    late = order()
    late.at.seconds = 1 << 62
    data = full.SerializeToString()
    deep = b""
    for _ in range(150):
        # A group of a field that the message does not have, in another one.
        deep = b"\xa3\x01" + deep + b"\xa4\x01"
    expected = [
        (data, row),
        (None, None),
        (b"", EMPTY),
        (order(state=7).SerializeToString(), EMPTY | {"state": "7"}),
        # A field that the reader does not know.
        (b"\xa2\x01\x01x", EMPTY),
        (data[:-1], NO_MESSAGE),
        (b"\xff" * 40, NO_MESSAGE),
        (b"\x1a\xff\xff\xff\xff\x07x", NO_MESSAGE),
        (b"\x1a\x01\xff", NO_MESSAGE),
        (deep, NO_MESSAGE),
        (late.SerializeToString(), "value: a google.protobuf.Timestamp is out of range"),
    ]
    for file in (source, tmp_path / "compiled.desc"):
        check(spark, Decoding(format="protobuf", schema_file=str(file), message="shop.Order"), expected)


def test_fields_of_proto2_may_be_required(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        'syntax = "proto2"; message Old { required int32 id = 1; optional string name = 2 [default = "x"]; }'
    )
    of = Decoding(format="protobuf", schema_file=str(files(tmp_path, old=text)))
    expected = [
        (b"\x08\x01", {"id": 1, "name": None}),
        (b"\x12\x01y", "value: id is missing"),
        (b"\x08\x01\x12\x01\xff", "value: a text is not valid UTF-8"),
    ]
    check(spark, of, expected)


@pytest.mark.parametrize(
    ("text", "message", "problem"),
    [
        ("message {", None, "it is no Protobuf schema: 1:9: "),
        ('syntax = "proto3"; import "no.proto"; message A {}', None, "it is no Protobuf schema: "),
        ('syntax = "proto3"; message A {} message B {}', None, "message is required: the schema has A, B"),
        ('syntax = "proto3"; message A {}', "B", "the schema has no message B"),
        (
            'syntax = "proto3"; message A { repeated B b = 1; } message B { A a = 1; }',
            "A",
            "A contains itself: recursive messages are not supported",
        ),
        (
            'syntax = "proto3"; import "google/protobuf/struct.proto"; message A { google.protobuf.Struct s = 1; }',
            "A",
            "google.protobuf.Struct contains itself: recursive messages are not supported",
        ),
    ],
)
def test_schemas_that_cannot_be_used_are_refused(
    spark: SparkSession, tmp_path: Path, text: str, message: str | None, problem: str
) -> None:
    of = Decoding(format="protobuf", schema_file=str(files(tmp_path, a=text)), message=message)
    with pytest.raises(PipelineError, match=f"^sources.orders.value: {problem}"):
        decoded(spark, [b""], of)


@pytest.mark.parametrize(
    ("reader", "writer", "fields"),
    [
        ("int32 x = 1;", "int32 renamed = 1; int32 y = 2;", ["A.y"]),
        ("int32 x = 1; int32 y = 2;", "int32 x = 1;", []),
        # Two fields of one message, which has fields of its own.
        ("B b = 1; map<string, B> m = 2;", "B b = 1; map<string, B> m = 2; B c = 3;", ["B.extra", "A.c"]),
        # A message that contains itself.
        ("A a = 1;", "A a = 1; int32 y = 2;", ["A.y"]),
    ],
)
def test_fields_that_are_not_read_are_known(reader: str, writer: str, fields: list[str]) -> None:
    def schema(text: str, more: str = "") -> Schema:
        whole = f'syntax = "proto3"; message A {{ {text} }} message B {{ int32 n = 1; {more} }}'
        return Schema(id=1, kind="PROTOBUF", text=whole)

    result = protobuf.writer(schema(writer, "int32 extra = 2;"), protobuf.compiled(schema(reader)), "A")
    assert result.unread == fields


TEXT = 'syntax = "proto3"; message A {}'


@pytest.mark.parametrize(
    ("references", "problem"),
    [
        ({"a": TEXT, "a/b": TEXT}, "it imports 'a/b', which is no name of a file: "),
        ({"a\0": TEXT}, "it imports 'a\\\\x00', which is no name of a file: "),
        ({"../../a": TEXT}, "it imports ../../a, which is outside"),
    ],
)
def test_names_of_what_a_schema_needs_are_checked(references: dict[str, str], problem: str) -> None:
    of = Schema(id=1, kind="PROTOBUF", text=TEXT, references=references)
    with pytest.raises(PipelineError, match=f"^{problem}"):
        protobuf.compiled(of)


def test_a_compiler_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # No compiler is as fast.
    monkeypatch.setattr(protobuf, "_SECONDS_MAX", 0.001)
    with pytest.raises(PipelineError, match=r"^the compiler took more than "):
        protobuf.compiled(Schema(id=1, kind="PROTOBUF", text=TEXT))
