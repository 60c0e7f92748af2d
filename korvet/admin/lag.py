"""How far a group is behind, as the protocol lets a client know it.

Kafka's protocol tells offsets, not counts. Where offsets are dense the difference is the count, apart from records that
compaction has removed. In Korvet's storage format `record` an offset holds a time in its upper bits, and a difference
says nothing of records: for such a log only 0 is known, and everything else is unknown.
"""

from __future__ import annotations

TIME_CODED_FROM = 2**48
"""A log that ends here or later has offsets made of times: all since 2004 are above, and no log of records that are
counted from 0 is so long."""


def lag_of(committed: int, start: int, end: int) -> int | None:
    """Return how many records from `committed` on are in a log from `start` to `end`; None where that is not known."""
    first = max(committed, start)
    if first >= end:
        return 0
    return None if end >= TIME_CODED_FROM else end - first
