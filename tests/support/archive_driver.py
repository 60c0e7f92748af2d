"""An archiver in a process of its own that comes to a point and stays there, to be killed.

Run as `python -m tests.support.archive_driver URL LAKE POINT [MASTER]`, with Spark where a master is named; writes the
point's name to stdout when it is there. `none` is no point: it archives until it finds nothing more, and ends. What an
object store needs is in the environment, as for a broker.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from functools import partial, wraps
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from korvet.config.values import key_values
from korvet.lake.archiver import Archiver, RunTasks
from korvet.lake.source import LakeSource
from korvet.lake.table import ArchiveTable, Lake
from korvet.lake.tasks import ArchiveTask, TaskOutcome, archive_ranges
from korvet.log.remote.archived import RemoteOffsetStore

POINTS = ("before the write", "after the write", "before the commit", "after the commit", "before the mirror")
ICEBERG_POINTS = ("before Iceberg's commit", "after Iceberg's commit")


def main(url: str, lake: str, point: str, master: str = "") -> None:
    """Archive up to the point."""
    tables = Lake.of(lake, os.environ.get("KORVET_LAKE_STORAGE_OPTIONS", ""))
    iceberg = key_values(os.environ.get("KORVET_LAKE_ICEBERG_CATALOG", ""))
    source = LakeSource(redis_url=url, lake=tables, iceberg=iceberg)
    stops = {name: partial(stop, name) if name == point else lambda: None for name in POINTS + ICEBERG_POINTS}
    if point in ICEBERG_POINTS:
        # The commit that sets properties is before the first of these.
        surround(SqlCatalog, "commit_table", *(stops[name] for name in ICEBERG_POINTS))
    surround(ArchiveTable, "append", stops["before the commit"], stops["after the commit"])
    if point == "before the mirror":
        # What a commit before this one has left unreported is reported first, and is not meant.
        surround(RemoteOffsetStore, "mirror", stops[point], lambda: None)
    if not master:
        _archive(Archiver(source), stops, partial(archive_ranges, source))
        return
    from korvet.spark.jobs import archive_runner, make_archiver
    from korvet.spark.session import session

    with session("driver", master=master) as spark:
        _archive(make_archiver(spark, source), stops, archive_runner(spark, source))


def _archive(archives: Archiver, stops: dict[str, Any], work: RunTasks) -> None:
    def run(tasks: Sequence[ArchiveTask]) -> Iterable[TaskOutcome]:
        stops["before the write"]()
        outcomes = list(work(tasks))
        stops["after the write"]()
        return outcomes

    done = archives.round(run)
    while done.moved:
        done = archives.round(run)


def surround(of: type, name: str, before: Any, after: Any) -> None:
    """Let a method call something before and after its work."""
    method = getattr(of, name)

    @wraps(method)
    def surrounded(*args: Any) -> Any:
        before()
        result = method(*args)
        after()
        return result

    setattr(of, name, surrounded)


def stop(point: str) -> None:
    """Tell where this process is, and stay there."""
    sys.stdout.write(f"{point}\n")
    sys.stdout.flush()
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
