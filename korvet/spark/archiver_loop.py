"""What the archiver of a broker does while it acts: rounds of archiving on Spark, upkeep beside them, and figures.

Knows when each is due; what they do is the lake's. Spark starts when there is a topic with a cold tier, not before, and
where it ends the process does: the supervisor starts another one.
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
from korvet.lake.compaction import Run
from korvet.lake.rounds import Round
from korvet.lake.source import Source
from korvet.lake.tables import Lake
from korvet.lake.upkeep import Upkeep, upkeep
from korvet.spark import archive, compact, java_process
from korvet.spark.archiver_stats import ArchiverStats
from korvet.spark.session import JOB_ERRORS, SparkError, reason_of, session

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

_log = logs.Log(__name__)


class ArchiverLoop:
    """The archiver that acts."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        """Leave figures for /metrics in `directory`."""
        self._settings = settings
        self._directory = directory
        self._source = Source.of(settings, settings.redis_url)
        self._lake = Lake(settings.lake_path, key_values(settings.lake_storage_options) or None)
        self._figures = ArchiverStats(directory, settings, self._source, self._lake)
        self._java = java_process.JavaProcess()
        self._spark: SparkSession | None = None

    def works(self) -> list[Callable[[], None]]:
        """Return what is to be done, each in a thread of its own; none of it returns but for a failure."""
        works = [self.archive, self._java.watch, self._figures.take]
        return [*works, self._keep_up] if self._settings.lake_upkeep_interval_ms else works

    def archive(self) -> None:
        """Archive for ever. Raises SparkError where Spark does not start, or stopped."""
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
        archives = archive.archiver(spark, self._source, self._lake.path, self._lake.storage_options)
        run = archive.runner(spark, self._source, self._lake.storage_options)
        while True:
            began = time.monotonic()
            done = None
            try:
                done = archives.round(run)
            except SparkError as error:
                if java_process.is_stopped(spark):
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
        """Look after the tables for ever."""
        while True:
            time.sleep(self._settings.lake_upkeep_interval_ms / 1000)
            done: Upkeep | None = None
            try:
                now_ms = time.time_ns() // 1_000_000
                done = upkeep(self._source, self._lake, now_ms, self._merges())
            except (KafkaError, LakeError, ValueError) as error:
                _log.error("upkeep failed", reason=error)
            self._figures.kept_up(done)

    def _merges(self) -> Run | None:
        """Return what does merges; None as long as there is no Spark. Raises SparkError."""
        if self._spark is None:
            return None
        try:
            self._spark.sparkContext.setLocalProperty(_POOL, "upkeep")
        except JOB_ERRORS as error:
            raise SparkError(f"no job begins: {reason_of(error)}") from error
        return compact.runner(self._spark, self._lake.storage_options)


def _told(done: Round) -> None:
    _log.debug(
        "archived", records=done.records, bytes=done.bytes, files=done.files, partitions=done.partitions
    )
