"""Scans of a topic over both tiers: the ranges of offsets to read, where they begin and end, and their rows, each once.

Archived records are read from the table, to spare Redis. A range that leaves Redis between
planning and reading is found in the lake, and files that a compaction has replaced meanwhile are found in what replaced
them. What retention removes from both in that time is an error, or else left out. Nothing is changed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from korvet import logs
from korvet.errors import KafkaError, LakeError, StorageUnavailableError
from korvet.lake.files import DATA_COLUMNS, TableFile
from korvet.lake.reader import LakeReader
from korvet.lake.row_groups import group_overlapping
from korvet.lake.schema import (
    HEADERS,
    KEY,
    OFFSET,
    TIMESTAMP,
    TIMESTAMP_MS,
    VALUE,
    between,
    milliseconds_of,
)
from korvet.lake.source import LakeStores, SourceTopic, answered
from korvet.lake.table import ArchiveTable, AsOf, Lake, lake_errors
from korvet.lake.tasks import PlanError, RangeReader
from korvet.lake.unreadable import kept_files
from korvet.log import high_watermark
from korvet.log.index import BYTES_PER_ROW, RECORDS_PER_ROW, Search
from korvet.log.remote.client import RemoteRequest
from korvet.log.types import Bounds, LogPosition, Read
from korvet.topics.types import Partition

_log = logs.Log(__name__)

PART_BYTES = 64 * 1024 * 1024
"""Of one part at least, if there is that much: less is not worth a task of Spark's."""

LOSS_REMEDY = "(failOnDataLoss=false goes on with what there is)"
"""Ends the error for records that were deleted before they were read."""

T = TypeVar("T")

Tiers: TypeAlias = Literal["both", "hot", "archived"]
"""The tiers of a topic that are read: Redis, its table, or both."""


class PartitionSnapshot(NamedTuple):
    """A partition at one moment: its records from `start` to just before `end`, those below `archived` in `files`.

    At `end` is the last stable offset. What replicas do not have a failover may take back, and put other records at its
    offsets; what lies after it transactions may still abort. `topic` is without its partitions. With a `version` it is
    what the table held then, and nothing of Redis.
    """

    topic: SourceTopic
    partition: Partition
    start: int
    end: int
    archived: int
    files: Sequence[TableFile]
    version: int | None = None


class TimestampRange(NamedTuple):
    """Timestamps in microseconds, both ends included; if either is given, records without one do not match."""

    first: float = -math.inf
    last: float = math.inf


class ScanRange(NamedTuple):
    """Records `first` to just before `end`, in parts of at most `records_max`; others than `times` may be left out."""

    first: int
    end: int
    times: TimestampRange = TimestampRange()
    records_max: int | None = None


class ScanPart(msgspec.Struct, frozen=True, kw_only=True):
    """Records `first` to just before `end` of a partition; `remote`: read from the lake, as it was in a `version`.

    Rows with timestamps outside `times` may be left out.
    """

    topic: SourceTopic
    partition: Partition
    first: int
    end: int
    remote: bool
    times: TimestampRange = TimestampRange()
    version: int | None = None


def snapshots(
    stores: LakeStores,
    topic: SourceTopic,
    held: Mapping[int, int] | None = None,
    tiers: Tiers = "both",
) -> list[PartitionSnapshot]:
    """Return the partitions of a topic as they are now, or what one of the tiers has of them.

    While replicas confirm no end of a log it is that of `held`, offsets by partition that they had before, if given.
    Raises LakeError if a part is in the lake only, and is missing there; KafkaError, OFFSET_NOT_AVAILABLE if replicas
    confirm no end and nothing is `held`.
    """
    # The log first: what it says was archived, the table holds then.
    all_bounds = stores.logs.visible_bounds(topic.partitions)
    table = None if tiers == "hot" else stores.lake.open(topic.of)
    files = {} if table is None else table.files_by_partition()
    bare = topic._replace(partitions=())
    partitions = []
    for partition, bounds in zip(topic.partitions, map(answered, all_bounds), strict=True):
        archived = 0 if table is None else table.next_offset(partition.index) or 0
        start = bounds.log_start
        if tiers == "hot" and bounds.remote is not None:
            start = max(start, bounds.remote.end)
        elif bounds.remote is not None and archived < bounds.remote.end:
            message = (
                f"{topic.name}-{partition.index}: offsets below {bounds.remote.end} are in the lake only"
            )
            if not stores.lake.path:
                raise LakeError(f"{message}, and no lake is given")
            raise LakeError(f"{message}, but {stores.lake.uri(topic.of)} holds those below {archived}")
        end = bounds.stable_offset
        if end < 0:
            if held is None:
                raise high_watermark.unknown()
            end = max(held.get(partition.index, 0), start)
        archived = min(archived, end)
        if tiers == "archived":
            end = max(archived, start)
        partitions.append(
            PartitionSnapshot(bare, partition, start, end, archived, files.get(partition.index, []))
        )
    return partitions


