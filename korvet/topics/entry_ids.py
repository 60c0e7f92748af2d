"""The ids of a log's entries, by the offset just past each: its end.

`bits` are those of the partition: offset.sequence.bits, where an id is a time and its offset is made of it; DENSE or
BATCH, where it is `0-<end>`. Scripts have the same in lua/shared/entry_ids.lua.
"""

from __future__ import annotations

OFFSETS_END = 2**53
"""The end of exact numbers in Lua and in scores; an id whose offset would not lie below it has none."""

DENSE, BATCH = 0, -1
"""The bits of a log in format `record` with dense offsets, and in format `batch`, which always has them."""


def id_of_end(end: int, bits: int) -> str:
    """Return the id of an entry that ends at an offset; `0-0` if there can be none."""
    if bits <= DENSE:
        return f"0-{max(end, 0)}"
    last = max(end - 1, 0)
    return f"{last >> bits}-{last & (1 << bits) - 1}"
