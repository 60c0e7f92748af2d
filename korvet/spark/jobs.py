"""The job that archives topics: rounds of korvet.lake.archiver, whose tasks Spark runs.

Knows how tasks are spread, and when the next round begins. Records never come here: a task reads its range from Redis
and writes its file itself, and only what the table is told of the file comes back.

The job that compacts tables: merges of korvet.lake.compaction, spread over Spark's tasks.

Knows how merges are spread; what is written is committed by whoever planned it. Rows never come here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark.sql import SparkSession

from korvet import logs
from korvet.errors import KafkaError, LakeError
from korvet.lake.archiver import Archiver, ArchiveRound, EndOffsets, RunTasks
from korvet.lake.compaction import MergeTask, RunMerges, WrittenMerge, rewrite
from korvet.lake.files import StorageOptions
from korvet.lake.source import LakeSource
from korvet.lake.tasks import ArchiveTask, TaskOutcome, archive_ranges, bins
from korvet.spark.session import JOB_ERRORS, SparkError, reason_of

_BINS_PER_CORE = 4
"""Spark's tasks for each core: more would cost more to start than they even out."""

Seen = Callable[[ArchiveRound], None]
"""Is told of every round."""

_log = logs.Log(__name__)


def make_archiver(
    session: SparkSession,
    source: LakeSource,
    lake: str,
    storage_options: StorageOptions = None,
    *,
    names: Sequence[str] = (),
) -> Archiver:
    """Return an archiver that plans for the cores of a session."""
    cores = session.sparkContext.defaultParallelism
    return Archiver(source, lake, storage_options, names=names, cores=cores)


def archive_runner(
    session: SparkSession, source: LakeSource, storage_options: StorageOptions = None
) -> RunTasks:
    """Return what runs tasks on a session; it raises SparkError where the job fails, as when no executor is left."""
    context = session.sparkContext

    def job(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        spread = bins([task.bytes for task in tasks], context.defaultParallelism * _BINS_PER_CORE)
        works = [[tasks[place] for place in places] for places in spread]
        work = partial(archive_ranges, source, storage_options)
        return context.parallelize(works, len(works)).flatMap(work).collect()

    def run(tasks: Sequence[ArchiveTask]) -> Iterable[TaskOutcome]:
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


def archive_once(archives: Archiver, run: RunTasks, seen: Seen = lambda _: None) -> ArchiveRound:
    """Archive what is there now, by as many rounds as that takes; returns what was done.

    Ends early where a round brings nothing further. Raises as Archiver.round does.
    """
    total, ends = ArchiveRound(), EndOffsets()
    while True:
        done = archives.round(run, ends)
        total.add(done)
        seen(done)
        if not (done.more and done.moved):
            return total


def archive_continuously(
    archives: Archiver, run: RunTasks, interval_ms: int, seen: Seen = lambda _: None
) -> None:
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


_MERGES_PER_CORE = 2
"""Of one Spark job, after which they are committed: what a crash may cost."""


def merge_runner(session: SparkSession, storage_options: StorageOptions = None) -> RunMerges:
    """Return what runs merges on a session; it raises SparkError where a job fails, as when no executor is left."""
    context = session.sparkContext

    def run(tasks: Sequence[MergeTask]) -> Iterable[WrittenMerge]:
        waiting = list(tasks)
        while waiting:
            done = job(waiting)
            del waiting[: len(done)]
            yield from done

    def job(tasks: Sequence[MergeTask]) -> list[WrittenMerge]:
        """Do the first of some merges."""
        try:
            some = tasks[: context.defaultParallelism * _MERGES_PER_CORE]
            return context.parallelize(some, len(some)).map(partial(_rewrite_one, storage_options)).collect()
        except JOB_ERRORS as error:
            raise SparkError(f"the job failed: {reason_of(error)}") from error

    return run


def _rewrite_one(storage_options: StorageOptions, task: MergeTask) -> WrittenMerge:
    return rewrite(task, storage_options)
