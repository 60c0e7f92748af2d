"""The metrics that no process counts itself: tables of names and help texts, and how each value is read from a row.

From a table and rows families are made for a page of /metrics. The rows of the tables in this file come from snapshots;
those of process_metrics.py, redis_metrics.py and topic_metrics.py are read for each page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from korvet.telemetry.snapshot import (
    ArchiverTotals,
    LakeLagSnapshot,
    LogStatsSnapshot,
    PipelinesSnapshot,
    Snapshot,
    TablesSnapshot,
    read,
)
from korvet.telemetry.stats import GROUP_STATES, PIPELINE_STATES, PipelineStats

Family = CounterMetricFamily | GaugeMetricFamily
Value = Callable[[Any], float | None] | str
"""Returns the value of a row, None for no sample; a text is the attribute or key of the row that has it."""


class _Metric(NamedTuple):
    kind: type[Family]
    name: str
    documentation: str
    value: Callable[[Any], float | None]


def gauge(name: str, documentation: str, value: Value = float, *, divisor: float = 1) -> _Metric:
    """Return a metric with one value for each row, or none; what the row has by a name is divided by `divisor`."""
    read = _number(value, divisor) if isinstance(value, str) else value
    return _Metric(GaugeMetricFamily, name, documentation, read)


def counter(name: str, documentation: str, value: Value = float) -> _Metric:
    """Return a metric that only grows; its name is without `_total`."""
    return gauge(name, documentation, value)._replace(kind=CounterMetricFamily)


def _number(name: str, divisor: float) -> Callable[[object], float | None]:
    def value(row: object) -> float | None:
        number = row.get(name) if isinstance(row, Mapping) else getattr(row, name)
        return number / divisor if isinstance(number, int | float) else None

    return value


class MetricTable:
    """Metrics with the same labels.

    A row is an object with an attribute for each label, or a tuple: the labels' values, and what metrics read.
    """

    def __init__(self, labels: Sequence[str], *metrics: _Metric) -> None:
        self._labels = labels
        self._metrics = metrics

    def families(self, rows: Iterable[Any] = ()) -> Iterator[Family]:
        """Yield every metric with a sample for each row that has a value."""
        labeled = [(row[:-1], row[-1]) if isinstance(row, tuple) else (self._read(row), row) for row in rows]
        for metric in self._metrics:
            family = metric.kind(metric.name, metric.documentation, labels=self._labels)
            for labels, row in labeled:
                value = metric.value(row)
                if value is not None:
                    family.add_metric(labels, value)
            yield family

    def _read(self, row: object) -> list[str]:
        labels = [getattr(row, label) for label in self._labels]
        # Prometheus drops an empty label, so that it means the same as none.
        return ["" if value is None else str(value) for value in labels]


_ABOVE = " Above metrics.partitions.max partitions it is "
_SUMMED = f"{_ABOVE}the sum by topic, and topic (other) is all other topics."
_LARGEST = f"{_ABOVE}the largest by topic, and topic (other) is all other topics."
_ALONE = f"{_ABOVE}absent."

TAKEN = MetricTable(
    (),
    gauge(
        "korvet_log_figures_timestamp_seconds",
        "Time when the keeper of this broker last collected the statistics of logs and groups.",
        "taken_at",
    ),
)
LOGS = MetricTable(
    ("topic", "partition"),
    gauge(
        "korvet_log_size_bytes", f"Size of the log in Redis, exact to one index entry.{_SUMMED}", "size_bytes"
    ),
    gauge(
        "korvet_log_records", f"Number of records in the log, exact to one index entry.{_SUMMED}", "records"
    ),
    gauge(
        "korvet_log_index_rows", f"Number of entries in the sparse index of the log.{_SUMMED}", "index_rows"
    ),
    gauge(
        "korvet_log_compacted_bytes",
        f"Size of the compacted part of the log; absent if the log was never compacted.{_SUMMED}",
        "compacted_bytes",
    ),
    gauge(
        "korvet_log_dirty_ratio",
        "Share of the log's bytes that is not compacted; absent if the log was never compacted.",
        "dirty_ratio",
    ),
    gauge("korvet_log_start_offset", f"First offset of the log.{_ALONE}", "start_offset"),
    gauge("korvet_log_end_offset", f"Log end offset: that of the next record.{_ALONE}", "end_offset"),
    gauge(
        "korvet_log_oldest_record_age_seconds",
        f"Age of the first record of the log by its timestamp; absent if the log is empty.{_LARGEST}",
        "oldest_age_ms",
        divisor=1000,
    ),
    gauge(
        "korvet_log_last_stable_offset_lag",
        "Number of offsets from the last stable offset to the end of the log; absent without an open transaction.",
        "stable_lag",
    ),
)
GROUP_LAGS = MetricTable(
    ("group", "topic", "partition"),
    gauge(
        "korvet_consumer_group_lag_records",
        "Number of records that the group has not committed, or that a share group is not done with. Above"
        " metrics.partitions.max partitions of groups it is the sum by topic, and group (other) is all other groups.",
        "records",
    ),
    gauge(
        "korvet_consumer_group_lag_seconds",
        "Age of the first of these records by its timestamp (storage format batch: by the first timestamp of its"
        " batch); 0 without lag, and the largest of all that are summed.",
        "age_ms",
        divisor=1000,
    ),
    gauge(
        "korvet_consumer_group_offset",
        "Offset that the group has committed, or of a share group the start. Above metrics.partitions.max partitions of"
        " groups it is absent.",
        "offset",
    ),
)
GROUPS = MetricTable(
    ("group",),
    gauge(
        "korvet_consumer_group_members",
        "Number of members of the group. Above metrics.partitions.max groups, group (other) is the sum of the"
        " smallest ones.",
        "members",
    ),
    gauge(
        "korvet_consumer_group_generation",
        "Generation of the group, or epoch of one of the consumer protocol, which grows by one with each rebalance.",
        "generation",
    ),
    counter(
        "korvet_consumer_group_rebalances",
        "Number of rebalances of the group: its generation as a counter, which starts again with a new group.",
        "generation",
    ),
)
GROUP_COUNTS = MetricTable(("state",), gauge("korvet_consumer_groups", "Number of groups by state."))
TRANSACTION_COUNTS = MetricTable(
    ("state",),
    gauge("korvet_transactional_ids", "Number of transactional ids by the state of their transaction."),
)
TRANSACTION_AGE = MetricTable(
    (),
    gauge(
        "korvet_transaction_oldest_age_seconds",
        "Age of the oldest open transaction; absent without one.",
        "transaction_age_ms",
        divisor=1000,
    ),
)
LAKE_LAGS = MetricTable(
    ("topic", "partition"),
    gauge(
        "korvet_lake_archived_offset",
        "Next offset to archive: all records below it are in the lake.",
        "archived_offset",
    ),
    gauge("korvet_lake_lag_records", "Number of records that are not archived yet.", "records"),
    gauge(
        "korvet_lake_lag_seconds",
        "Time since the oldest record that is not archived was appended, or in format `batch` was seen by the keeper; 0"
        " if all are.",
        "age_ms",
        divisor=1000,
    ),
)
ROUNDS = MetricTable(
    ("outcome",),
    counter(
        "korvet_lake_rounds",
        "Number of archiving rounds by outcome: archived, idle (nothing to archive), failed (at least in part).",
    ),
)
UPKEEPS = MetricTable(
    ("outcome",),
    counter("korvet_lake_upkeeps", "Number of maintenance rounds on tables by outcome: done, failed."),
)
TOTALS = MetricTable(
    (),
    counter("korvet_lake_archived_records", "Number of archived records.", "records"),
    counter("korvet_lake_archived_bytes", "Size of the files written by archiving.", "bytes"),
    counter("korvet_lake_archived_files", "Number of files written by archiving.", "files"),
    counter(
        "korvet_lake_conflicts",
        "Number of commits that failed because another archiver committed first; nothing is lost.",
        "conflicts",
    ),
    counter(
        "korvet_lake_lost_ranges",
        "Number of offset ranges that left Redis before they were archived, without being deleted by a user.",
        "lost_ranges",
    ),
    counter(
        "korvet_lake_compacted_files",
        "Number of small files that were merged into larger ones.",
        "compacted_files",
    ),
    counter(
        "korvet_lake_expired_files", "Number of files removed from tables by retention.", "expired_files"
    ),
    counter(
        "korvet_lake_expired_records",
        "Number of records removed from the lake by retention.",
        "expired_records",
    ),
)
ARCHIVER = MetricTable(
    (), gauge("korvet_lake_archiver_leader", "1 if the archiver of this broker holds the lease.")
)
TABLES = MetricTable(
    ("topic",),
    gauge("korvet_lake_table_files", "Number of files in the table of the topic.", "files"),
    gauge("korvet_lake_table_records", "Number of records in the table of the topic.", "records"),
    gauge("korvet_lake_table_bytes", "Size of the files in the table of the topic.", "bytes"),
    counter(
        "korvet_lake_table_unreadable_batches",
        "Number of batches that did not decode: they were archived as bytes beside the table, not as records.",
        "unreadable",
    ),
)
PIPELINE_STATE = MetricTable(
    ("pipeline", "state"),
    gauge(
        "korvet_pipeline_state",
        "1 for the state of the pipeline, 0 for all others: starting, running, stopped, completed (it had read all"
        " that there was), failed, lost (its process does not renew its lease).",
    ),
)
PIPELINES = MetricTable(
    ("pipeline",),
    gauge(
        "korvet_pipeline_lag_records",
        "Number of records in Redis that the pipeline has not read, of topics that it has read.",
        "lag_records",
    ),
    gauge(
        "korvet_pipeline_lag_seconds",
        "Age of the first of these records by its timestamp; 0 without lag.",
        "lag_ms",
        divisor=1000,
    ),
    counter("korvet_pipeline_records", "Number of records that the pipeline has read.", "records"),
    counter(
        "korvet_pipeline_dead_letters",
        "Number of records that went to the pipeline's table of dead letters: they did not decode, or were not as"
        " expected.",
        "dead_letters",
    ),
    counter(
        "korvet_pipeline_unread_fields",
        "Number of records with fields that the pipeline's schema lacks.",
        "unread_fields",
    ),
    counter(
        "korvet_pipeline_unmet_expectations",
        "Number of records that did not meet an expectation of the pipeline's file, counted for each.",
        "unmet",
    ),
    counter(
        "korvet_pipeline_restarts",
        "Number of starts of the pipeline after an end that nobody had asked for.",
        "restarts",
    ),
    gauge(
        "korvet_pipeline_last_batch_timestamp_seconds",
        "Time when the last batch with records ended; absent before the first.",
        "batch_ended_ms",
        divisor=1000,
    ),
    gauge("korvet_pipeline_last_batch_seconds", "Duration of that batch.", "batch_ms", divisor=1000),
)
PIPELINE_LOSSES = MetricTable(
    ("pipeline", "topic", "partition"),
    counter(
        "korvet_pipeline_lost_offsets",
        f"Number of offsets that were deleted before the pipeline read them, and that it passed over.{_SUMMED}",
        "offsets",
    ),
)


def _states(pipeline: PipelineStats) -> Iterator[tuple[str, str, bool]]:
    # The sum of several has none.
    for state in PIPELINE_STATES if pipeline.state else ():
        yield pipeline.pipeline, state, pipeline.state == state


_SHOWN: dict[type[Snapshot], Sequence[tuple[MetricTable, Callable[[Any], Iterable[Any]]]]] = {
    LogStatsSnapshot: (
        (TAKEN, lambda snapshot: [snapshot]),
        (LOGS, attrgetter("logs")),
        (GROUP_LAGS, attrgetter("lags")),
        (GROUPS, attrgetter("groups")),
        (GROUP_COUNTS, lambda snapshot: ((state, snapshot.states.get(state, 0)) for state in GROUP_STATES)),
        (TRANSACTION_COUNTS, lambda snapshot: snapshot.transactions.items()),
        (TRANSACTION_AGE, lambda snapshot: [snapshot]),
    ),
    LakeLagSnapshot: ((LAKE_LAGS, attrgetter("lags")),),
    PipelinesSnapshot: (
        (PIPELINE_STATE, lambda snapshot: (each for row in snapshot.pipelines for each in _states(row))),
        (PIPELINES, attrgetter("pipelines")),
        (PIPELINE_LOSSES, attrgetter("losses")),
    ),
    ArchiverTotals: (
        (ROUNDS, lambda totals: totals.rounds.items()),
        (UPKEEPS, lambda totals: totals.upkeeps.items()),
        (TOTALS, lambda totals: [totals]),
    ),
    TablesSnapshot: ((ARCHIVER, lambda _snapshot: [(1,)]), (TABLES, attrgetter("tables"))),
}
"""The tables that show each snapshot, and which rows of it."""


def families_of(snapshot: Snapshot) -> Iterator[Family]:
    """Yield what a snapshot reports."""
    for table, rows in _SHOWN[type(snapshot)]:
        yield from table.families(rows(snapshot))


class SnapshotCollector(Collector):
    """Reports what keeper and archiver published; nothing for a snapshot that is absent or too old."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Family]:
        """Yield the families of every snapshot."""
        for kind in _SHOWN:
            if snapshot := read(self._directory / kind.FILE, kind):
                yield from families_of(snapshot)
