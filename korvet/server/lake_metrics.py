"""What /metrics tells of the lake: how far logs are archived, what the archiver counted, how large the tables are.

Knows the three files and how Prometheus is told. The lag is the acting keeper's, who sees it also where something else
archives or nothing does; the rest is the acting archiver's. What workers count of cold reads stands in metrics.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from korvet.domain.lake_lag import LakeLag
from korvet.storage import lake_figures
from korvet.storage.lake_figures import Tables, Totals

Family = CounterMetricFamily | GaugeMetricFamily

# Named so that metrics_files forgets it when the keeper ends.
_LAGS = "lake_lag_keeper.json"


class Lags(msgspec.Struct, frozen=True):
    """How far logs are archived; past `valid_until` (seconds since the epoch) nobody is told."""

    valid_until: float
    logs: list[LakeLag]


def publish(directory: Path, lags: Lags) -> None:
    """Put figures in the place of those before; raises OSError where the disk takes none."""
    new = directory / f"{_LAGS}.new"
    new.write_bytes(msgspec.json.encode(lags))
    # A reader sees the old file or the new one, never half of either.
    new.replace(directory / _LAGS)


def withdraw(directory: Path) -> None:
    """Remove the figures: nobody here keeps them up to date."""
    (directory / _LAGS).unlink(missing_ok=True)


class LakeCollector(Collector):
    """Tells Prometheus what the files say, and nothing of those that are not there, or old.

    `clock` gives seconds since the epoch.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._clock = clock

    def collect(self) -> Iterator[Family]:
        """Yield the families of every file that is there."""
        now = self._clock()
        try:
            lags = msgspec.json.decode((self._directory / _LAGS).read_bytes(), type=Lags)
        except (FileNotFoundError, msgspec.DecodeError):
            pass  # what cannot be read is of another version, which an upgrade in place has replaced
        else:
            if now <= lags.valid_until:
                yield from _of_logs(lags)
        totals = lake_figures.totals(self._directory)
        if totals is not None:
            yield from _of_totals(totals)
        tables = lake_figures.tables(self._directory)
        if tables is not None and now <= tables.valid_until:
            yield from _of_tables(tables)


def families() -> Iterator[Family]:
    """Yield every family, without values."""
    yield from _of_logs(Lags(0, []))
    yield from _of_totals(Totals())
    yield from _of_tables(Tables(0, []))


def _of_logs(lags: Lags) -> Iterator[Family]:
    labels = ["topic", "partition"]
    archived = GaugeMetricFamily(
        "korvet_lake_archived_offset",
        "Offset to be archived next; what is below it is in the lake.",
        labels=labels,
    )
    records = GaugeMetricFamily(
        "korvet_lake_lag_records", "Records that are not archived yet.", labels=labels
    )
    age = GaugeMetricFamily(
        "korvet_lake_lag_seconds",
        "Age of the oldest record that is not archived, by its timestamp; 0 where all are.",
        labels=labels,
    )
    for lag in lags.logs:
        # An empty label is as good as none: Prometheus drops it.
        values = [lag.topic, "" if lag.partition is None else str(lag.partition)]
        if lag.archived_offset is not None:
            archived.add_metric(values, lag.archived_offset)
        records.add_metric(values, lag.records)
        if lag.age_ms is not None:
            age.add_metric(values, lag.age_ms / 1000)
    yield from (archived, records, age)


def _of_totals(totals: Totals) -> Iterator[Family]:
    yield _outcomes(
        "korvet_lake_rounds",
        "Rounds of archiving, by outcome: archived, idle (there was nothing), failed (in part or as a whole).",
        totals.rounds,
    )
    yield _outcomes("korvet_lake_upkeeps", "Rounds of upkeep, by outcome: done, failed.", totals.upkeeps)
    for name, documentation, value in (
        ("korvet_lake_archived_records", "Records archived.", totals.records),
        ("korvet_lake_archived_bytes", "Bytes of the files that they were archived in.", totals.bytes),
        ("korvet_lake_archived_files", "Files that they were archived in.", totals.files),
        (
            "korvet_lake_conflicts",
            "Commits that another archiver forestalled; nothing is lost.",
            totals.conflicts,
        ),
        (
            "korvet_lake_lost_ranges",
            "Ranges of offsets whose records left Redis before they were archived, though nobody deleted them.",
            totals.lost_ranges,
        ),
        ("korvet_lake_compacted_files", "Small files merged into larger ones.", totals.compacted_files),
        ("korvet_lake_expired_files", "Files that left their table by retention.", totals.expired_files),
        ("korvet_lake_expired_records", "Records that left the lake by retention.", totals.expired_records),
    ):
        family = CounterMetricFamily(name, documentation)
        family.add_metric([], value)
        yield family


def _outcomes(name: str, documentation: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, documentation, labels=["outcome"])
    for outcome, count in counts.items():
        family.add_metric([outcome], count)
    return family


def _of_tables(tables: Tables) -> Iterator[Family]:
    acting = GaugeMetricFamily(
        "korvet_lake_archiver_leader", "1 where this broker's archiver is the acting one."
    )
    acting.add_metric([], 1)
    yield acting
    labels = ["topic"]
    files = GaugeMetricFamily("korvet_lake_table_files", "Files of the topic's table.", labels=labels)
    records = GaugeMetricFamily("korvet_lake_table_records", "Records in the topic's table.", labels=labels)
    size = GaugeMetricFamily(
        "korvet_lake_table_bytes", "Bytes of the files of the topic's table.", labels=labels
    )
    for table in tables.tables:
        files.add_metric([table.topic], table.files)
        records.add_metric([table.topic], table.records)
        size.add_metric([table.topic], table.bytes)
    yield from (files, records, size)
