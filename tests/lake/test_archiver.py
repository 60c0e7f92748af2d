"""korvet/lake/archiver.py and task.py: rounds against a real Redis and real tables, with the tasks in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.lake.archiver import Archiver, Ends, Lost, Round
from korvet.lake.files import WrittenFile
from korvet.lake.source import Source
from korvet.lake.table import Advance, ArchiveTable
from korvet.lake.task import Outcome, Task, archive_ranges
from korvet.storage.entry import AtRest
from korvet.storage.log_types import Partition
from korvet.storage.resp import Redis
from korvet.storage.trim_store import Trim, TrimStore
from tests.support import batches
from tests.support.archives import FORMATS, Format, Topics, all_kinds, topic_id, topics_in
from tests.support.batches import Record

DEAD_URL = "redis://127.0.0.1:1"


@pytest.fixture
def topics(redis_url: str, tmp_path: Path) -> Iterator[Topics]:
    with topics_in(redis_url, tmp_path / "lake") as found:
        yield found


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    client = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield client
    client.close()


def trim(redis: Redis, partition: Partition, start: int) -> None:
    """Let a log start in Redis at an offset, whatever is archived."""
    [outcome] = TrimStore(redis).trim([Trim(partition, start, start)])
    assert not isinstance(outcome, KafkaError), outcome


def rounds(archives: Archiver, topics: Topics) -> Round:
    """Archive what is there, to the end."""
    total, ends = Round(), Ends()
    while True:
        done = archives.round(topics.run, ends)
        total.add(done)
        if not (done.more and done.moved):
            return total


@pytest.mark.parametrize("storage_format", FORMATS)
def test_every_record_is_in_the_table_as_it_was_produced(topics: Topics, storage_format: Format) -> None:
    topic = topics.make("orders", storage_format, partitions=2)
    all_kinds(topics, topic)
    done = topics.archiver().round(topics.run)
    assert (done.records, done.partitions, done.more, done.failures) == (2 * (5 * 4 + 1500), 2, False, [])
    topics.check(topic)
    # Again there is nothing to do, and then only what is new.
    assert topics.archiver().round(topics.run) == Round()
    all_kinds(topics, topic)
    assert topics.archiver().round(topics.run).records == done.records
    topics.check(topic)


@pytest.mark.parametrize("storage_format", FORMATS)
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_is_compressed_at_rest_is_archived_plain(
    topics: Topics, storage_format: Format, codec: Any
) -> None:
    topic = topics.make("orders", storage_format)
    topics.produce(topic.partitions[0], b"much of the same " * 1000, b"short", at_rest=AtRest(codec, 1))
    topics.archiver().round(topics.run)
    topics.check(topic)


@pytest.mark.parametrize("storage_format", FORMATS)
def test_times_of_appends_are_archived_as_such(topics: Topics, storage_format: Format) -> None:
    topic = topics.make("orders", storage_format, message_timestamp_type="LogAppendTime")
    assert topic.log_append_time
    topics.produce(topic.partitions[0], Record(timestamp=5), Record(timestamp=9), timestamp=77)
    topics.archiver().round(topics.run)
    topics.check(topic)
    table = ArchiveTable.open(topics.lake, topic.name, topic.id)
    assert table is not None
    [file] = table.files()
    assert (file.first_timestamp, file.last_timestamp) == (77_000, 77_000)
    assert DeltaTable(table.uri).to_pyarrow_table().column("timestamp_type").to_pylist() == [1, 1]


def test_the_setting_of_the_cluster_says_what_timestamps_are_where_the_topic_does_not(topics: Topics) -> None:
    topics.make("orders", "record")
    topics.stores.configs.alter("default", lambda _: {"log.message.timestamp.type": "LogAppendTime"})
    [topic] = topics.source.topics(topics.stores)
    assert topic.log_append_time


def test_topics_without_a_cold_tier_are_left_alone(topics: Topics) -> None:
    topics.make("orders", "batch")
    topics.make("plain", "batch", number=1, remote_storage_enable="true")
    topics.stores.topics.alter(
        "plain",
        topic_id(1),
        lambda row: msgspec.structs.replace(row, configs={"storage.format": "batch"}),
    )
    assert [each.name for each in topics.source.topics(topics.stores)] == ["orders"]
    with pytest.raises(ValueError, match="topic plain has no cold tier"):
        topics.archiver(names=["plain"]).round(topics.run)
    with pytest.raises(ValueError, match="there is no topic other"):
        topics.archiver(names=["other"]).round(topics.run)


def test_only_the_topics_named_are_archived(topics: Topics) -> None:
    orders, others = topics.make("orders", "batch"), topics.make("others", "batch", number=1)
    for each in (orders, others):
        topics.produce(each.partitions[0], b"v")
    assert topics.archiver(names=["others"]).round(topics.run).records == 1
    assert ArchiveTable.open(topics.lake, orders.name, orders.id) is None
    topics.check(others)


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_backlog_becomes_several_files_by_several_rounds(topics: Topics, storage_format: Format) -> None:
    topic = topics.make("orders", storage_format)
    noise = [b"%d" % at + bytes(range(256)) * 4096 for at in range(4)]
    for at in range(20):
        topics.produce(topic.partitions[0], *noise, b"%d" % at, at_rest=AtRest("none"))
    archives = topics.archiver(cores=1)
    plans, _ = archives.plan()
    assert len(plans[0].partitions[0].ranges) == 1
    assert plans[0].partitions[0].more is False
    archives = topics.archiver(cores=8)
    plans, _ = archives.plan()
    planned = plans[0].partitions[0].ranges
    assert len(planned) > 5
    done = rounds(archives, topics)
    assert done.files == len(planned)
    topics.check(topic)


def test_an_archiver_ends_where_the_log_ended_when_it_began(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")
    ends = Ends()
    assert topics.archiver().round(topics.run, ends).records == 2
    topics.produce(topic.partitions[0], b"3")
    assert topics.archiver().round(topics.run, ends) == Round()
    assert topics.archiver().round(topics.run).records == 1
    topics.check(topic)


def test_nothing_is_made_or_told_by_a_plan(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")
    [some], _ = topics.archiver().plan()
    assert [(each.first, each.behind) for each in some.partitions[0].ranges] == [(0, 2)]
    assert not Path(topics.lake).exists()
    assert topics.bounds(topic.partitions[0]).archived == 0


@pytest.mark.parametrize("storage_format", FORMATS)
def test_of_two_archivers_at_once_one_comes_first_and_nothing_is_twice(
    topics: Topics, storage_format: Format
) -> None:
    topic = topics.make("orders", storage_format, partitions=2)
    all_kinds(topics, topic)
    other = Round()

    def overtaken(tasks: Sequence[Task]) -> list[Outcome]:
        outcomes = topics.run(tasks)
        other.add(topics.archiver().round(topics.run))
        topics.produce(topic.partitions[0], b"later")
        return outcomes

    done = topics.archiver().round(overtaken)
    assert (done.records, done.conflicts, done.more, done.failures) == (0, 1, True, [])
    assert other.records == 2 * 1520
    assert topics.archiver().round(topics.run).records == 1
    topics.check(topic)


def test_an_archiver_that_saw_less_of_the_log_than_another_one_goes_on(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1")
    opens = ArchiveTable.open

    def late(*args: Any) -> ArchiveTable | None:
        monkeypatch.setattr(ArchiveTable, "open", opens)
        topics.produce(topic.partitions[0], b"2")
        assert topics.archiver().round(topics.run).records == 2
        return opens(*args)

    monkeypatch.setattr(ArchiveTable, "open", late)
    assert topics.archiver().round(topics.run) == Round()
    topics.check(topic)


def test_redis_is_told_by_the_next_round_what_a_crash_left_untold(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")
    table = ArchiveTable.create(topics.lake, topic.name, topic.id)
    task = Task(
        partition=topic.partitions[0],
        first=0,
        behind=2,
        bytes=0,
        last=True,
        uri=table.uri,
        log_append_time=False,
    )
    [outcome] = topics.run([task])
    assert isinstance(outcome.file, WrittenFile)
    table.append([outcome.file], [Advance(0, 0, 2)])
    assert topics.bounds(topic.partitions[0]).archived == 0
    assert topics.archiver().round(topics.run).records == 0
    topics.check(topic)


def test_a_topic_deleted_meanwhile_is_no_failure_and_one_made_anew_begins_anew(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    other = topics.make("others", "batch", number=1)
    for each in (topic, other):
        topics.produce(each.partitions[0], b"1", b"2")

    def deleted(tasks: Sequence[Task]) -> list[Outcome]:
        assert topics.stores.topics.removal.delete(topic.name, topic.id) is None
        return topics.run(tasks)

    done = topics.archiver().round(deleted)
    assert (done.records, done.failures) == (2, [])
    topics.check(other)
    anew = topics.make("orders", "batch", number=2)
    topics.produce(anew.partitions[0], b"3")
    assert topics.archiver().round(topics.run).records == 1
    topics.check(anew)


@pytest.mark.parametrize("storage_format", FORMATS)
def test_damage_stops_its_partition_with_one_error_and_no_other(
    topics: Topics, raw_redis: Any, storage_format: Format
) -> None:
    topic = topics.make("orders", storage_format, partitions=2)
    for partition in topic.partitions:
        for at in range(30):
            topics.produce(partition, b"a%d" % at, b"b%d" % at)
    hurt = topic.partitions[0]
    entries = raw_redis.xrange(hurt.stream)
    raw_redis.delete(hurt.stream)
    place = len(entries) - 5
    for at, (entry, fields) in enumerate(entries):
        if at == place and storage_format == "batch":
            fields[b"batch"] = fields[b"batch"][:70]
        raw_redis.xadd(hurt.stream, fields, id=entry)
    if storage_format == "record":
        # Entries of this format cannot be so damaged that they are no records; another type of key can.
        raw_redis.delete(hurt.stream)
        raw_redis.set(hurt.stream, b"no stream")
    done = rounds(topics.archiver(), topics)
    assert [(each.topic, each.partition) for each in done.failures] == [("orders", 0)]
    produced = topics.produced.pop((topic.id, 0))
    if storage_format == "batch":
        assert "stopped at offset 50" in done.failures[0].error
        assert topics.archived(topic) == produced[:50]
        assert topics.bounds(hurt).archived == 50
    assert topics.archived(topic, 1) == topics.produced[topic.id, 1]


def test_a_batch_that_does_not_decompress_stops_its_partition(topics: Topics, raw_redis: Any) -> None:
    topic = topics.make("orders", "batch")
    [partition] = topic.partitions
    for at in range(3):
        topics.produce(partition, b"%d" % at, codec=batches.ZSTD)
    entries = raw_redis.xrange(partition.stream)
    raw_redis.delete(partition.stream)
    for at, (entry, fields) in enumerate(entries):
        if at == 1:
            fields[b"batch"] = fields[b"batch"][:61] + bytes(len(fields[b"batch"]) - 61)
        raw_redis.xadd(partition.stream, fields, id=entry)
    done = rounds(topics.archiver(), topics)
    assert "stopped at offset 1: the batch at offset 1" in done.failures[0].error
    assert topics.archived(topic) == topics.produced[topic.id, 0][:1]


def test_batches_that_hold_much_more_than_they_show_are_taken_one_by_one(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make("orders", "batch")
    for at in range(5):
        topics.produce(topic.partitions[0], b"%d" % at, bytes(100_000), codec=batches.ZSTD)
    monkeypatch.setattr("korvet.lake.batches.PAYLOAD_BYTES_MAX", 250_000)
    assert topics.archiver().round(topics.run).failures == []
    topics.check(topic)


def test_without_redis_nothing_is_done_and_the_error_says_so(topics: Topics) -> None:
    with pytest.raises(StorageUnavailableError, match=r"127\.0\.0\.1:1 cannot be reached"):
        Archiver(Source(redis_url=DEAD_URL), topics.lake).round(topics.run)


def test_tasks_that_lose_redis_are_done_again(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1")

    def lost(tasks: Sequence[Task]) -> list[Outcome]:
        return archive_ranges(Source(redis_url=DEAD_URL), None, tasks)

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
    assert [(each.topic, each.partition) for each in done.failures] == [("orders", -1)]
    assert done.records == 0
    Path(topics.lake).unlink()
    topics.archiver().round(topics.run)
    topics.check(topic)


def test_another_lake_is_not_begun_where_the_first_one_holds_records(topics: Topics, tmp_path: Path) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")
    topics.archiver().round(topics.run)
    done = topics.archiver(lake=str(tmp_path / "other")).round(topics.run)
    assert "this lake holds nothing: is it another one?" in done.failures[0].error
    assert not (tmp_path / "other").exists()
    topics.check(topic)


def test_a_redis_that_lost_records_stops_the_partition(topics: Topics, raw_redis: Any) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2", b"3")
    topics.archiver().round(topics.run)
    raw_redis.flushall()
    topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"another")
    done = topics.archiver().round(topics.run)
    assert "archived up to 3, but the log ends at 1: Redis has lost records" in done.failures[0].error
    assert len(topics.archived(topic)) == 3


def test_records_that_left_redis_unarchived_are_told_of(topics: Topics, redis: Redis) -> None:
    topic = topics.make("orders", "batch")
    [partition] = topic.partitions
    topics.produce(partition, b"0", b"1")
    topics.archiver().round(topics.run)
    for at in range(2, 8):
        topics.produce(partition, b"%d" % at)
    trim(redis, partition, 5)
    done = topics.archiver().round(topics.run)
    assert done.lost == [Lost("orders", 0, 2, 5)]
    assert [offset for offset, *_ in topics.archived(topic)] == [0, 1, 5, 6, 7]
    assert topics.archiver().round(topics.run) == Round()


def test_records_that_leave_redis_while_a_task_reads_are_told_of(topics: Topics, redis: Redis) -> None:
    topic = topics.make("orders", "batch")
    [partition] = topic.partitions
    topics.produce(partition, b"0", b"1")
    topics.archiver().round(topics.run)
    for at in range(2, 8):
        topics.produce(partition, b"%d" % at)

    def late(tasks: Sequence[Task]) -> list[Outcome]:
        trim(redis, partition, 5)
        return topics.run(tasks)

    done = topics.archiver().round(late)
    assert done.lost == [Lost("orders", 0, 2, 5)]
    assert [offset for offset, *_ in topics.archived(topic)] == [0, 1, 5, 6, 7]


def test_deleted_records_are_not_archived_and_not_missed(topics: Topics, redis: Redis) -> None:
    topic = topics.make("orders", "batch")
    [partition] = topic.partitions
    topics.produce(partition, b"0", b"1")
    topics.archiver().round(topics.run)
    topics.produce(partition, b"2", b"3", b"4", b"5")
    topics.produce(partition, b"6")
    # As a broker deletes up to an offset that lies within a batch.
    topics.stores.lake.expire([(partition, 4)])
    trim(redis, partition, 4)
    done = topics.archiver().round(topics.run)
    assert (done.lost, done.records) == ([], 3)
    assert [offset for offset, *_ in topics.archived(topic)] == [0, 1, 4, 5, 6]


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_log_that_was_trimmed_before_it_had_a_cold_tier_begins_at_its_start(
    topics: Topics, redis: Redis, storage_format: Format
) -> None:
    topic = topics.make("orders", storage_format)
    [partition] = topic.partitions
    for at in range(6):
        topics.produce(partition, b"%d" % at)
    start = topics.produced[topic.id, 0][4][0]
    trim(redis, partition, start)
    assert topics.archiver().round(topics.run).lost == []
    del topics.produced[topic.id, 0][:4]
    topics.check(topic)
    assert topics.bounds(partition).log_start == start


def test_entries_that_others_wrote_are_archived_as_they_are_served(topics: Topics, raw_redis: Any) -> None:
    topic = topics.make("orders", "record")
    [partition] = topic.partitions
    topics.produce(partition, b"0")
    raw_redis.xadd(partition.stream, {"value": "foreign", "more": "field"})
    done = topics.archiver().round(topics.run)
    assert done.records == 2
    assert topics.archived(topic)[1][3:] == (b"foreign", [("more", b"field")])


def test_many_large_records_are_read_in_small_steps(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topics.make("orders", "batch")
    for at in range(40):
        topics.produce(topic.partitions[0], *([b"small"] * 3))
        topics.produce(topic.partitions[0], b"%d" % at * 500_000, at_rest=AtRest("none"))
    sizes: list[int] = []
    read = Redis.pipeline

    def counted(self: Redis, commands: Any) -> Any:
        replies = read(self, commands)
        sizes.append(sum(len(repr(each)) for each in replies))
        return replies

    monkeypatch.setattr(Redis, "pipeline", counted)
    topics.archiver().round(topics.run)
    monkeypatch.undo()
    assert max(sizes) < 20_000_000
    topics.check(topic)
