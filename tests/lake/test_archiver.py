"""korvet/lake/archiver.py and task.py: rounds against a real Redis and real tables, with the tasks in this process."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from korvet.lake.archiver import ArchiveRound, EndOffsets
from korvet.lake.table import Advance, ArchiveTable, CommitConflictError, Lake
from korvet.lake.tasks import ArchiveTask, TaskOutcome
from korvet.redis.client import Redis
from tests.support import batches
from tests.support.appends import at_rest
from tests.support.archives import Topics, all_kinds, task_of, topic_id
from tests.support.batches import Record
from tests.support.log_bench import LAYOUTS, Layout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_record_is_in_the_table_as_it_was_produced(topics: Topics, layout: Layout) -> None:
    topic = topics.make("orders", layout, partitions=2)
    all_kinds(topics, topic)
    done = topics.archiver().round(topics.run)
    assert (done.records, done.partitions, done.more, done.failures) == (2 * (5 * 4 + 1500), 2, False, [])
    topics.check(topic)
    # Again there is nothing to do, and then only what is new.
    assert topics.archiver().round(topics.run) == ArchiveRound()
    all_kinds(topics, topic)
    assert topics.archiver().round(topics.run).records == done.records
    topics.check(topic)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_is_compressed_at_rest_is_archived_plain(topics: Topics, layout: Layout, codec: Any) -> None:
    topic = topics.make("orders", layout)
    topics.produce(topic.partitions[0], b"much of the same " * 1000, b"short", config=at_rest(codec, 1))
    topics.archiver().round(topics.run)
    topics.check(topic)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_times_of_appends_are_archived_as_such(topics: Topics, layout: Layout) -> None:
    topic = topics.make("orders", layout, message_timestamp_type="LogAppendTime")
    assert topic.log_append_time
    topics.produce(topic.partitions[0], Record(timestamp=5), Record(timestamp=9), timestamp=77)
    topics.archiver().round(topics.run)
    topics.check(topic)
    table = topics.source.lake.open(topic.of)
    assert table is not None
    [file] = table.files()
    assert (file.first_timestamp, file.last_timestamp) == (77_000, 77_000)
    assert DeltaTable(table.uri).to_pyarrow_table().column("timestamp_type").to_pylist() == [1, 1]


def test_the_setting_of_the_cluster_says_what_timestamps_are_where_the_topic_does_not(topics: Topics) -> None:
    topics.make("orders", "record")
    topics.stores.configs.alter("default", lambda _: {"log.message.timestamp.type": "LogAppendTime"})
    [topic] = topics.stores.remote_topics()
    assert topic.log_append_time


def test_topics_without_a_remote_tier_are_left_alone(topics: Topics) -> None:
    topics.make("orders", "batch")
    topics.make("plain", "batch", number=1, remote_storage_enable="true")
    topics.stores.topics.alter(
        "plain", topic_id(1), lambda row: msgspec.structs.replace(row, configs={"storage.format": "batch"})
    )
    assert [remote_topic.name for remote_topic in topics.stores.remote_topics()] == ["orders"]
    with pytest.raises(ValueError, match="topic plain has no remote tier"):
        topics.archiver(names=["plain"]).round(topics.run)
    with pytest.raises(ValueError, match="there is no topic other"):
        topics.archiver(names=["other"]).round(topics.run)


def test_a_topic_is_archived_while_its_copying_is_not_disabled(topics: Topics) -> None:
    topic = topics.make("orders", "batch", remote_log_copy_disable="true")
    topics.produce(topic.partitions[0], b"v", b"v")
    archiver = topics.archiver()
    assert archiver.round(topics.run).records == 0
    enabled = {"storage.format": "batch", "remote.storage.enable": "true"}
    topics.stores.topics.alter("orders", topic.id, lambda row: msgspec.structs.replace(row, configs=enabled))
    assert archiver.round(topics.run).records == 2


def test_only_the_topics_named_are_archived(topics: Topics) -> None:
    orders, others = topics.make("orders", "batch"), topics.make("others", "batch", number=1)
    for item in (orders, others):
        topics.produce(item.partitions[0], b"v")
    assert topics.archiver(names=["others"]).round(topics.run).records == 1
    assert topics.source.lake.open(orders.of) is None
    topics.check(others)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_backlog_becomes_several_files_by_several_rounds(topics: Topics, layout: Layout) -> None:
    topic = topics.make("orders", layout)
    noise = [b"%d" % at + bytes(range(256)) * 4096 for at in range(4)]
    for at in range(20):
        topics.produce(topic.partitions[0], *noise, b"%d" % at, config=at_rest("none"))
    archives = topics.archiver(cores=1)
    plans, _ = archives.plan()
    assert len(plans[0].partitions[0].ranges) == 1
    assert plans[0].partitions[0].more is False
    archives = topics.archiver(cores=8)
    plans, _ = archives.plan()
    planned = plans[0].partitions[0].ranges
    assert len(planned) > 5
    done = topics.rounds(archives)
    assert done.files == len(planned)
    topics.check(topic)


def test_an_archiver_ends_where_the_log_ended_when_it_began(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")
    ends = EndOffsets()
    assert topics.archiver().round(topics.run, ends).records == 2
    topics.produce(topic.partitions[0], b"3")
    assert topics.archiver().round(topics.run, ends) == ArchiveRound()
    assert topics.archiver().round(topics.run).records == 1
    topics.check(topic)


def test_a_plan_writes_nothing_and_mirrors_nothing(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")
    [some], _ = topics.archiver().plan()
    assert [(item.first, item.end) for item in some.partitions[0].ranges] == [(0, 2)]
    assert not Path(topics.lake).exists()
    assert topics.bounds(topic.partitions[0]).archived == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_two_archivers_at_once_one_comes_first_and_nothing_is_twice(
    topics: Topics, layout: Layout
) -> None:
    topic = topics.make("orders", layout, partitions=2)
    all_kinds(topics, topic)
    other = ArchiveRound()

    def overtaken(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        outcomes = topics.run(tasks)
        other.add(topics.archiver().round(topics.run))
        topics.produce(topic.partitions[0], b"later")
        return outcomes

    done = topics.archiver().round(overtaken)
    assert (done.records, done.conflicts, done.more, done.failures) == (0, 1, True, [])
    assert other.records == 2 * 1520
    assert topics.files(topic) == topics.files_named(topic)
    assert topics.archiver().round(topics.run).records == 1
    topics.check(topic)


def test_files_whose_commit_is_said_to_be_refused_and_is_there_stay(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")
    commit = ArchiveTable._commit

    def lost_answer(*args: Any) -> None:
        commit(*args)
        monkeypatch.setattr(ArchiveTable, "_commit", commit)
        raise CommitConflictError("as an object store says, whose first answer was lost")

    monkeypatch.setattr(ArchiveTable, "_commit", lost_answer)
    done = topics.archiver().round(topics.run)
    assert (done.records, done.conflicts) == (0, 1)
    assert topics.archiver().round(topics.run).records == 0
    topics.check(topic)


def test_of_ranges_after_one_that_ended_early_no_file_stays(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    [partition] = topic.partitions
    for at in range(4):
        topics.produce(partition, b"%d" % at)

    def in_two(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        [task] = tasks
        one = msgspec.structs.replace(task, end=2, last=False)
        early, end = topics.run([one, msgspec.structs.replace(task, first=2)])
        assert early.files
        assert end.files
        return [msgspec.structs.replace(early, next_offset=0, error="the first of two"), end]

    done = topics.archiver().round(in_two)
    assert (done.records, len(done.failures)) == (0, 1)
    assert topics.files(topic) == set()
    assert topics.archiver().round(topics.run).records == 4
    topics.check(topic)


def test_an_archiver_that_saw_less_of_the_log_than_another_one_goes_on(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1")
    opens = Lake.open

    def late(*args: Any) -> ArchiveTable | None:
        monkeypatch.setattr(Lake, "open", opens)
        topics.produce(topic.partitions[0], b"2")
        assert topics.archiver().round(topics.run).records == 2
        return opens(*args)

    monkeypatch.setattr(Lake, "open", late)
    assert topics.archiver().round(topics.run) == ArchiveRound()
    topics.check(topic)


def test_the_next_round_mirrors_what_a_crash_left(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")
    table = topics.source.lake.create(topic.of)
    task = task_of(topic.partitions[0], 2)
    [outcome] = topics.run([task])
    table.append(outcome.files, [Advance(0, 0, 2)])
    assert topics.bounds(topic.partitions[0]).archived == 0
    assert topics.archiver().round(topics.run).records == 0
    topics.check(topic)


def test_batches_that_hold_much_more_than_they_show_are_taken_one_by_one(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make("orders", "batch")
    for at in range(5):
        topics.produce(topic.partitions[0], b"%d" % at, bytes(100_000), codec=batches.ZSTD)
    monkeypatch.setattr("korvet.lake.decoding.PAYLOAD_BYTES_MAX", 250_000)
    assert topics.archiver().round(topics.run).failures == []
    topics.check(topic)


def test_where_all_is_archived_the_lake_is_not_looked_at(topics: Topics) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    topics.produce(topic.partitions[0], b"1")
    archives = topics.archiver()
    archives.round(topics.run)
    # Once after its own commit, to see what came meanwhile, and then no more.
    archives.round(topics.run)
    shutil.rmtree(topics.lake)
    Path(topics.lake).write_text("in the way")
    assert archives.round(topics.run) == ArchiveRound()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_log_that_was_trimmed_before_it_had_a_remote_tier_begins_at_its_start(
    topics: Topics, layout: Layout
) -> None:
    topic = topics.make("orders", layout)
    [partition] = topic.partitions
    for at in range(6):
        topics.produce(partition, b"%d" % at)
    start = topics.produced[topic.id, 0][4][0]
    topics.trim(partition, start)
    assert topics.archiver().round(topics.run).lost == []
    del topics.produced[topic.id, 0][:4]
    topics.check(topic)
    assert topics.bounds(partition).log_start == start


def test_entries_that_others_wrote_are_archived_as_they_are_served(topics: Topics, raw_redis: Any) -> None:
    topic = topics.make("orders", "record")
    [partition] = topic.partitions
    topics.produce(partition, b"0")
    raw_redis.xadd(partition.stream, {"value": "external", "more": "field"})
    done = topics.archiver().round(topics.run)
    assert done.records == 2
    assert topics.archived(topic)[1][3:] == (b"external", [("more", b"field")])


def test_many_large_records_are_read_in_small_steps(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topics.make("orders", "batch")
    for at in range(40):
        topics.produce(topic.partitions[0], *([b"small"] * 3))
        topics.produce(topic.partitions[0], b"%d" % at * 500_000, config=at_rest("none"))
    sizes: list[int] = []
    read = Redis.pipeline

    def counted(self: Redis, commands: Any, **limits: Any) -> Any:
        replies = read(self, commands, **limits)
        sizes.append(sum(len(repr(reply)) for reply in replies))
        return replies

    monkeypatch.setattr(Redis, "pipeline", counted)
    topics.archiver().round(topics.run)
    monkeypatch.undo()
    assert max(sizes) < 20_000_000
    topics.check(topic)
