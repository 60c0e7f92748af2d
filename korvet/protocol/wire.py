"""Kafka's primitive types as annotations that the codec compiler understands, one row each.

A field is annotated with one of the names below, which a type checker reads as plain Python (`int32` is an int,
`string` a str). Source: the Kafka protocol guide, "Protocol Primitive Types", and KIP-482 for the compact forms that
flexible versions use.
"""

from __future__ import annotations

import codecs
from typing import Annotated, TypeAlias, cast

import msgspec

from korvet.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview


class Fixed(msgspec.Struct, frozen=True):
    """A type of fixed width: `code` is its letter for the struct module, always big-endian."""

    code: str


class Sized(msgspec.Struct, frozen=True):
    """A length and that many bytes. `kind` is string, bytes or records.

    The length is int16 for strings and int32 for the others; in flexible versions all are an unsigned varint
    of the length plus one. A negative length is null. `records` decode to a memoryview of the frame, so that record
    batches pass through the broker without a copy; and they encode from any bytes-like object.
    """

    kind: str


int8: TypeAlias = Annotated[int, Fixed("b")]
int16: TypeAlias = Annotated[int, Fixed("h")]
uint16: TypeAlias = Annotated[int, Fixed("H")]
int32: TypeAlias = Annotated[int, Fixed("i")]
uint32: TypeAlias = Annotated[int, Fixed("I")]
int64: TypeAlias = Annotated[int, Fixed("q")]
float64: TypeAlias = Annotated[float, Fixed("d")]
boolean: TypeAlias = Annotated[bool, Fixed("?")]
uuid: TypeAlias = Annotated[bytes, Fixed("16s")]
"""A topic id: 16 bytes, all zero if there is none."""

string: TypeAlias = Annotated[str, Sized("string")]
bytestring: TypeAlias = Annotated[bytes, Sized("bytes")]
records: TypeAlias = Annotated[Buffer, Sized("records")]
record_pieces: TypeAlias = Annotated[Buffer | list[Buffer], Sized("records")]
"""Records that may be given in pieces, one after the other: they are sent as they are, never joined."""

ZERO_UUID = bytes(16)

ELEMENTS_MAX = 1_000_000
"""Elements of all arrays of one message together. A peer's number never sizes an allocation: no array has more
elements than its frame has bytes left, and this bounds what a large frame of tiny elements can grow to."""

TAGGED_FIELDS_MAX = 1024
"""Tagged fields of one block: no message defines more than a handful, and skipping millions takes seconds."""

STRING_BYTES_MAX = 32767
"""Bytes of a string in any version: what the int16 of the plain form holds, clients take of the compact form too."""

MALFORMED_BYTES_MAX = STRING_BYTES_MAX // 3
"""Bytes of a string that is not UTF-8: as many replacement characters still fit into a string of a response."""

SHORT_ARRAY_MAX = 8
"""Elements of an array of fixed width up to which its codecs have one layout per length."""

LONG_ARRAY_MIN = 64
"""Elements from which on an array is long: what it takes to go through it may be noticed by others."""

INT32_MAX = 0x7FFFFFFF
UINT32_MAX = 0xFFFFFFFF

VARINT_BYTES_MAX = 5
"""An unsigned varint holds 32 bits, seven a byte (KIP-482)."""


def unsigned_varint(value: int) -> bytes:
    """Encode `value` (0 to 2^32 - 1) as an unsigned varint."""
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


SMALL_VARINTS = tuple(unsigned_varint(value) for value in range(4096))
"""The encodings that nearly every length and count needs, made once."""


def encode_varint(value: int) -> bytes:
    """Encode `value` as an unsigned varint, from the table if it is small."""
    return SMALL_VARINTS[value] if value < len(SMALL_VARINTS) else unsigned_varint(value)


def decode_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Decode an unsigned varint at `position`; returns the value and the position after it.

    Raises ProtocolError if it is longer than 32 bits, IndexError if the buffer ends first.
    """
    value = 0
    for index in range(VARINT_BYTES_MAX):
        byte = buffer[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit
            if value > UINT32_MAX:
                break
            return value, position + index + 1
    raise ProtocolError("varint longer than 32 bits")


def decode_length(buffer: Buffer, position: int) -> tuple[int, int]:
    """Decode a compact length, plus one; returns it and the position after it.

    It is an int32: a negative one is null, as 0 is. Raises as `decode_varint`.
    """
    length, position = decode_varint(buffer, position)
    return (0 if length > INT32_MAX + 1 else length), position


def decode_string_length(buffer: Buffer, position: int) -> tuple[int, int]:
    """Decode the length of a compact string, plus one; returns it and the position after it.

    Raises ProtocolError if it is above STRING_BYTES_MAX, IndexError if the buffer ends first.
    """
    length, position = decode_length(buffer, position)
    if length > STRING_BYTES_MAX + 1:
        raise_length("a string", length - 1)
    return length, position


def decode_tag_count(buffer: Buffer, position: int) -> tuple[int, int]:
    """Decode the number of tagged fields that opens their block; returns it and the position after it.

    Raises ProtocolError if it is above TAGGED_FIELDS_MAX, IndexError if the buffer ends first.
    """
    count, position = decode_varint(buffer, position)
    if count > TAGGED_FIELDS_MAX:
        raise_length("a block of tagged fields", count)
    return count, position


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """Skip a block of tagged fields, all unknown here (KIP-482); returns the position after it.

    Raises ProtocolError if a field reaches past the buffer, IndexError if the buffer ends first.
    """
    count, position = decode_tag_count(buffer, position)
    for _ in range(count):
        _, position = decode_varint(buffer, position)
        size, position = decode_varint(buffer, position)
        position += size
        if position > len(buffer):
            raise_short(position, buffer)
    return position


def raise_short(position: int, buffer: Buffer) -> None:
    """Raise the ProtocolError of a field that reaches past the end of its frame."""
    raise ProtocolError(f"a field ends at byte {position} of a frame of {len(buffer)} bytes")


def raise_length(name: str, length: int) -> None:
    """Raise the ProtocolError of a length or count that cannot be."""
    raise ProtocolError(f"{name} has length {length}")


def raise_tag_size(name: str, size: int, read: int) -> None:
    """Raise the ProtocolError of a tagged field that is not as long as its size says."""
    raise ProtocolError(f"tagged field {name} has size {size} but takes {read} bytes")


def replace_malformed(error: UnicodeError) -> tuple[str, int]:
    """Read what is not UTF-8 in a string as a replacement character, as Kafka does.

    Raises ProtocolError for a string of more than MALFORMED_BYTES_MAX bytes.
    """
    decoding = cast("UnicodeDecodeError", error)
    size = len(decoding.object)
    if size > MALFORMED_BYTES_MAX:
        raise ProtocolError(f"a string of {size} bytes is not UTF-8")
    return "\N{REPLACEMENT CHARACTER}", decoding.end


REPLACE_MALFORMED = "korvet.replace_malformed"
"""The name of that handler of errors, for `str`."""

codecs.register_error(REPLACE_MALFORMED, replace_malformed)
