"""Figures of the logs for whoever watches them: how much they hold, and how old it is.

Knows what the figures mean and how those of many partitions become few; nothing of the form in which they are
published, nor of how they are taken (figure_reader.py): whoever only tells them on needs no more than this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

OTHER_TOPICS = "(other)"
"""The name under which topics beyond the limit are summed; no topic can have it."""


class LogFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One log, or several of one topic together: then `partition` and the offsets are None, the age is the largest.

    `records` and `size_bytes` (as they lie in Redis) are exact to one row of the index; `oldest_age_ms` is by the
    timestamp of the first record, None where there is none, negative where that lies in the future. `compacted_bytes`
    of the size are compacted; None for a log that never was.
    """

    topic: str
    partition: int | None
    records: int
    size_bytes: int
    index_rows: int
    start_offset: int | None
    end_offset: int | None
    oldest_age_ms: int | None
    compacted_bytes: int | None = None

    @property
    def dirty_ratio(self) -> float | None:
        """Share of the log, by bytes, that is not compacted: 0 to 1.

        None for a log that never was, and for what is summed over topics, which are not all to be compacted.
        """
        if self.compacted_bytes is None or self.topic == OTHER_TOPICS:
            return None
        return 1 - min(self.compacted_bytes / self.size_bytes, 1) if self.size_bytes else 0.0


def condensed(figures: Sequence[LogFigures], series_max: int) -> list[LogFigures]:
    """Return at most `series_max` figures and one for the rest: by partition where they are so few, else by topic.

    Where there are still more topics, the largest keep their own and the others are summed as OTHER_TOPICS.
    """
    if len(figures) <= series_max:
        return list(figures)
    by_topic: dict[str, list[LogFigures]] = defaultdict(list)
    for one in figures:
        by_topic[one.topic].append(one)
    sums = sorted(
        (_sum(topic, of_topic) for topic, of_topic in by_topic.items()),
        key=lambda one: (-one.size_bytes, one.topic),
    )
    return sums[:series_max] + ([_sum(OTHER_TOPICS, sums[series_max:])] if sums[series_max:] else [])


def _sum(topic: str, figures: Sequence[LogFigures]) -> LogFigures:
    compacted = [one.compacted_bytes for one in figures if one.compacted_bytes is not None]
    return LogFigures(
        topic=topic,
        partition=None,
        records=sum(one.records for one in figures),
        size_bytes=sum(one.size_bytes for one in figures),
        index_rows=sum(one.index_rows for one in figures),
        start_offset=None,
        end_offset=None,
        oldest_age_ms=max(
            (one.oldest_age_ms for one in figures if one.oldest_age_ms is not None), default=None
        ),
        compacted_bytes=sum(compacted) if compacted else None,
    )
