"""Each message as it is declared, against the schemas in the jar of Kafka's own clients."""

from __future__ import annotations

import json
import re
import zipfile
from typing import Any

import pytest

from korvet.protocol.schema import Message
from tests.jvm import jars
from tests.protocol.samples import EVERY_MESSAGE
from tests.protocol.upstream import Schema, check


@pytest.fixture(scope="module")
def schemas() -> dict[str, Schema]:
    """Give the schemas of all messages by their names."""
    jars.prepare()
    [jar] = jars.JARS.glob("kafka-clients-*.jar")
    with zipfile.ZipFile(jar) as archive:
        texts = [
            archive.read(name).decode()
            for name in archive.namelist()
            if re.fullmatch(r"common/message/\w+(Request|Response)\.json", name)
        ]
    read = [json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)) for text in texts]
    return {
        schema["name"]: schema | {"fields": with_structs(schema, schema.get("fields", []))} for schema in read
    }


def with_structs(schema: Schema, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return fields with those of the structs that several of them share."""
    shared = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}
    whole = []
    for field in fields:
        inner = field.get("fields") or shared.get(field["type"].removeprefix("[]"))
        whole.append(field | {"fields": with_structs(schema, inner)} if inner else field)
    return whole


@EVERY_MESSAGE
def test_a_message_is_as_apache_kafka_has_it(cls: type[Message], schemas: dict[str, Schema]) -> None:
    check(cls, schemas[cls.__name__])
