"""What the archiver of a broker does while it acts: rounds of archiving on Spark, upkeep beside them, and figures.

Knows when each is due; what they do is the lake's. Spark starts when there is a topic with a cold tier, not before, and
where it ends the process does: the supervisor starts another one.

What the acting archiver counts, and how large the tables are: kept, and published for /metrics.

Knows when; the files in which that goes to /metrics are storage's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from korvet import logs
from korvet.config.settings import Settings
from korvet.config.values import key_values
from korvet.errors import KafkaError, LakeError, StorageUnavailableError
from korvet.lake.archiver import ArchiveRound
from korvet.lake.compaction import RunMerges
from korvet.lake.expiry import UpkeepRound, run_upkeep
from korvet.lake.source import LakeSource
from korvet.lake.table import ArchiveTable, Lake
from korvet.spark.jobs import archive_runner, make_archiver, merge_runner
from korvet.spark.session import JOB_ERRORS, JavaProcess, SparkError, is_stopped, reason_of, session
from korvet.telemetry import snapshot
from korvet.telemetry.snapshot import ArchiverTotals, Snapshot, TablesSnapshot
from korvet.telemetry.stats import TableSize, limited

_log = logs.Log(__name__)


class ArchiverStats:
    """The figures of one archiver; several threads add to them."""

    def __init__(self, directory: Path, settings: Settings, source: LakeSource, lake: Lake) -> None:
        """Continue the counts of the archiver before in `directory`."""
        self._directory = directory
        self._settings = settings
        self._source = source
        self._lake = lake
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

    def kept_up(self, done: UpkeepRound | None) -> None:
        """Count a round of maintenance; None for one that failed as a whole."""
        with self._lock:
            totals = self._totals
            _count(totals.upkeeps, "failed" if done is None or done.failures else "done")
            if done is not None:
                totals.compacted_files += done.compacted
                totals.expired_files += done.expired
                totals.expired_records += done.expired_records
            self._publish(totals)

    def take(self) -> None:
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
            topics = self._source.topics(stores)
        sizes = []
        for topic in topics:
            try:
                table = ArchiveTable.open(self._lake.path, topic.name, topic.id, self._lake.storage_options)
                files = [] if table is None else table.files()
            except LakeError as error:
                _log.warning("cannot read the size of a table", topic=topic.name, reason=error)
                continue
            records, size = sum(each.rows for each in files), sum(each.size_bytes for each in files)
            sizes.append(TableSize(topic=topic.name, files=len(files), records=records, bytes=size))
        return limited(sizes, self._settings.metrics_partitions_max)

    def _publish(self, figures: Snapshot) -> None:
        try:
            snapshot.publish(self._directory / figures.FILE, figures)
        except OSError as error:
            _log.warning("cannot publish archiver metrics", file=figures.FILE, reason=error)


def _count(counts: dict[str, int], outcome: str) -> None:
    counts[outcome] = counts.get(outcome, 0) + 1


_SPARK: Mapping[str, str] = {
    # Records never come to the driver: it holds plans and what tables are told of files.
    "spark.driver.memory": "512m",
    # A merge of compaction keeps a core for seconds; a round of archiving takes the next one that is free. That is
    # shared between pools: within one, jobs wait for each other.
    "spark.scheduler.mode": "FAIR",
}
_POOL = "spark.scheduler.pool"

_IDLE_MS_MAX = 10_000
"""How soon the first topic with a cold tier is seen."""


class ArchiverLoop:
    """The archiver that acts."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        """Leave figures for /metrics in `directory`."""
        self._settings = settings
        self._directory = directory
        self._source = LakeSource.of(settings, settings.redis_url)
        self._lake = Lake(settings.lake_path, key_values(settings.lake_storage_options) or None)
        self._figures = ArchiverStats(directory, settings, self._source, self._lake)
        self._java = JavaProcess()
        self._spark: SparkSession | None = None

    def works(self) -> list[Callable[[], None]]:
        """Return what is to be done, each in a thread of its own; none of it returns but for a failure."""
        works = [self.archive, self._java.watch, self._figures.take]
        return [*works, self._keep_up] if self._settings.lake_upkeep_interval_ms else works

    def archive(self) -> None:
        """Archive indefinitely. Raises SparkError where Spark does not start, or stopped."""
        if not self._settings.lake_interval_ms:
            threading.Event().wait()
        self._wait_for_topics()
        _log.info("starts Spark", master=self._settings.lake_master)
        master = self._settings.lake_master
        configs = dict(_SPARK)
        if master.startswith("local"):
            # What a killed Java leaves there goes with the broker.
            configs["spark.local.dir"] = str(self._directory / "spark")
        with session("korvet", master=master, configs=configs, launch=self._java.launch) as spark:
            self._spark = spark
            _log.info("archives", interval_ms=self._settings.lake_interval_ms)
            self._rounds(spark)

    def close(self) -> None:
        """End Java."""
        self._java.end()

    def _wait_for_topics(self) -> None:
        pause_s = min(self._settings.lake_interval_ms, _IDLE_MS_MAX) / 1000
        away = told = False
        while True:
            try:
                with self._source.opened() as stores:
                    if self._source.topics(stores):
                        return
                if not told:
                    _log.info("no topic has a cold tier yet: Spark is not needed")
                away, told = False, True
            except StorageUnavailableError as error:
                if not away:
                    _log.warning("cannot reach Redis", reason=error)
                away = True
            time.sleep(pause_s)

    def _rounds(self, spark: SparkSession) -> None:
        archives = make_archiver(spark, self._source, self._lake.path, self._lake.storage_options)
        run = archive_runner(spark, self._source, self._lake.storage_options)
        while True:
            began = time.monotonic()
            done = None
            try:
                done = archives.round(run)
            except SparkError as error:
                if is_stopped(spark):
                    raise
                _log.error("a round of archiving failed", reason=error)
            except (KafkaError, LakeError) as error:
                _log.error("a round of archiving failed", reason=error)
            self._figures.archived(done)
            if done is not None and done.moved:
                _told(done)
            if done is None or not (done.more and done.moved):
                pause_s = began + self._settings.lake_interval_ms / 1000 - time.monotonic()
                time.sleep(max(pause_s, 0))

    def _keep_up(self) -> None:
        """Look after the tables indefinitely."""
        while True:
            time.sleep(self._settings.lake_upkeep_interval_ms / 1000)
            done: UpkeepRound | None = None
            try:
                now_ms = time.time_ns() // 1_000_000
                done = run_upkeep(self._source, self._lake, now_ms, self._merges())
            except (KafkaError, LakeError, ValueError) as error:
                _log.error("upkeep failed", reason=error)
            self._figures.kept_up(done)

    def _merges(self) -> RunMerges | None:
        """Return what does merges; None as long as there is no Spark. Raises SparkError."""
        if self._spark is None:
            return None
        try:
            self._spark.sparkContext.setLocalProperty(_POOL, "upkeep")
        except JOB_ERRORS as error:
            raise SparkError(f"no job begins: {reason_of(error)}") from error
        return merge_runner(self._spark, self._lake.storage_options)


def _told(done: ArchiveRound) -> None:
    _log.debug(
        "archived", records=done.records, bytes=done.bytes, files=done.files, partitions=done.partitions
    )
