"""The job that compacts tables: merges of korvet.lake.compaction, spread over Spark's tasks.

Knows how merges are spread; what is written is committed by whoever planned it. Rows never come here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from korvet.lake.compaction import Merged, MergeTask, Run, rewrite
from korvet.lake.files import StorageOptions
from korvet.spark.session import SparkError, reason_of

_MERGES_PER_CORE = 2
"""Of one Spark job, behind which they are committed: what a crash may cost."""


def runner(session: SparkSession, storage_options: StorageOptions = None) -> Run:
    """Return what runs merges on a session; it raises SparkError where a job fails, as when no executor is left."""
    context = session.sparkContext

    def run(tasks: Sequence[MergeTask]) -> Iterable[Merged]:
        at_once = context.defaultParallelism * _MERGES_PER_CORE
        for first in range(0, len(tasks), at_once):
            yield from job(tasks[first : first + at_once])

    def job(tasks: Sequence[MergeTask]) -> Iterator[Merged]:
        try:
            done = context.parallelize(tasks, len(tasks)).map(partial(_rewrite, storage_options)).collect()
        except (PySparkException, Py4JError) as error:
            raise SparkError(f"the job failed: {reason_of(error)}") from error
        return iter(done)

    return run


def _rewrite(storage_options: StorageOptions, task: MergeTask) -> Merged:
    return rewrite(task, storage_options)
