"""What the acting archiver counts, and how large the tables are: kept, and published for /metrics.

Knows when; the files in which that goes to /metrics are storage's.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from korvet import logs
from korvet.config.settings import Settings
from korvet.errors import KafkaError, LakeError
from korvet.lake.rounds import Round
from korvet.lake.source import Source
from korvet.lake.table import ArchiveTable
from korvet.lake.tables import Lake
from korvet.lake.upkeep import Upkeep
from korvet.telemetry import lake_metrics as lake_figures
from korvet.telemetry.lake_metrics import Tables, TableSize, Totals

_INTERVALS_VALID = 3
"""Intervals after which sizes are too old to be told: one look may come late, or fail."""

_log = logs.Log(__name__)


class ArchiverStats:
    """The figures of one archiver; several threads add to them."""

    def __init__(self, directory: Path, settings: Settings, source: Source, lake: Lake) -> None:
        """Go on counting where the archiver before in `directory` ended."""
        self._directory = directory
        self._settings = settings
        self._source = source
        self._lake = lake
        self._totals = lake_figures.totals(directory) or Totals()
        self._lock = threading.Lock()

    def archived(self, done: Round | None) -> None:
        """Count a round of archiving; None for one that failed as a whole."""
        with self._lock:
            totals = self._totals
            if done is None:
                _count(totals.rounds, "failed")
            else:
                moved = "archived" if done.moved else "idle"
                _count(totals.rounds, "failed" if done.failures else moved)
                totals.records += done.records
                totals.bytes += done.bytes
                totals.files += done.files
                totals.conflicts += done.conflicts
                totals.lost_ranges += len(done.lost)
            self._publish_totals()

    def kept_up(self, done: Upkeep | None) -> None:
        """Count a round of upkeep; None for one that failed as a whole."""
        with self._lock:
            totals = self._totals
            _count(totals.upkeeps, "failed" if done is None or done.failures else "done")
            if done is not None:
                totals.compacted_files += done.compacted
                totals.expired_files += done.expired
                totals.expired_records += done.expired_records
            self._publish_totals()

    def take(self) -> None:
        """Look how large the tables are, again and again, each `log.figures.interval.ms`."""
        interval_s = self._settings.log_figures_interval_ms / 1000
        self._publish_tables(interval_s, [])
        with self._lock:
            self._publish_totals()
        while True:
            try:
                self._publish_tables(interval_s, self._sizes())
            except KafkaError as error:
                _log.warning("no figures of tables", reason=error)
            time.sleep(interval_s)

    def _sizes(self) -> list[TableSize]:
        with self._source.opened() as stores:
            topics = self._source.topics(stores)
        sizes = []
        for topic in topics:
            try:
                table = ArchiveTable.open(self._lake.path, topic.name, topic.id, self._lake.storage_options)
                files = [] if table is None else table.files()
            except LakeError as error:
                _log.warning("no figures of a table", topic=topic.name, reason=error)
                continue
            rows, size = sum(each.rows for each in files), sum(each.size_bytes for each in files)
            sizes.append(TableSize(topic.name, len(files), rows, size))
        return lake_figures.summed_tables(sizes, self._settings.metrics_partitions_max)

    def _publish_tables(self, interval_s: float, sizes: list[TableSize]) -> None:
        told = Tables(time.time() + interval_s * _INTERVALS_VALID, sizes)
        try:
            lake_figures.publish_tables(self._directory, told)
        except OSError as error:
            _log.warning("figures of tables not published", reason=error)

    def _publish_totals(self) -> None:
        try:
            lake_figures.publish_totals(self._directory, self._totals)
        except OSError as error:
            _log.warning("figures of archiving not published", reason=error)


def _count(counts: dict[str, int], outcome: str) -> None:
    counts[outcome] = counts.get(outcome, 0) + 1
