"""What the ids of a log's entries say: the opposite of korvet/topics/entry_ids.py."""

from __future__ import annotations

from korvet.topics.entry_ids import DENSE, OFFSETS_END


def end_of_id(entry_id: bytes, bits: int) -> int | None:
    """Return the offset just past an entry, None if its id names none; raises ValueError for what is no id."""
    ms, sequence = map(int, entry_id.split(b"-"))
    if bits <= DENSE:
        return sequence if ms == 0 and sequence < OFFSETS_END else None
    end = (ms << bits) + sequence + 1
    return end if sequence < 1 << bits and end <= OFFSETS_END else None
