"""Kafka's primitive types as annotations that `compile` understands, one row each; korvet_core reads and writes them.

A field is annotated with one of the names below, which a type checker reads as plain Python (`int32` is an int,
`string` a str). Source: the Kafka protocol guide, "Protocol Primitive Types", and KIP-482 for the compact forms that
flexible versions use.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Buffer: TypeAlias = bytes | bytearray | memoryview


class Fixed(msgspec.Struct, frozen=True):
    """A type of fixed width, always big-endian: `code` is its letter in the struct module."""

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

STRING_BYTES_MAX = 32767
"""Bytes of a string in any version: what the int16 of the plain form holds, clients take of the compact form too."""
