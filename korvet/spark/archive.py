"""The job that archives topics: rounds of korvet.lake.archiver, whose tasks Spark runs.

Knows how tasks are spread, and when the next round begins. Records never come here: a task reads its range from Redis
and writes its file itself, and only what the table is told of the file comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark.sql import SparkSession

from korvet import logs
from korvet.errors import KafkaError, LakeError
from korvet.lake.archiver import Archiver, Ends, Run
from korvet.lake.files import StorageOptions
from korvet.lake.plan import bins
from korvet.lake.rounds import Round
from korvet.lake.source import Source
from korvet.lake.task import Outcome, Task, archive_ranges
from korvet.spark.session import JOB_ERRORS, SparkError, reason_of

_BINS_PER_CORE = 4
"""Spark's tasks for each core: more would cost more to start than they even out."""

Seen = Callable[[Round], None]
"""Is told of every round."""

_log = logs.Log(__name__)


def archiver(
    session: SparkSession,
    source: Source,
    lake: str,
    storage_options: StorageOptions = None,
    *,
    names: Sequence[str] = (),
) -> Archiver:
    """Return an archiver that plans for the cores of a session."""
    cores = session.sparkContext.defaultParallelism
    return Archiver(source, lake, storage_options, names=names, cores=cores)


def runner(session: SparkSession, source: Source, storage_options: StorageOptions = None) -> Run:
    """Return what runs tasks on a session; it raises SparkError where the job fails, as when no executor is left."""
    context = session.sparkContext

    def job(tasks: Sequence[Task]) -> list[Outcome]:
        spread = bins([task.bytes for task in tasks], context.defaultParallelism * _BINS_PER_CORE)
        works = [[tasks[place] for place in places] for places in spread]
        work = partial(archive_ranges, source, storage_options)
        return context.parallelize(works, len(works)).flatMap(work).collect()

    def run(tasks: Sequence[Task]) -> Iterable[Outcome]:
        # In a thread of its own: a signal must not come in the middle of what Java is being asked. Where this one is
        # interrupted, the session stops, and with it the job.
        pool = ThreadPoolExecutor(1)
        try:
            return pool.submit(job, tasks).result()
        except JOB_ERRORS as error:
            raise SparkError(f"the job failed: {reason_of(error)}") from error
        finally:
            pool.shutdown(wait=False)

    return run


def archive_once(archives: Archiver, run: Run, seen: Seen = lambda _: None) -> Round:
    """Archive what is there now, by as many rounds as that takes; returns what was done.

    Ends early where a round brings nothing further. Raises as Archiver.round does.
    """
    total, ends = Round(), Ends()
    while True:
        done = archives.round(run, ends)
        total.add(done)
        seen(done)
        if not (done.more and done.moved):
            return total


def archive_for_ever(archives: Archiver, run: Run, interval_ms: int, seen: Seen = lambda _: None) -> None:
    """Archive again and again, a round each `interval_ms`, at once where one left something.

    A round that fails is logged, and the next one tries again: Redis, the lake and Spark's executors may come back.
    Raises ValueError as Archiver.round does.
    """
    while True:
        began = time.monotonic()
        more = False
        try:
            done = archives.round(run)
            seen(done)
            more = done.more and done.moved
        except (KafkaError, LakeError) as error:
            _log.error("a round of archiving failed", reason=error)
        if not more:
            time.sleep(max(began + interval_ms / 1000 - time.monotonic(), 0))