def snapshots_as_of(stores: LakeStores, topic: SourceTopic, as_of: AsOf) -> list[PartitionSnapshot]:
    """Return the partitions of a topic as its table was; raises LakeError if it held nothing yet."""
    table = stores.lake.open(topic.of, as_of)
    if table is None or not table.version:
        # What a table is created by adds no record.
        raise LakeError(f"nothing of {topic.name} was archived yet as of {as_of}")
    files, bare, partitions = table.files_by_partition(), topic._replace(partitions=()), []
    for partition in topic.partitions:
        end, mine = table.next_offset(partition.index) or 0, files[partition.index]
        start = min((file.first_offset for file in mine), default=end)
        partitions.append(PartitionSnapshot(bare, partition, start, end, end, mine, table.version))
    return partitions


def scan_parts(stores: LakeStores, log: PartitionSnapshot, wanted: ScanRange) -> list[ScanPart]:
    """Return the parts in which a range is read, in the order of their offsets.

    None ends within a file, files that overlap, or an interval of the log's index: so it has more than `records_max`
    records if one of these has. Raises KafkaError, StorageUnavailableError.
    """
    first, end = max(wanted.first, log.start), min(wanted.end, log.end)
    remote_end, local_first = min(end, log.archived), max(first, log.archived)
    files = [
        file
        for file in log.files
        if file.last_offset >= first and file.first_offset < remote_end and _may_hold(file, wanted.times)
    ]
    sized_files = (
        (overlapping, sum(file.size_bytes for file in overlapping), sum(file.rows for file in overlapping))
        for overlapping in group_overlapping(files)
    )
    bounds = [
        (
            max(group[0][0].first_offset, first),
            min(max(file.last_offset for file in group[-1]) + 1, end),
            True,
        )
        for group in _grouped(sized_files, wanted.records_max)
    ]
    if local_first < end:
        there = stores.indexes.intervals(log.partition)
        begin = min(there[0].first, end) if there else end
        if local_first < begin:
            # It has left Redis since the snapshot: the reader finds it in the lake, or that it was deleted.
            bounds.append((local_first, begin, False))
        sized_intervals = (
            (interval, BYTES_PER_ROW, RECORDS_PER_ROW)
            for interval in there
            # Its bound is in milliseconds.
            if interval.end > local_first
            and interval.first < end
            and (interval.bound + 1) * 1000 > wanted.times.first
        )
        runs = _grouped(sized_intervals, wanted.records_max)
        bounds += [(max(run[0].first, local_first), min(run[-1].end, end), False) for run in runs]
    return [
        ScanPart(
            topic=log.topic,
            partition=log.partition,
            first=part_first,
            end=part_end,
            remote=remote,
            times=wanted.times,
            version=log.version,
        )
        for part_first, part_end, remote in bounds
    ]


def split_parts(parts: Sequence[ScanPart], count: int) -> list[ScanPart]:
    """Return parts of the same records, `count` of them at least: the widest are halved."""
    halved = list(parts)
    while halved and len(halved) < count:
        at = max(range(len(halved)), key=lambda at: halved[at].end - halved[at].first)
        widest = halved[at]
        if widest.end - widest.first < 2:  # noqa: PLR2004 - one offset is not halved
            break
        middle = (widest.first + widest.end) // 2
        halved[at : at + 1] = [
            msgspec.structs.replace(widest, end=middle),
            msgspec.structs.replace(widest, first=middle),
        ]
    return halved


def _may_hold(file: TableFile, times: TimestampRange) -> bool:
    """Return whether a file may have rows with such timestamps: the table has them truncated to milliseconds."""
    if times == TimestampRange():
        return True
    if file.first_timestamp is None or file.last_timestamp is None:
        # No row has one, or another writer has left them out of the statistics.
        return file.rows_without_timestamp != file.rows
    return file.last_timestamp + 999 >= times.first and file.first_timestamp <= times.last


