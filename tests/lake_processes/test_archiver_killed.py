"""Archivers that are killed, wherever they are, and archivers side by side: each record once, all the same."""

from __future__ import annotations

import pytest

from tests.support import iceberg
from tests.support.archive_driver import ICEBERG_POINTS, POINTS
from tests.support.archives import FORMATS, Format, Topics, all_kinds, driver
from tests.support.processes import alive, descendants, wait_until


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_archiver_loses_and_repeats_nothing(topics: Topics, point: str) -> None:
    made: list[Format] = ["record", "batch"]
    found = [topics.make(each, each, partitions=2, number=at) for at, each in enumerate(made)]
    for topic in found:
        all_kinds(topics, topic)
    # Once from nothing, and once where a table is there.
    for _ in range(2):
        with driver(topics, point) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == point
        for topic in found:
            topics.produce(topic.partitions[0], b"produced after the crash")
    done = topics.archiver().round(topics.run)
    assert done.failures == []
    for topic in found:
        topics.check(topic)


@pytest.mark.parametrize("point", ["after the commit", *ICEBERG_POINTS])
def test_a_killed_archiver_leaves_iceberg_to_the_next_one(topics: Topics, point: str) -> None:
    iceberg.beside(topics)
    topic = topics.make("orders", "batch", partitions=2)
    for _ in range(2):
        all_kinds(topics, topic)
        with driver(topics, point) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == point
    # In Redis there may be nothing left to archive.
    assert topics.archiver().round(topics.run).failures == []
    topics.check(topic)
    iceberg.check(topics.source.lake, topic.of)


@pytest.mark.parametrize("storage_format", FORMATS)
def test_archivers_side_by_side_archive_each_record_once(topics: Topics, storage_format: Format) -> None:
    topic = topics.make("orders", storage_format, partitions=2)
    all_kinds(topics, topic)
    with driver(topics, "none") as one, driver(topics, "none") as other:
        for at in range(200):
            topics.produce(topic.partitions[at % 2], b"%d" % at)
        assert (one.wait(60), other.wait(60)) == (0, 0)
    topics.archiver().round(topics.run)
    topics.check(topic)


def test_a_killed_spark_driver_ends_its_processes_and_loses_and_repeats_nothing(topics: Topics) -> None:
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
    assert topics.archiver().round(topics.run).records == 2 * 1520
    topics.check(topic)
