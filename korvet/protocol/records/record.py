"""A record, as a batch's reader yields it and as the log returns it.

Two shapes, for speed: reading a batch makes the compiled reader's objects, and building one takes
plain tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Header = tuple[str, bytes | None]
"""Name and value; a null value is not the same as an empty one, and a name may repeat."""

StoredRecord = tuple[int, int, bytes | None, bytes | None, list[Header]]
"""Offset, timestamp (ms), key, value, headers."""


NO_TIMESTAMP = -1
"""The timestamp of a record whose producer gave none."""


class Record(Protocol):
    """A record of a batch, as the compiled reader yields it."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, -1 if the producer gave none."""

    @property
    def key(self) -> bytes | None:
        """The key; None is not the same as empty."""

    @property
    def value(self) -> bytes | None:
        """The value; None is a tombstone on a compacted topic."""

    @property
    def headers(self) -> Sequence[Header]:
        """Names and values in the producer's order; a name may repeat."""


class BatchRecord(Record, Protocol):
    """A record with its place: the batch's base offset and the record's delta."""

    @property
    def offset(self) -> int:
        """Where it lies in the log."""


class DecodedRecord(NamedTuple):
    """A record of a batch that the compiled reader does not read; the fields are those of BatchRecord."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def text_of(name: bytes) -> str:
    """Return a header's name; what is not UTF-8 stays readable, and encodes to UTF-8 again."""
    return name.decode("utf-8", "backslashreplace")
