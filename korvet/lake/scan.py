"""Scans of a topic over both tiers: which ranges of offsets there are to read, and their rows, each record once.

Knows the log in Redis and the table; nothing of Spark. What the table holds is read there and not from Redis, which has
others to serve. A range that leaves Redis between planning and reading is found in the lake, and files that a
compaction has replaced meanwhile are found in what replaced them. What retention removes from both in that time is an
error, or else left out.

Where scans begin and end: offsets by time, and by how many records are to be read, over both tiers.

Knows the log's index in Redis and the statistics of the table's files; changes nothing.

Whether a log in Redis is still the one that was archived, record by record.

Knows both tiers. In storage format `batch` offsets are dense, so a Redis that came back with older data gives those it
has lost to other records: the log goes on as if nothing was, and what is archived under these offsets is of another
past. In format `record` offsets are times, and none comes twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from korvet.errors import KafkaError, LakeError, StorageUnavailableError
from korvet.lake.files import DataFiles, Windows, filesystem, group_overlapping
from korvet.lake.reader import LakeReader, ReadPosition
from korvet.lake.schema import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TIMESTAMP_MS,
    VALUE,
    milliseconds_of,
)
from korvet.lake.source import LakeSource, LakeStores, SourceTopic
from korvet.lake.table import ArchiveTable, Lake, LakeTopic, TableFile, table_uri
from korvet.lake.tasks import ArchiveTask, RangeReader
from korvet.log.index import BYTES_PER_ROW, RECORDS_PER_ROW, LogPosition, Search
from korvet.log.types import Bounds, Read
from korvet.topics.types import Partition

PART_BYTES = 64 * 1024 * 1024
"""What one part is to be at least, where there is so much: less is not worth a task of Spark's."""

T = TypeVar("T")


class LogSnapshot(NamedTuple):
    """A partition at one moment: its records from `start` to just before `end`, those below `archived` in `files`.

    `topic` is without its partitions.
    """

    topic: SourceTopic
    partition: Partition
    start: int
    end: int
    archived: int
    files: Sequence[TableFile]


class TimestampRange(NamedTuple):
    """Timestamps in microseconds, both ends included; if either is given, records without one are none of them."""

    first: float = -math.inf
    last: float = math.inf


class ScanRange(NamedTuple):
    """Records `first` to just before `behind`, in parts of at most `records_max`; those of other `times` may miss."""

    first: int
    behind: int
    times: TimestampRange = TimestampRange()
    records_max: int | None = None


class ScanPart(msgspec.Struct, frozen=True, kw_only=True):
    """Records `first` to just before `behind` of a partition; `cold`: to be read from the lake.

    Rows whose timestamps are not those of `times` may be left out.
    """

    topic: SourceTopic
    partition: Partition
    first: int
    behind: int
    cold: bool
    times: TimestampRange = TimestampRange()


def snapshots(stores: LakeStores, lake: Lake | None, topic: SourceTopic) -> list[LogSnapshot]:
    """Return what there is of a topic, partition by partition; without a lake, of what Redis holds.

    Raises LakeError where a part of it is in the lake only, and not to be found there; KafkaError.
    """
    # The log first: what it says was archived, the table holds then.
    bounds = stores.logs.bounds(topic.partitions)
    table = _open(lake, topic)
    files = [] if table is None else table.files()
    return [
        _log(
            lake,
            topic,
            table,
            partition,
            found,
            [each for each in files if each.partition == partition.index],
        )
        for partition, found in zip(topic.partitions, bounds, strict=True)
    ]


def _open(lake: Lake | None, topic: SourceTopic) -> ArchiveTable | None:
    if lake is None:
        return None
    return ArchiveTable.open(lake.path, topic.name, topic.id, lake.storage_options)


def _log(
    lake: Lake | None,
    topic: SourceTopic,
    table: ArchiveTable | None,
    partition: Partition,
    bounds: Bounds | KafkaError,
    files: Sequence[TableFile],
) -> LogSnapshot:
    if isinstance(bounds, KafkaError):
        raise bounds
    archived = 0 if table is None else table.next_offset(partition.index) or 0
    if bounds.remote is not None and archived < bounds.remote.end:
        name = f"{topic.name}-{partition.index}"
        message = f"{name}: offsets below {bounds.remote.end} are in the lake only"
        if lake is None:
            raise LakeError(f"{message}, and nothing says where that is")
        table_at = table_uri(lake.path, topic.name, topic.id)
        raise LakeError(f"{message}, but {table_at} holds those below {archived}")
    bare = topic._replace(partitions=())
    return LogSnapshot(
        bare, partition, bounds.log_start, bounds.high_watermark, min(archived, bounds.high_watermark), files
    )


