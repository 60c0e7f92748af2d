"""Records as `produce` and `consume` read and write them, as text or JSON, and what both need of aiokafka.

A template has placeholders, much as those of kcat. A line of JSON has bytes that are UTF-8 as a string, other bytes in
base64 under a name of their own (`value_base64`), and null as null: `produce --json` reads back byte for byte what
`consume --json` has written.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import click
import msgspec
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import BrokerResponseError, KafkaError, kafka_errors

from korvet.admin import sasl
from korvet.admin.connection import parse_address
from korvet.admin.security import ClientSecurity
from korvet.cli.options import ClusterTarget, format_time
from korvet.errors import ErrorCode

Headers = Sequence[tuple[str, bytes | None]]

_TOKEN_SECONDS_MAX = 10.0


class ReadRecord(NamedTuple):
    """A record as it was read. `timestamp` is in ms since 1970, -1 for none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class NewRecord(NamedTuple):
    """A record to be produced. `timestamp` is in ms since 1970, None for now; `partition` is None for any."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


class RecordError(Exception):
    """Input that is not a record; the message says what is wrong with it."""


@contextlib.contextmanager
def client_errors() -> Iterator[None]:
    """Make one line and exit code 1 of an error of aiokafka. What aiokafka logs is not printed."""
    # It would call codes of later protocol versions unknown, all alike.
    for code in ErrorCode:
        if code not in kafka_errors:
            kafka_errors[code] = type(code.name, (BrokerResponseError,), {"errno": int(code)})
    log = logging.getLogger("aiokafka")
    # It logs its retries, and the errors that it raises too: neither belongs beside the records.
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    log.propagate = False
    try:
        yield
    except KafkaError as error:
        raise click.ClickException(error_text(error)) from error


def error_text(error: BaseException) -> str:
    """Return an error of aiokafka by its name in Kafka's protocol, or in aiokafka's words if it is none of a broker."""
    rest = ", ".join(map(str, error.args))
    code = getattr(error, "errno", None)
    if not isinstance(code, int) or code not in ErrorCode._value2member_map_:
        return rest or type(error).__name__
    name = ErrorCode(code).name
    return f"{name}: {rest}" if rest else name


def client_options(cluster: ClusterTarget) -> dict[str, Any]:
    """Return the brokers of a cluster, each with its port, and the security, as aiokafka takes them."""
    security = cluster.security
    options: dict[str, Any] = {
        "bootstrap_servers": [
            str(parse_address(text.strip())) for text in cluster.bootstrap_server.split(",") if text.strip()
        ],
        "security_protocol": security.protocol,
    }
    if security.uses_tls:
        options["ssl_context"] = security.tls_context()
    if security.mechanism == "OAUTHBEARER":
        options |= {"sasl_mechanism": security.mechanism, "sasl_oauth_token_provider": _Tokens(security)}
    elif security.mechanism:
        options |= {
            "sasl_mechanism": security.mechanism,
            "sasl_plain_username": security.username,
            "sasl_plain_password": security.password,
        }
    return options


class _Tokens(AbstractTokenProvider):  # type: ignore[misc] # aiokafka carries no types
    """Gets the tokens of OAUTHBEARER for aiokafka."""

    def __init__(self, security: ClientSecurity) -> None:
        self._security = security

    async def token(self) -> str:
        return await asyncio.to_thread(sasl.token, self._security, _TOKEN_SECONDS_MAX)


VALUE = r"%s\n"
LONG = r"%t:%p %o  %D  %k  %s  %h\n"

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECES = re.compile(r"%(?P<letter>.?)|\\(?P<escape>[ntr0\\])|(?P<text>[^%\\]+|\\)", re.DOTALL)


Formatter = Callable[[ReadRecord], bytes]
_Part = Callable[[ReadRecord, bytes], bytes]


def _size(content: bytes | None) -> bytes:
    return b"%d" % (-1 if content is None else len(content))


def _constant(text: bytes) -> _Part:
    return lambda _, __: text


def _headers(record: ReadRecord, null: bytes) -> bytes:
    pairs = (name.encode() + b"=" + (null if value is None else value) for name, value in record.headers)
    return b",".join(pairs)


_PLACEHOLDERS: dict[str, tuple[str, _Part]] = {
    "s": ("value", lambda record, null: null if record.value is None else record.value),
    "k": ("key", lambda record, null: null if record.key is None else record.key),
    "h": ("headers, as name=value,name=value", _headers),
    "t": ("topic", lambda record, _: record.topic.encode()),
    "p": ("partition", lambda record, _: b"%d" % record.partition),
    "o": ("offset", lambda record, _: b"%d" % record.offset),
    "T": ("timestamp in ms since 1970, -1 for none", lambda record, _: b"%d" % record.timestamp),
    "D": (
        "the same as date and time, in UTC",
        lambda record, _: b"-" if record.timestamp < 0 else format_time(record.timestamp).encode(),
    ),
    "S": ("bytes of the value, -1 for null", lambda record, _: _size(record.value)),
    "K": ("bytes of the key, -1 for null", lambda record, _: _size(record.key)),
    "%": ("a percent sign", lambda _, __: b"%"),
}
PLACEHOLDERS = {letter: meaning for letter, (meaning, _) in _PLACEHOLDERS.items()}
"""Letter -> its meaning."""


def formatter(template: str, null: bytes, *, terminal: bool) -> Formatter:
    r"""Return what writes a record by a template. Raises ValueError for an unknown placeholder.

    `null` is written for keys and values that are null. For a `terminal`, bytes of the record that it would act upon
    are escaped, except newlines and tabs.
    """
    parts: list[tuple[_Part, bool]] = []
    for match in _PIECES.finditer(template):
        letter = match["letter"]
        if letter is None:
            text = _ESCAPES[match["escape"]] if match["escape"] else os.fsencode(match["text"])
            parts.append((_constant(text), False))
        elif letter in _PLACEHOLDERS:
            parts.append((_PLACEHOLDERS[letter][1], terminal))
        else:
            raise ValueError(
                f"%{letter} is unknown; known are {' '.join('%' + known for known in PLACEHOLDERS)}"
            )

    def write(record: ReadRecord) -> bytes:
        return b"".join(
            _printable(part(record, null)) if escaped else part(record, null) for part, escaped in parts
        )

    return write


def _printable(content: bytes) -> bytes:
    """Return bytes of a record fit for a terminal."""
    text = content.decode(errors="backslashreplace")
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    ).encode()


class _JsonHeader(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: str | None = None
    value_base64: bytes | None = None


class _JsonRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A line of JSON; `produce` ignores where the record was: topic, offset and time."""

    key: str | None = None
    key_base64: bytes | None = None
    value: str | None = None
    value_base64: bytes | None = None
    headers: list[_JsonHeader] | None = None
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    topic: Any = None
    offset: Any = None
    time: Any = None


