"""A record, as a batch is read and built, and as the log returns it."""

from __future__ import annotations

Header = tuple[str, bytes | None]
"""Name and value; a null value is not the same as an empty one, and a name may repeat."""

StoredRecord = tuple[int, int, bytes | None, bytes | None, list[Header]]
"""Offset, timestamp (ms), key, value, headers."""


NO_TIMESTAMP = -1
"""The timestamp of a record whose producer gave none."""
