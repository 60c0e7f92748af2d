"""korvet/spark/jobs.py: rounds whose tasks a real Spark runs, and what happens to its processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from korvet.errors import StorageUnavailableError
from korvet.lake.archiver import Archiver
from korvet.lake.source import LakeSource
from korvet.lake.tasks import ArchiveTask, TaskOutcome, archive_ranges
from korvet.spark import jobs
from korvet.spark.session import SparkError
from tests.support.archives import FORMATS, Format, Topics, all_kinds, driver, topics_in
from tests.support.processes import alive, descendants, wait_until


@pytest.fixture
def topics(redis_url: str, tmp_path: Path) -> Iterator[Topics]:
    with topics_in(redis_url, tmp_path / "lake") as found:
        yield found


def archiver(spark: SparkSession, topics: Topics) -> Archiver:
    return jobs.make_archiver(spark, topics.source, topics.lake)


@pytest.mark.parametrize("storage_format", FORMATS)
def test_spark_archives_every_record_once(
    spark: SparkSession, topics: Topics, storage_format: Format
) -> None:
    topic = topics.make("orders", storage_format, partitions=3)
    run = jobs.archive_runner(spark, topics.source)
    for _ in range(2):
        all_kinds(topics, topic)
        done = jobs.archive_once(archiver(spark, topics), run)
        assert (done.records, done.partitions, done.failures) == (3 * 1520, 3, [])
    topics.check(topic)


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_worker_that_is_killed_costs_another_try_and_no_record(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    all_kinds(topics, topic)
    killed = tmp_path / "killed"

    # Spark carries a function that is defined here to its workers whole.
    def once_killed(source: LakeSource, options: Any, tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        outcomes = archive_ranges(source, options, tasks) if place == "after" else []
        if not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return outcomes or archive_ranges(source, options, tasks)

    monkeypatch.setattr(jobs, "archive_ranges", once_killed)
    done = archiver(spark, topics).round(jobs.archive_runner(spark, topics.source))
    assert killed.exists()
    assert (done.records, done.failures) == (2 * 1520, [])
    topics.check(topic)


def test_a_killed_driver_takes_its_processes_along_and_loses_and_repeats_nothing(
    spark: SparkSession, topics: Topics
) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    all_kinds(topics, topic)
    point = "before the commit"
    with driver(topics, point, "local[2,4]") as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == point
        started = descendants(process.pid)
        assert len(started) > 1
    wait_until(lambda: not any(map(alive, started)), "Spark's processes are gone")
    assert topics.bounds(topic.partitions[0]).archived == 0
    done = jobs.archive_once(archiver(spark, topics), jobs.archive_runner(spark, topics.source))
    assert done.records == 2 * 1520
    topics.check(topic)


def test_a_job_that_fails_is_one_clear_error_and_commits_nothing(
    spark: SparkSession, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1")

    def broken(source: LakeSource, _options: Any, _tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        raise RuntimeError(f"no use of {source.namespace}")

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "archive_ranges", broken)
        with pytest.raises(SparkError, match=r"^the job failed: RuntimeError: no use of korvet$"):
            archiver(spark, topics).round(jobs.archive_runner(spark, topics.source))
    assert topics.bounds(topic.partitions[0]).archived == 0
    archiver(spark, topics).round(jobs.archive_runner(spark, topics.source))
    topics.check(topic)


def test_rounds_follow_each_other_for_ever_and_outlive_an_outage(
    spark: SparkSession, topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.make("orders", "batch")
    [partition] = topic.partitions
    archives = archiver(spark, topics)
    rounds = 0
    whole = archives.round

    class Enough(Exception):  # noqa: N818 - no error
        pass

    def seen(*args: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 4:
            raise Enough
        topics.produce(partition, b"%d" % rounds)
        if rounds == 2:
            raise StorageUnavailableError("Redis is away")
        return whole(*args)

    monkeypatch.setattr(archives, "round", seen)
    with pytest.raises(Enough):
        jobs.archive_continuously(archives, jobs.archive_runner(spark, topics.source), 1)
    assert "a round of archiving failed" in caplog.text
    topics.check(topic)
