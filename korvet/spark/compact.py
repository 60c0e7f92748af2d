"""The job that compacts tables: merges of korvet.lake.compaction, spread over Spark's tasks.

Knows how merges are spread; what is written is committed by whoever planned it. Rows never come here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from pyspark.sql import SparkSession

from korvet.lake.compaction import Merged, MergeTask, Run, rewrite
from korvet.lake.files import StorageOptions
from korvet.spark.session import JOB_ERRORS, SparkError, reason_of

_MERGES_PER_CORE = 2
"""Of one Spark job, behind which they are committed: what a crash may cost."""


def runner(session: SparkSession, storage_options: StorageOptions = None) -> Run:
    """Return what runs merges on a session; it raises SparkError where a job fails, as when no executor is left."""
    context = session.sparkContext

    def run(tasks: Sequence[MergeTask]) -> Iterable[Merged]:
        waiting = list(tasks)
        while waiting:
            done = job(waiting)
            del waiting[: len(done)]
            yield from done

    def job(tasks: Sequence[MergeTask]) -> list[Merged]:
        """Do the first of some merges."""
        try:
            some = tasks[: context.defaultParallelism * _MERGES_PER_CORE]
            return context.parallelize(some, len(some)).map(partial(_rewrite, storage_options)).collect()
        except JOB_ERRORS as error:
            raise SparkError(f"the job failed: {reason_of(error)}") from error

    return run


def _rewrite(storage_options: StorageOptions, task: MergeTask) -> Merged:
    return rewrite(task, storage_options)
