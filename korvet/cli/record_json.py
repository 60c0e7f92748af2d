"""A record as one line of JSON: what `korvet consume --json` writes and `korvet produce --json` reads.

Bytes that are UTF-8 are a string, others stand in base64 under a name of their own (`value_base64`), and null is null:
what one command has written the other reads back byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from korvet.cli.record import Read, Record, RecordError
from korvet.cli.times import time_of

_PART_MAX = 2**31 - 1
_TIMESTAMP_MAX = 2**63 - 1
# Where a record lay when it was read: told, and of no meaning for where it is written.
_WHERE = {"topic", "offset", "time"}
_READ = {"key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition"}


def line_of(record: Read) -> str:
    """Return the line, without its end."""
    timestamp = record.timestamp if record.timestamp >= 0 else None
    row: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    row |= {"timestamp": timestamp, "time": None if timestamp is None else time_of(timestamp)}
    row |= {**_told("key", record.key), **_told("value", record.value)}
    row["headers"] = [{"name": name, **_told("value", content)} for name, content in record.headers]
    line = json.dumps(row, ensure_ascii=False)
    # What a terminal would act upon is escaped, as JSON allows.
    return line if line.isprintable() else json.dumps(row)


def record_of(line: bytes) -> Record:
    """Read a line; raises RecordError with what is wrong with it."""
    row = _object(line)
    unknown = row.keys() - _READ - _WHERE
    if unknown:
        raise RecordError(f"{', '.join(sorted(unknown))}: no part of a record")
    headers = row.get("headers") or []
    if not isinstance(headers, list):
        raise RecordError('headers: a list of {"name": ..., "value": ...}')
    return Record(
        _bytes(row, "key"),
        _bytes(row, "value"),
        [_header(each) for each in headers],
        _whole(row, "timestamp", _TIMESTAMP_MAX),
        _whole(row, "partition", _PART_MAX),
    )


def _told(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise RecordError(f"no JSON: {error}") from error
    except RecursionError as error:
        raise RecordError("no record: JSON within JSON without end") from error
    if not isinstance(row, dict):
        raise RecordError("no JSON object")
    return row


def _bytes(row: Mapping[str, Any], name: str) -> bytes | None:
    if name in row and f"{name}_base64" in row:
        raise RecordError(f"{name} and {name}_base64: give one of them")
    text, coded = row.get(name), row.get(f"{name}_base64")
    for each in (text, coded):
        if each is not None and not isinstance(each, str):
            raise RecordError(f"{name}: a string or null")
    try:
        return text.encode() if coded is None and text is not None else _decoded(coded)
    except UnicodeEncodeError as error:
        raise RecordError(f"{name}: half a character") from error
    except binascii.Error as error:
        raise RecordError(f"{name}_base64: {error}") from error


def _decoded(coded: str | None) -> bytes | None:
    return None if coded is None else base64.b64decode(coded.encode("ascii", "replace"), validate=True)


def _header(row: Any) -> tuple[str, bytes | None]:  # noqa: ANN401 - whatever stood in the JSON
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise RecordError('headers: each is {"name": ..., "value": ...}')
    return row["name"], _bytes(row, "value")


def _whole(row: Mapping[str, Any], name: str, most: int) -> int | None:
    number = row.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most:
        raise RecordError(f"{name}: a whole number from 0 to {most}")
    return number
