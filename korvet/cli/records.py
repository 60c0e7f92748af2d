"""A record as it is read and as it is to be written: what the forms of `produce` and `consume` have in common.

The flags that commands about records share: which partitions are read, and how batches are compressed.

Knows click; nothing of records.

How `korvet consume` writes a record for people: a text with placeholders, much as kcat has them.

Knows records, placeholders and what a terminal must not be sent; not where records come from.

A record as one line of JSON: what `korvet consume --json` writes and `korvet produce --json` reads.

Bytes that are UTF-8 are a string, others stand in base64 under a name of their own (`value_base64`), and null is null:
what one command has written the other reads back byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from korvet.cli.arguments import time_of

Headers = Sequence[tuple[str, bytes | None]]


class Read(NamedTuple):
    """A record as it was read. `timestamp` is in ms since 1970, -1 for none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Record(NamedTuple):
    """A record to be produced. `timestamp` is in ms since 1970, None for now; `partition` is None for any."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


class RecordError(Exception):
    """Bytes of which no record can be made; the text says what is wrong with them."""


PARTITION = click.IntRange(0, 2**31 - 1)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their numbers in Kafka's batches."""

partitions_option = click.option(
    "--partition",
    "-p",
    "partitions",
    multiple=True,
    metavar="N",
    type=PARTITION,
    help="Only this partition; may be repeated.",
)
compression_option = click.option(
    "--compression",
    "-z",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="How batches are compressed.",
)


PLACEHOLDERS = {
    "s": "value",
    "k": "key",
    "h": "headers, as name=value,name=value",
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp in ms since 1970, -1 for none",
    "D": "the same as date and time, in UTC",
    "S": "bytes of the value, -1 for null",
    "K": "bytes of the key, -1 for null",
    "%": "a percent sign",
}
"""Letter -> what it stands for."""

VALUE = r"%s\n"
LONG = r"%t:%p %o  %D  %k  %s  %h\n"

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECES = re.compile(r"%(?P<letter>.?)|\\(?P<escape>[ntr0\\])|(?P<text>[^%\\]+|\\)", re.DOTALL)


Formatter = Callable[[Read], bytes]
_Part = Callable[[Read, bytes], bytes]


def _size(content: bytes | None) -> bytes:
    return b"%d" % (-1 if content is None else len(content))


def _constant(text: bytes) -> _Part:
    return lambda _, __: text


def _headers(record: Read, null: bytes) -> bytes:
    pairs = (name.encode() + b"=" + (null if value is None else value) for name, value in record.headers)
    return b",".join(pairs)


_PARTS: dict[str, _Part] = {
    "s": lambda record, null: null if record.value is None else record.value,
    "k": lambda record, null: null if record.key is None else record.key,
    "h": _headers,
    "t": lambda record, _: record.topic.encode(),
    "p": lambda record, _: b"%d" % record.partition,
    "o": lambda record, _: b"%d" % record.offset,
    "T": lambda record, _: b"%d" % record.timestamp,
    "D": lambda record, _: b"-" if record.timestamp < 0 else time_of(record.timestamp).encode(),
    "S": lambda record, _: _size(record.value),
    "K": lambda record, _: _size(record.key),
    "%": lambda _, __: b"%",
}


def formatter(template: str, null: bytes, *, terminal: bool) -> Formatter:
    r"""Return what writes a record by a template; raises ValueError for a placeholder that is none.

    `null` stands for keys and values that are null. For a `terminal` what it would act upon is escaped, but for the
    template's own characters and for ends of lines and tabs.
    """
    parts: list[tuple[_Part, bool]] = []
    for match in _PIECES.finditer(template):
        letter = match["letter"]
        if letter is None:
            parts.append(
                (
                    _constant(_ESCAPES[match["escape"]] if match["escape"] else os.fsencode(match["text"])),
                    False,
                )
            )
        elif letter in _PARTS:
            parts.append((_PARTS[letter], terminal))
        else:
            raise ValueError(f"%{letter} is none of {' '.join('%' + each for each in PLACEHOLDERS)}")

    def write(record: Read) -> bytes:
        return b"".join(
            tamed(part(record, null)) if escaped else part(record, null) for part, escaped in parts
        )

    return write


def tamed(content: bytes) -> bytes:
    """Return bytes of others fit for a terminal."""
    text = content.decode(errors="backslashreplace")
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    ).encode()


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
