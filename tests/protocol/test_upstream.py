"""Every declaration against Apache Kafka's own schemas, and every byte against another implementation's.

kafka-python carries the schemas of Apache Kafka and a codec that interprets them: both are used as they come, without
that package's own message classes, some of which rename fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.data_container import DataContainer
from kafka.protocol.schemas import BaseField, StructField, load_json
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer

from korvet.protocol.compile import decode, encode
from korvet.protocol.messages import all_messages
from korvet.protocol.schema import Field, ListOf, Message, Part, PartOf, WireType, fields
from korvet.protocol.wire import ZERO_UUID, Fixed, Sized
from tests.protocol.samples import EVERY_MESSAGE, VARIANTS, sample, versions
from tests.protocol.transcribed import SCHEMAS

FIXED_TYPES = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
}

NOT_SERVED = {
    "InitProducerIdRequest": 6,  # no released broker advertises it (latestVersionUnstable)
    "InitProducerIdResponse": 6,
    "DescribeLogDirsRequest": 5,  # of Kafka 4.3; clients take a broker that has it for one
    "DescribeLogDirsResponse": 5,
}
"""Last versions upstream that are not served: most of them Kafka 4.2 does not advertise either."""


@cache
def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMAS[name] if name in SCHEMAS else load_json(name)
    return found


def versions_of(text: str | None) -> range:
    low, high = BaseField.parse_versions(text) or (-1, -1)
    return range(low, high + 1)


def upstream_default(field: dict[str, Any]) -> Any:
    """Return the default of a field as Kafka's own generator reads it: without one, zero or empty."""
    kind, text = field["type"], field.get("default")
    if text == "null" or (kind[0].isupper() and "tag" in field):
        return None
    if kind.startswith("[]"):
        return []
    if kind == "string":
        return text or ""
    if kind == "bool":
        return text == "true"
    if kind == "uuid":
        return ZERO_UUID
    return b"" if kind in ("bytes", "records") else int(str(text or 0), 0)


def describe_kind(kind: WireType) -> str:
    """Return the name that Kafka's schemas have for a wire type; a struct is compared by what it holds."""
    if isinstance(kind, ListOf):
        return "[]" + describe_kind(kind.element)
    if isinstance(kind, PartOf):
        return "struct"
    if isinstance(kind, Sized):
        return kind.kind
    assert isinstance(kind, Fixed)
    return next(name for name, code in FIXED_TYPES.items() if code == kind.code)


def describe_row(row: Field, served: Sequence[int]) -> dict[str, Any]:
    present = [version for version in served if row.present(version)]
    return {
        "name": row.name,
        "type": describe_kind(row.kind),
        "versions": present,
        "nullable": [version for version in present if row.nullable(version)],
        "tag": row.validity.tag,
        "ignorable": row.validity.ignorable and len(present) < len(served),
    }


def describe_field(field: dict[str, Any], served: Sequence[int]) -> dict[str, Any]:
    present = [version for version in served if version in versions_of(field["versions"])]
    assert "tag" not in field or versions_of(field["taggedVersions"]) == versions_of(field["versions"])
    return {
        "name": BaseField.underscore_name(field["name"]),
        "type": re.sub(r"[A-Z]\w+", "struct", field["type"]),
        "versions": present,
        "nullable": [version for version in present if version in versions_of(field.get("nullableVersions"))],
        "tag": field.get("tag"),
        "ignorable": field.get("ignorable", False) and len(present) < len(served),
    }


def compare(cls: type[Part], upstream: list[dict[str, Any]], served: Sequence[int]) -> None:
    """Compare `cls` and what it holds with the fields upstream that some served version has.

    `served` are the versions that hold a `cls` in this place: a struct says nothing about others.
    """
    wanted = [field for field in upstream if describe_field(field, served)["versions"]]
    found = [row for row in fields(cls) if describe_row(row, served)["versions"]]
    assert [describe_row(row, served) for row in found] == [describe_field(field, served) for field in wanted]
    for row, field in zip(found, wanted, strict=True):
        if row.required:
            assert "default" not in field, f"{cls.__name__}.{row.name} has a default upstream"
        else:
            assert row.default == upstream_default(field), f"{cls.__name__}.{row.name}"
        inner = row.kind.element if isinstance(row.kind, ListOf) else row.kind
        if isinstance(inner, PartOf):
            compare(inner.cls, field["fields"], describe_row(row, served)["versions"])


