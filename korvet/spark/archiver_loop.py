"""The archiver of a broker while it holds the lease: rounds of archiving on Spark, upkeep beside them, and metrics.

Spark starts when there is a topic with a remote tier, not before. If it stops the process ends, and the supervisor
starts another one. Metrics are published in files: counts, which an archiver continues from the one before, and the
sizes of tables.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from korvet import logs
from korvet.config.settings import Settings
from korvet.errors import KafkaError, LakeError, StorageUnavailableError
from korvet.lake.archiver import ArchiveRound
from korvet.lake.compaction import RunMerges
from korvet.lake.expiry import UpkeepRound, run_upkeep
from korvet.lake.source import LakeSource
from korvet.spark.jobs import archive_rounds, run_merges
from korvet.spark.session import JOB_ERRORS, JavaProcess, SparkError, reason_of, session
from korvet.telemetry import snapshot
from korvet.telemetry.snapshot import ArchiverTotals, Snapshot, TablesSnapshot
from korvet.telemetry.stats import TableSize, limited

_log = logs.Log(__name__)


class ArchiverStats:
    """The metrics of one archiver; several threads add to them."""

    def __init__(self, directory: Path, settings: Settings, source: LakeSource) -> None:
        """Continue the counts of the archiver before in `directory`."""
        self._directory = directory
        self._settings = settings
        self._source = source
        self._totals = snapshot.read(directory / ArchiverTotals.FILE, ArchiverTotals) or ArchiverTotals()
        self._lock = threading.Lock()

    def archived(self, done: ArchiveRound | None) -> None:
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
            self._publish(totals)

    def maintained(self, done: UpkeepRound | None) -> None:
        """Count a round of maintenance; None for one that failed as a whole."""
        with self._lock:
            totals = self._totals
            _count(totals.upkeeps, "failed" if done is None or done.failures else "done")
            if done is not None:
                totals.compacted_files += done.compacted
                totals.expired_files += done.expired
                totals.expired_records += done.expired_records
            self._publish(totals)

    def publish_sizes(self) -> None:
        """Publish how large the tables are each `log.figures.interval.ms`, without end."""
        interval_ms = self._settings.log_figures_interval_ms
        # That this archiver holds the lease is published before the tables are read, which takes time.
        self._publish(TablesSnapshot(valid_until=snapshot.valid_until(interval_ms), tables=[]))
        with self._lock:
            self._publish(self._totals)
        while True:
            try:
                sizes = self._sizes()
            except KafkaError as error:
                _log.warning("cannot list the archived topics", reason=error)
            else:
                self._publish(TablesSnapshot(valid_until=snapshot.valid_until(interval_ms), tables=sizes))
            time.sleep(interval_ms / 1000)

    def _sizes(self) -> list[TableSize]:
        with self._source.opened() as stores:
            topics = stores.remote_topics()
        sizes = []
        for topic in topics:
            try:
                table = self._source.lake.open(topic.of)
                files = [] if table is None else table.files()
                unreadable = 0 if table is None else table.unreadable
            except LakeError as error:
                _log.warning("cannot read the size of a table", topic=topic.name, reason=error)
                continue
            records, size = sum(file.rows for file in files), sum(file.size_bytes for file in files)
            sizes.append(
                TableSize(
                    topic=topic.name, files=len(files), records=records, bytes=size, unreadable=unreadable
                )
            )
        return limited(sizes, self._settings.metrics_partitions_max)

    def _publish(self, metrics: Snapshot) -> None:
        try:
            snapshot.publish(self._directory / metrics.FILE, metrics)
        except OSError as error:
            _log.warning("cannot publish archiver metrics", file=metrics.FILE, reason=error)


def _count(counts: dict[str, int], outcome: str) -> None:
    counts[outcome] = counts.get(outcome, 0) + 1


_SPARK: Mapping[str, str] = {
    # Records never come to the driver: it holds plans and statistics of files.
    "spark.driver.memory": "512m",
    # A merge of compaction keeps a core for seconds; a round of archiving takes the next one that is free. That is
    # shared between pools: within one, jobs wait for each other.
    "spark.scheduler.mode": "FAIR",
}
_POOL = "spark.scheduler.pool"

_IDLE_MS_MAX = 10_000
"""How soon the first topic with a remote tier is seen."""


class ArchiverLoop:
    """The archiver of the broker that holds the lease."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        """Publish metrics in `directory`."""
        self._settings = settings
        self._directory = directory
        self._source = LakeSource.of(settings, settings.redis_url)
        self._stats = ArchiverStats(directory, settings, self._source)
        self._java = JavaProcess()
        self._spark: SparkSession | None = None

    def works(self) -> list[Callable[[], None]]:
        """Return the work of the archiver, each for a thread of its own; none returns unless it fails."""
        works = [self.archive, self._java.watch, self._stats.publish_sizes]
        return [*works, self._maintain] if self._settings.lake_upkeep_interval_ms else works

    def archive(self) -> None:
        """Archive indefinitely. Raises SparkError if Spark does not start, or has stopped."""
        if not self._settings.lake_interval_ms:
            threading.Event().wait()
        self._wait_for_topics()
        _log.info("starting Spark", master=self._settings.lake_master)
        master = self._settings.lake_master
        configs = dict(_SPARK)
        if master.startswith("local"):
            # Files of a killed Java are removed with the broker's.
            configs["spark.local.dir"] = str(self._directory / "spark")
        began = time.monotonic()
        with session("korvet", master=master, configs=configs, java=self._java, only_schedules=True) as spark:
            self._spark = spark
            seconds = round(time.monotonic() - began, 1)
            _log.info("archiving", interval_ms=self._settings.lake_interval_ms, spark_started_in_s=seconds)
            self._archive_rounds(spark)

    def close(self) -> None:
        self._java.end()

    def _wait_for_topics(self) -> None:
        pause_s = min(self._settings.lake_interval_ms, _IDLE_MS_MAX) / 1000
        away = logged = False
        while True:
            try:
                with self._source.opened() as stores:
                    if stores.remote_topics():
                        return
                if not logged:
                    _log.info("no topic has a remote tier yet: Spark is not started")
                away, logged = False, True
            except StorageUnavailableError as error:
                if not away:
                    _log.warning("cannot reach Redis", reason=error)
                away = True
            time.sleep(pause_s)

    def _archive_rounds(self, spark: SparkSession) -> None:
        for done in archive_rounds(spark, self._source, self._settings.lake_interval_ms):
            self._stats.archived(done)
            if done is not None and done.moved:
                _log.debug(
                    "archived",
                    records=done.records,
                    bytes=done.bytes,
                    files=done.files,
                    partitions=done.partitions,
                )

    def _maintain(self) -> None:
        while True:
            time.sleep(self._settings.lake_upkeep_interval_ms / 1000)
            done: UpkeepRound | None = None
            try:
                now_ms = time.time_ns() // 1_000_000
                done = run_upkeep(self._source, now_ms, self._merges())
            except (KafkaError, LakeError, ValueError) as error:
                _log.error("upkeep failed", reason=error)
            self._stats.maintained(done)

    def _merges(self) -> RunMerges | None:
        """Return what runs merges; None as long as Spark has not started. Raises SparkError."""
        if self._spark is None:
            return None
        try:
            self._spark.sparkContext.setLocalProperty(_POOL, "upkeep")
        except JOB_ERRORS as error:
            raise SparkError(f"cannot start a job: {reason_of(error)}") from error
        return partial(run_merges, self._spark, self._source.lake)
