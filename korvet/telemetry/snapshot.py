"""The figures of logs and groups on their way from the acting keeper to /metrics: one file, replaced as a whole.

Knows the file and how Prometheus is told; nothing of Redis or of how figures are taken. What the processes count
themselves lies in files of prometheus_client, which never forget a label: they would go on telling of topics that were
deleted, and of logs that a keeper without the lease saw long ago.

How far consumer groups are behind, for whoever watches them.

Knows what the figures mean and how those of many partitions become few; nothing of how they are taken (lag_reader.py),
nor of the form in which they are published.

Consumer groups themselves, for whoever watches them: how many members each has, and how often it was rebalanced.

Knows what the figures mean and how those of many groups become few; nothing of how they are taken (group_reader.py),
nor of the form in which they are published.

Figures of the logs for whoever watches them: how much they hold, and how old it is.

Knows what the figures mean and how those of many partitions become few; nothing of the form in which they are
published, nor of how they are taken (figure_reader.py): whoever only tells them on needs no more than this.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

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


def summed_lags(lags: Sequence[GroupLag], series_max: int) -> list[GroupLag]:
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


STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Empty")
"""Kafka's names for the states of a group that exists."""


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """One group, or several together: then it is named OTHER and `generation` is None.

    `members` are those that have joined; the generation is one more after each rebalance.
    """

    group: str
    members: int
    generation: int | None


def summed_groups(figures: Sequence[GroupStats], series_max: int) -> list[GroupStats]:
    """Return at most `series_max` figures, those of the groups with the most members, and one for the rest."""
    if len(figures) <= series_max:
        return list(figures)
    ordered = sorted(figures, key=lambda one: (-one.members, one.group))
    kept, rest = ordered[:series_max], ordered[series_max:]
    members = sum(one.members for one in rest)
    return [*kept, GroupStats(group=OTHER, members=members, generation=None)]


OTHER_TOPICS = "(other)"
"""The name under which topics beyond the limit are summed; no topic can have it."""


class LogStats(msgspec.Struct, frozen=True, kw_only=True):
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


def summed_logs(figures: Sequence[LogStats], series_max: int) -> list[LogStats]:
    """Return at most `series_max` figures and one for the rest: by partition where they are so few, else by topic.

    Where there are still more topics, the largest keep their own and the others are summed as OTHER_TOPICS.
    """
    if len(figures) <= series_max:
        return list(figures)
    by_topic: dict[str, list[LogStats]] = defaultdict(list)
    for one in figures:
        by_topic[one.topic].append(one)
    sums = sorted(
        (_log_figures_sum(topic, of_topic) for topic, of_topic in by_topic.items()),
        key=lambda one: (-one.size_bytes, one.topic),
    )
    return sums[:series_max] + (
        [_log_figures_sum(OTHER_TOPICS, sums[series_max:])] if sums[series_max:] else []
    )


