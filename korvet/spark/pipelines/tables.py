"""Delta tables beside other writers: commits that are tried again, upkeep between batches, names in a catalog."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from korvet import logs
from korvet.spark.names import literal, quoted
from korvet.spark.pipelines.spec import PipelineError
from korvet.spark.session import JOB_ERRORS, root_reason

_CONFLICTS = ("[DELTA_CONCURRENT_", "[DELTA_METADATA_CHANGED", "[DELTA_PROTOCOL_CHANGED")
"""Begin Delta's errors of a transaction that another writer's came before: it has written nothing."""
_TRIES_MAX = 8
_PAUSE_S_MAX = 5.0
"""Between two tries: 25 seconds in all, besides their own work."""

_BATCHES_PER_LOOK = 10
_FILES_MAX = 16
"""Files more than after the last OPTIMIZE: each is small if the batches are."""
_VACUUM_MS = 24 * 3_600_000

_log = logs.Log(__name__)


def commit(table: str, transaction: Callable[[], None], pause: Callable[[float], None] = time.sleep) -> None:
    """Do a transaction on a table, again if another writer was faster; raises PipelineError if one always is."""
    for number in range(1, _TRIES_MAX + 1):
        try:
            transaction()
        except JOB_ERRORS as error:
            reason = root_reason(error)
            if not reason.startswith(_CONFLICTS):
                raise
            if number == _TRIES_MAX:
                raise PipelineError(f"{table}: other writers were faster {number} times: {reason}") from error
            _log.info("another writer of a table was faster", table=table, tries=number, reason=reason)
            # Writers that met once shall not meet at each try.
            pause(random.uniform(0, min(0.2 * 2**number, _PAUSE_S_MAX)))  # noqa: S311 - no secret
        else:
            return


class TableUpkeep:
    """Merges small files of a table and deletes files that it has replaced.

    It is called by the thread that writes the batches, between two of them, so it meets no transaction of its own
    pipeline.
    """

    def __init__(
        self,
        session: SparkSession,
        path: str,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._session = session
        self._name = f"delta.{quoted(path)}"
        self._path = path
        self._now_ms = now_ms
        self._batches = 0
        self._merged_files = 0
        self._tried_ms = 0

    def after_batch(self) -> None:
        """Look at the table after the first batch of the process and each tenth; log errors, which end nothing."""
        self._batches += 1
        if self._batches % _BATCHES_PER_LOOK != 1:
            return
        try:
            files, created_ms = self._detail()
            if files >= self._merged_files + _FILES_MAX:
                self._session.sql(f"OPTIMIZE {self._name}")
                self._merged_files, _ = self._detail()
            self._vacuum(created_ms)
        except JOB_ERRORS as error:
            _log.warning("upkeep of a table has failed", table=self._name, reason=root_reason(error))

    def _detail(self) -> tuple[int, int]:
        """Return how many files count, and when the table was created (ms)."""
        detail = self._session.sql(f"DESCRIBE DETAIL {self._name}")
        [row] = detail.selectExpr("numFiles", "unix_millis(createdAt)").collect()
        return row[0], row[1]

    def _vacuum(self, created_ms: int) -> None:
        files, last_vacuum = hadoop(self._session, f"{self._path}/_delta_log/_last_vacuum_info")
        has_run = files.exists(last_vacuum)
        last_ms = files.getFileStatus(last_vacuum).getModificationTime() if has_run else created_ms
        if self._now_ms() - max(last_ms, self._tried_ms) >= _VACUUM_MS:
            self._tried_ms = self._now_ms()
            # By its list of files it would take those of a table below this one for replaced.
            self._session.sql(f"VACUUM {self._name}{' LITE' if self._has_tables_below() else ''}")

    def _has_tables_below(self) -> bool:
        """Return whether the table's directory has others than those of its partitions."""
        files, path = hadoop(self._session, self._path)
        below = [str(status.getPath().getName()) for status in files.listStatus(path) if status.isDirectory()]
        return any("=" not in name and not name.startswith(("_", ".")) for name in below)


def register(session: SparkSession, name: str, path: str) -> None:
    """Give the table at a path its name in the catalog, unless it has it; raises PipelineError if another has."""
    place = f"target.table: {name}"
    parts = name.split(".")
    in_spark = len(parts) < 3 or parts[0] == "spark_catalog"  # noqa: PLR2004 - catalog, database and table
    if in_spark and session.conf.get("spark.sql.catalogImplementation") != "hive":
        raise PipelineError(
            f"{place}: there is no catalog: spark.conf needs spark.sql.catalogImplementation and"
            " spark.hadoop.hive.metastore.uris"
        )
    quoted_name = ".".join(map(quoted, parts))
    files, wanted = hadoop(session, path)
    location = str(files.makeQualified(wanted).toString())
    try:
        session.sql(f"CREATE TABLE IF NOT EXISTS {quoted_name} USING delta LOCATION {literal(location)}")
        held = session.sql(f"DESCRIBE DETAIL {quoted_name}").select("location").collect()[0][0]
    except JOB_ERRORS as error:
        raise PipelineError(f"{place}: {root_reason(error)}") from error
    if held != location:
        raise PipelineError(f"{place} is the table at {held}, not at {location}")


def hadoop(session: SparkSession, where: str) -> tuple[Any, Any]:
    """Return Hadoop's file system of a place, and its path there."""
    path = session._jvm.org.apache.hadoop.fs.Path(where)  # type: ignore[union-attr]  # noqa: SLF001 - Hadoop has no interface in Python
    configuration = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - the same
    return path.getFileSystem(configuration), path
