"""How `korvet consume` writes a record for people: a text with placeholders, much as kcat has them.

Knows records, placeholders and what a terminal must not be sent; not where records come from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from korvet.cli.record import Read
from korvet.cli.times import time_of

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