def _grouped(sized: Iterable[tuple[T, int, int]], records_max: int | None) -> Iterator[list[T]]:
    """Yield neighbours together, up to the size of a part; each comes with its bytes and records."""
    group: list[T] = []
    size_bytes = count = 0
    for member, size, more in sized:
        if group and (size_bytes >= PART_BYTES or (records_max is not None and count + more > records_max)):
            yield group
            group, size_bytes, count = [], 0, 0
        group.append(member)
        size_bytes += size
        count += more
    if group:
        yield group


class PartReader:
    """Reads one part after the other, over one connection."""

    def __init__(
        self,
        stores: LakeStores,
        *,
        columns: Collection[str] = DATA_COLUMNS,
        fail_on_data_loss: bool = True,
    ) -> None:
        """Read rows with these columns; others may be missing or null.

        Without `fail_on_data_loss` records that have been removed since the plan are passed over.
        """
        self._stores = stores
        self._columns = columns
        self._fail_on_data_loss = fail_on_data_loss

    def rows(self, part: ScanPart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part in the order of their offsets; those of the lake without the column `partition`.

        Batches that do not decode have none: a line in the log names their offsets.
        Raises LakeError, KafkaError and StorageUnavailableError.
        """
        if part.remote:
            yield from self._remote(part, part.first, part.end)
        else:
            yield from self._local(part)

    def _local(self, part: ScanPart) -> Iterator[pa.RecordBatch]:
        """Read what Redis holds, and from the lake what it does not hold any more."""
        reader = RangeReader(
            self._stores.logs,
            part.partition,
            (part.first, self._between_entries(part)),
            log_append_time=part.topic.log_append_time,
            columns=self._columns,
        )
        filled = 0
        for rows in reader.rows():
            for gap in reader.gaps[filled:]:
                yield from self._remote(part, gap.first, min(gap.end, part.end))
            filled = len(reader.gaps)
            self._check_removed(part, reader)
            # Spark refuses what has neither rows nor columns.
            if (wanted := between(rows, part.first, part.end)).num_rows:
                yield wanted
        for gap in reader.gaps[filled:]:
            yield from self._remote(part, gap.first, min(gap.end, part.end))
        self._check_removed(part, reader)
        for batch in reader.unreadable:
            _warn_of_hole(part, batch.first, batch.end, batch.reason)
        if reader.error is not None:
            raise LakeError(f"{part.topic.name}-{part.partition.index}: {reader.error}")

    def _check_removed(self, part: ScanPart, reader: RangeReader) -> None:
        """Raise LakeError if the log does not hold any more what is still to be read."""
        if self._fail_on_data_loss and any(gap.first < part.end for gap in reader.removed):
            self._check_start(part, reader.removed[0].first)

    def _check_start(self, part: ScanPart, first: int) -> None:
        bounds = self._stores.bounds(part.partition)
        if bounds.log_start > first:
            raise data_loss_error(part.topic.name, part.partition.index, bounds, first)

    def _between_entries(self, part: ScanPart) -> int:
        """Return the offset after the entry that holds the last record: a batch may hold others after it."""
        if part.partition.format != "batch":
            return part.end
        fetched = answered(*self._stores.logs.read([Read(part.partition, part.end - 1, 1)]))
        return max(part.end, fetched.next_offset or 0)

    def _remote(self, part: ScanPart, first: int, end: int) -> Iterator[pa.RecordBatch]:
        failed_at: int | None = None
        while first < end:
            try:
                for rows, next_offset in self._archived(part, first, end):
                    yield rows
                    first = next_offset
            except LakeError as error:
                if part.version is not None:
                    message = (
                        f"{error} (in version {part.version}: what has left the table is deleted a day later)"
                    )
                    raise LakeError(message) from error
                # A file that is gone may have been compacted into another one since: once, at the same place.
                if failed_at == first:
                    raise
                failed_at = first
            else:
                return

    def _warn_of_kept(self, part: ScanPart, first: int, end: int) -> None:
        with lake_errors(self._stores.lake.uri(part.topic.of)):
            kept = kept_files(self._stores.lake.filesystem(part.topic.of))
        for kept_file in kept:
            overlaps = first < kept_file.end_offset and kept_file.first_offset < end
            if overlaps and kept_file.partition == part.partition.index:
                _warn_of_hole(part, kept_file.first_offset, kept_file.end_offset, kept_file.path)

    def _archived(self, part: ScanPart, first: int, end: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield rows, each with the offset just past them."""
        of, index = part.topic.of, part.partition.index
        table = self._stores.lake.open(of, part.version)
        if table is None or (table.next_offset(index) or 0) < end:
            raise LakeError(
                f"{part.topic.name}-{index}: offsets below {end} are neither in Redis nor in the lake"
            )
        if self._fail_on_data_loss and part.version is None:
            # After the table was opened: the log's start moves before files leave the table.
            self._check_start(part, first)
        if table.unreadable:
            self._warn_of_kept(part, first, end)
        data = self._stores.lake.data_files(of, columns=self._columns)
        for window in data.windows_between(table.files_by_partition()[index], first, end):
            if window.largest is not None and window.largest < part.times.first:
                continue
            if not self._columns and first <= window.first_offset and window.last_offset < end:
                yield bare_rows(data.count(window)), window.last_offset + 1
                continue
            rows = between(data.rows(window), first, end)
            if rows.num_rows:
                yield rows, rows.column(OFFSET)[-1].as_py() + 1


def _warn_of_hole(part: ScanPart, first: int, end: int, where: str) -> None:
    # In one text: Spark's workers write no fields.
    name = f"{part.topic.name}-{part.partition.index}"
    _log.warning(f"{name}: batches of offsets {first} to {end - 1} do not decode and are left out: {where}")


def bare_rows(count: int) -> pa.RecordBatch:
    """Return rows without columns."""
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), count, [None]))


