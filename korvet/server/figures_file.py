"""The figures of logs and groups on their way from the acting keeper to /metrics: one file, replaced as a whole.

Knows the file and how Prometheus is told; nothing of Redis or of how figures are taken. What the processes count
themselves lies in files of prometheus_client, which never forget a label: they would go on telling of topics that were
deleted, and of logs that a keeper without the lease saw long ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from korvet.domain.groups.group_figures import STATES, GroupFigures
from korvet.domain.groups.lag_figures import GroupLag
from korvet.domain.log_figures import LogFigures

Family = CounterMetricFamily | GaugeMetricFamily

# Named so that metrics_files forgets it when the keeper ends.
_FILE = "log_figures_keeper.json"


class Snapshot(msgspec.Struct, frozen=True):
    """The figures of one round; times in seconds since the epoch. `states` are the groups by state, all of them.

    Past `valid_until` nobody is told of them: their keeper hangs, cannot reach Redis, or no longer acts.
    """

    taken_at: float
    valid_until: float
    logs: list[LogFigures]
    lags: list[GroupLag] = []
    groups: list[GroupFigures] = []
    states: dict[str, int] = {}


def publish(directory: Path, snapshot: Snapshot) -> None:
    """Put the snapshot in the place of the one before; raises OSError where the disk takes none."""
    new = directory / f"{_FILE}.new"
    new.write_bytes(msgspec.json.encode(snapshot))
    # A reader sees the old file or the new one, never half of either.
    new.replace(directory / _FILE)


def withdraw(directory: Path) -> None:
    """Remove the snapshot: nobody here keeps it up to date."""
    (directory / _FILE).unlink(missing_ok=True)


class _Gauge(NamedTuple):
    name: str
    documentation: str
    value: Callable[[LogFigures], float | None]


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
            yield from families(snapshot)


def families(snapshot: Snapshot) -> Iterator[Family]:
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


def _groups(groups: Sequence[GroupFigures]) -> Iterator[Family]:
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
