"""The value of a record: its number within its key and when it was sent, filled up to the size that was asked for.

Knows bytes only. Producers write such values, consumers take the time from them, the final check the number.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEAD = struct.Struct(">qq")
SIZE_MIN = _HEAD.size
"""The least size of a value (bytes)."""


class Stamp(NamedTuple):
    """What a value says: the number of the record within its key, from 0, and the time it was sent (ns, Unix time)."""

    sequence: int
    sent_ns: int


def padding(size: int) -> bytes:
    """Return what fills a value up to `size` bytes: text, as most values are, so that compression has something."""
    text = b'{"order":"4711","customer":"Example & Co","amount":129.95,"currency":"EUR"},'
    wanted = max(size - SIZE_MIN, 0)
    return (text * (wanted // len(text) + 1))[:wanted]


def value(stamp: Stamp, filler: bytes) -> bytes:
    """Return the value of a record."""
    return _HEAD.pack(*stamp) + filler


def parse(value: bytes | None) -> Stamp | None:
    """Return what a value says, None for one that no producer of this load has written."""
    if value is None or len(value) < SIZE_MIN:
        return None
    return Stamp(*_HEAD.unpack_from(value))
