"""Declarations -> codecs, one per message and version.

For a (message, version) it gives korvet_core the fields that this version has, with all that depends on the version
chosen: whether null is allowed, which fields are tagged, and which may not be set.

`long_array` makes the lists for long arrays, of 64 elements or more, and `each_of` iterates over such lists: by them a
broker lets others run in between.

The caller joins the chunks, or sends them with one sendmsg: record batches are never copied here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from korvet_core import MessageCodec

from korvet.protocol.schema import Field, ListOf, Message, Part, PartOf, WireType, fields
from korvet.protocol.wire import Buffer, Fixed

M = TypeVar("M", bound=Message)


def decode(
    cls: type[M],
    version: int,
    buffer: Buffer,
    position: int = 0,
    long_array: Callable[[], list[Any]] | None = None,
) -> M:
    """Decode a `cls` of `version` that begins at `position`; bytes after it are ignored, as in Kafka.

    Raises ProtocolError for short, negative or impossible lengths, long text that is not UTF-8, and null in a version
    that allows none.
    """
    message: M = codec(cls, version).decode(buffer, position, long_array)
    return message


def encode(
    message: Message, version: int, each_of: Callable[[Iterable[Any]], Iterable[Any]] | None = None
) -> list[Buffer]:
    """Encode `message` in `version` to chunks.

    Raises ValueError if a field that `version` lacks, and that is not ignorable, holds more than its default; TypeError
    or OverflowError for a value that its type cannot be.
    """
    return codec(type(message), version).encode(message, each_of)


def encode_part(
    part: Part,
    message: type[Message],
    version: int,
    each_of: Callable[[Iterable[Any]], Iterable[Any]] | None = None,
) -> bytes:
    """Encode a part of `message`: the bytes may stand in its place, in the same version. Raises as `encode`."""
    return b"".join(_part_codec(type(part), message, version).encode(part, each_of))


@cache
def codec(cls: type[Message], version: int) -> MessageCodec:
    """Compile (once) the codec of `cls` in `version`; raises TypeError for a mistake in its declaration."""
    return MessageCodec(cls.__name__, version, cls.api.is_flexible(version), _part(cls, version))


@cache
def _part_codec(cls: type[Part], message: type[Message], version: int) -> MessageCodec:
    return MessageCodec(cls.__name__, version, message.api.is_flexible(version), _part(cls, version))


def compile_served(messages: Iterable[type[Message]]) -> int:
    """Compile the codecs of all versions of `messages`, and return how many.

    Called before the fork: a mistake in a declaration ends the start (TypeError), and the workers share the memory.
    """
    made = 0
    for cls in messages:
        first, last = cls.api.versions
        for version in range(first, last + 1):
            codec(cls, version)
            made += 1
    return made


def _part(cls: type[Part], version: int) -> tuple[Any, ...]:
    """Return class, fields, tagged fields and fields that may not be set, as MessageCodec takes them."""
    plain: list[tuple[str, Any, bool, int, Any]] = []
    tagged: list[tuple[str, Any, bool, int, Any]] = []
    absent = []
    for row in fields(cls):
        if row.present(version):
            (plain if row.validity.tag is None else tagged).append(_field(row, version))
        elif row.required:
            raise TypeError(f"{cls.__name__}.{row.name} has no default but is absent in v{version}")
        elif not row.validity.ignorable:
            # Only an ignorable field may lose its value silently.
            absent.append((row.name, row.default))
    return cls, plain, sorted(tagged, key=lambda row: row[3]), absent


def _field(row: Field, version: int) -> tuple[str, Any, bool, int, Any]:
    default = None if row.required else row.default
    return row.name, _kind(row.kind, version), row.nullable(version), row.validity.tag or 0, default


def _kind(kind: WireType, version: int) -> str | list[Any] | tuple[Any, ...]:
    if isinstance(kind, ListOf):
        return [_kind(kind.element, version)]
    if isinstance(kind, PartOf):
        return _part(kind.cls, version)
    return kind.code if isinstance(kind, Fixed) else kind.kind
