"""korvet/lake/expiry.py: what retention removes from log, table and disk, and upkeep of all topics."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError, LakeError
from korvet.lake.expiry import (
    VACUUM_HOURS_MIN,
    ExpiredFiles,
    Expiry,
    UpkeepRound,
    count_expired,
    gone,
    run_upkeep,
    start_after,
)
from korvet.lake.files import TableFile
from korvet.lake.scan import snapshots
from korvet.lake.source import RetentionLimits
from korvet.lake.table import ArchiveTable, CommitConflictError, Lake, LakeTopic
from korvet.lake.tasks import archive_ranges
from korvet.log.offsets import OffsetQuery
from korvet.log.remote.archived import RemoteOffsetStore
from korvet.protocol.types import SpecialTimestamp
from korvet.topics.registry import TopicSpec
from korvet.topics.types import TopicRow
from tests.lake.both import TOPIC, Both, both
from tests.support.batches import Record, values
from tests.support.partition_state import change_log

ROOT = Path(__file__).parent.parent.parent
NOW = 10_000
HOUR_S = 3600


@pytest.fixture
def topic(redis_url: str, tmp_path: Path) -> Iterator[Both]:
    """Give a topic with three archived batches of three records, the last one after them only in Redis."""
    with both(redis_url, tmp_path / "lake") as made:
        made.archive_batches((1000, 1001, 1002), (2000, 2001, 2002), (3000, 3001, 3002))
        made.append(4000, 4001)
        yield made


def expire(topic: Both, retention: RetentionLimits, *, dry_run: bool = False) -> list[ExpiredFiles]:
    return Expiry(topic.source, dry_run=dry_run).expire(topic.stores, topic.topic, retention, NOW)


def older_than(timestamp: int) -> RetentionLimits:
    """Keep what is of that time or later."""
    return RetentionLimits(ms=NOW - timestamp)


def test_files_leave_as_long_as_all_of_the_first_is_too_old(topic: Both) -> None:
    topic.trim(9)
    before = topic.files()
    [done] = expire(topic, older_than(2001))
    assert (done.start, done.files, done.rows, done.bytes) == (3, 1, 3, before[0].size_bytes)
    assert topic.files() == before[1:]
    assert (topic.bounds.log_start, topic.bounds.high_watermark) == (3, 11)
    [earliest] = topic.worker.offsets.find([OffsetQuery(topic.partition, SpecialTimestamp.EARLIEST)])
    assert not isinstance(earliest, KafkaError)
    assert earliest.offset == 3
    [below] = topic.worker.fetch(topic.worker.wanted(TOPIC, offset=2))
    assert below.error == ErrorCode.OFFSET_OUT_OF_RANGE
    [done] = expire(topic, older_than(2001))
    assert (done.start, done.files) == (3, 0)
    assert topic.table.next_offset(0) == 9


def test_a_file_of_others_without_times_is_read(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as made:
        made.archive_batches((9000, 9001), (1000, 1001))
        new = made.files()[0]
        path = new.path.replace("part-", "other-")
        made.path_of(path).write_bytes(made.path_of(new.path).read_bytes())
        changed = new._asdict() | {"path": path, "first_timestamp": None, "last_timestamp": None}
        made.table.replace([new], [TableFile(**changed)], 1)
        assert made.files()[0].last_timestamp is None
        [done] = expire(made, older_than(5000))
        assert (done.start, done.files) == (0, 0)


def test_a_log_whose_files_all_leave_starts_after_what_is_archived(topic: Both) -> None:
    topic.trim(9)
    [done] = expire(topic, older_than(9999))
    assert (done.start, done.files) == (9, 3)
    assert topic.files() == []
    assert (topic.bounds.log_start, topic.bounds.remote) == (9, None)
    assert topic.table.next_offset(0) == 9
    topic.archive()
    assert [(file.first_offset, file.last_offset) for file in topic.files()] == [(9, 10)]


def test_what_expired_in_the_lake_is_gone_though_redis_holds_it_still(topic: Both) -> None:
    [done] = expire(topic, older_than(2002))
    assert done.start == 6
    assert (topic.bounds.log_start, topic.bounds.local_start) == (6, 6)
    wanted = (SpecialTimestamp.EARLIEST, SpecialTimestamp.EARLIEST_LOCAL, 0, 1001)
    results = topic.worker.offsets.find([OffsetQuery(topic.partition, partition) for partition in wanted])
    assert [result.offset for result in results if not isinstance(result, KafkaError)] == [6, 6, 6, 6]
    [below] = topic.worker.fetch(topic.worker.wanted(TOPIC, offset=5))
    assert below.error == ErrorCode.OFFSET_OUT_OF_RANGE
    [rest] = topic.worker.fetch(topic.worker.wanted(TOPIC, offset=6))
    assert values(b"".join(rest.chunks)) == [b"3000", b"3001", b"3002", b"4000", b"4001"]
    [log, _] = snapshots(topic.stores, topic.topic)
    assert (log.start, log.end) == (6, 11)


def test_the_largest_part_of_a_log_that_is_within_its_bytes_stays(topic: Both) -> None:
    sizes = [file.size_bytes for file in topic.files()]
    [done] = expire(topic, RetentionLimits(bytes=sum(sizes)))
    assert done.files == 0
    [done] = expire(topic, RetentionLimits(bytes=sizes[1] + sizes[2] + 1))
    assert done.files == 0
    [done] = expire(topic, RetentionLimits(bytes=sizes[1] + sizes[2]))
    assert (done.files, done.start) == (1, 3)
    [done] = expire(topic, RetentionLimits(bytes=0))
    assert (done.files, done.start) == (2, 9)


@pytest.mark.parametrize("retention", [RetentionLimits(), RetentionLimits(ms=0, bytes=0, delete=False)])
def test_without_a_limit_everything_stays(topic: Both, retention: RetentionLimits) -> None:
    [done] = expire(topic, retention)
    assert (done.files, done.start) == (0, 0)
    assert len(topic.files()) == 3


def test_files_below_a_start_that_was_deleted_up_to_leave_in_any_case(topic: Both) -> None:
    assert RemoteOffsetStore(topic.worker.redis).expire([(topic.partition, 7)]) == [7]
    [done] = expire(topic, RetentionLimits())
    assert (done.files, done.start) == (2, 7)
    assert [file.first_offset for file in topic.files()] == [6]


def test_a_dry_run_reports_and_changes_nothing(topic: Both) -> None:
    before = topic.files()
    [done] = expire(topic, older_than(2500), dry_run=True)
    assert (done.files, done.start) == (2, 6)
    assert topic.files() == before
    assert RemoteOffsetStore(topic.worker.redis).expire([(topic.partition, 0)]) == [0]


def test_what_is_not_mirrored_in_redis_yet_stays(topic: Both, raw_redis: Any) -> None:
    change_log(raw_redis, topic.partition.state, lake_start=-1)
    [done] = expire(topic, older_than(9999))
    assert (done.files, done.error) == (0, None)
    assert len(topic.files()) == 3


def test_the_start_is_moved_before_files_leave_the_table(
    topic: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise LakeError("no access")

    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "remove", refuse)
        with pytest.raises(LakeError):
            expire(topic, older_than(2500))
    assert RemoteOffsetStore(topic.worker.redis).expire([(topic.partition, 0)]) == [6]
    assert len(topic.files()) == 3
    [done] = expire(topic, RetentionLimits())
    assert (done.files, done.start) == (2, 6)
    assert len(topic.files()) == 1


def test_a_start_that_redis_refuses_keeps_the_files(topic: Both, raw_redis: Any) -> None:
    change_log(raw_redis, topic.partition.state, next_offset=4, start=4, first=4)
    [done] = expire(topic, older_than(2500))
    assert done.error is not None
    assert "ends at 4" in done.error
    assert len(topic.files()) == 3


def test_another_commit_in_between_is_no_hindrance(topic: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = ArchiveTable.remove
    tries: list[int] = []

    def late(table: ArchiveTable, removed: list[TableFile], now_ms: int) -> None:
        tries.append(table.version)
        if len(tries) == 1:
            topic.archive()
        remove(table, removed, now_ms)

    monkeypatch.setattr(ArchiveTable, "remove", late)
    expire(topic, older_than(1500))
    assert len(tries) == 2
    assert [(file.first_offset, file.last_offset) for file in topic.files()] == [(3, 5), (6, 8), (9, 10)]


def test_a_topic_without_a_table_loses_nothing(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as made:
        made.append(1)
        assert expire(made, RetentionLimits(0, 0)) == []
        assert Expiry(made.source).vacuum(made.topic, 24).files == 0


def test_timestamps_that_no_calendar_has_count_too(redis_url: str, tmp_path: Path) -> None:
    configs = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    with both(redis_url, tmp_path / "lake", configs=configs) as made:
        made.archive_batches((5, 2**62), (6,))
        [done] = expire(made, older_than(9000))
        assert done.files == 0


def age(path: Path, hours: float) -> None:
    then = time.time() - hours * HOUR_S
    os.utime(path, (then, then))


def test_vacuum_deletes_what_no_commit_names_for_long_and_nothing_else(topic: Both) -> None:
    partition = topic.path_of("partition=0")
    for file in topic.files():
        age(topic.path_of(file.path), 1000)
    orphan, young = partition / "part-orphan.parquet", partition / "part-young.parquet"
    for item, hours in ((orphan, VACUUM_HOURS_MIN + 1), (young, VACUUM_HOURS_MIN - 1)):
        item.write_bytes(b"rows")
        age(item, hours)
    now_ms = time.time_ns() // 1_000_000
    retention = RetentionLimits(ms=now_ms - 1500)
    Expiry(topic.source).expire(topic.stores, topic.topic, retention, now_ms)
    left = {file.path for file in topic.files()}
    removed = {item.name for item in partition.iterdir()} - {orphan.name, young.name}
    dry = Expiry(topic.source, dry_run=True).vacuum(topic.topic, VACUUM_HOURS_MIN)
    assert (dry.files, orphan.exists()) == (1, True)
    done = Expiry(topic.source).vacuum(topic.topic, VACUUM_HOURS_MIN)
    assert (done.files, done.error) == (1, None)
    # What left the table just now may still be read, however old it is.
    assert {item.name for item in partition.iterdir()} == removed | {young.name}
    assert {file.path for file in topic.files()} == left


@pytest.mark.slow
def test_vacuum_deletes_what_a_writer_that_was_killed_had_begun(topic: Both) -> None:
    program = f"""