def _log_figures_sum(topic: str, figures: Sequence[LogStats]) -> LogStats:
    compacted = [one.compacted_bytes for one in figures if one.compacted_bytes is not None]
    return LogStats(
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


Family = CounterMetricFamily | GaugeMetricFamily

# Named so that metrics_files forgets it when the keeper ends.
_FILE = "log_figures_keeper.json"


class Snapshot(msgspec.Struct, frozen=True):
    """The figures of one round; times in seconds since the epoch. `states` are the groups by state, all of them.

    Past `valid_until` nobody is told of them: their keeper hangs, cannot reach Redis, or no longer acts.
    """

    taken_at: float
    valid_until: float
    logs: list[LogStats]
    lags: list[GroupLag] = []
    groups: list[GroupStats] = []
    states: dict[str, int] = {}


def publish_log_snapshot(directory: Path, snapshot: Snapshot) -> None:
    """Put the snapshot in the place of the one before; raises OSError where the disk takes none."""
    new = directory / f"{_FILE}.new"
    new.write_bytes(msgspec.json.encode(snapshot))
    # A reader sees the old file or the new one, never half of either.
    new.replace(directory / _FILE)


def withdraw_log_snapshot(directory: Path) -> None:
    """Remove the snapshot: nobody here keeps it up to date."""
    (directory / _FILE).unlink(missing_ok=True)


class _Gauge(NamedTuple):
    name: str
    documentation: str
    value: Callable[[LogStats], float | None]


_GAUGES = (
    _Gauge(
        "korvet_log_size_bytes",
        "Bytes of the log as they lie in Redis, to one row of the index.",
        lambda log: log.size_bytes,
    ),
    _Gauge("korvet_log_records", "Records in the log, to one row of the index.", lambda log: log.records),
    _Gauge("korvet_log_index_rows", "Rows of the log's sparse index.", lambda log: log.index_rows),
    _Gauge(
        "korvet_log_compacted_bytes",
        "Bytes of the part of the log that is compacted; none for a log that never was.",
        lambda log: log.compacted_bytes,
    ),
    _Gauge(
        "korvet_log_dirty_ratio",
        "Share of the log, by bytes, that is not compacted; none for a log that never was.",
        lambda log: log.dirty_ratio,
    ),
    _Gauge("korvet_log_start_offset", "First offset of the log.", lambda log: log.start_offset),
    _Gauge("korvet_log_end_offset", "Offset of the next record of the log.", lambda log: log.end_offset),
    _Gauge(
        "korvet_log_oldest_record_age_seconds",
        "Age of the log's first record, by its timestamp; none for an empty log.",
        lambda log: None if log.oldest_age_ms is None else log.oldest_age_ms / 1000,
    ),
)
GRANULARITY = (
    " Summed by topic (the age: the largest; no offsets) where there are more than metrics.partitions.max partitions,"
    " and beyond as many topics the smallest together as topic (other)."
)
"""What the description of every gauge of a log ends with."""


class LogCollector(Collector):
    """Tells Prometheus what the snapshot says; nothing at all where there is none, or an old one.

    `clock` gives seconds since the epoch.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._clock = clock

    def collect(self) -> Iterator[Family]:
        """Yield every gauge, with a series for each log, or sum of logs, that has a value."""
        try:
            text = (self._directory / _FILE).read_bytes()
            snapshot = msgspec.json.decode(text, type=Snapshot)
        except (FileNotFoundError, msgspec.DecodeError):
            # What cannot be read is of another version: an upgrade in place leaves the files where they are.
            return
        if self._clock() <= snapshot.valid_until:
            yield from log_families(snapshot)


def log_families(snapshot: Snapshot) -> Iterator[Family]:
    """Yield what a snapshot says, gauge by gauge."""
    taken = GaugeMetricFamily(
        "korvet_log_figures_timestamp_seconds", "When this broker's keeper last took the figures of the logs."
    )
    taken.add_metric([], snapshot.taken_at)
    yield taken
    for gauge in _GAUGES:
        documentation = gauge.documentation + GRANULARITY
        family = GaugeMetricFamily(gauge.name, documentation, labels=["topic", "partition"])
        for log in snapshot.logs:
            value = gauge.value(log)
            if value is not None:
                # An empty label is as good as none: Prometheus drops it.
                family.add_metric([log.topic, "" if log.partition is None else str(log.partition)], value)
        yield family
    yield from _lags(snapshot.lags)
    yield from _groups(snapshot.groups)
    states = GaugeMetricFamily("korvet_consumer_groups", "Groups by state.", labels=["state"])
    for state in STATES:
        states.add_metric([state], snapshot.states.get(state, 0))
    yield states


def _lags(lags: Sequence[GroupLag]) -> Iterator[Family]:
    labels = ["group", "topic", "partition"]
    records = GaugeMetricFamily(
        "korvet_consumer_group_lag_records",
        "Records of the log that the group has not committed yet; of a topic where there are more than"
        " metrics.partitions.max partitions of groups, and beyond as many the rest together as group (other).",
        labels=labels,
    )
    seconds = GaugeMetricFamily(
        "korvet_consumer_group_lag_seconds",
        "Age of the first of these records, by its timestamp (in format batch its batch's first); 0 where there are"
        " none, and the largest where several partitions are told together.",
        labels=labels,
    )
    for lag in lags:
        values = [lag.group, lag.topic, "" if lag.partition is None else str(lag.partition)]
        records.add_metric(values, lag.records)
        seconds.add_metric(values, lag.age_ms / 1000)
    yield records
    yield seconds


def _groups(groups: Sequence[GroupStats]) -> Iterator[Family]:
    members = GaugeMetricFamily(
        "korvet_consumer_group_members",
        "Members of the group; beyond metrics.partitions.max groups those of the smallest together as group (other).",
        labels=["group"],
    )
    generation = GaugeMetricFamily(
        "korvet_consumer_group_generation",
        "Generation of the group, which members name in what they ask.",
        labels=["group"],
    )
    rebalances = CounterMetricFamily(
        "korvet_consumer_group_rebalances",
        "Rebalances of the group: the same number, for rates; it begins anew where a group does.",
        labels=["group"],
    )
    for one in groups:
        members.add_metric([one.group], one.members)
        if one.generation is not None:
            generation.add_metric([one.group], one.generation)
            rebalances.add_metric([one.group], one.generation)
    yield from (members, generation, rebalances)
