"""How far consumer groups are behind, for whoever watches them.

Knows what the figures mean and how those of many partitions become few; nothing of how they are taken (lag_reader.py),
nor of the form in which they are published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

OTHER = "(other)"
"""The topic under which groups beyond the limit are summed, and the group of that sum."""


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """The records that a group has not committed yet of a partition, or of a topic: then `partition` is None."""

    group: str
    topic: str
    partition: int | None
    records: int


def condensed(lags: Sequence[GroupLag], series_max: int) -> list[GroupLag]:
    """Return at most `series_max` figures and one for the rest: by partition where they are so few, else by topic.

    Where there are still more, the largest keep their own and the others are summed as OTHER.
    """
    if len(lags) <= series_max:
        return list(lags)
    by_topic: Counter[tuple[str, str]] = Counter()
    for lag in lags:
        by_topic[lag.group, lag.topic] += lag.records
    sums = [
        GroupLag(group=group, topic=topic, partition=None, records=records)
        for (group, topic), records in sorted(by_topic.items(), key=lambda item: (-item[1], item[0]))
    ]
    rest = sum(lag.records for lag in sums[series_max:])
    others = [GroupLag(group=OTHER, topic=OTHER, partition=None, records=rest)] if sums[series_max:] else []
    return sums[:series_max] + others
