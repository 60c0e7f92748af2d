"""Finds the last records of a log whose offsets have gaps: no offset says how many records lie behind it.

Pure but for the log that it is given. It reads stretches that end where it has counted already, longer ones as long as
they hold too few records, and shorter ones where they hold too many.
"""

from __future__ import annotations

from typing import Protocol

from korvet.cli.start import Span

# Beside what is wanted: a stretch with that many more is cheaper to read than to cut.
_SPARE = 1000
_LONGER = 16


class Log(Protocol):
    """A log to look through."""

    async def offsets(self, begin: int, end: int, count_max: int) -> list[int] | None:
        """Return the offsets of the records with begin <= offset < end, or None for more than `count_max`."""
        ...


async def last_records(log: Log, span: Span, count: int) -> int:
    """Return the offset of the first of the last `count` records of a span, or where it begins if it has fewer."""
    end, left = span.end, count
    length, factor = count, _LONGER
    while end > span.begin:
        begin = max(span.begin, end - length)
        found = await log.offsets(begin, end, left + _SPARE)
        if found is None:
            # Never reached with length 1: one offset is one record.
            length, factor = max(1, (end - begin) // 2), 2
            continue
        if len(found) >= left:
            return found[-left]
        left -= len(found)
        end = begin
        length *= factor
    return span.begin