import os, signal
from korvet.lake.files import filesystem, write_files
from tests.lake.rows import records_to_arrow
from tests.lake.archives import record

def rows():
    # deltalake writes to the disk once it has some megabytes.
    for at in range(4):
        yield records_to_arrow(0, [record(at, value_bytes=10_000_000)])
    os.kill(os.getpid(), signal.SIGKILL)

write_files(filesystem({topic.table.uri!r}), 0, rows(), 1)
"""
    partition = topic.path_of("partition=0")
    before = set(partition.iterdir())
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)
    [begun] = set(partition.iterdir()) - before
    assert begun.name.endswith(".parquet#1")
    expiry = Expiry(topic.source)
    age(begun, VACUUM_HOURS_MIN - 1)
    assert (expiry.vacuum(topic.topic, VACUUM_HOURS_MIN).files, begun.exists()) == (0, True)
    age(begun, VACUUM_HOURS_MIN + 1)
    dry = Expiry(topic.source, dry_run=True).vacuum(topic.topic, VACUUM_HOURS_MIN)
    assert (dry.files, begun.exists()) == (1, True)
    assert expiry.vacuum(topic.topic, VACUUM_HOURS_MIN).files == 1
    assert set(partition.iterdir()) == before


def test_vacuum_keeps_files_for_a_day_at_least(topic: Both) -> None:
    with pytest.raises(ValueError, match="24 hours"):
        Expiry(topic.source).vacuum(topic.topic, VACUUM_HOURS_MIN - 1)


def test_tables_of_topics_that_are_gone_are_found_and_removed(topic: Both) -> None:
    old = LakeTopic(TOPIC, topic.topic.id)
    assert topic.lake.tables() == [old]
    assert gone(topic.stores) == []
    topic.worker.topics.delete([topic.worker.topics.get(TOPIC)])
    with pytest.raises(ValueError, match="no topic at all"):
        gone(topic.stores)
    configs = {"storage.format": "batch", "remote.storage.enable": "true"}
    topic.worker.topics.create(TopicSpec(name=TOPIC, partitions=1, configs=configs))
    topic.append(1)
    topic.archive()
    assert gone(topic.stores) == [old]
    held = topic.lake.stored_files(old)
    assert held.files > 3
    assert topic.lake.remove_table(old) == held
    assert topic.lake.tables() == [LakeTopic(TOPIC, topic.topic.id)]
    assert gone(topic.stores) == []
    assert len(topic.files()) == 1


def test_a_topic_whose_row_is_damaged_is_not_gone(topic: Both) -> None:
    topic.worker.topics.create(TopicSpec(name="other", partitions=1))
    state = topic.partition.state
    topic.worker.redis.call("HSET", "korvet:topics", TOPIC, "{")
    assert gone(topic.stores) == []
    # Nor if its log cannot be found without the row, as that of one with slot tags.
    topic.worker.redis.call("DEL", state)
    assert gone(topic.stores) == []


def test_a_removal_that_was_cut_off_goes_on_where_it_ended(topic: Both) -> None:
    for file in topic.files():
        topic.path_of(file.path).unlink()
    [of] = topic.lake.tables()
    topic.lake.remove_table(of)
    assert topic.lake.tables() == []
    assert not list(Path(topic.lake.path).rglob(of.topic_id))


def test_a_lake_that_is_not_there_or_empty_has_no_tables(tmp_path: Path) -> None:
    assert Lake(str(tmp_path / "none")).tables() == []
    assert Lake(str(tmp_path)).tables() == []


def test_a_pass_takes_every_topic_that_has_a_table(topic: Both) -> None:
    configs = {"storage.format": "batch", "remote.storage.enable": "true", "retention.ms": "-1"}
    topic.worker.topics.create(TopicSpec(name="other", partitions=1, configs=configs))
    row = topic.stores.topics.load().rows[TOPIC]

    def without(_: TopicRow) -> TopicRow:
        return msgspec.structs.replace(row, configs={"storage.format": "batch", "retention.ms": "0"})

    topic.stores.topics.alter(TOPIC, row.id, without)
    done = Expiry(topic.source).round([], VACUUM_HOURS_MIN, time.time_ns() // 1_000_000)
    assert [(result.topic, result.partition, result.files) for result in done.expired] == [(TOPIC, 0, 3)]
    assert [(item.topic, item.files) for item in done.vacuumed] == [("orders", 0), ("other", 0)]
    assert (done.gone, done.failed) == ([], False)


def test_a_topic_whose_retention_cannot_be_read_keeps_everything(topic: Both) -> None:
    row = topic.stores.topics.load().rows[TOPIC]
    configs = row.configs | {"retention.ms": "soon"}
    topic.stores.topics.alter(TOPIC, row.id, lambda _: msgspec.structs.replace(row, configs=configs))
    done = Expiry(topic.source).round([], VACUUM_HOURS_MIN, time.time_ns() // 1_000_000)
    assert [(result.partition, result.files, result.error is None) for result in done.expired] == [
        (-1, 0, False)
    ]
    assert len(topic.files()) == 3


def test_a_topic_that_cannot_be_looked_at_hinders_no_other(topic: Both) -> None:
    log = topic.path_of("_delta_log")
    for item in log.iterdir():
        item.write_text("{")
    configs = {"storage.format": "batch", "remote.storage.enable": "true", "retention.ms": "0"}
    topic.worker.topics.create(TopicSpec(name="other", partitions=1, configs=configs))
    topic.worker.append("other", Record(b"v", timestamp=1))
    done = topic.archiver.round(lambda tasks: archive_ranges(topic.source, tasks))
    assert [failure.topic for failure in done.failures] == [TOPIC]
    round_ = Expiry(topic.source).round([], VACUUM_HOURS_MIN, time.time_ns() // 1_000_000)
    first, second = round_.expired
    assert (first.topic, first.partition, round_.failed) == (TOPIC, -1, True)
    assert TOPIC in (first.error or "")
    assert (second.topic, second.files, second.error) == ("other", 1, None)


@pytest.mark.parametrize(
    ("row", "brokers", "expected"),
    [
        ({}, {}, RetentionLimits(604_800_000, -1, delete=True)),
        ({"retention.ms": "5", "retention.bytes": "6"}, {}, RetentionLimits(5, 6, delete=True)),
        ({}, {"log.retention.ms": "7"}, RetentionLimits(7, -1, delete=True)),
        ({"retention.ms": "5"}, {"log.retention.ms": "7"}, RetentionLimits(5, -1, delete=True)),
        ({}, {"log.cleanup.policy": ""}, RetentionLimits(604_800_000, -1, delete=False)),
    ],
)
def test_a_topics_own_retention_counts_before_that_of_brokers(
    redis_url: str, tmp_path: Path, row: dict[str, str], brokers: dict[str, str], expected: RetentionLimits
) -> None:
    if row:
        row = row | {f"local.{name}": text for name, text in row.items()}
    with both(redis_url, tmp_path / "lake", configs=row) as made:
        if brokers:
            made.stores.configs.alter("default", lambda _: brokers)
        assert made.stores.retentions() == {made.topic.id: expected}


def file(first: int, last: int, size: int, timestamp: int) -> TableFile:
    return TableFile("", 0, size, last - first + 1, first, last, timestamp, timestamp, 0, 0)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(-1, 30)), max_size=12),
    st.integers(-1, 30),
    st.integers(-1, 300),
    st.integers(0, 60),
)
def test_retention_is_that_of_kafka(files: list[tuple[int, int]], ms: int, size: int, hot: int) -> None:
    """Compare with the rules, said for each number of files that could leave."""
    now = 30
    some = [file(at, at, item, timestamp) for at, (item, timestamp) in enumerate(files)]
    times = {item: timestamp for item, (_, timestamp) in zip(some, files, strict=True)}
    count = count_expired(some, RetentionLimits(ms, size), now, hot, lambda item: times[item])

    def may(number: int) -> bool:
        known = [times[item] for item in some[:number]]
        by_time = ms >= 0 and all(statistic <= now - ms for statistic in known) and known[-1] >= 0
        left = sum(item.size_bytes for item in some[number:]) + hot
        return by_time or (size >= 0 and left >= size)

    assert count == max((number for number in range(1, len(some) + 1) if may(number)), default=0)


def test_a_log_starts_after_all_that_left_even_where_files_overlap() -> None:
    some = [file(0, 9, 1, 1), file(5, 14, 1, 1), file(20, 29, 1, 1)]
    everything = RetentionLimits(ms=1000)
    # Of files that overlap none leaves alone.
    assert count_expired(some, everything, 1500, 0, lambda item: 2000 if item is some[1] else 1) == 0
    assert count_expired(some, everything, 1500, 0, lambda item: 2000 if item is some[2] else 1) == 2
    assert count_expired(some, RetentionLimits(bytes=2), 0, 0, lambda _: 0) == 0
    assert [start_after(some, count, 50) for count in (2, 3)] == [20, 50]


def test_a_table_that_always_changes_is_an_error_in_the_end(
    topic: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conflict(*_: object) -> None:
        raise CommitConflictError("another one")

    monkeypatch.setattr(ArchiveTable, "remove", conflict)
    with pytest.raises(LakeError, match="others committed"):
        expire(topic, older_than(2500))


def test_a_deleted_topic_is_an_error_of_its_partition(topic: Both) -> None:
    wanted = topic.topic
    topic.worker.topics.delete([topic.worker.topics.get(TOPIC)])
    [done] = Expiry(topic.source).expire(topic.stores, wanted, older_than(2500), NOW)
    assert done.error is not None
    assert isinstance(topic.stores.remote.expire([(wanted.partitions[0], 0)])[0], KafkaError)


def test_a_round_compacts_and_lets_go_what_is_too_old(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake", configs={"retention.ms": "1000"}) as tiers:
        tiers.archive_batches((1000, 2000), (3000, 4000), (5000, 6000))
        assert run_upkeep(tiers.source, now_ms=1500) == UpkeepRound(compacted=3)
        assert len(tiers.files()) == 1
        assert run_upkeep(tiers.source, now_ms=1500) == UpkeepRound()
        assert run_upkeep(tiers.source, now_ms=9000) == UpkeepRound(expired=1, expired_records=6)
        assert tiers.files() == []


def test_what_cannot_be_merged_is_a_failure_and_retention_goes_on(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with both(redis_url, tmp_path / "lake", configs={"retention.ms": "1000"}) as tiers:
        tiers.archive_batches((1000, 2000), (3000, 4000))
        first, second = tiers.files()
        tiers.path_of(second.path).write_bytes(b"no file of rows")
        done = run_upkeep(tiers.source, now_ms=3500)
        assert (done.compacted, done.expired, done.failures) == (0, 1, 1)
        assert [file.path for file in tiers.files()] == [second.path]
        assert first.rows == done.expired_records
        assert "could not be compacted" in caplog.text


def test_tables_without_any_topic_are_reported(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as tiers:
        tiers.archive_batches((1000,))
        elsewhere = msgspec.structs.replace(tiers.source, namespace="another")
        assert Expiry(tiers.source).round((), 24, 0).gone == []
        with pytest.raises(ValueError, match="do Redis and namespace belong to this lake"):
            run_upkeep(elsewhere, now_ms=0)