def data_loss_error(topic: str, partition: int, bounds: Bounds | PartitionSnapshot, first: int) -> LakeError:
    """Return the error for a log that does not hold an offset that is still to be read."""
    start, end = (
        (bounds.start, bounds.end)
        if isinstance(bounds, PartitionSnapshot)
        else (bounds.log_start, bounds.high_watermark)
    )
    held = f"offsets {start} to {end - 1}" if start < end else f"no records before its end at {end}"
    why = "records were deleted before they were read"
    if first > end:
        why = "records that were read are gone, as after Redis has lost its last writes"
    return LakeError(f"{topic}-{partition} holds {held}, not {first}: {why} {LOSS_REMEDY}")


def select_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`, which are some of the lake's other than the partition."""
    columns = [rows.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def first_offset_from(stores: LakeStores, log: PartitionSnapshot, timestamp: int) -> int | None:
    """Return the offset of the first record with this timestamp (ms) or a later one, None if there is none.

    Raises LakeError, KafkaError and StorageUnavailableError.
    """
    if log.start < log.archived:
        place = log.partition.index, log.start, log.archived
        request = RemoteRequest(0, "first_from", *log.topic.of, *place, timestamp=timestamp)
        record = LakeReader(stores.lake, log.version).answer(request)
        if record.offset >= 0:
            return record.offset
    at = max(log.start, log.archived)
    # The first of the records that are left, whatever is deleted meanwhile.
    reader = PartReader(stores, fail_on_data_loss=False)
    while at < log.end:
        intervals = answered(*stores.indexes.find([Search(log.partition, timestamp, at)]))
        for first, end in intervals.intervals:
            part = ScanPart(
                topic=log.topic,
                partition=log.partition,
                first=max(first, at),
                end=min(end, log.end),
                remote=False,
            )
            for rows in reader.rows(part) if part.first < part.end else ():
                stamps = milliseconds_of(rows)
                places = np.flatnonzero(stamps >= timestamp)
                if len(places):
                    return int(rows.column(OFFSET)[int(places[0])].as_py())
        if intervals.searched <= at:
            break
        at = intervals.searched
    return None


def count_records(stores: LakeStores, log: PartitionSnapshot, first: int, count: int) -> int:
    """Return how many records lie from `first` on, and stop counting at `count`.

    Raises as `offset_after`.
    """
    first = max(first, log.start)
    if first >= log.end:
        return 0
    if log.partition.is_dense:
        return log.end - first
    at, left = _after_archived(stores.lake, log, first, count)
    return count - left + (_count(stores, log.partition, at, log.end) if left and at < log.end else 0)


def offset_after(stores: LakeStores, log: PartitionSnapshot, first: int, count: int) -> int:
    """Return an offset after at most `count` records from `first` on, and past one at least if there is one.

    Where offsets are times it may be after fewer records than there are: the log's index is used, not all of them read.
    Raises LakeError, KafkaError and StorageUnavailableError.
    """
    first = max(first, log.start)
    if log.partition.is_dense:
        return min(first + count, log.end)
    at, left = _after_archived(stores.lake, log, first, count)
    if not left or at >= log.end:
        return min(at, log.end)
    return min(_after_local(stores, log.partition, at, left), log.end)


def _after_archived(lake: Lake, log: PartitionSnapshot, at: int, left: int) -> tuple[int, int]:
    """Return where `left` archived records end, or the archive before that, and how many are left then."""
    for files in group_overlapping(log.files):
        last_offset, rows = max(file.last_offset for file in files), sum(file.rows for file in files)
        if last_offset < at or files[0].first_offset >= log.end:
            continue
        if at <= files[0].first_offset and rows <= left:
            at, left = last_offset + 1, left - rows
        else:
            data = lake.data_files(log.topic.of)
            for window in data.windows(files):
                if window.last_offset < at:
                    continue
                offsets = data.stamps(window).column(OFFSET).to_numpy()
                taken = offsets[np.searchsorted(offsets, at) :][:left]
                at, left = int(taken[-1]) + 1, left - len(taken)
                if not left:
                    break
        if not left:
            return at, 0
    return max(at, log.archived), left


def _after_local(stores: LakeStores, partition: Partition, at: int, left: int) -> int:
    _, rows = stores.indexes.page(partition, at)
    if rows:
        # Counted after the page was read, the first row has what was appended meanwhile, and not fewer than there are.
        to_row = _count(stores, partition, at, rows[0].offset)
        if to_row <= left:
            below = [row.offset for row in rows if row.records - rows[0].records <= left - to_row]
            return below[-1]
    while left:
        fetched = answered(*stores.logs.read([Read(partition, at, left)]))
        if fetched.next_offset is None:
            # Nothing lies there, unless it has moved to the lake meanwhile, or is still to be read.
            moved = fetched.more or at < (fetched.remote_end or 0)
            return at if moved else fetched.high_watermark
        at, left = fetched.next_offset, left - len(fetched)
    return at


def _count(stores: LakeStores, partition: Partition, first: int, end: int) -> int:
    rest = answered(*stores.indexes.records_from([LogPosition(partition, end)]))
    return answered(*stores.indexes.records_from([LogPosition(partition, first)])) - rest


def check_same_past(
    reader: PartReader, topic: SourceTopic, partition: Partition, bounds: Bounds, table: ArchiveTable | None
) -> None:
    """Raise PlanError if Redis contradicts the last record that the table holds.

    Where offsets are dense, a Redis that came back with older data gives the offsets that it has lost to other
    records: the log goes on, and what is archived under these offsets is of another past. Where they are times, none
    comes twice. If Redis knows of all that is archived, there is no contradiction:
    it has lost no record below what it knows. Raises StorageUnavailableError.
    """
    next_offset = 0 if table is None else table.next_offset(partition.index) or 0
    if table is None or not partition.is_dense or bounds.archived >= next_offset:
        return
    # After it there may be markers of transactions, and what was aborted.
    last = max((file.last_offset for file in table.files_by_partition()[partition.index]), default=-1)
    if not bounds.local_start <= last < bounds.high_watermark:
        return
    columns = (TIMESTAMP, TIMESTAMP_MS, KEY, VALUE, HEADERS)
    part = ScanPart(topic=topic, partition=partition, first=last, end=last + 1, remote=True)
    try:
        in_lake, in_redis = (
            [row for rows in reader.rows(side) for row in rows.select(columns).to_pylist()]
            for side in (part, msgspec.structs.replace(part, remote=False))
        )
    except StorageUnavailableError:
        raise
    except (KafkaError, LakeError) as error:
        raise PlanError(str(error)) from error
    if in_lake and in_redis and in_lake != in_redis:
        raise PlanError(
            f"archived up to {next_offset}, but Redis holds another record at offset {last}: Redis has lost records,"
            " and others have their offsets"
        )