def format_json(record: ReadRecord) -> str:
    """Return a record as one line of JSON, without its newline."""
    timestamp = record.timestamp if record.timestamp >= 0 else None
    row: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    row |= {"timestamp": timestamp, "time": None if timestamp is None else format_time(timestamp)}
    row |= {**_json_bytes("key", record.key), **_json_bytes("value", record.value)}
    row["headers"] = [{"name": name, **_json_bytes("value", content)} for name, content in record.headers]
    line = json.dumps(row, ensure_ascii=False)
    # JSON allows to escape what a terminal would act upon.
    return line if line.isprintable() else json.dumps(row)


def parse_json(line: bytes) -> NewRecord:
    """Read a record from a line of JSON. Raises RecordError."""
    try:
        row = msgspec.convert(json.loads(line), _JsonRecord)
        key, value = _content(row.key, row.key_base64), _content(row.value, row.value_base64)
        headers = [(header.name, _content(header.value, header.value_base64)) for header in row.headers or ()]
    except msgspec.ValidationError as error:
        raise RecordError(f"not a record: {error}") from error
    except UnicodeEncodeError as error:
        raise RecordError("an unpaired surrogate") from error
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise RecordError("not a record: nested too deeply") from error
    return NewRecord(key, value, headers, row.timestamp, row.partition)


def _content(text: str | None, coded: bytes | None) -> bytes | None:
    if text is not None and coded is not None:
        raise RecordError("a text and its _base64: give only one of them")
    return coded if text is None else text.encode()


def _json_bytes(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
