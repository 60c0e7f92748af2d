"""korvet/spark/jobs.py: archiving and compaction by a real Spark, and failures of its jobs."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from korvet.errors import StorageUnavailableError
from korvet.lake.archiver import Archiver
from korvet.lake.compaction import compact
from korvet.lake.source import LakeSource
from korvet.lake.table import Lake
from korvet.lake.tasks import ArchiveTask, TaskOutcome, archive_ranges
from korvet.spark import jobs
from korvet.spark.jobs import run_merges
from korvet.spark.session import SparkError
from tests.lake.archives import OF, archive, files, offsets_in_files, path_of
from tests.support.archives import Topics, all_kinds
from tests.support.batches import MALFORMED


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_worker_that_is_killed_costs_another_try_and_no_record(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    for partition in topic.partitions:
        topics.put(partition, MALFORMED["zeros"])
    all_kinds(topics, topic)
    killed = tmp_path / "killed"

    # Spark carries a function that is defined here to its workers whole.
    def once_killed(source: LakeSource, tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        outcomes = archive_ranges(source, tasks) if place == "after" else []
        if not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return outcomes or archive_ranges(source, tasks)

    monkeypatch.setattr(jobs, "archive_ranges", once_killed)
    [done] = jobs.archive_rounds(spark, topics.source)
    assert done is not None
    assert killed.exists()
    assert (done.records, done.failures) == (2 * 1520, [])
    topics.check(topic)
    table = topics.source.lake.open(topic.of)
    assert (len(done.unreadable), table and table.unreadable) == (2, 2)


def test_a_job_that_fails_is_one_clear_error_and_commits_nothing(
    spark: SparkSession, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1")

    def broken(source: LakeSource, _tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        raise RuntimeError(f"no use of {source.namespace}")

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "archive_ranges", broken)
        with pytest.raises(SparkError, match=r"^the job failed: RuntimeError: no use of korvet$"):
            list(jobs.archive_rounds(spark, topics.source))
    assert topics.bounds(topic.partitions[0]).archived == 0
    list(jobs.archive_rounds(spark, topics.source))
    topics.check(topic)


def test_rounds_with_an_interval_go_on_after_an_outage(
    spark: SparkSession, topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.make("orders", "batch")
    [partition] = topic.partitions
    started = 0
    whole = Archiver.round

    def outage_in_the_second(*args: Any) -> Any:
        nonlocal started
        started += 1
        topics.produce(partition, b"%d" % started)
        if started == 2:
            raise StorageUnavailableError("Redis is away")
        return whole(*args)

    monkeypatch.setattr(Archiver, "round", outage_in_the_second)
    rounds = jobs.archive_rounds(spark, topics.source, 1)
    assert [item and item.records for item in itertools.islice(rounds, 3)] == [1, None, 2]
    assert "a round of archiving failed" in caplog.text
    topics.check(topic)


PARTITIONS = 5


def test_spark_compacts_many_partitions_and_reports_each(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for partition in range(PARTITIONS):
        archive(lake, 30, partition=partition)
    gone = files(lake)[4]
    path_of(lake, gone.path).unlink()
    outcomes = {item.partition: item for item in compact(lake, OF, run=partial(run_merges, spark, lake))}
    assert outcomes.keys() == set(range(PARTITIONS))
    assert gone.partition == 1
    assert gone.path in (outcomes[1].error or "")
    assert [outcome.done for outcome in outcomes.values()] == [True, False, True, True, True]
    for partition in (0, 2, 3, 4):
        assert offsets_in_files(lake, partition) == list(range(30))
    assert len(files(lake)) == PARTITIONS - 1 + 3


def test_spark_is_not_asked_where_there_is_nothing_to_do(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    archive(lake, 10)
    assert list(compact(lake, OF, run=partial(run_merges, spark, lake))) == []
