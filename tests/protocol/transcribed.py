"""Kafka's schemas of messages that kafka-python's wheel does not carry: transcribed.txt, as the JSON that it would be.

A message is a line with its key, its versions and the first flexible one; below it each field is a line: name, type,
and what differs from "in all versions, never null, without a default". A struct says its fields where it is first used.
tests/jvm has Kafka's own clients and tools send most of these requests and read the answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

Fields = list[dict[str, Any]]


def _read(text: str) -> dict[str, dict[str, Any]]:
    schemas: dict[str, dict[str, Any]] = {}
    above: list[Fields] = []
    structs: dict[str, Fields] = {}
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        if depth == 0:
            name, key, versions, flexible = line.split()
            above, structs = [[]], {}
            schemas[name] = {
                "apiKey": int(key),
                "type": "request" if name.endswith("Request") else "response",
                "name": name,
                "validVersions": versions,
                "flexibleVersions": flexible,
                "fields": above[0],
            }
            continue
        field = _field(line)
        above[depth - 1].append(field)
        struct = field["type"].removeprefix("[]")
        if struct[0].isupper():
            field["fields"] = structs.setdefault(struct, [])
            above[depth:] = [field["fields"]]
    return schemas


def _field(line: str) -> dict[str, Any]:
    name, kind, *rest = line.split()
    field: dict[str, Any] = {"name": name, "type": kind, "versions": "0+"}
    for each in rest:
        option, _, value = each.partition("=")
        field |= {option: value if value or option == "default" else True}
    return field


SCHEMAS = _read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
