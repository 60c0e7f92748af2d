"""korvet/lake/scan.py: ranges over both tiers, each record once, whatever moves meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from korvet.config.settings import Settings
from korvet.errors import KafkaError, LakeError
from korvet.lake import scan
from korvet.lake.compaction import compact
from korvet.lake.expiry import Expiry
from korvet.lake.files import TableFile, filesystem
from korvet.lake.scan import (
    PartitionSnapshot,
    PartReader,
    ScanRange,
    TimestampRange,
    first_offset_from,
    offset_after,
    scan_parts,
    snapshots,
)
from korvet.lake.schema import HEADERS, KEY, OFFSET, TIMESTAMP, VALUE
from korvet.lake.source import LakeSource, LakeStores, RetentionLimits, SourceTopic
from korvet.lake.table import Lake
from korvet.lake.verify import verify
from korvet.log.types import Read
from korvet.topics.types import TopicRow
from tests.lake.both import Both, both
from tests.log.compacting import CompactedLog
from tests.support import redis_servers
from tests.support.archives import Topics
from tests.support.domain import domain
from tests.support.log_bench import LAYOUTS, Layout


@pytest.fixture(params=LAYOUTS)
def tiers(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[Both]:
    """Give a topic whose batches of three records, 1000 ms apart, are in the lake, in both tiers, and in Redis."""
    layout: Layout = request.param
    with both(redis_url, tmp_path / "lake", layout) as made:
        made.archive_batches(*(batch(at) for at in range(4)))
        made.trim(made.files()[2].first_offset)
        for at in range(4, 6):
            made.append(*batch(at))
        yield made


def batch(at: int) -> tuple[int, int, int]:
    """Return the timestamps of a batch."""
    first = 1_700_000_000_000 + at * 3000
    return first, first + 1000, first + 2000


VALUES = [b"%d" % stamp for at in range(6) for stamp in batch(at)]


def log_of(made: Both) -> PartitionSnapshot:
    return snapshots(made.stores, made.topic)[0]


def test_both_tiers_are_read_each_record_once_and_in_order(tiers: Both) -> None:
    result = tiers.scanned()
    assert [value for _, value in result] == VALUES
    assert result == sorted(result)


def test_every_range_of_offsets_is_read_also_within_batches_and_files(tiers: Both) -> None:
    log, offsets = log_of(tiers), [offset for offset, _ in tiers.scanned()]
    for at, first in enumerate(offsets):
        for last in range(at, len(offsets)):
            spec = ScanRange(first, offsets[last] + 1)
            got = tiers.rows(scan_parts(tiers.stores, log, spec))
            assert [offset for offset, _ in got] == offsets[at : last + 1]


@pytest.mark.parametrize("columns", [(), (VALUE,), (TIMESTAMP, KEY), (HEADERS,)])
def test_only_the_columns_that_are_wanted_are_read(tiers: Both, columns: tuple[str, ...]) -> None:
    log = log_of(tiers)
    everything, some = PartReader(tiers.stores), PartReader(tiers.stores, columns=columns)
    # Within files and batches too: then offsets have to be read.
    for first in (0, log.files[0].first_offset + 1, log.files[1].last_offset):
        for part in scan_parts(tiers.stores, log, ScanRange(first, log.end)):
            wanted, results = list(everything.rows(part)), list(some.rows(part))
            assert [result.num_rows for result in results] == [partition.num_rows for partition in wanted]
            assert [result.select(columns).to_pylist() for result in results if columns] == [
                partition.select(columns).to_pylist() for partition in wanted if columns
            ]
            for rows in results if part.remote else ():
                assert set(rows.schema.names) <= {OFFSET, *columns}


def test_what_the_table_has_is_not_asked_of_redis(tiers: Both) -> None:
    log = log_of(tiers)
    [archived, local] = scan_parts(tiers.stores, log, ScanRange(log.start, log.end))
    assert (archived.remote, local.remote) == (True, False)
    assert archived.end <= local.first == log.archived


def test_parts_end_between_files_where_they_are_to_be_small(tiers: Both) -> None:
    log = log_of(tiers)
    results = scan_parts(tiers.stores, log, ScanRange(log.start, log.end, records_max=6))
    assert [result.remote for result in results] == [True, True, False]
    assert [value for _, value in tiers.rows(results)] == VALUES


def test_files_are_passed_over_that_have_no_record_of_that_time(tiers: Both) -> None:
    log = log_of(tiers)
    for at in range(4):
        times = TimestampRange(batch(at)[1] * 1000, batch(at)[1] * 1000)
        results = scan_parts(tiers.stores, log, ScanRange(log.start, log.end, times))
        [archived] = [result for result in results if result.remote]
        assert [value for _, value in tiers.rows([archived])] == VALUES[3 * at : 3 * at + 3]
    [local] = scan_parts(tiers.stores, log, ScanRange(log.start, log.end, TimestampRange(batch(5)[0] * 1000)))
    assert not local.remote
    late = TimestampRange((batch(5)[2] + 1) * 1000)
    assert scan_parts(tiers.stores, log, ScanRange(log.start, log.end, late)) == []


def test_a_range_that_left_redis_after_the_plan_is_found_in_the_lake(tiers: Both) -> None:
    log = log_of(tiers)
    planned = scan_parts(tiers.stores, log, ScanRange(log.start, log.end))
    tiers.archive()
    tiers.trim(tiers.bounds.high_watermark)
    assert [value for _, value in tiers.rows(planned)] == VALUES
    tiers.append(*batch(6))
    assert [value for _, value in tiers.rows(planned)] == VALUES


def test_a_range_that_left_redis_before_the_plan_is_found_in_the_lake(tiers: Both) -> None:
    log = log_of(tiers)
    tiers.archive()
    tiers.trim(tiers.bounds.archived)
    planned = scan_parts(tiers.stores, log, ScanRange(log.start, log.end))
    assert [value for _, value in tiers.rows(planned)] == VALUES


def test_a_range_that_leaves_redis_while_it_is_read_is_found_in_the_lake(
    tiers: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(6, 40):
        tiers.append(*batch(at))
    log, wanted = log_of(tiers), tiers.scanned()
    planned = scan_parts(tiers.stores, log, ScanRange(log.start, log.end))
    read = tiers.stores.logs.read
    # Before the first of these reads, format `batch` looks for the end of a batch.
    second = 2 if tiers.partition.format == "record" else 3
    calls = 0

    def archived_meanwhile(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == second:
            tiers.archive()
            tiers.trim(tiers.bounds.high_watermark)
        return read(*args)  # type: ignore[arg-type]  # what the caller gave

    monkeypatch.setattr(tiers.stores.logs, "read", archived_meanwhile)
    assert tiers.rows(planned) == wanted
    assert calls > second


def test_files_that_are_compacted_after_the_plan_are_no_loss(tiers: Both) -> None:
    log = log_of(tiers)
    planned = scan_parts(tiers.stores, log, ScanRange(log.start, log.end))
    before = tiers.files()
    reading = PartReader(tiers.stores)
    rows = reading.rows(planned[0])
    got = next(rows).column(VALUE).to_pylist()
    assert all(item.done for item in compact(tiers.lake, tiers.topic.of))
    for file in before:
        tiers.path_of(file.path).unlink()
    for part in rows:
        got += part.column(VALUE).to_pylist()
    assert got + [value for _, value in tiers.rows(planned[1:])] == VALUES


@pytest.mark.parametrize("left", [1, 7, 14, 17])
def test_what_retention_removes_after_the_plan_is_an_error_or_left_out(tiers: Both, left: int) -> None:
    log, offsets = log_of(tiers), [offset for offset, _ in tiers.scanned()]
    planned = scan_parts(tiers.stores, log, ScanRange(log.start, log.end))
    remove(tiers, offsets[left])
    with pytest.raises(
        LakeError, match=rf"holds offsets {offsets[left]} to .*, not \d+: records were deleted"
    ):
        tiers.rows(planned)
    reading = PartReader(tiers.stores, fail_on_data_loss=False)
    got = [row for part in planned for rows in reading.rows(part) for row in rows.column(VALUE).to_pylist()]
    # A file goes as a whole.
    assert got == VALUES[-len(got) :]
    assert len(got) >= len(VALUES) - left


def test_what_retention_removes_before_the_plan_is_an_error(tiers: Both) -> None:
    log, (gone, _) = log_of(tiers), tiers.scanned()[16]
    tiers.archive()
    remove(tiers, gone)
    with pytest.raises(LakeError, match="records were deleted before they were read"):
        tiers.rows(scan_parts(tiers.stores, log, ScanRange(log.archived, log.end)))


def test_what_retention_removes_after_its_reading_is_no_loss(tiers: Both) -> None:
    log, offsets = log_of(tiers), [offset for offset, _ in tiers.scanned()]
    planned = scan_parts(tiers.stores, log, ScanRange(log.start, log.end))
    got = tiers.rows(planned[:1])
    remove(tiers, planned[1].first)
    got += tiers.rows(planned[1:])
    assert [offset for offset, _ in got] == offsets


def test_a_hole_in_the_log_is_passed_over_as_consumers_do(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as made, redis_servers.connected(redis_url) as raw:
        for at in range(5):
            made.append(*batch(at))
        [_, entry, *_] = raw.xrange(made.partition.stream)
        raw.xdel(made.partition.stream, entry[0])
        assert [value for _, value in made.scanned()] == VALUES[:3] + VALUES[6:15]


def remove(made: Both, start: int) -> None:
    """Let the log start at an offset, as the retention of the whole log does."""
    made.archive()
    made.trim(max(start, made.bounds.local_start))
    made.stores.remote.expire([(made.partition, start)])
    Expiry(made.source).expire(made.stores, made.topic, RetentionLimits(), 0)
    assert made.bounds.log_start == start


def test_files_that_others_left_are_read_as_if_they_were_in_order(
    tiers: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.lake.files.ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(scan, "PART_BYTES", 1)
    whole_log = tiers.scanned()
    left_by_others(tiers, [[11, 0, 3, 7], [5, 2], [10, 9, 8, 6, 4, 1]])
    assert tiers.scanned() == whole_log
    log = log_of(tiers)
    for at, (first, _) in enumerate(whole_log):
        for last in range(at, len(whole_log)):
            spec = ScanRange(first, whole_log[last][0] + 1, records_max=2)
            assert tiers.rows(scan_parts(tiers.stores, log, spec)) == whole_log[at : last + 1]
    for at in range(12):
        for count in range(1, 12 - at):
            end = offset_after(tiers.stores, log, whole_log[at][0], count)
            assert end == whole_log[at + count - 1][0] + 1


def test_a_file_of_others_without_times_is_not_skipped(tiers: Both) -> None:
    left_by_others(tiers, [range(12)], timed=False)
    times = TimestampRange(batch(1)[1] * 1000, batch(1)[1] * 1000)
    log = log_of(tiers)
    result = tiers.rows(scan_parts(tiers.stores, log, ScanRange(log.start, log.end, times)))
    assert b"%d" % batch(1)[1] in [value for _, value in result]


def left_by_others(made: Both, files: Sequence[Sequence[int]], *, timed: bool = True) -> None:
    """Let the archived rows lie in other files, those of each number of them, as an OPTIMIZE may leave them.

    `timed`: the table knows their timestamps.
    """
    table, old = made.table, made.files()
    uri = table.uri
    system = filesystem(uri)
    rows = pa.concat_tables([pq.read_table(file.path, filesystem=system) for file in old])
    written = []
    for number, places in enumerate(files):
        path = f"partition=0/part-{number}.snappy.parquet"
        pq.write_table(rows.take(pa.array(places)), path, filesystem=system, row_group_size=2)
        offsets = sorted(rows.column(OFFSET)[place].as_py() for place in places)
        first, last = offsets[0], offsets[-1]
        size = system.get_file_info(path).size
        written.append(
            TableFile(
                path=path,
                partition=0,
                size_bytes=size,
                rows=len(places),
                first_offset=first,
                last_offset=last,
                first_timestamp=old[0].first_timestamp if timed else None,
                last_timestamp=old[-1].last_timestamp if timed else None,
                rows_without_timestamp=0,
                written_ms=1,
            )
        )
    table.replace(old, written, 1)


def test_a_file_that_is_gone_is_an_error_and_no_gap(tiers: Both) -> None:
    log = log_of(tiers)
    tiers.path_of(tiers.files()[1].path).unlink()
    with pytest.raises(LakeError, match="cannot be read"):
        tiers.rows(scan_parts(tiers.stores, log, ScanRange(log.start, log.end)))


def looking_at(made: Both, lake: Lake) -> LakeStores:
    """Return the stores with another lake."""
    return made.stores._replace(source=msgspec.structs.replace(made.source, lake=lake))


def test_what_only_the_lake_has_is_missed_where_there_is_none(tiers: Both) -> None:
    with pytest.raises(LakeError, match=r"in the lake only, and no lake is given"):
        snapshots(looking_at(tiers, Lake()), tiers.topic)
    elsewhere = looking_at(tiers, Lake(f"{tiers.lake.path}-of-another"))
    with pytest.raises(LakeError, match="in the lake only, but"):
        snapshots(elsewhere, tiers.topic)


def test_deleted_records_are_not_read_though_a_file_has_them(tiers: Both) -> None:
    offsets = [offset for offset, _ in tiers.scanned()]
    [start] = tiers.stores.remote.expire([(tiers.partition, offsets[4])])
    assert start == offsets[4]
    assert [value for _, value in tiers.scanned()] == VALUES[4:]


def test_offsets_are_found_by_time_in_both_tiers(tiers: Both) -> None:
    log, result = log_of(tiers), tiers.scanned()

    def at(timestamp: int) -> int | None:
        return first_offset_from(tiers.stores, log, timestamp)

    for offset, value in result:
        assert at(int(value)) == at(int(value) - 999) == offset
    assert at(0) == result[0][0]
    assert at(int(VALUES[-1]) + 1) is None


def test_no_more_records_are_counted_off_than_requested_and_all_in_the_end(tiers: Both) -> None:
    log, offsets = log_of(tiers), [offset for offset, _ in tiers.scanned()]
    for count in range(1, len(offsets) + 2):
        first, steps = log.start, []
        while first < log.end:
            end = offset_after(tiers.stores, log, first, count)
            steps.append(sum(first <= offset < end for offset in offsets))
            assert end > first
            first = end
        assert sum(steps) == len(offsets)
        assert max(steps) <= count
        assert steps[0] == min(count, len(offsets))


def test_a_long_log_is_counted_off_by_its_index(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake", "record") as made:
        for _ in range(6):
            made.append(*range(1000))
        log = log_of(made)
        offsets = [offset for offset, _ in made.scanned()]
        assert len(offsets) == 6000
        for count in (100, 2500, 5000, 7000):
            first, steps = log.start, []
            while first < log.end:
                first, before = offset_after(made.stores, log, first, count), first
                steps.append(sum(before <= offset < first for offset in offsets))
            assert sum(steps) == 6000
            assert max(steps) <= count
            assert len(steps) <= 6000 // count + 6


def test_records_that_somebody_removed_are_counted_off_as_none(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake", "record") as made:
        made.append(*range(6))
        log = log_of(made)
        with redis_servers.connected(redis_url) as raw:
            for entry, _ in raw.xrevrange(made.partition.stream, count=3):
                raw.xdel(made.partition.stream, entry)
        offsets = [offset for offset, _ in made.scanned()]
        end = offset_after(made.stores, log, log.start, 2)
        assert sum(offset < end for offset in offsets) == 2
        end = offset_after(made.stores, log, end, 2)
        assert offset_after(made.stores, log, end, 2) == log.end


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_compacted_log_is_scanned_as_consumers_see_it(redis_url: str, layout: Layout) -> None:
    source = LakeSource(redis_url=redis_url)
    with domain(redis_url) as worker, source.opened() as stores, redis_servers.connected(redis_url) as raw:
        compacted = CompactedLog(worker, raw, layout)
        compacted.fill(20)
        compacted.compacted()
        compacted.fill(3)
        log = snapshots(stores, stores.topic(compacted.partition.topic))[0]
        held = compacted.read()
        reading = PartReader(stores)
        for first in (0, held[2].offset, held[-2].offset):
            for end in (held[3].offset, held[-3].offset, log.end):
                got = [
                    row
                    for part in scan_parts(stores, log, ScanRange(first, end))
                    for rows in reading.rows(part)
                    for row in rows.to_pylist()
                ]
                wanted = [item for item in held if first <= item.offset < end]
                assert [(row["offset"], row["key"], row["value"]) for row in got] == [
                    partition[:3] for partition in wanted
                ]


class OnceCompacted(NamedTuple):
    log: CompactedLog
    topics: Topics

    @property
    def topic(self) -> SourceTopic:
        return self.topics.stores.topic(self.log.partition.topic)


@pytest.fixture(params=LAYOUTS)
def once(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[OnceCompacted]:
    """Give an archived topic of which the first and the last records of a compacted part are left, and some more."""
    layout: Layout = request.param
    settings = Settings(lake_path=str(tmp_path / "lake"))
    source = LakeSource.of(settings, redis_url)
    with (
        domain(redis_url, settings) as worker,
        source.opened() as stores,
        redis_servers.connected(redis_url) as raw,
    ):
        log = CompactedLog(worker, raw, layout)
        log.append((b"first", b"1"))
        for at in range(30):
            log.append((b"again", b"%d" % at))
        log.append((b"last", b"2"))
        log.compacted()
        worker.topics.alter(log.topic, archived)
        log.append((b"again", b"30"))
        topics = Topics(stores, worker.log)
        assert topics.rounds(topics.archiver()).failures == []
        yield OnceCompacted(log, topics)


def archived(row: TopicRow) -> TopicRow:
    configs = row.configs | {"cleanup.policy": "delete", "remote.storage.enable": "true"}
    return msgspec.structs.replace(row, configs=configs)


def test_what_compaction_removed_is_no_finding(once: OnceCompacted) -> None:
    [result] = verify(once.topics.stores, once.topic)
    assert result.findings == ()
    assert (result.rows, result.compared) == (4, 4)
    once.topics.trim(once.log.partition, once.log.field("clean_end"))
    [result] = verify(once.topics.stores, once.topic)
    assert result.findings == ()
    assert (result.rows, result.compared) == (4, 1)


def test_what_is_in_the_lake_only_is_not_passed_over_for_what_redis_has_after_it(once: OnceCompacted) -> None:
    partition = once.log.partition
    offsets = [item.offset for item in once.log.model]
    for start in offsets[1:]:
        once.topics.trim(partition, start)
        for offset in [item for item in offsets if item < start]:
            [result] = once.log.logs.read([Read(partition, offset, 10)])
            assert not isinstance(result, KafkaError)
            assert (len(result), result.remote_end) == (0, start)
