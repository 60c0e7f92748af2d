"""korvet/lake/archiver.py: rounds where records, Redis or the lake are not as they should."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.lake.archiver import Archiver, ArchiveRound, LostRange
from korvet.lake.source import LakeSource, SourceTopic
from korvet.lake.table import Lake, LakeTopic
from korvet.lake.tasks import ArchiveTask, TaskOutcome, archive_range, archive_ranges
from tests.log.compacting import CompactedLog
from tests.support import redis_servers
from tests.support.archives import Topics, task_of
from tests.support.domain import domain
from tests.support.log_bench import LAYOUTS, Layout

DEAD_URL = "redis://127.0.0.1:1"


def test_a_topic_deleted_meanwhile_is_no_failure_and_a_re_created_one_starts_over(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    other = topics.make("others", "batch", number=1)
    for item in (topic, other):
        topics.produce(item.partitions[0], b"1", b"2")

    def deleted(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        assert list(topics.stores.topics.deletion.delete({topic.name: topic.id})[1])
        return topics.run(tasks)

    done = topics.archiver().round(deleted)
    assert (done.records, done.failures) == (2, [])
    topics.check(other)
    recreated = topics.make("orders", "batch", number=2)
    topics.produce(recreated.partitions[0], b"3")
    assert topics.archiver().round(topics.run).records == 1
    topics.check(recreated)


def test_records_that_this_version_would_misread_are_not_archived(topics: Topics, raw_redis: Any) -> None:
    topic = topics.make("orders", "record")
    topics.produce(topic.partitions[0], b"1")
    fields = {"version": "9.1", "format": 12, "reader": 12, "writer": 12}
    raw_redis.hset("{korvet:brokers}:format", mapping=fields)
    with pytest.raises(KafkaError, match=r"may not read it: take Korvet 9\.1 or later"):
        topics.archiver().round(topics.run)
    raw_redis.hset("{korvet:brokers}:format", "reader", 1)
    assert topics.archiver().round(topics.run).records == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_entry_that_is_no_batch_stops_its_partition_with_one_error_and_no_other(
    topics: Topics, raw_redis: Any, layout: Layout
) -> None:
    topic = topics.make("orders", layout, partitions=2)
    for partition in topic.partitions:
        for at in range(30):
            topics.produce(partition, b"a%d" % at, b"b%d" % at)
    hurt = topic.partitions[0]
    entries = raw_redis.xrange(hurt.stream)
    raw_redis.delete(hurt.stream)
    place = len(entries) - 5
    for at, (entry, fields) in enumerate(entries):
        if at == place and layout == "batch":
            fields[b"batch"] = fields[b"batch"][:70]
        raw_redis.xadd(hurt.stream, fields, id=entry)
    if layout != "batch":
        # Entries of this format cannot be so damaged that they are no records; another type of key can.
        raw_redis.delete(hurt.stream)
        raw_redis.set(hurt.stream, b"no stream")
    done = topics.rounds(topics.archiver())
    assert [(failure.topic, failure.partition) for failure in done.failures] == [("orders", 0)]
    produced = topics.produced.pop((topic.id, 0))
    if layout == "batch":
        assert "stopped at offset 50" in done.failures[0].error
        assert topics.archived(topic) == produced[:50]
        assert topics.bounds(hurt).archived == 50
        # Deleting the entry lets the archive go on.
        topics.stores.remote.expire([(hurt, 52)])
        topics.trim(hurt, 52)
        assert topics.rounds(topics.archiver()).failures == []
        assert topics.archived(topic) == produced[:50] + produced[52:]
    assert topics.archived(topic, 1) == topics.produced[topic.id, 1]


def test_without_redis_nothing_is_done_and_the_error_says_so(topics: Topics) -> None:
    with pytest.raises(StorageUnavailableError, match=r"127\.0\.0\.1:1 cannot be reached"):
        Archiver(LakeSource(redis_url=DEAD_URL)).round(topics.run)


def test_tasks_that_lose_redis_are_done_again(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1")

    def lost(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        return archive_ranges(msgspec.structs.replace(topics.source, redis_url=DEAD_URL), tasks)

    done = topics.archiver().round(lost)
    assert (done.records, done.more, done.moved) == (0, True, False)
    assert "cannot be reached" in done.failures[0].error
    assert topics.archiver().round(topics.run).records == 1
    topics.check(topic)


def test_a_lake_that_takes_no_files_fails_its_topics_and_loses_nothing(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1")
    Path(topics.lake).write_text("in the way")
    done = topics.archiver().round(topics.run)
    assert [(failure.topic, failure.partition) for failure in done.failures] == [("orders", -1)]
    assert done.records == 0
    Path(topics.lake).unlink()
    topics.archiver().round(topics.run)
    topics.check(topic)


@pytest.mark.parametrize("more", [True, False], ids=["records to archive", "nothing to archive"])
def test_another_lake_is_reported_and_not_begun_where_the_first_one_holds_records(
    topics: Topics, tmp_path: Path, *, more: bool
) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")
    topics.archiver().round(topics.run)
    if more:
        topics.produce(topic.partitions[0], b"3")
    other = tmp_path / "other"
    archives = topics.archiver(lake=Lake(str(other)))
    for _ in range(2):
        [failure] = archives.round(topics.run).failures
        assert "archived up to 2 as Redis knows, but this lake holds nothing: is it another" in failure.error
    assert not other.exists()
    topics.archiver().round(topics.run)
    topics.check(topic)


def test_files_that_went_to_another_machine_are_not_committed(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")

    def elsewhere(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        outcomes = topics.run(tasks)
        for outcome in outcomes:
            [file] = outcome.files
            (Path(topics.source.lake.uri(topic.of)) / file.path).unlink()
        return outcomes

    done = topics.archiver().round(elsewhere)
    assert done.records == 0
    assert "all machines must share the directory" in done.failures[0].error
    assert topics.bounds(topic.partitions[0]).archived == 0
    topics.archiver().round(topics.run)
    topics.check(topic)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([b"another"], "archived up to 3, but the log ends at 1: Redis has lost records"),
        (
            [b"another", b"one", b"and", b"more"],
            "but Redis holds another record at offset 2: Redis has lost records, and others have their offsets",
        ),
    ],
)
def test_a_redis_that_lost_records_stops_the_partition(
    topics: Topics, raw_redis: Any, values: list[bytes], error: str
) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2", b"3")
    topics.archiver().round(topics.run)
    raw_redis.flushall()
    topics.make("orders", "batch")
    topics.produce(topic.partitions[0], *values)
    [failure] = topics.archiver().round(topics.run).failures
    assert error in failure.error
    assert len(topics.archived(topic)) == 3
    assert topics.bounds(topic.partitions[0]).archived == 0


@pytest.fixture
def archived_to_two(topics: Topics) -> SourceTopic:
    """Give a topic whose first two records are archived."""
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"0", b"1")
    topics.archiver().round(topics.run)
    return topic


@pytest.mark.parametrize(("count", "start"), [(6, 5), (1, 3)], ids=["some are left", "none is left"])
@pytest.mark.parametrize("when", ["before the plan", "before the tasks"])
def test_records_that_left_redis_unarchived_are_reported(
    topics: Topics, archived_to_two: SourceTopic, count: int, start: int, when: str
) -> None:
    [partition] = archived_to_two.partitions
    for at in range(2, 2 + count):
        topics.produce(partition, b"%d" % at)

    def late(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        topics.trim(partition, start)
        return topics.run(tasks)

    if when == "before the plan":
        topics.trim(partition, start)
    done = topics.archiver().round(late)
    assert done.lost == [LostRange("orders", 0, 2, start)]
    assert topics.bounds(partition).archived == 2 + count
    assert topics.archiver().round(topics.run) == ArchiveRound()
    topics.produce(partition, b"more")
    assert topics.archiver().round(topics.run).lost == []
    kept = [0, 1, *range(start, 3 + count)]
    assert [offset for offset, *_ in topics.archived(archived_to_two)] == kept


def test_records_that_left_redis_unarchived_are_reported_once_they_are_passed(topics: Topics) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    gapped = topic.partitions[0]
    for value in (b"0", b"1", b"2"):
        for partition in topic.partitions:
            topics.produce(partition, value)
        if value == b"0":
            topics.archiver().round(topics.run)
    topics.trim(gapped, 2)

    def without_gapped(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        return topics.run([task for task in tasks if task.partition != gapped])

    done = topics.archiver().round(without_gapped)
    assert (done.records, done.lost) == (2, [])
    done = topics.archiver().round(topics.run)
    assert (done.records, done.lost) == (1, [LostRange("orders", 0, 1, 2)])
    assert topics.archiver().round(topics.run) == ArchiveRound()


@pytest.mark.parametrize("layout", ["dense", "batch"])
@pytest.mark.parametrize("gone", [[0, 1], [3, 4], [9], [0, 5, 9], list(range(10))])
def test_entries_removed_by_hand_from_the_middle_are_reported(
    topics: Topics, raw_redis: Any, layout: Layout, gone: list[int]
) -> None:
    topic = topics.make("orders", layout)
    [partition] = topic.partitions
    for at in range(10):
        topics.produce(partition, b"%d" % at, b"%d again" % at)
    entries = [entry for entry, _ in raw_redis.xrange(partition.stream)]
    of_batch = len(entries) // 10
    raw_redis.xdel(partition.stream, *(entries[of_batch * at + n] for at in gone for n in range(of_batch)))
    done = topics.archiver().round(topics.run)
    missing = [offset for lost in done.lost for offset in range(lost.first, lost.end)]
    assert missing == [2 * at + second for at in gone for second in (0, 1)]
    assert [offset for offset, *_ in topics.archived(topic)] == [
        offset for offset in range(20) if offset not in missing
    ]
    assert topics.bounds(partition).archived == 20
    assert topics.archiver().round(topics.run) == ArchiveRound()


def test_offsets_that_compaction_has_emptied_are_not_missed(redis_url: str, tmp_path: Path) -> None:
    source = LakeSource(redis_url=redis_url, lake=Lake(str(tmp_path)))
    with domain(redis_url) as worker, source.opened() as stores, redis_servers.connected(redis_url) as raw:
        compacted = CompactedLog(worker, raw, "batch")
        compacted.fill(20)
        compacted.compacted()
        compacted.fill(3)
        held = compacted.read()
        assert held[0].offset > 0
        task = task_of(compacted.partition, held[-1].offset + 1)
        stores.lake.create(LakeTopic(compacted.partition.topic, compacted.partition.topic_id))
        outcome = archive_range(stores, task)
    [file] = outcome.files
    assert (file.rows, outcome.next_offset, outcome.gaps) == (len(held), task.end, ())


def test_deleted_records_are_not_archived_and_not_missed(
    topics: Topics, archived_to_two: SourceTopic
) -> None:
    [partition] = archived_to_two.partitions
    topics.produce(partition, b"2", b"3", b"4", b"5")
    topics.produce(partition, b"6")
    # As a broker deletes up to an offset that lies within a batch.
    topics.stores.remote.expire([(partition, 4)])
    topics.trim(partition, 4)
    done = topics.archiver().round(topics.run)
    assert (done.lost, done.records) == ([], 3)
    assert [offset for offset, *_ in topics.archived(archived_to_two)] == [0, 1, 4, 5, 6]


def test_an_object_store_that_is_away_is_one_line(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1")
    options = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "max_retries": "0",
    }
    lake = Lake("s3://bucket/lake", options)
    [failure] = topics.archiver(lake=lake).round(topics.run).failures
    assert failure.error.startswith(f"s3://bucket/lake/orders/{topic.id}: ")
    assert failure.error.isprintable()
    task = task_of(topic.partitions[0], 1)
    [outcome] = archive_ranges(msgspec.structs.replace(topics.source, lake=lake), [task])
    assert (outcome.next_offset, outcome.files) == (0, ())
    assert outcome.error is not None
    assert outcome.error.startswith(f"s3://bucket/lake/orders/{topic.id}: Generic S3 error: ")
    assert outcome.error.isprintable()
