"""What /metrics tells of the lake: how far logs are archived, what the archiver counted, how large the tables are.

Knows the three files and how Prometheus is told. The lag is the acting keeper's, who sees it also where something else
archives or nothing does; the rest is the acting archiver's. What workers count of cold reads stands in metrics.py.

What the acting archiver tells of itself and of the tables, on its way to /metrics: two files, replaced as wholes.

Knows the files; not who takes the figures, nor how Prometheus is told. Totals stay when an archiver ends, and the next
one goes on counting; what was true only while it acted is forgotten with it.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_TOTALS = "lake_totals.json"
_TABLES = "lake_tables_archiver.json"
"""Named so that it is removed when the archiver ends."""

OTHER_TOPICS = "(other)"
"""The name under which topics beyond the limit are summed; no topic can have it."""

_Told = TypeVar("_Told")


class Totals(msgspec.Struct, kw_only=True):
    """Everything counted since the broker started. `rounds` and `upkeeps` are by outcome; bytes are those of files."""

    rounds: dict[str, int] = {}
    records: int = 0
    bytes: int = 0
    files: int = 0
    conflicts: int = 0
    lost_ranges: int = 0
    upkeeps: dict[str, int] = {}
    compacted_files: int = 0
    expired_files: int = 0
    expired_records: int = 0


class TableSize(msgspec.Struct, frozen=True):
    """The table of a topic as it is now: files that it names, their rows and bytes."""

    topic: str
    files: int
    records: int
    bytes: int


class Tables(msgspec.Struct, frozen=True):
    """The tables of topics with a cold tier, told until `valid_until` (seconds since the epoch)."""

    valid_until: float
    tables: list[TableSize]


def publish_totals(directory: Path, totals: Totals) -> None:
    """Put totals in the place of those before; raises OSError where the disk takes none."""
    _publish(directory / _TOTALS, totals)


def publish_tables(directory: Path, tables: Tables) -> None:
    """Put sizes of tables in the place of those before; raises OSError where the disk takes none."""
    _publish(directory / _TABLES, tables)


def totals(directory: Path) -> Totals | None:
    """Return what was counted; None where no archiver of this broker has acted yet."""
    return _read(directory / _TOTALS, Totals)


def tables(directory: Path) -> Tables | None:
    """Return the tables' sizes; None where no archiver of this broker acts."""
    return _read(directory / _TABLES, Tables)


def summed_tables(sizes: Sequence[TableSize], series_max: int) -> list[TableSize]:
    """Return at most `series_max` tables, the largest, and one named OTHER_TOPICS for the rest."""
    ordered = sorted(sizes, key=lambda each: (-each.bytes, each.topic))
    kept, rest = ordered[:series_max], ordered[series_max:]
    if rest:
        files, records = sum(each.files for each in rest), sum(each.records for each in rest)
        kept.append(TableSize(OTHER_TOPICS, files, records, sum(each.bytes for each in rest)))
    return kept


def _publish(path: Path, told: object) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(msgspec.json.encode(told))
    # A reader sees the old file or the new one, never half of either.
    new.replace(path)


def _read(path: Path, of: type[_Told]) -> _Told | None:
    # What cannot be read is of another version: an upgrade in place leaves the files where they are.
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=of)
    return None


Family = CounterMetricFamily | GaugeMetricFamily

# Named so that metrics_files forgets it when the keeper ends.
_LAGS = "lake_lag_keeper.json"


class LakeLag(msgspec.Struct, frozen=True, kw_only=True):
    """One log, or those of one topic together: then `partition` and `archived_offset` are None, the age is the largest.

    `records` are not archived, the oldest of them `age_ms` old by its timestamp: 0 where there are none, None where it
    has no timestamp. `archived_offset` is the offset to be archived next.
    """

    topic: str
    partition: int | None
    archived_offset: int | None
    records: int
    age_ms: int | None


class Lags(msgspec.Struct, frozen=True):
    """How far logs are archived; past `valid_until` (seconds since the epoch) nobody is told."""

    valid_until: float
    logs: list[LakeLag]


def summed_lake_lags(lags: Sequence[LakeLag], series_max: int) -> list[LakeLag]:
    """Return at most `series_max` figures and one for the rest: by partition if they are few enough, else by topic.

    Where there are still more topics, those most behind keep their own and the others are summed as OTHER_TOPICS.
    """
    if len(lags) <= series_max:
        return list(lags)
    by_topic: dict[str, list[LakeLag]] = defaultdict(list)
    for lag in lags:
        by_topic[lag.topic].append(lag)
    sums = sorted(
        (_lag_of_topic(topic, some) for topic, some in by_topic.items()),
        key=lambda lag: (-lag.records, lag.topic),
    )
    return sums[:series_max] + ([_lag_of_topic(OTHER_TOPICS, sums[series_max:])] if sums[series_max:] else [])


def _lag_of_topic(topic: str, lags: Sequence[LakeLag]) -> LakeLag:
    return LakeLag(
        topic=topic,
        partition=None,
        archived_offset=None,
        records=sum(lag.records for lag in lags),
        age_ms=max((lag.age_ms for lag in lags if lag.age_ms is not None), default=None),
    )


def publish_lake_lags(directory: Path, lags: Lags) -> None:
    """Put figures in the place of those before; raises OSError where the disk takes none."""
    new = directory / f"{_LAGS}.new"
    new.write_bytes(msgspec.json.encode(lags))
    # A reader sees the old file or the new one, never half of either.
    new.replace(directory / _LAGS)


def withdraw_lake_lags(directory: Path) -> None:
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
        found = totals(self._directory)
        if found is not None:
            yield from _of_totals(found)
        sizes = tables(self._directory)
        if sizes is not None and now <= sizes.valid_until:
            yield from _of_tables(sizes)


def lake_families() -> Iterator[Family]:
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
