"""Archivers with tables in an object store: each record once, wherever one is killed, whichever commits first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from korvet.lake.archiver import ArchiveRound
from korvet.lake.compaction import commit, compact, plan_merges, rewrite
from korvet.lake.tasks import ArchiveTask, TaskOutcome
from tests.lake_processes.test_killed import POINTS, check_killed
from tests.stores.s3 import Store
from tests.support.archives import Topics, all_kinds


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_archiver_loses_and_repeats_nothing(topics: Topics, point: str) -> None:
    check_killed(topics, point, 2)


def test_a_store_that_is_unavailable_for_a_while_costs_no_record(topics: Topics, shared: Store) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    for _ in range(2):
        all_kinds(topics, topic)
        shared.refuse(5)
        assert topics.archiver().round(topics.run).failures == []
        shared.wait_for_refusals(5)
        topics.check(topic)
    shared.refuse(1000)
    all_kinds(topics, topic)
    [failure] = topics.archiver().round(topics.run).failures
    assert "503 Service Unavailable" in failure.error
    shared.refuse(0)
    assert topics.archiver().round(topics.run).failures == []
    topics.check(topic)


def test_the_one_that_comes_second_leaves_no_files_and_a_table_is_removed_whole(topics: Topics) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    all_kinds(topics, topic)
    other = ArchiveRound()

    def overtaken(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        outcomes = topics.run(tasks)
        other.add(topics.archiver().round(topics.run))
        return outcomes

    done = topics.archiver().round(overtaken)
    assert (done.records, done.conflicts, other.records) == (0, 1, 2 * 1520)
    lake = topics.source.lake
    [of] = lake.tables()
    # The table was made by one commit, and filled by another.
    assert lake.stored_files(of).files == 2 + other.files
    topics.check(topic)
    for _ in range(2):
        all_kinds(topics, topic)
        assert topics.archiver().round(topics.run).failures == []
    late = [rewrite(lake, task) for task in plan_merges(lake, of)]
    assert [item.done for item in compact(lake, of)] == [True, True]
    assert [(item.done, item.error) for item in (commit(lake, merged) for merged in late)] == [
        (False, None)
    ] * 2
    topics.check(topic)
    assert lake.remove_table(of).files > 6
    assert lake.tables() == []
