"""Declarations of messages against Apache Kafka's own schemas, and their bytes against another implementation's.

kafka-python has a codec that interprets schemas: it is used as it comes, without that package's own message classes,
some of which rename fields.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from kafka.protocol.data_container import DataContainer
from kafka.protocol.schemas import BaseField, StructField
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer

from korvet.protocol.compile import decode, encode
from korvet.protocol.schema import Field, ListOf, Message, Part, PartOf, WireType, fields
from korvet.protocol.wire import ZERO_UUID, Fixed, Sized
from tests.protocol.samples import VARIANTS, sample, versions

Schema = dict[str, Any]
"""A message as Kafka's JSON has it."""

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
    result = [row for row in fields(cls) if describe_row(row, served)["versions"]]
    assert [describe_row(row, served) for row in result] == [
        describe_field(field, served) for field in wanted
    ]
    for row, field in zip(result, wanted, strict=True):
        if row.required:
            assert "default" not in field, f"{cls.__name__}.{row.name} has a default upstream"
        else:
            assert row.default == upstream_default(field), f"{cls.__name__}.{row.name}"
        inner = row.kind.element if isinstance(row.kind, ListOf) else row.kind
        if isinstance(inner, PartOf):
            compare(inner.cls, field["fields"], describe_row(row, served)["versions"])


def oracle(schema: Schema) -> Any:
    """Return a data class of kafka-python's, made from a schema as it is."""
    return type(schema["name"], (DataContainer,), {"_struct": StructField(schema)})


def to_oracle(part: Part, data_class: Any) -> Any:
    values = {}
    for row in (row for row in fields(type(part)) if row.name in data_class.fields):
        value = getattr(part, row.name)
        inner = row.kind.element if isinstance(row.kind, ListOf) else row.kind
        if isinstance(inner, PartOf) and value is not None:
            nested = data_class.fields[row.name].data_class
            is_list = isinstance(row.kind, ListOf)
            value = [to_oracle(element, nested) for element in value] if is_list else to_oracle(value, nested)
        elif row.kind == Fixed("16s"):
            # There the zero id is None, as a value and as a default.
            value = None if value == ZERO_UUID else UUID(bytes=value)
        values[row.name] = value
    return data_class(**values)


def oracle_bytes(message: Message, version: int, data_class: Any) -> bytes:
    flexible = message.api.is_flexible(version)
    buffer = EncodeBuffer()
    data_class._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)(
        to_oracle(message, data_class), buffer
    )
    return bytes(buffer.result())


def check(cls: type[Message], schema: Schema) -> None:
    """Compare key, versions and fields of a message with Kafka's, its bytes with those of kafka-python's codec."""
    valid, flexible = versions_of(schema["validVersions"]), versions_of(schema["flexibleVersions"])
    assert cls.api.key == schema["apiKey"]
    assert cls.api.flexible == (None if flexible.start < 0 else flexible.start)
    assert cls.is_request() == (schema["type"] == "request")
    assert cls.api.versions[0] == valid.start
    assert cls.api.versions[1] == valid.stop - 1 - (NOT_SERVED.get(cls.__name__) == valid.stop - 1)
    compare(cls, schema["fields"], versions(cls))
    data_class = oracle(schema)
    for version in versions(cls):
        for variant in VARIANTS:
            message = sample(cls, version, variant)
            wanted = oracle_bytes(message, version, data_class)
            assert b"".join(encode(message, version)) == wanted, (version, variant)
            assert decode(cls, version, wanted) == message, (version, variant)
