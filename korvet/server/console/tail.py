"""Where the newest records of a log begin, when no offset says how many records lie behind it.

Knows pieces of a log. It reads stretches back from the end: longer ones as long as they hold too few records, shorter
ones where they hold too many. Where offsets are dense the first stretch is the answer.
"""

from __future__ import annotations

from collections.abc import Callable

from korvet.admin.lag import TIME_CODED_FROM

Offsets = Callable[[int, int, int], list[int] | None]
"""(begin, end, most) -> the offsets of the records with begin <= offset < end, or None for more than `most`."""

_SPARE = 500
_LONGER = 16
_SECOND = 2**20
"""Offsets that stand for about a second where they are made of times."""

_STRETCHES_MAX = 100
"""Enough to halve and to lengthen through all offsets there can be, and a bound for a log that changes meanwhile."""


def newest(start: int, end: int, count: int, offsets: Offsets) -> int:
    """Return the offset of the first of the last `count` records between, or `start` where there are fewer."""
    behind, left = end, count
    length, factor = (max(count, _SECOND) if end >= TIME_CODED_FROM else count), _LONGER
    for _ in range(_STRETCHES_MAX):
        if behind <= start:
            return start
        begin = max(start, behind - length)
        found = offsets(begin, behind, left + _SPARE)
        if found is None:
            length, factor = max(1, (behind - begin) // 2), 2
        elif len(found) >= left:
            return found[-left]
        else:
            left -= len(found)
            behind = begin
            length *= factor
    return behind
