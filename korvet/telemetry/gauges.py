"""The metrics that no process counts itself: tables of names and help texts, and how each value is read from a row.

From a table and rows families are made for a page of /metrics. The rows of the tables in this file come from snapshots;
those of process_metrics.py, redis_metrics.py and topic_metrics.py are read for each page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from korvet.telemetry.snapshot import (
    ArchiverTotals,
    LakeLagSnapshot,
    LogStatsSnapshot,
    Snapshot,
    TablesSnapshot,
    read,
)
from korvet.telemetry.stats import GROUP_STATES, GroupLag, GroupStats, LakeLag, LogStats, TableSize

Family = CounterMetricFamily | GaugeMetricFamily
Outcome = tuple[str, int]

T = TypeVar("T")
S = TypeVar("S", bound=Snapshot)


class Gauge(NamedTuple, Generic[T]):
    """A metric with one value for each row, or none; `counts`: it is a counter, which only grows."""

    name: str
    documentation: str
    value: Callable[[T], float | None]
    counts: bool = False


class GaugeTable(NamedTuple, Generic[T]):
    """Metrics with the same labels, whose values are the row's attributes of that name unless `values` returns them."""

    labels: tuple[str, ...]
    gauges: Sequence[Gauge[T]]
    values: Callable[[T], Sequence[str]] | None = None

    def families(self, rows: Iterable[T] = ()) -> Iterator[Family]:
        """Yield every metric with a sample for each row that has a value."""
        labeled = [(self._values(row), row) for row in rows]
        for gauge in self.gauges:
            kind = CounterMetricFamily if gauge.counts else GaugeMetricFamily
            family = kind(gauge.name, gauge.documentation, labels=self.labels)
            for values, row in labeled:
                value = gauge.value(row)
                if value is not None:
                    family.add_metric(values, value)
            yield family

    def _values(self, row: T) -> Sequence[str]:
        if self.values is not None:
            return self.values(row)
        found = [getattr(row, label) for label in self.labels]
        # Prometheus drops an empty label, so that it means the same as none.
        return ["" if value is None else str(value) for value in found]


_SUMMED = (
    " Above metrics.partitions.max partitions it is the sum by topic, and topic (other) is all other topics."
)
_LARGEST = " Above metrics.partitions.max partitions it is the largest by topic, and topic (other) is all other topics."
_ALONE = " Above metrics.partitions.max partitions it is absent."

