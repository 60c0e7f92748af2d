"""A record as it is read and as it is to be written: what the forms of `produce` and `consume` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Headers = Sequence[tuple[str, bytes | None]]


class Read(NamedTuple):
    """A record as it was read. `timestamp` is in ms since 1970, -1 for none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Record(NamedTuple):
    """A record to be produced. `timestamp` is in ms since 1970, None for now; `partition` is None for any."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


class RecordError(Exception):
    """Bytes of which no record can be made; the text says what is wrong with them."""
