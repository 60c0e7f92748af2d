"""Records as bytes, column by column: each field of all records first, then all of them in one join.

So no step of Python is taken for each record. A compiled build has native.c for it, which makes the same bytes.
Source: the Kafka documentation, "Record"; varints are those of protocol buffers, zigzag.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

from korvet.protocol.records.columns import Columns, Contents

try:
    from korvet import native
except ImportError:  # not a compiled build
    NATIVE = False
else:
    NATIVE = True

_NULL = b"\x01"
_LOW_BITS = 6  # of a number that is not negative, in the first byte of its varint
_LOW_END = 1 << _LOW_BITS


def varint(number: int) -> bytes:
    """Return a number, which may be negative, as a varint."""
    return _unsigned(number << 1 if number >= 0 else ~(number << 1))


def _unsigned(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - the bits of a byte that has another after it
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SMALL = [varint(number) for number in range(8192)]
"""Those of one or two bytes: most lengths and, of a log that is written fast, most offsets."""

# The first bytes of varints that have more.
_LOW = [bytes((low << 1 | 0x80,)) for low in range(_LOW_END)]


class EncodedColumns(NamedTuple):
    """Records as bytes: how long each is, and the fields of all of them, `width` a record."""

    sizes: list[int]
    fields: list[bytes]
    width: int

    def first(self, count: int) -> bytes:
        """Return the first `count` records."""
        return b"".join(self.fields[: count * self.width])


class EncodedRecords(NamedTuple):
    """Records as bytes, and how many: -1 is the last offset delta of none."""

    payload: bytes
    record_count: int
    last_offset_delta: int


def encode_records(columns: Columns, bytes_max: int, *, at_least_one: bool) -> EncodedRecords:
    """Encode as many records as fit into `bytes_max`, for a batch that begins with them.

    With `at_least_one` that is the first at any size.
    """
    base_offset = columns.runs[0].start
    if NATIVE:
        contents, following = _layout(columns)
        runs = [(run.start - base_offset, run.stop - base_offset) for run in columns.runs]
        stamps = columns.timestamps
        found = native.encode_records(runs, stamps, contents, following, bytes_max, int(at_least_one))
        if found is not None:
            return EncodedRecords(*found)
    deltas = [offset - base_offset for run in columns.runs for offset in run]
    encoded = encode_columns(columns, deltas)
    taken = bisect_right(list(accumulate(encoded.sizes)), bytes_max)
    if at_least_one:
        taken = max(taken, 1)
    return EncodedRecords(encoded.first(taken), taken, deltas[taken - 1] if taken else -1)


def _layout(columns: Columns) -> tuple[list[Contents | None], list[bytes]]:
    """Return keys, values and what headers hold, None if null, and after each what all records have there."""
    contents: list[Contents | None] = [columns.keys, columns.values]
    names = [b"", varint(len(columns.headers))]
    for name, content in columns.headers:
        encoded = name.encode()
        names[-1] += varint(len(encoded)) + encoded
        names.append(b"")
        contents.append(content)
    return contents, names


def encode_columns(columns: Columns, deltas: Sequence[int]) -> EncodedColumns:
    """Encode records for a batch that begins with them; `deltas` are their offsets less that of the first."""
    stamps = columns.timestamps
    times = {stamp: b"\0" + varint(stamp - stamps[0]) for stamp in set(stamps)}
    since, after = list(map(times.__getitem__, stamps)), _offsets(deltas)
    fields: list[Sequence[bytes] | bytes] = [since, after]
    contents, names = _layout(columns)
    bodies: Iterable[int] = map(add, map(len, since), map(len, after))
    for content, following in zip(contents, names, strict=True):
        if content is None:
            fields.append(_NULL + following)
            continue
        lengths = list(map(len, content))
        before = _varints(lengths)
        bodies = map(add, map(add, bodies, lengths), map(len, before))
        fields += (before, content, following) if following else (before, content)
    constant = sum(len(field) for field in fields if isinstance(field, bytes))
    sizes = [body + constant for body in bodies]
    before = _varints(sizes)
    count, width = len(columns), len(fields) + 1
    flat = [b""] * (count * width)
    flat[::width] = before
    for at, field in enumerate(fields, 1):
        flat[at::width] = [field] * count if isinstance(field, bytes) else field
    return EncodedColumns(list(map(add, sizes, map(len, before))), flat, width)


def _varints(numbers: list[int]) -> list[bytes]:
    return list(map(_SMALL.__getitem__ if max(numbers) < len(_SMALL) else varint, numbers))


def _offsets(deltas: Sequence[int]) -> list[bytes]:
    """Return rising numbers as varints: those that differ in their low bits alone share the rest."""
    small = bisect_left(deltas, len(_SMALL))
    encoded = list(map(_SMALL.__getitem__, deltas[:small]))
    high, rest = -1, b""
    for delta in deltas[small:]:
        if delta >> _LOW_BITS != high:
            high = delta >> _LOW_BITS
            rest = _unsigned(high)
        encoded.append(_LOW[delta & _LOW_END - 1] + rest)
    return encoded