def scan_parts(stores: LakeStores, log: LogSnapshot, wish: ScanRange) -> list[ScanPart]:
    """Return the parts in which a wish is to be read, in the order of their offsets.

    None ends within a file, files that overlap, or an interval of the log's index: so it may have more records than
    wished, where one of these has. Raises KafkaError, StorageUnavailableError.
    """
    first, behind = max(wish.first, log.start), min(wish.behind, log.end)
    cold_behind, hot_first = min(behind, log.archived), max(first, log.archived)
    files = [
        each
        for each in log.files
        if each.last_offset >= first and each.first_offset < cold_behind and _may_hold(each, wish.times)
    ]
    groups = _grouped(
        group_overlapping(files),
        lambda some: sum(each.size_bytes for each in some),
        lambda some: sum(each.rows for each in some),
        wish.records_max,
    )
    found = [
        (
            max(group[0][0].first_offset, first),
            min(max(each.last_offset for each in group[-1]) + 1, behind),
            True,
        )
        for group in groups
    ]
    if hot_first < behind:
        there = stores.indexes.intervals(log.partition)
        begin = min(there[0].first, behind) if there else behind
        if hot_first < begin:
            # It has left Redis since the log was looked at: whoever reads finds it in the lake, or that it is no more.
            found.append((hot_first, begin, False))
        pieces = [
            each
            for each in there
            # Its bound is in milliseconds.
            if each.end > hot_first and each.first < behind and (each.bound + 1) * 1000 > wish.times.first
        ]
        runs = _grouped(pieces, lambda _: BYTES_PER_ROW, lambda _: RECORDS_PER_ROW, wish.records_max)
        found += [(max(run[0].first, hot_first), min(run[-1].end, behind), False) for run in runs]
    return [
        ScanPart(
            topic=log.topic,
            partition=log.partition,
            first=part_first,
            behind=part_behind,
            cold=cold,
            times=wish.times,
        )
        for part_first, part_behind, cold in found
    ]


def _may_hold(file: TableFile, times: TimestampRange) -> bool:
    """Tell whether a file may have rows with such timestamps: the table has them cut to milliseconds."""
    if times == TimestampRange():
        return True
    if file.first_timestamp is None or file.last_timestamp is None:
        # No row has one, or whoever wrote the file has told nothing of them.
        return file.rows_without_timestamp != file.rows
    return file.last_timestamp + 999 >= times.first and file.first_timestamp <= times.last


def _grouped(
    each_of: Iterable[T], size: Callable[[T], int], records: Callable[[T], int], records_max: int | None
) -> Iterator[list[T]]:
    """Yield neighbours together, while they are no more than a part is to have."""
    group: list[T] = []
    size_bytes = count = 0
    for each in each_of:
        more = records(each)
        if group and (size_bytes >= PART_BYTES or (records_max is not None and count + more > records_max)):
            yield group
            group, size_bytes, count = [], 0, 0
        group.append(each)
        size_bytes += size(each)
        count += more
    if group:
        yield group


