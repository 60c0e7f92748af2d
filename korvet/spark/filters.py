"""Filters of a query as bounds of what is read: on partition, offset and timestamp.

Knows Spark's filters. Bounds may be wider than what the filters say, never narrower: Spark evaluates each of them again
on the rows that it is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from korvet.lake.scan import Times
from korvet.lake.schema import OFFSET, PARTITION, TIMESTAMP

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Bounds(msgspec.Struct, frozen=True):
    """Values of each column from the smallest to the largest, both included; timestamps in microseconds."""

    partition: tuple[float, float] = (-math.inf, math.inf)
    offset: tuple[float, float] = (-math.inf, math.inf)
    timestamp: tuple[float, float] = (-math.inf, math.inf)

    @property
    def times(self) -> Times:
        """The timestamps as a scan takes them."""
        return Times(*self.timestamp)


def bounds(filters: Iterable[Filter]) -> Bounds:
    """Return bounds that hold where all filters do."""
    found = {PARTITION: (-math.inf, math.inf)} | dict.fromkeys((OFFSET, TIMESTAMP), (-math.inf, math.inf))
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        if len(attribute) != 1 or attribute[0] not in found:
            continue
        low, high = _range(each)
        first, last = found[attribute[0]]
        found[attribute[0]] = (max(first, low), min(last, high))
    return Bounds(found[PARTITION], found[OFFSET], found[TIMESTAMP])


def _range(each: Filter) -> tuple[float, float]:
    """Return the smallest and the largest value that a filter lets pass."""
    value: Any = getattr(each, "value", None)
    # NULL, which equals nothing, is none of them.
    values = [one for one in value if one is not None] if isinstance(each, In) else [value]
    numbers = [number for one in values if (number := _number(one)) is not None]
    if not numbers or len(numbers) < len(values):
        return -math.inf, math.inf
    if isinstance(each, EqualTo | In):
        return min(numbers), max(numbers)
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return numbers[0], math.inf
    if isinstance(each, LessThan | LessThanOrEqual):
        return -math.inf, numbers[0]
    return -math.inf, math.inf


def _number(value: object) -> float | None:
    """Return a value as columns have it, None for one that is not of their types."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND if value.tzinfo else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None
