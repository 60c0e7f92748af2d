"""Varints, many at once: the numbers in record batches (zigzag, as in protocol buffers).

Knows bytes only. A step of Python for each number would cost more than all the rest of archiving a record.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

BYTES_MAX = 10
_MORE = 0x80


def read_varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the number that begins at each of the positions, and the position behind each.

    Raises ValueError where one is longer than a 64-bit number can be; IndexError where one leaves `data`.
    """
    first = data[at]
    raw = (first & 0x7F).astype(np.uint64)
    after = at + 1
    longer = np.flatnonzero(first & 0x80)
    shift = 7
    while len(longer):
        if shift == 7 * BYTES_MAX:
            raise ValueError("a varint of more than ten bytes")
        byte = data[after[longer]]
        raw[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[longer] += 1
        longer = longer[(byte & 0x80) != 0]
        shift += 7
    halves = (raw >> np.uint64(1)).astype(np.int64)
    return halves ^ -(raw & np.uint64(1)).astype(np.int64), after


def record_spans(data: bytes, start: int, stop: int) -> tuple[list[int], list[int]]:
    """Return where records begin, each behind its length, and where they end; they fill `data` from `start` to `stop`.

    Raises ValueError where they do not end at `stop`, or a length is none.
    """
    starts: list[int] = []
    ends: list[int] = []
    at = start
    # A loop over Python's own bytes is faster here than numpy: each record begins where the one before ends.
    while at < stop:
        length = data[at]
        at += 1
        if length >= _MORE:  # here rather than in a function: most records are of 64 to 8191 bytes
            second = data[at]
            if second < _MORE:
                length += (second << 7) - _MORE
                at += 1
            else:
                length, at = _length(data, at, length & 0x7F, stop)
        if length & 1:
            raise ValueError("the length of a record is negative")
        starts.append(at)
        at += length >> 1
        ends.append(at)
    if at != stop:
        raise ValueError("the records are longer than their batch")
    return starts, ends


def read_varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and the position behind it; raises ValueError where it passes `stop`."""
    if at >= stop:
        raise ValueError("a varint leaves its record")
    raw = data[at]
    at += 1
    if raw >= _MORE:
        raw, at = _length(data, at, raw & 0x7F, stop)
    return (raw >> 1) ^ -(raw & 1), at


def _length(data: bytes, at: int, raw: int, stop: int) -> tuple[int, int]:
    """Read the rest of a varint whose first seven bits are `raw`."""
    shift = 7
    while True:
        if at >= stop or shift == 7 * BYTES_MAX:
            raise ValueError("a varint of more than ten bytes, or cut off")
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < _MORE:
            return raw, at
        shift += 7
