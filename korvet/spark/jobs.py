"""The jobs of archiving and of compaction: their tasks, spread over Spark's.

Records never come to the driver: a task reads its range from Redis and writes its file itself, a merge reads and writes
files, and only what the table's log needs to know of a file comes back. The driver commits it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark.sql import SparkSession

from korvet import logs
from korvet.errors import KafkaError, LakeError
from korvet.lake.archiver import Archiver, ArchiveRound, EndOffsets
from korvet.lake.compaction import MergeTask, WrittenMerge, rewrite
from korvet.lake.source import LakeSource
from korvet.lake.table import Lake
from korvet.lake.tasks import ArchiveTask, TaskOutcome, alternating, archive_ranges, bins
from korvet.spark.session import JOB_ERRORS, SparkError, SparkStoppedError, is_stopped, reason_of

_BINS_PER_CORE = 4
"""Spark's tasks for each core: more would cost more to start than they even out."""

_MERGES_PER_CORE = 2
"""Of one Spark job, after which they are committed: what a crash may cost."""

_log = logs.Log(__name__)


def archive_rounds(
    session: SparkSession, source: LakeSource, interval_ms: int | None = None, *, names: Sequence[str] = ()
) -> Iterator[ArchiveRound | None]:
    """Yield rounds of archiving until one leaves nothing to do; with `interval_ms` without end, one in that time.

    A round follows at once if the one before left something. Without an interval they archive what there is when they
    begin, and raise as Archiver.round. With one, a round that fails is logged, and yielded as None: Redis, the lake and
    Spark's executors may come back. Raises SparkStoppedError; ValueError as Archiver.round.
    """
    archiver = Archiver(source, names=names, cores=session.sparkContext.defaultParallelism)
    ends: EndOffsets | None = {} if interval_ms is None else None
    while True:
        began = time.monotonic()
        done = None
        try:
            done = archiver.round(partial(run_tasks, session, source), ends)
        except (KafkaError, LakeError) as error:
            if interval_ms is None or isinstance(error, SparkStoppedError):
                raise
            _log.error("a round of archiving failed", reason=error)
        yield done
        if done is not None and done.more and done.moved:
            continue
        if interval_ms is None:
            return
        time.sleep(max(began + interval_ms / 1000 - time.monotonic(), 0))


def run_tasks(
    session: SparkSession, source: LakeSource, tasks: Sequence[ArchiveTask]
) -> Iterable[TaskOutcome]:
    """Run tasks on a session; raises SparkError if the job fails, as when no executor is left."""
    # In a thread of its own: a signal must not come in the middle of a call to Java. If this thread is interrupted,
    # the session stops, and with it the job.
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(_archive, session, source, tasks).result()
    except JOB_ERRORS as error:
        raise _failed(session, error) from error
    finally:
        pool.shutdown(wait=False)


def _archive(session: SparkSession, source: LakeSource, tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
    context = session.sparkContext
    with source.opened() as stores:
        nodes = stores.by_node(tasks)
    # A bin is of one node of Redis, and the bins that run at once are of different ones: each node has a core.
    bins_max = max(context.defaultParallelism * _BINS_PER_CORE // len(nodes), 1)
    works = alternating(
        [
            [[of[place] for place in places] for places in bins([task.bytes for task in of], bins_max)]
            for of in nodes
        ]
    )
    return context.parallelize(works, len(works)).flatMap(partial(archive_ranges, source)).collect()


def run_merges(session: SparkSession, lake: Lake, tasks: Sequence[MergeTask]) -> Iterator[WrittenMerge]:
    """Run merges on a session; raises SparkError if a job fails, as when no executor is left."""
    context = session.sparkContext
    waiting = list(tasks)
    while waiting:
        try:
            # The parallelism is asked of Java too, which may be gone.
            chunk = waiting[: context.defaultParallelism * _MERGES_PER_CORE]
            done = context.parallelize(chunk, len(chunk)).map(partial(rewrite, lake)).collect()
        except JOB_ERRORS as error:
            raise _failed(session, error) from error
        del waiting[: len(done)]
        yield from done


def _failed(session: SparkSession, error: Exception) -> SparkError:
    kind = SparkStoppedError if is_stopped(session) else SparkError
    return kind(f"the job failed: {reason_of(error)}")
