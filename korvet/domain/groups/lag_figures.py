"""How far consumer groups are behind, for whoever watches them.

Knows what the figures mean and how those of many partitions become few; nothing of how they are taken (lag_reader.py),
nor of the form in which they are published.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

OTHER = "(other)"
"""The topic under which groups beyond the limit are summed, and the group of that sum."""


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """The records that a group has not committed yet of a partition, or of a topic: then `partition` is None.

    `age_ms` is how old the first of them is, the largest age where there are several; 0 where there are none.
    """

    group: str
    topic: str
    partition: int | None
    records: int
    age_ms: int = 0


def condensed(lags: Sequence[GroupLag], series_max: int) -> list[GroupLag]:
    """Return at most `series_max` figures and one for the rest: by partition where they are so few, else by topic.

    Where there are still more, the largest keep their own and the others are summed as OTHER.
    """
    if len(lags) <= series_max:
        return list(lags)
    by_topic: dict[tuple[str, str], list[GroupLag]] = defaultdict(list)
    for lag in lags:
        by_topic[lag.group, lag.topic].append(lag)
    sums = sorted(
        (_sum(group, topic, some) for (group, topic), some in by_topic.items()),
        key=lambda lag: (-lag.records, lag.group, lag.topic),
    )
    return sums[:series_max] + ([_sum(OTHER, OTHER, sums[series_max:])] if sums[series_max:] else [])


def _sum(group: str, topic: str, lags: Sequence[GroupLag]) -> GroupLag:
    return GroupLag(
        group=group,
        topic=topic,
        partition=None,
        records=sum(lag.records for lag in lags),
        age_ms=max(lag.age_ms for lag in lags),
    )