class PartReader:
    """Reads one part after the other, over one connection, with the files of the table that was asked last."""

    def __init__(
        self, stores: LakeStores, lake: Lake | None, source: LakeSource, *, fail_on_data_loss: bool = True
    ) -> None:
        """Without `fail_on_data_loss` records that have been removed since the plan are passed over."""
        self._stores = stores
        self._lake = lake
        self._source = source
        self._fail_on_data_loss = fail_on_data_loss

    def rows(self, part: ScanPart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part in the order of their offsets; those of the lake without the column `partition`.

        Raises LakeError, KafkaError and StorageUnavailableError.
        """
        if part.cold:
            yield from self._cold(part, part.first, part.behind)
        else:
            yield from self._hot(part)

    def _hot(self, part: ScanPart) -> Iterator[pa.RecordBatch]:
        """Read what Redis holds, and from the lake what it does not hold any more."""
        task = ArchiveTask(
            partition=part.partition,
            first=part.first,
            behind=self._between_entries(part),
            bytes=0,
            last=False,
            uri="",
            log_append_time=part.topic.log_append_time,
        )
        reading = RangeReader(self._stores.logs, task, self._source.decompressed_bytes_max)
        filled = 0
        for rows in reading.rows():
            for gap in reading.gaps[filled:]:
                yield from self._cold(part, gap.first, min(gap.behind, part.behind))
            filled = len(reading.gaps)
            self._check_removed(part, reading)
            yield _between(rows, part.first, part.behind)
        for gap in reading.gaps[filled:]:
            yield from self._cold(part, gap.first, min(gap.behind, part.behind))
        self._check_removed(part, reading)
        if reading.error is not None:
            raise LakeError(f"{part.topic.name}-{part.partition.index}: {reading.error}")

    def _check_removed(self, part: ScanPart, reading: RangeReader) -> None:
        """Raise LakeError where the log does not hold any more what is still to be read."""
        if self._fail_on_data_loss and any(each.first < part.behind for each in reading.removed):
            self._check_start(part, reading.removed[0].first)

    def _check_start(self, part: ScanPart, first: int) -> None:
        [found] = self._stores.logs.bounds([part.partition])
        if isinstance(found, KafkaError):
            raise found
        if found.log_start > first:
            raise data_loss_error(part.topic.name, part.partition.index, found, first)

    def _between_entries(self, part: ScanPart) -> int:
        """Return the offset behind the entry that holds the last record: a batch may hold others behind it."""
        if part.partition.format != "batch":
            return part.behind
        [found] = self._stores.logs.read([Read(part.partition, part.behind - 1, 1)])
        if isinstance(found, KafkaError):
            raise found
        return max(part.behind, found.next_offset) if found.holds_any else part.behind

    def _cold(self, part: ScanPart, first: int, behind: int) -> Iterator[pa.RecordBatch]:
        failed_at: int | None = None
        while first < behind:
            try:
                for rows in self._archived(part, first, behind):
                    yield rows
                    first = rows.column(OFFSET)[-1].as_py() + 1
            except LakeError:
                # A file that is gone may have been compacted into another one since: once, at the same place.
                if failed_at == first:
                    raise
                failed_at = first
            else:
                return

    def _archived(self, part: ScanPart, first: int, behind: int) -> Iterator[pa.RecordBatch]:
        table = _open(self._lake, part.topic)
        index = part.partition.index
        if self._lake is None or table is None or (table.next_offset(index) or 0) < behind:
            raise LakeError(
                f"{part.topic.name}-{index}: offsets below {behind} are neither in Redis nor in the lake"
            )
        if self._fail_on_data_loss:
            # Behind the look at the table: the log's start moves before files leave that.
            self._check_start(part, first)
        windows = Windows(DataFiles(table.uri, filesystem(table.uri, self._lake.storage_options)))
        files = [
            each
            for each in table.files()
            if each.partition == index and each.last_offset >= first and each.first_offset < behind
        ]
        for some in group_overlapping(files):
            for window in windows.of(tuple(each.path for each in some)):
                wanted = window.last_offset >= first and window.first_offset < behind
                if wanted and (window.largest is None or window.largest >= part.times.first):
                    rows = _between(windows.rows(window), first, behind)
                    if rows.num_rows:
                        yield rows


def data_loss_error(topic: str, partition: int, bounds: Bounds | LogSnapshot, first: int) -> LakeError:
    """Return the error for a log that does not hold an offset that is still to be read."""
    start, end = (
        (bounds.start, bounds.end)
        if isinstance(bounds, LogSnapshot)
        else (bounds.log_start, bounds.high_watermark)
    )
    return LakeError(
        f"{topic}-{partition} holds offsets {start} to {end - 1}, not {first}: records were deleted before they were"
        " read (failOnDataLoss=false goes on with what there is)"
    )


def _between(rows: pa.RecordBatch, first: int, behind: int) -> pa.RecordBatch:
    start, stop = np.searchsorted(rows.column(OFFSET).to_numpy(), (first, behind))
    return rows.slice(int(start), int(stop - start))


def select_columns(rows: pa.RecordBatch, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`, which are some of the lake's, for rows of one partition."""
    columns = [
        pa.array(np.full(rows.num_rows, partition, dtype=np.int32))
        if field.name == PARTITION
        else rows.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def first_offset_from(
    stores: LakeStores, lake: Lake | None, source: LakeSource, log: LogSnapshot, timestamp: int
) -> int | None:
    """Return the offset of the first record whose timestamp (ms) is not smaller, None without any.

    Raises LakeError, KafkaError and StorageUnavailableError.
    """
    if lake is not None and log.start < log.archived:
        place = ReadPosition(
            LakeTopic(log.topic.name, log.topic.id), log.partition.index, log.start, log.archived
        )
        found = LakeReader(lake.path, lake.storage_options).first_from(place, timestamp)
        if found is not None:
            return found.offset
    at = max(log.start, log.archived)
    # Which of the records that are left is the first, whatever goes meanwhile.
    reading = PartReader(stores, lake, source, fail_on_data_loss=False)
    while at < log.end:
        [intervals] = stores.indexes.find([Search(log.partition, timestamp, at)])
        if isinstance(intervals, KafkaError):
            raise intervals
        for first, behind in intervals.intervals:
            part = ScanPart(
                topic=log.topic,
                partition=log.partition,
                first=max(first, at),
                behind=min(behind, log.end),
                cold=False,
            )
            for rows in reading.rows(part) if part.first < part.behind else ():
                stamps = milliseconds_of(rows.column(TIMESTAMP), rows.column(TIMESTAMP_MS))
                places = np.flatnonzero(stamps >= timestamp)
                if len(places):
                    return int(rows.column(OFFSET)[int(places[0])].as_py())
        if intervals.searched <= at:
            break
        at = intervals.searched
    return None


def offset_after(stores: LakeStores, lake: Lake | None, log: LogSnapshot, first: int, count: int) -> int:
    """Return an offset behind no more than `count` records from `first` on; it is beyond that where there are any.

    In format `record` it may be less than could be: what the log's index tells without reading all of them. Raises
    LakeError, KafkaError and StorageUnavailableError.
    """
    first = max(first, log.start)
    if log.partition.format == "batch":
        return min(first + count, log.end)
    at, left = first, count
    if lake is not None:
        at, left = _behind_archived(lake, log, first, count)
    if not left or at >= log.end:
        return min(at, log.end)
    return min(_behind_hot(stores, log.partition, at, left), log.end)


def _behind_archived(lake: Lake, log: LogSnapshot, at: int, left: int) -> tuple[int, int]:
    """Return where `left` archived records end, or the archive before that, and how many are left then."""
    uri = table_uri(lake.path, log.topic.name, log.topic.id)
    for some in group_overlapping(log.files):
        last_offset, rows = max(each.last_offset for each in some), sum(each.rows for each in some)
        if last_offset < at or some[0].first_offset >= log.end:
            continue
        if at <= some[0].first_offset and rows <= left:
            at, left = last_offset + 1, left - rows
        else:
            windows = Windows(DataFiles(uri, filesystem(uri, lake.storage_options)))
            for window in windows.of(tuple(each.path for each in some)):
                if window.last_offset < at:
                    continue
                offsets = windows.stamps(window).column(OFFSET).to_numpy()
                taken = offsets[np.searchsorted(offsets, at) :][:left]
                at, left = int(taken[-1]) + 1, left - len(taken)
                if not left:
                    break
        if not left:
            return at, 0
    return max(at, log.archived), left


def _behind_hot(stores: LakeStores, partition: Partition, at: int, left: int) -> int:
    _, rows = stores.indexes.page(partition, at)
    if rows:
        # Asked for later, the first of them counts what came meanwhile, and not fewer than there are.
        to_row = _count(stores, partition, at, rows[0].offset)
        if to_row <= left:
            below = [row.offset for row in rows if row.records - rows[0].records <= left - to_row]
            return below[-1]
    while left:
        [found] = stores.logs.read([Read(partition, at, left)])
        if isinstance(found, KafkaError):
            raise found
        if not found.records:
            # Nothing lies there, unless what did has gone to the lake meanwhile, or is still to be looked at.
            moved = found.more or (found.remote is not None and at < found.remote.end)
            return at if moved else found.high_watermark
        at, left = found.next_offset, left - len(found.records)
    return at


def _count(stores: LakeStores, partition: Partition, first: int, behind: int) -> int:
    [rest] = stores.indexes.records_from([LogPosition(partition, behind)])
    [whole] = stores.indexes.records_from([LogPosition(partition, first)])
    if isinstance(rest, KafkaError):
        raise rest
    if isinstance(whole, KafkaError):
        raise whole
    return whole - rest


_COLUMNS = (TIMESTAMP, TIMESTAMP_MS, KEY, VALUE, HEADERS)


def contradiction(
    reading: PartReader, topic: SourceTopic, partition: Partition, bounds: Bounds, next_offset: int
) -> str | None:
    """Return how Redis contradicts the last record that the table holds, below `next_offset`; None where it does not.

    Only where Redis was not told of all that is archived anything can: what it was told it has with all before, or has
    lost with what it was told. Raises StorageUnavailableError.
    """
    last = next_offset - 1
    if partition.format != "batch" or not bounds.local_start <= last < bounds.high_watermark:
        return None
    if bounds.archived >= next_offset:
        return None
    told: list[list[dict[str, object]]] = []
    try:
        for cold in (True, False):
            part = ScanPart(
                topic=topic._replace(partitions=()),
                partition=partition,
                first=last,
                behind=next_offset,
                cold=cold,
            )
            told.append([row for rows in reading.rows(part) for row in rows.select(_COLUMNS).to_pylist()])
    except StorageUnavailableError:
        raise
    except (KafkaError, LakeError) as error:
        return str(error)
    in_lake, in_redis = told
    if in_lake and in_redis and in_lake != in_redis:
        return (
            f"archived up to {next_offset}, but Redis holds another record at offset {last}: Redis has lost records,"
            " and others have their offsets"
        )
    return None
