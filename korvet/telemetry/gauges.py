"""The metrics that no process counts itself: tables of names, and how each value is read from a row.

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

from korvet.telemetry.documentation import HELP
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
    value: Callable[[Any], float | None]


def gauge(name: str, value: Value = float, *, divisor: float = 1) -> _Metric:
    """Return a metric with one value for each row, or none; what the row has by a name is divided by `divisor`."""
    read = _number(value, divisor) if isinstance(value, str) else value
    return _Metric(GaugeMetricFamily, name, read)


def counter(name: str, value: Value = float) -> _Metric:
    """Return a metric that only grows; its name is without `_total`."""
    return gauge(name, value)._replace(kind=CounterMetricFamily)


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
            family = metric.kind(metric.name, HELP[metric.name], labels=self._labels)
            for labels, row in labeled:
                value = metric.value(row)
                if value is not None:
                    family.add_metric(labels, value)
            yield family

    def _read(self, row: object) -> list[str]:
        labels = [getattr(row, label) for label in self._labels]
        # Prometheus drops an empty label, so that it means the same as none.
        return ["" if value is None else str(value) for value in labels]


TAKEN = MetricTable((), gauge("korvet_log_figures_timestamp_seconds", "taken_at"))
LOGS = MetricTable(
    ("topic", "partition"),
    gauge("korvet_log_size_bytes", "size_bytes"),
    gauge("korvet_log_records", "records"),
    gauge("korvet_log_index_rows", "index_rows"),
    gauge("korvet_log_compacted_bytes", "compacted_bytes"),
    gauge("korvet_log_dirty_ratio", "dirty_ratio"),
    gauge("korvet_log_start_offset", "start_offset"),
    gauge("korvet_log_end_offset", "end_offset"),
    gauge("korvet_log_oldest_record_age_seconds", "oldest_age_ms", divisor=1000),
    gauge("korvet_log_last_stable_offset_lag", "stable_lag"),
)
GROUP_LAGS = MetricTable(
    ("group", "topic", "partition"),
    gauge("korvet_consumer_group_lag_records", "records"),
    gauge("korvet_consumer_group_lag_seconds", "age_ms", divisor=1000),
    gauge("korvet_consumer_group_offset", "offset"),
)
GROUPS = MetricTable(
    ("group",),
    gauge("korvet_consumer_group_members", "members"),
    gauge("korvet_consumer_group_generation", "generation"),
    counter("korvet_consumer_group_rebalances", "generation"),
)
GROUP_COUNTS = MetricTable(("state",), gauge("korvet_consumer_groups"))
TRANSACTION_COUNTS = MetricTable(("state",), gauge("korvet_transactional_ids"))
TRANSACTION_AGE = MetricTable(
    (), gauge("korvet_transaction_oldest_age_seconds", "transaction_age_ms", divisor=1000)
)
LAKE_LAGS = MetricTable(
    ("topic", "partition"),
    gauge("korvet_lake_archived_offset", "archived_offset"),
    gauge("korvet_lake_lag_records", "records"),
    gauge("korvet_lake_lag_seconds", "age_ms", divisor=1000),
)
ROUNDS = MetricTable(("outcome",), counter("korvet_lake_rounds"))
UPKEEPS = MetricTable(("outcome",), counter("korvet_lake_upkeeps"))
TOTALS = MetricTable(
    (),
    counter("korvet_lake_archived_records", "records"),
    counter("korvet_lake_archived_bytes", "bytes"),
    counter("korvet_lake_archived_files", "files"),
    counter("korvet_lake_conflicts", "conflicts"),
    counter("korvet_lake_lost_ranges", "lost_ranges"),
    counter("korvet_lake_compacted_files", "compacted_files"),
    counter("korvet_lake_expired_files", "expired_files"),
    counter("korvet_lake_expired_records", "expired_records"),
)
ARCHIVER = MetricTable((), gauge("korvet_lake_archiver_leader"))
TABLES = MetricTable(
    ("topic",),
    gauge("korvet_lake_table_files", "files"),
    gauge("korvet_lake_table_records", "records"),
    gauge("korvet_lake_table_bytes", "bytes"),
    counter("korvet_lake_table_unreadable_batches", "unreadable"),
)
PIPELINE_STATE = MetricTable(("pipeline", "state"), gauge("korvet_pipeline_state"))
PIPELINES = MetricTable(
    ("pipeline",),
    gauge("korvet_pipeline_lag_records", "lag_records"),
    gauge("korvet_pipeline_lag_seconds", "lag_ms", divisor=1000),
    counter("korvet_pipeline_records", "records"),
    counter("korvet_pipeline_dead_letters", "dead_letters"),
    counter("korvet_pipeline_unread_fields", "unread_fields"),
    counter("korvet_pipeline_unmet_expectations", "unmet"),
    counter("korvet_pipeline_restarts", "restarts"),
    gauge("korvet_pipeline_last_batch_timestamp_seconds", "batch_ended_ms", divisor=1000),
    gauge("korvet_pipeline_last_batch_seconds", "batch_ms", divisor=1000),
)
PIPELINE_LOSSES = MetricTable(
    ("pipeline", "topic", "partition"), counter("korvet_pipeline_lost_offsets", "offsets")
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
        (PIPELINE_STATE, lambda snapshot: (item for row in snapshot.pipelines for item in _states(row))),
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
    for table, rows in _SHOWN[type(snapshot)]:
        yield from table.families(rows(snapshot))


class SnapshotCollector(Collector):
    """Reports what keeper and archiver published; nothing for a snapshot that is absent or too old."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Family]:
        for kind in _SHOWN:
            if snapshot := read(self._directory / kind.FILE, kind):
                yield from families_of(snapshot)
