"""Statistics of logs, consumer groups and tables, as /metrics and the console show them.

They are read from Redis or from the tables by the rooms above. The number of series is bounded: if there are more rows
than metrics.partitions.max, `limited` merges them by topic or group, and the smallest of those under the name OTHER.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

OTHER = "(other)"
"""The name of the sum of all topics or groups beyond the limit; no topic can have it."""

GROUP_STATES = (
    *("PreparingRebalance", "CompletingRebalance", "Stable", "Empty"),
    *("Assigning", "Reconciling", "NotReady"),
)
"""Kafka's names for the states of an existing group; the last three are for groups that brokers assign."""

PIPELINE_STATES = ("starting", "running", "stopped", "completed", "failed", "lost")
"""`completed` is a pipeline that had read all there was, `lost` one whose process ended without saying so."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """One row of statistics. In a sum of rows every field that is named in none of the three is None."""

    KEY: ClassVar[tuple[str, ...]]
    SUMS: ClassVar[tuple[str, ...]]
    """Fields that are added; by the first of them rows are compared."""
    LARGEST: ClassVar[tuple[str, ...]] = ()


S = TypeVar("S", bound=Stats)


def limited(rows: Sequence[S], series_max: int) -> list[S]:
    """Return the rows as they are if they are at most `series_max`, else one for each key.

    If there are still more, the largest stay and all others become one row named OTHER.
    """
    if len(rows) <= series_max:
        return list(rows)
    kind = type(rows[0])
    by_key: dict[tuple[Any, ...], list[S]] = defaultdict(list)
    for row in rows:
        by_key[tuple(getattr(row, name) for name in kind.KEY)].append(row)
    keys = sorted(by_key, key=lambda key: (-sum(getattr(row, kind.SUMS[0]) for row in by_key[key]), key))
    merged = [_merged(kind, key, by_key[key]) for key in keys[:series_max]]
    rest = [row for key in keys[series_max:] for row in by_key[key]]
    if rest:
        key = tuple(OTHER if isinstance(value, str) else None for value in keys[-1])
        merged.append(_merged(kind, key, rest))
    return merged


def _merged(kind: type[S], key: Sequence[object], rows: Sequence[S]) -> S:
    values = dict.fromkeys(kind.__struct_fields__) | dict(zip(kind.KEY, key, strict=True))
    for names, merge in ((kind.SUMS, sum), (kind.LARGEST, max)):
        for name in names:
            known = [value for row in rows if (value := getattr(row, name)) is not None]
            values[name] = merge(known) if known else None
    return kind(**values)


class LogStats(Stats, frozen=True, kw_only=True):
    """One log, or all of a topic.

    `records` and `size_bytes` (as stored in Redis) are exact to one row of the index. `oldest_age_ms` is by the
    timestamp of the first record: None without records, negative if it lies in the future. `compacted_bytes` is the
    size of the compacted part, None for a log that was never compacted. `stable_lag` is how many offsets the end lies
    past the last stable offset, None without an open transaction.
    """

    KEY = ("topic",)
    SUMS = ("size_bytes", "records", "index_rows", "compacted_bytes")
    LARGEST = ("oldest_age_ms",)

    topic: str
    partition: int | None
    records: int
    size_bytes: int
    index_rows: int
    start_offset: int | None
    end_offset: int | None
    oldest_age_ms: int | None
    compacted_bytes: int | None = None
    stable_lag: int | None = None

    @property
    def dirty_ratio(self) -> float | None:
        """The share of bytes that is not compacted, 0 to 1.

        None for a log that was never compacted, and for the sum over topics, not all of which are compacted.
        """
        if self.compacted_bytes is None or self.topic == OTHER:
            return None
        return 1 - min(self.compacted_bytes / self.size_bytes, 1) if self.size_bytes else 0.0


class GroupLag(Stats, frozen=True, kw_only=True):
    """Records of a partition, or of a topic, that a group has not committed; `age_ms` is the oldest record's age.

    `offset` is the committed offset, and of a share group the start; None for a sum of partitions.
    """

    KEY = ("group", "topic")
    SUMS = ("records",)
    LARGEST = ("age_ms",)

    group: str
    topic: str
    partition: int | None
    records: int
    age_ms: int = 0
    offset: int | None = None


class GroupStats(Stats, frozen=True, kw_only=True):
    """One group, whose `generation` grows by one with each rebalance; the sum of several has none."""

    KEY = ("group", "generation")
    SUMS = ("members",)

    group: str
    members: int
    generation: int | None


class LakeLag(Stats, frozen=True, kw_only=True):
    """How far a log is archived, or all logs of a topic.

    `records` are not archived yet. The oldest of them was appended `age_ms` ago: 0 without records. `archived_offset`
    is the next offset to archive.
    """

    KEY = ("topic",)
    SUMS = ("records",)
    LARGEST = ("age_ms",)

    topic: str
    partition: int | None
    archived_offset: int | None
    records: int
    age_ms: int | None


class TableSize(Stats, frozen=True, kw_only=True):
    """The table of a topic: the files of its current version, their records and bytes.

    `unreadable` counts the batches that were ever archived as bytes, because they do not decode.
    """

    KEY = ("topic",)
    SUMS = ("bytes", "records", "files", "unreadable")

    topic: str
    files: int
    records: int
    bytes: int
    unreadable: int = 0


class PipelineStats(Stats, frozen=True, kw_only=True):
    """One pipeline of the lake: its state, what was read of its topics in Redis and not by it, and its last batch.

    `state` is one of PIPELINE_STATES. The first record of the lag is `lag_ms` old.
    """

    KEY = ("pipeline",)
    SUMS = ("records", "lag_records", "dead_letters", "unread_fields", "unmet", "restarts")
    LARGEST = ("lag_ms", "batch_ms", "batch_ended_ms")

    pipeline: str
    state: str | None
    records: int
    dead_letters: int
    unread_fields: int = 0
    unmet: int = 0
    restarts: int
    lag_records: int
    lag_ms: int
    batch_ended_ms: int | None
    batch_ms: int | None


class PipelineLoss(Stats, frozen=True, kw_only=True):
    """Offsets of a partition, or of all of a topic, that a pipeline passed over because they were gone."""

    KEY = ("pipeline", "topic")
    SUMS = ("offsets",)

    pipeline: str
    topic: str
    partition: int | None
    offsets: int
