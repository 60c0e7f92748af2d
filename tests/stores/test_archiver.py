"""Archivers with tables in an object store: each record once, whichever commits first."""

from __future__ import annotations

from collections.abc import Sequence

from korvet.lake.archiver import ArchiveRound
from korvet.lake.compaction import MergeOutcome, MergeTask, WrittenMerge, compact, rewrite
from korvet.lake.tasks import ArchiveTask, TaskOutcome
from tests.support.archives import Topics, all_kinds


def test_the_one_that_comes_second_leaves_no_files(topics: Topics) -> None:
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


def test_compactions_at_once_hold_each_row_once_and_a_table_is_removed_whole(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    for at in range(12):
        topics.produce(topic.partitions[0], b"%d" % at)
        topics.archiver().round(topics.run)
    lake, of = topics.source.lake, topic.of
    others: list[MergeOutcome] = []

    def overtaken(tasks: Sequence[MergeTask]) -> list[WrittenMerge]:
        merged = [rewrite(lake, each) for each in tasks]
        others.extend(compact(lake, of))
        return merged

    [late] = compact(lake, of, run=overtaken)
    assert [each.done for each in others] == [True]
    assert (late.done, late.error) == (False, None)
    topics.check(topic)
    assert lake.remove_table(of).files > 12
    assert lake.tables() == []