@EVERY_MESSAGE
def test_every_field_is_declared_as_in_the_schemas_of_apache_kafka(cls: type[Message]) -> None:
    compare(cls, schema(cls.__name__)["fields"], versions(cls))


@EVERY_MESSAGE
def test_key_versions_and_flexible_version_are_those_of_apache_kafka(cls: type[Message]) -> None:
    upstream = schema(cls.__name__)
    valid = versions_of(upstream["validVersions"])
    assert cls.api.key == upstream["apiKey"]
    flexible = versions_of(upstream["flexibleVersions"])
    assert cls.api.flexible == (None if flexible.start < 0 else flexible.start)
    assert cls.is_request() == (upstream["type"] == "request")
    assert cls.api.versions[0] == valid.start
    assert cls.api.versions[1] == valid.stop - 1 - (NOT_SERVED.get(cls.__name__) == valid.stop - 1)


def test_the_schemas_are_those_that_the_wheel_carries() -> None:
    names = {path.name for path in files("kafka.protocol.schemas.resources").iterdir()}
    assert {f"{cls.__name__}.json" for cls in all_messages() if cls.__name__ not in SCHEMAS} <= names
    assert not names & {f"{name}.json" for name in SCHEMAS}
    assert json.dumps(schema("ProduceRequest")["validVersions"]) == '"3-13"'


@cache
def oracle(name: str) -> Any:
    """Return a data class of kafka-python's for the message `name`, made from the schema as it is."""
    return type(name, (DataContainer,), {"_struct": StructField(schema(name))})


def to_oracle(part: Part, data_class: Any) -> Any:
    values = {}
    for row in (row for row in fields(type(part)) if row.name in data_class.fields):
        value = getattr(part, row.name)
        inner = row.kind.element if isinstance(row.kind, ListOf) else row.kind
        if isinstance(inner, PartOf) and value is not None:
            nested = data_class.fields[row.name].data_class
            is_list = isinstance(row.kind, ListOf)
            value = [to_oracle(each, nested) for each in value] if is_list else to_oracle(value, nested)
        elif row.kind == Fixed("16s"):
            # There the zero id is None, as a value and as a default.
            value = None if value == ZERO_UUID else UUID(bytes=value)
        values[row.name] = value
    return data_class(**values)


def oracle_bytes(message: Message, version: int) -> bytes:
    data_class = oracle(type(message).__name__)
    flexible = message.api.is_flexible(version)
    buffer = EncodeBuffer()
    data_class._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)(
        to_oracle(message, data_class), buffer
    )
    return bytes(buffer.result())


@pytest.mark.parametrize("variant", VARIANTS)
@EVERY_MESSAGE
def test_bytes_equal_those_of_another_implementation(cls: type[Message], variant: str) -> None:
    for version in versions(cls):
        message = sample(cls, version, variant)
        wanted = oracle_bytes(message, version)
        assert b"".join(encode(message, version)) == wanted, version
        assert decode(cls, version, wanted) == message, version


@EVERY_MESSAGE
def test_the_compared_bytes_carry_no_default(cls: type[Message]) -> None:
    def check(part: Part, version: int) -> None:
        for row in fields(type(part)):
            if not row.present(version):
                continue
            value = getattr(part, row.name)
            assert value != row.default or row.required, (row.name, version)
            held = value if isinstance(value, list) else [value]
            assert held
            for each in held:
                if isinstance(each, Part):
                    check(each, version)

    for version in versions(cls):
        check(sample(cls, version), version)
