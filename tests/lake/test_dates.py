"""Tables that are partitioned by date too: files of several dates that overlap, in each part of the lake."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st

from korvet.lake import verify
from korvet.lake.compaction import compact, is_own
from korvet.lake.expiry import Expiry
from korvet.lake.files import DATES_MAX, TableFile, filesystem, write_files
from korvet.lake.reader import LakeReader, RecordTimestamp
from korvet.lake.scan import PartReader, ScanRange, TimestampRange, offset_after, scan_parts, snapshots
from korvet.lake.schema import NO_DATE
from korvet.lake.source import RetentionLimits, SourceTopic
from korvet.lake.table import Advance, Lake
from korvet.protocol.records.record import StoredRecord
from tests.lake.archives import OF, by_time, files, opened, path_of, read_all, request
from tests.lake.rows import records_to_arrow
from tests.support import iceberg
from tests.support.archives import Topics
from tests.support.batches import Record

DAY_MS = 86_400_000
FIRST_DAY = 1_699_920_000_000  # 2023-11-14


def record(at: int, timestamp: int) -> StoredRecord:
    return at, timestamp, b"k", b"value %d" % at, []


def append(lake: Lake, records: Sequence[StoredRecord], next_offset: int) -> list[TableFile]:
    """Archive records of partition 0 by one commit."""
    table = lake.create(OF, by_date=True)
    written = write_files(filesystem(table.uri), 0, [records_to_arrow(0, records)], 1, by_date=True)
    table.append(written, [Advance(0, table.next_offset(0) or 0, next_offset)])
    return written


TIMES = st.lists(
    st.sampled_from(
        [-1, -DAY_MS, FIRST_DAY, FIRST_DAY + 1, FIRST_DAY + DAY_MS - 1, FIRST_DAY + DAY_MS, 2**62]
    ),
    min_size=1,
    max_size=40,
)


@settings(deadline=None, max_examples=40)
@given(TIMES, st.integers(1, 12), st.integers(2, 5), st.randoms(use_true_random=False))
# More dates than are open at once were merged again without end.
@example(
    [-1, FIRST_DAY, FIRST_DAY + DAY_MS, -DAY_MS, -1, -1, -1, FIRST_DAY, FIRST_DAY + DAY_MS],
    1,
    2,
    random.Random(1),
)
def test_records_of_any_dates_are_read_in_order_and_found_by_time(
    tmp_path_factory: pytest.TempPathFactory,
    times: list[int],
    per_file: int,
    group: int,
    chance: random.Random,
) -> None:
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    records = [record(at, time) for at, time in enumerate(times)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("korvet.lake.files.ROW_GROUP_ROWS", group)
        patched.setattr("korvet.lake.files.DATES_MAX", 3)
        for at in range(0, len(records), per_file):
            append(lake, records[at : at + per_file], min(at + per_file, len(records)))
        for _ in range(2):
            end = len(records)
            reader = LakeReader(lake)
            assert read_all(reader, end) == read_all(reader, end, bytes_max=150) == records
            at = chance.randrange(end)
            assert read_all(reader, end, at) == records[at:]
            whole = request(0, end)
            stamps = [RecordTimestamp(offset, time) for offset, time, *_ in records]
            largest = max(stamps, key=lambda stamp: (stamp.timestamp, -stamp.offset))
            if largest.timestamp >= 0:
                assert by_time(reader, whole) == largest
            for time in set(times):
                assert by_time(reader, whole, time) == next(
                    stamp for stamp in stamps if stamp.timestamp >= time
                )
            check_dates(lake, records)
            # And the same after compaction, which ends.
            passes = 0
            while outcomes := list(compact(lake, OF)):
                passes += 1
                assert all(outcome.done for outcome in outcomes)
                assert passes < 5


def check_dates(lake: Lake, records: Sequence[StoredRecord]) -> None:
    """Hold that each file has rows of the date in its path, and that deltalake reads it as the column `date`."""
    table = DeltaTable(lake.uri(OF))
    assert table.metadata().partition_columns == ["partition", "date"]
    rows = table.to_pyarrow_table(columns=["offset", "timestamp", "date"]).sort_by("offset").to_pylist()
    assert [row["offset"] for row in rows] == [item[0] for item in records]
    assert all(row["date"] == (row["timestamp"] and row["timestamp"].date()) for row in rows)
    assert all(is_own(file.path) and f"/date={file.date}/" in file.path for file in files(lake))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def test_a_row_group_is_one_of_each_date_so_late_records_cost_a_fetch_one_more(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.lake.files.ROW_GROUP_ROWS", 4)
    times = [FIRST_DAY + DAY_MS - (DAY_MS if at % 4 == 1 else 0) for at in range(12)]
    written = append(lake, [record(at, time) for at, time in enumerate(times)], 12)
    assert [file.date for file in written] == ["2023-11-15", "2023-11-14"]
    windows = lake.data_files(OF).windows(written)
    assert [(window.first_offset, window.last_offset, len(window.groups)) for window in windows] == [
        (0, 3, 2),
        (4, 7, 2),
        (8, 11, 2),
    ]


def test_days_of_few_records_are_not_written_again_and_again(lake: Lake) -> None:
    for day in range(4):
        append(lake, [record(day, FIRST_DAY + day * DAY_MS)], day + 1)
    assert list(compact(lake, OF)) == []
    for more in range(3):
        append(lake, [record(4 + more, FIRST_DAY + 3 * DAY_MS)], 5 + more)
    [done] = compact(lake, OF)
    assert (done.done, done.files_before, done.files_after) == (True, 4, 1)
    assert [file.date for file in files(lake)] == [f"2023-11-{day}" for day in range(14, 18)]
    assert list(compact(lake, OF)) == []
    # Late records come beside those of their time, in one file of each date.
    for more in range(3):
        times = [FIRST_DAY + 3 * DAY_MS, FIRST_DAY, -1, FIRST_DAY + 3 * DAY_MS]
        append(lake, [record(7 + 4 * more + at, time) for at, time in enumerate(times)], 11 + 4 * more)
    [done] = compact(lake, OF)
    assert (done.files_before, done.files_after) == (10, 3)
    assert [file.date for file in files(lake)] == [
        *(f"2023-11-{day}" for day in range(14, 17)),
        "2023-11-17",
        "2023-11-14",
        NO_DATE,
    ]
    assert list(compact(lake, OF)) == []


def dated(topics: Topics, days: Sequence[int]) -> SourceTopic:
    """Archive records of these days, a batch for each three."""
    topic = topics.make("orders", "batch", lake_partitioning="date")
    for at in range(0, len(days), 3):
        topics.produce(
            topic.partitions[0],
            *(Record(b"%d" % day, b"k", FIRST_DAY + day * DAY_MS) for day in days[at : at + 3]),
        )
    done = topics.rounds(topics.archiver())
    assert (done.records, done.files, done.failures) == (len(days), len(set(days)), [])
    return topic


def test_a_topic_chooses_how_its_table_is_created_and_a_table_stays_as_it_is(topics: Topics) -> None:
    topic = dated(topics, [0, 1, 0, 2, 1, 0])
    topics.check(topic)
    # The topic's configs may change, and another archiver may have read others.
    plain = {"lake.partitioning": "partition"}
    topics.stores.topics.alter(
        "orders", topic.id, lambda row: msgspec.structs.replace(row, configs=row.configs | plain)
    )
    topics.produce(topic.partitions[0], Record(b"3", b"k", FIRST_DAY))
    assert topics.rounds(topics.archiver()).files == 1
    topics.check(topic)
    bills = topics.make("bills", "record", number=1)
    topics.produce(bills.partitions[0], b"1")
    topics.rounds(topics.archiver())
    [name] = topics.files_named(bills)
    assert name.startswith("partition=0/part-")


def test_verify_takes_files_of_several_dates_for_one_log(topics: Topics) -> None:
    topic = dated(topics, [0, 1, 0, 2, 1, 0])
    [result] = verify.verify(topics.stores, topic)
    assert (result.files, result.rows, result.compared, result.findings) == (3, 6, 6, ())
    table = topics.source.lake.open(topic.of)
    assert table is not None
    # A record that is there twice, under another date.
    rows = records_to_arrow(0, [(1, FIRST_DAY + 5 * DAY_MS, b"k", b"1", [])])
    table.append(write_files(filesystem(table.uri), 0, [rows], 1, by_date=True), [])
    [result] = verify.verify(topics.stores, topic)
    assert {finding.kind for finding in result.findings} == {"duplicate", "unequal"}
    assert any("offset 1 follows 1" in finding.message for finding in result.findings)


def test_verify_finds_what_is_missing_and_what_is_under_a_wrong_date(topics: Topics) -> None:
    topic = dated(topics, [0, 1, 0, 2, 1, 0])
    table = topics.source.lake.open(topic.of)
    assert table is not None
    [gone] = [file for file in table.files() if file.date.endswith("15")]
    table.remove([gone], 1)
    [result] = verify.verify(topics.stores, topic)
    assert ("gap", 1) in [(finding.kind, finding.offset) for finding in result.findings]
    directory = Path(topics.source.lake.uri(topic.of))
    [other] = [file for file in table.files() if file.date.endswith("16")]
    (directory / gone.path).replace(directory / other.path.replace("16/", "16/x"))
    table.append([gone._replace(path=other.path.replace("16/", "16/x"), date="2023-11-16")], [])
    [result] = verify.verify(topics.stores, topic)
    assert [finding.kind for finding in result.findings] == ["statistics"]
    assert "has records of 2023-11-15" in result.findings[0].message


def test_files_of_one_stretch_expire_together(topics: Topics) -> None:
    topic = dated(topics, [0, 1, 0, 0, 0])
    topics.produce(topic.partitions[0], Record(b"9", b"k", FIRST_DAY + 9 * DAY_MS))
    topics.rounds(topics.archiver())
    expiry = Expiry(topics.source)
    week = RetentionLimits(ms=7 * DAY_MS)
    [kept] = expiry.expire(topics.stores, topic, week, FIRST_DAY + 7 * DAY_MS + DAY_MS // 2)
    assert (kept.files, kept.start) == (0, 0)
    [left] = expiry.expire(topics.stores, topic, week, FIRST_DAY + 8 * DAY_MS)
    assert (left.files, left.rows, left.start) == (2, 5, 5)
    assert [item[0] for item in topics.archived(topic)] == [5]


def test_scans_and_streams_count_and_read_each_record_once(topics: Topics) -> None:
    topic = dated(topics, [0, 1, 0, 2, 1, 0, 1, 1, 2])
    [log] = snapshots(topics.stores, topic)
    parts = scan_parts(topics.stores, log, ScanRange(1, 8))
    rows = [row for part in parts for row in PartReader(topics.stores).rows(part)]
    assert [offset for row in rows for offset in row.column("offset").to_pylist()] == list(range(1, 8))
    assert offset_after(topics.stores, log, 2, 4) == 6
    late = TimestampRange((FIRST_DAY + 2 * DAY_MS) * 1000)
    parts = scan_parts(topics.stores, log, ScanRange(0, 9, late))
    assert [(item.first, item.end) for item in parts] == [(3, 9)]


@pytest.mark.parametrize("days", [[0, 0, 0, 1], [0, 1, 1, 1]], ids=["one date, then two", "two, then one"])
def test_row_groups_of_one_date_and_of_several_go_to_one_file(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, days: Sequence[int]
) -> None:
    monkeypatch.setattr("korvet.lake.files.ROW_GROUP_ROWS", 2)
    table = lake.create(OF, by_date=True)
    records = [record(at, FIRST_DAY + day * DAY_MS) for at, day in enumerate(days)]
    rows = records_to_arrow(0, records)
    written = write_files(filesystem(table.uri), 0, [rows], 1, by_date=True)
    assert [file.date for file in written] == ["2023-11-14", "2023-11-15"]
    table.append(written, [Advance(0, 0, 4)])
    assert read_all(LakeReader(lake), 4) == records


def test_there_is_one_file_for_each_date_however_many_there_are(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = 2 * DATES_MAX + 1
    monkeypatch.setattr("korvet.lake.files.ROW_GROUP_ROWS", 200)
    chance = random.Random(days)
    order = [day for _ in range(3) for day in (*chance.sample(range(days), days), *[0] * (400 - days))]
    records = [record(at, FIRST_DAY + day * DAY_MS) for at, day in enumerate(order)]
    for first in range(0, 1200, 400):
        assert len(append(lake, records[first : first + 400], first + 400)) == days
    [done] = compact(lake, OF)
    assert (done.done, done.files_before > 2 * days, done.files_after) == (True, True, days)
    assert list(compact(lake, OF)) == []
    check_dates(lake, records)


def test_a_file_that_cannot_be_written_leaves_none_of_its_dates(lake: Lake) -> None:
    table = lake.create(OF, by_date=True)
    rows = [records_to_arrow(0, [record(0, FIRST_DAY), record(1, FIRST_DAY + DAY_MS)])]

    def broken() -> Iterator[pa.RecordBatch]:
        yield rows[0]
        raise OSError("gone")

    for item in (broken(), [rows[0], rows[0]]):
        with pytest.raises((OSError, ValueError)):
            write_files(filesystem(table.uri), 0, item, 1, by_date=True)
    assert list(path_of(lake, "").rglob("*.parquet")) == []
    assert opened(lake).files() == []


def test_iceberg_has_the_same_rows(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    times = [FIRST_DAY + DAY_MS * (at % 3) for at in range(30)]
    append(lake, [record(at, time) for at, time in enumerate(times)], 30)
    append(lake, [record(30, -1)], 31)
    iceberg.tables(lake).sync(OF)
    append(lake, [record(at, times[at - 31]) for at in range(31, 40)], 40)
    assert all(step.done for step in compact(lake, OF))
    iceberg.tables(lake).sync(OF)
    table = iceberg.check(lake, OF)
    for reader in iceberg.READERS.values():
        assert reader(table) == iceberg.by_deltalake(lake, OF)
    day = len([time for time in [*times, *times[:9]] if time == FIRST_DAY])
    assert table.scan("timestamp < '2023-11-15T00:00:00+00:00'").count() == day
