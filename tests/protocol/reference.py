"""A second encoder, as slow and plain as can be: field after field, by the declaration, for comparison.

Differs from the compiled one where a test wants it to: it can add a tagged field that nobody knows to every block.
"""

from __future__ import annotations

import struct
from typing import Any

from korvet.protocol.schema import ListOf, Message, Part, PartOf, WireType, fields
from korvet.protocol.wire import Fixed, Sized

UNKNOWN_TAG = 300
UNKNOWN_CONTENT = b"what a later Kafka knows"


def encode(message: Message, version: int, *, unknown_tags: bool = False) -> bytes:
    """Return the bytes of `message` in `version`; `unknown_tags` ends every block with a tag no message has."""
    return Plain(version, flexible=message.api.is_flexible(version), unknown_tags=unknown_tags).part(message)


class Plain:
    def __init__(self, version: int, *, flexible: bool, unknown_tags: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.unknown_tags = unknown_tags

    def part(self, part: Part) -> bytes:
        present = [row for row in fields(type(part)) if row.present(self.version)]
        out = b""
        tagged = {}
        for row in present:
            value = getattr(part, row.name)
            if row.validity.tag is None:
                if isinstance(row.kind, PartOf) and row.nullable(self.version):
                    out += b"\xff" if value is None else b"\x01"
                if not (isinstance(row.kind, PartOf) and value is None):
                    out += self.value(row.kind, value)
            elif value != row.default:
                tagged[row.validity.tag] = self.value(row.kind, value)
        if not self.flexible:
            return out
        if self.unknown_tags:
            tagged[UNKNOWN_TAG] = UNKNOWN_CONTENT
        out += varint(len(tagged))
        for tag in sorted(tagged):
            out += varint(tag) + varint(len(tagged[tag])) + tagged[tag]
        return out

    def value(self, kind: WireType, value: Any) -> bytes:
        if isinstance(kind, Fixed):
            return struct.pack(">" + kind.code, value)
        if isinstance(kind, PartOf):
            return self.part(value)
        if isinstance(kind, ListOf):
            return self.length(value, "i") + b"".join(self.value(kind.element, item) for item in value or ())
        assert isinstance(kind, Sized)
        content = value.encode() if isinstance(value, str) else value
        return self.length(content, "h" if kind.kind == "string" else "i") + bytes(content or b"")

    def length(self, value: Any, code: str) -> bytes:
        if self.flexible:
            return varint(0 if value is None else len(value) + 1)
        return struct.pack(">" + code, -1 if value is None else len(value))


def varint(value: int) -> bytes:
    """Return the unsigned varint of `value` (KIP-482)."""
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])