LOGS = GaugeTable[LogStats](
    ("topic", "partition"),
    (
        Gauge(
            "korvet_log_size_bytes",
            "Size of the log in Redis, exact to one index entry." + _SUMMED,
            lambda log: log.size_bytes,
        ),
        Gauge(
            "korvet_log_records",
            "Number of records in the log, exact to one index entry." + _SUMMED,
            lambda log: log.records,
        ),
        Gauge(
            "korvet_log_index_rows",
            "Number of entries in the sparse index of the log." + _SUMMED,
            lambda log: log.index_rows,
        ),
        Gauge(
            "korvet_log_compacted_bytes",
            "Size of the compacted part of the log; absent if the log was never compacted." + _SUMMED,
            lambda log: log.compacted_bytes,
        ),
        Gauge(
            "korvet_log_dirty_ratio",
            "Share of the log's bytes that is not compacted; absent if the log was never compacted.",
            lambda log: log.dirty_ratio,
        ),
        Gauge("korvet_log_start_offset", "First offset of the log." + _ALONE, lambda log: log.start_offset),
        Gauge(
            "korvet_log_end_offset",
            "Log end offset: that of the next record." + _ALONE,
            lambda log: log.end_offset,
        ),
        Gauge(
            "korvet_log_oldest_record_age_seconds",
            "Age of the first record of the log by its timestamp; absent if the log is empty." + _LARGEST,
            lambda log: _seconds(log.oldest_age_ms),
        ),
    ),
)
TAKEN = GaugeTable[LogStatsSnapshot](
    (),
    (
        Gauge(
            "korvet_log_figures_timestamp_seconds",
            "Time when the keeper of this broker last collected the statistics of logs and groups.",
            lambda snapshot: snapshot.taken_at,
        ),
    ),
)
GROUP_LAGS = GaugeTable[GroupLag](
    ("group", "topic", "partition"),
    (
        Gauge(
            "korvet_consumer_group_lag_records",
            "Number of records that the group has not committed. Above metrics.partitions.max partitions of groups it"
            " is the sum by topic, and group (other) is all other groups.",
            lambda lag: lag.records,
        ),
        Gauge(
            "korvet_consumer_group_lag_seconds",
            "Age of the first of these records by its timestamp (storage format batch: by the first timestamp of its"
            " batch); 0 without lag, and the largest of all that are summed.",
            lambda lag: lag.age_ms / 1000,
        ),
    ),
)
GROUPS = GaugeTable[GroupStats](
    ("group",),
    (
        Gauge(
            "korvet_consumer_group_members",
            "Number of members of the group. Above metrics.partitions.max groups, group (other) is the sum of the"
            " smallest ones.",
            lambda group: group.members,
        ),
        Gauge(
            "korvet_consumer_group_generation",
            "Generation of the group, which grows by one with each rebalance.",
            lambda group: group.generation,
        ),
        Gauge(
            "korvet_consumer_group_rebalances",
            "Number of rebalances of the group: its generation as a counter, which starts again with a new group.",
            lambda group: group.generation,
            counts=True,
        ),
    ),
)
GROUP_COUNTS = GaugeTable[Outcome](
    ("state",),
    (Gauge("korvet_consumer_groups", "Number of groups by state.", lambda state: state[1]),),
    lambda state: state[:1],
)
LAKE_LAGS = GaugeTable[LakeLag](
    ("topic", "partition"),
    (
        Gauge(
            "korvet_lake_archived_offset",
            "Next offset to archive: all records below it are in the lake.",
            lambda lag: lag.archived_offset,
        ),
        Gauge(
            "korvet_lake_lag_records", "Number of records that are not archived yet.", lambda lag: lag.records
        ),
        Gauge(
            "korvet_lake_lag_seconds",
            "Age of the oldest record that is not archived, by its timestamp; 0 if all are.",
            lambda lag: _seconds(lag.age_ms),
        ),
    ),
)
ROUNDS = GaugeTable[Outcome](
    ("outcome",),
    (
        Gauge(
            "korvet_lake_rounds",
            "Number of archiving rounds by outcome: archived, idle (nothing to archive), failed (at least in part).",
            lambda outcome: outcome[1],
            counts=True,
        ),
    ),
    lambda outcome: outcome[:1],
)
UPKEEPS = GaugeTable[Outcome](
    ("outcome",),
    (
        Gauge(
            "korvet_lake_upkeeps",
            "Number of maintenance rounds on tables by outcome: done, failed.",
            lambda outcome: outcome[1],
            counts=True,
        ),
    ),
    lambda outcome: outcome[:1],
)
TOTALS = GaugeTable[ArchiverTotals](
    (),
    (
        Gauge(
            "korvet_lake_archived_records",
            "Number of archived records.",
            lambda total: total.records,
            counts=True,
        ),
        Gauge(
            "korvet_lake_archived_bytes",
            "Size of the files written by archiving.",
            lambda total: total.bytes,
            counts=True,
        ),
        Gauge(
            "korvet_lake_archived_files",
            "Number of files written by archiving.",
            lambda total: total.files,
            counts=True,
        ),
        Gauge(
            "korvet_lake_conflicts",
            "Number of commits that failed because another archiver committed first; nothing is lost.",
            lambda total: total.conflicts,
            counts=True,
        ),
        Gauge(
            "korvet_lake_lost_ranges",
            "Number of offset ranges that left Redis before they were archived, without being deleted by a user.",
            lambda total: total.lost_ranges,
            counts=True,
        ),
        Gauge(
            "korvet_lake_compacted_files",
            "Number of small files that were merged into larger ones.",
            lambda total: total.compacted_files,
            counts=True,
        ),
        Gauge(
            "korvet_lake_expired_files",
            "Number of files removed from tables by retention.",
            lambda total: total.expired_files,
            counts=True,
        ),
        Gauge(
            "korvet_lake_expired_records",
            "Number of records removed from the lake by retention.",
            lambda total: total.expired_records,
            counts=True,
        ),
    ),
)
ARCHIVER = GaugeTable[TablesSnapshot](
    (),
    (Gauge("korvet_lake_archiver_leader", "1 if the archiver of this broker holds the lease.", lambda _: 1),),
)
TABLES = GaugeTable[TableSize](
    ("topic",),
    (
        Gauge(
            "korvet_lake_table_files", "Number of files in the table of the topic.", lambda table: table.files
        ),
        Gauge(
            "korvet_lake_table_records",
            "Number of records in the table of the topic.",
            lambda table: table.records,
        ),
        Gauge(
            "korvet_lake_table_bytes",
            "Size of the files in the table of the topic.",
            lambda table: table.bytes,
        ),
    ),
)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def log_families(snapshot: LogStatsSnapshot) -> Iterator[Family]:
    """Yield what the keeper reports of logs and groups."""
    yield from TAKEN.families([snapshot])
    yield from LOGS.families(snapshot.logs)
    yield from GROUP_LAGS.families(snapshot.lags)
    yield from GROUPS.families(snapshot.groups)
    yield from GROUP_COUNTS.families((state, snapshot.states.get(state, 0)) for state in GROUP_STATES)


def lake_lag_families(snapshot: LakeLagSnapshot) -> Iterator[Family]:
    """Yield what the keeper reports of archived logs."""
    yield from LAKE_LAGS.families(snapshot.lags)


def total_families(totals: ArchiverTotals) -> Iterator[Family]:
    """Yield what archivers counted."""
    yield from ROUNDS.families(totals.rounds.items())
    yield from UPKEEPS.families(totals.upkeeps.items())
    yield from TOTALS.families([totals])


def table_families(snapshot: TablesSnapshot) -> Iterator[Family]:
    """Yield what the archiver reports of tables."""
    yield from ARCHIVER.families([snapshot])
    yield from TABLES.families(snapshot.tables)


class SnapshotCollector(Collector):
    """Reports what keeper and archiver published; nothing for a snapshot that is absent or too old."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Family]:
        """Yield the families of every snapshot."""
        if logs := self._read(LogStatsSnapshot):
            yield from log_families(logs)
        if lags := self._read(LakeLagSnapshot):
            yield from lake_lag_families(lags)
        if totals := self._read(ArchiverTotals):
            yield from total_families(totals)
        if tables := self._read(TablesSnapshot):
            yield from table_families(tables)

    def _read(self, kind: type[S]) -> S | None:
        return read(self._directory / kind.FILE, kind)
