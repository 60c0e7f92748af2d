"""How far topics are archived, and whether tables hold what they say, and the same as Redis if both hold it.

Nothing is changed. A discrepancy is reported, not raised: one damaged file hides no other. In storage format `batch`
every offset of a log is a record, unless it was compacted once, so gaps are found; in format `record` offsets are
sparse, and what is missing is found only while Redis still has it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from korvet.errors import KafkaError, LakeError
from korvet.lake.files import DataFiles, StorageOptions, filesystem
from korvet.lake.schema import OFFSET, SCHEMA, TIMESTAMP, Ints
from korvet.lake.source import LakeSource, LakeStores, SourceTopic
from korvet.lake.table import ArchiveTable, Lake, TableFile
from korvet.lake.tasks import RangeReader, another_lake
from korvet.log.remote.archived import NOT_ARCHIVED
from korvet.log.types import Bounds, Fetched, LogPosition, Read
from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT
from korvet.topics.types import Partition

Kind = Literal["unreadable", "statistics", "order", "duplicate", "gap", "unequal", "archived"]

_COMPARED = {
    # In format `record` the log does not know the type of a timestamp, nor the producer of a record.
    "record": ("offset", "timestamp", "timestamp_ms", "key", "value", "headers"),
    "batch": tuple(each.name for each in SCHEMA if each.name != "partition"),
}


class Discrepancy(msgspec.Struct, frozen=True):
    """What is wrong, and from which offset on; -1 if it is about no single offset."""

    kind: Kind
    offset: int
    message: str


class VerifiedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: what was read of its table, how many records were compared with Redis, and what is wrong."""

    topic: str
    partition: int
    files: int = 0
    rows: int = 0
    compared: int = 0
    findings: tuple[Discrepancy, ...] = ()


class DiscrepancyError(Exception):
    """Ends the check of a file or of a comparison."""

    def __init__(self, kind: Kind, offset: int, message: str) -> None:
        super().__init__(message)
        self.finding = Discrepancy(kind, offset, message)


class _PartitionView(NamedTuple):
    """A partition by table and log; `start` is where the log starts in the lake."""

    partition: Partition
    bounds: Bounds
    start: int
    files: Sequence[TableFile]
    next_offset: int
    data: DataFiles
    sizes: dict[str, int]


def verify(
    stores: LakeStores, lake: Lake, topic: SourceTopic, decompressed_bytes_max: int
) -> Iterator[VerifiedPartition]:
    """Verify each partition of a topic that has a table.

    `decompressed_bytes_max` is what a batch in Redis may have uncompressed. Raises LakeError if the table cannot be
    opened, StorageUnavailableError.
    """
    table = ArchiveTable.open(lake.path, topic.name, topic.id, lake.storage_options)
    for partition, bounds in zip(topic.partitions, stores.logs.bounds(topic.partitions), strict=True):
        if isinstance(bounds, KafkaError):
            finding = Discrepancy("unreadable", -1, bounds.message)
            yield VerifiedPartition(topic=topic.name, partition=partition.index, findings=(finding,))
        elif table is not None:
            [start] = stores.lake.expire([(partition, 0)])
            if isinstance(start, KafkaError):
                finding = Discrepancy("unreadable", -1, start.message)
                yield VerifiedPartition(topic=topic.name, partition=partition.index, findings=(finding,))
            else:
                yield _verified(stores, _view(table, lake, partition, bounds, start), decompressed_bytes_max)
        elif bounds.archived:
            message = f"Redis knows {bounds.archived} as archived, but there is no table"
            finding = Discrepancy("archived", bounds.archived, message)
            yield VerifiedPartition(topic=topic.name, partition=partition.index, findings=(finding,))


def _view(
    table: ArchiveTable, lake: Lake, partition: Partition, bounds: Bounds, start: int
) -> _PartitionView:
    found = [each for each in table.files() if each.partition == partition.index]
    try:
        system = filesystem(table.uri, lake.storage_options)
        infos = system.get_file_info([each.path for each in found])
    except (DeltaError, OSError) as error:
        raise LakeError(f"{table.uri}: {error}") from error
    sizes = {each.path: each.size for each in infos if each.size is not None}
    next_offset = table.next_offset(partition.index) or 0
    first = min((each.first_offset for each in found), default=next_offset)
    # Until Redis knows that the log is archived, only the table knows its start.
    start = first if start == NOT_ARCHIVED else start
    return _PartitionView(partition, bounds, start, found, next_offset, DataFiles(table.uri, system), sizes)


def _verified(stores: LakeStores, view: _PartitionView, decompressed_bytes_max: int) -> VerifiedPartition:
    findings = [*_ends(view)]
    rows = 0
    last = -1
    for file in view.files:
        try:
            rows += _check_file(view, file)
        except DiscrepancyError as wrong:
            findings.append(wrong.finding)
        except LakeError as error:
            findings.append(Discrepancy("unreadable", file.first_offset, str(error)))
        if file.first_offset <= last:
            message = f"{file.path} begins at {file.first_offset}, but another file reaches {last}"
            findings.append(Discrepancy("duplicate", file.first_offset, message))
        last = max(last, file.last_offset)
    findings += _gaps_between(view)
    compared = 0
    try:
        for count in _compare(stores, view, decompressed_bytes_max):
            compared += count
    except DiscrepancyError as wrong:
        findings.append(wrong.finding)
    except LakeError as error:
        # Each file that cannot be read is reported above.
        if not any(each.kind == "unreadable" for each in findings):
            findings.append(Discrepancy("unreadable", -1, str(error)))
    return VerifiedPartition(
        topic=view.partition.topic,
        partition=view.partition.index,
        files=len(view.files),
        rows=rows,
        compared=compared,
        findings=tuple(findings),
    )


def _ends(view: _PartitionView) -> Iterator[Discrepancy]:
    known, end = view.bounds.archived, view.bounds.high_watermark
    if known > view.next_offset:
        message = (
            f"Redis knows offsets below {known} as archived, but the table has them below {view.next_offset}"
        )
        yield Discrepancy("archived", view.next_offset, message)
    if view.next_offset > end:
        message = f"the table has offsets below {view.next_offset}, but the log ends at {end}"
        yield Discrepancy("archived", end, message)
    last = max((each.last_offset for each in view.files), default=-1)
    if last >= view.next_offset:
        message = f"a file reaches {last}, but only what is below {view.next_offset} is archived"
        yield Discrepancy("archived", view.next_offset, message)


def _check_file(view: _PartitionView, file: TableFile) -> int:
    """Return how many rows a file has; raises DiscrepancyError and LakeError."""
    if view.sizes.get(file.path) != file.size_bytes:
        message = f"{file.path} has {view.sizes.get(file.path, 'no')} bytes instead of {file.size_bytes}"
        raise DiscrepancyError("unreadable", file.first_offset, message)
    rows = without = 0
    last: int | None = None
    first_timestamp = last_timestamp = None
    for group in view.data.groups(file.path):
        # All columns: a page that is damaged says so when it is read.
        part = view.data.rows(file.path, group)
        offsets = part.column(OFFSET).to_numpy()
        _check_order(view, file, offsets, last)
        if (group.first_offset, group.last_offset) != (int(offsets[0]), int(offsets[-1])):
            message = f"{file.path}: row group {group.index} says other offsets than it has"
            raise DiscrepancyError("statistics", int(offsets[0]), message)
        last = int(offsets[-1])
        rows += part.num_rows
        times = pc.min_max(part.column(TIMESTAMP).view(pa.int64()))
        without += part.column(TIMESTAMP).null_count
        if times["min"].is_valid:
            known = [each for each in (first_timestamp, times["min"].as_py()) if each is not None]
            first_timestamp = min(known)
            last_timestamp = max(times["max"].as_py(), -(2**63) if last_timestamp is None else last_timestamp)
    _check_statistics(file, rows, without, last)
    _check_times(file, first_timestamp, last_timestamp)
    return rows


def _check_order(view: _PartitionView, file: TableFile, offsets: Ints, last: int | None) -> None:
    """Raise DiscrepancyError if offsets, after `last` in the same file, do not rise, or leave out a record."""
    steps = np.diff(offsets, prepend=offsets[0] - 1 if last is None else last)
    is_dense = view.partition.format == "batch"
    # Below the end of what was compacted any may be missing.
    wrong = (steps <= 0) | ((steps > 1) & (offsets > view.bounds.compacted_end)) if is_dense else steps <= 0
    places = np.flatnonzero(wrong)
    if not len(places):
        return
    step, at = int(steps[places[0]]), int(offsets[places[0]])
    kind: Kind = "gap" if step > 1 else "order" if step else "duplicate"
    raise DiscrepancyError(kind, at, f"{file.path}: offset {at} follows {at - step}")


def _check_statistics(file: TableFile, rows: int, without: int, last: int | None) -> None:
    if (file.rows, file.rows_without_timestamp, file.last_offset) != (rows, without, last):
        message = (
            f"{file.path}: the table says {file.rows} rows, {file.rows_without_timestamp} without a timestamp, up to"
            f" {file.last_offset},"
            f" and it has {rows}, {without}, {last}"
        )
        raise DiscrepancyError("statistics", file.first_offset, message)


def _check_times(file: TableFile, first: int | None, last: int | None) -> None:
    """Compare timestamps (us), which the table has in milliseconds."""
    if first is None or last is None:
        return
    low, high = file.first_timestamp, file.last_timestamp
    if low is None or high is None or low > first or high + 999 < last:
        message = f"{file.path}: the table says timestamps {low} to {high}, and it has {first} to {last}"
        raise DiscrepancyError("statistics", file.first_offset, message)


def _gaps_between(view: _PartitionView) -> Iterator[Discrepancy]:
    """Yield offsets that are missing between files, for a dense log; `_check_file` finds those within a file."""
    if view.partition.format != "batch":
        return
    at = max(view.start, min(view.bounds.compacted_end, view.next_offset))
    for file in view.files:
        if file.first_offset > at:
            yield Discrepancy("gap", at, f"offsets {at} to {file.first_offset - 1} are missing")
        at = max(file.last_offset + 1, at)
    if at < view.next_offset:
        yield Discrepancy("gap", at, f"offsets {at} to {view.next_offset - 1} are missing")


def _compare(stores: LakeStores, view: _PartitionView, decompressed_bytes_max: int) -> Iterator[int]:
    """Yield counts of records that are the same in both tiers; raises DiscrepancyError and LakeError."""
    first = max(view.bounds.local_start, view.start)
    end = min(view.next_offset, view.bounds.high_watermark)
    if first >= end:
        return
    reader = RangeReader(stores.logs, view.partition, (first, end), decompressed_bytes_max)
    archived = _ArchivedRows(view, first, _COMPARED[view.partition.format])
    at = first
    for rows in reader.rows():
        if not rows.num_rows:
            continue
        rows_end = rows.column(OFFSET)[-1].as_py() + 1
        # Retention went on meanwhile: there is nothing to compare with what it deleted in Redis.
        at = max([at, *(gap.end for gap in reader.gaps)])
        _check_equal(archived.take(at, rows_end), archived.select(rows))
        yield rows.num_rows
        at = rows_end
    if reader.error is not None:
        raise DiscrepancyError("unreadable", reader.next_offset, f"Redis: {reader.error}")
    at = max([at, *(gap.end for gap in reader.gaps)])
    _check_equal(archived.take(at, end), archived.select(None))


class _ArchivedRows:
    """The rows of a table, taken one range of offsets after the other."""

    def __init__(self, view: _PartitionView, first: int, columns: Sequence[str]) -> None:
        self._schema = pa.schema([SCHEMA.field(name) for name in columns])
        self._groups = self._from(view, first)
        self._pending = self.select(None)

    def select(self, rows: pa.RecordBatch | None) -> pa.Table:
        """Return the columns that are compared."""
        if rows is None:
            return self._schema.empty_table()
        return pa.Table.from_batches([rows]).select(self._schema.names).cast(self._schema)

    def take(self, first: int, end: int) -> pa.Table:
        """Return the rows from `first` to just before `end`; skips those below."""
        taken = []
        while True:
            offsets = self._pending.column(OFFSET).to_numpy()
            start, stop = np.searchsorted(offsets, (first, end))
            taken.append(self._pending.slice(int(start), int(stop - start)))
            if stop < len(offsets):
                self._pending = self._pending.slice(int(stop))
                return pa.concat_tables(taken)
            more = next(self._groups, None)
            if more is None:
                self._pending = self._pending.slice(int(stop))
                return pa.concat_tables(taken)
            self._pending = more

    def _from(self, view: _PartitionView, first: int) -> Iterator[pa.Table]:
        for file in view.files:
            if file.last_offset < first:
                continue
            for group in view.data.groups(file.path):
                if group.last_offset >= first:
                    yield self.select(view.data.rows(file.path, group))


def _check_equal(archived: pa.Table, local: pa.Table) -> None:
    archived_offsets, local_offsets = archived.column(OFFSET).to_numpy(), local.column(OFFSET).to_numpy()
    if not np.array_equal(archived_offsets, local_offsets):
        missing = np.setdiff1d(local_offsets, archived_offsets)
        if len(missing):
            raise DiscrepancyError(
                "gap", int(missing[0]), f"offset {missing[0]} is in Redis, but not in the table"
            )
        extra = np.setdiff1d(archived_offsets, local_offsets)
        at = int(extra[0]) if len(extra) else int(archived_offsets[0])
        raise DiscrepancyError("unequal", at, f"offset {at} is in the table, but not so in Redis")
    for name in archived.column_names:
        one, other = archived.column(name), local.column(name)
        if not one.equals(other):
            pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
            place = next(place for place, (left, right) in enumerate(pairs) if left != right)
            at = int(archived_offsets[place])
            raise DiscrepancyError(
                "unequal", at, f"offset {at} has another {name} in the table than in Redis"
            )


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: the log's `start` in lake and Redis together, and its `end`; None for what is unknown.

    The table holds it up to `archived`, None for nothing yet, and Redis knows it up to `mirrored`, 0 for nothing:
    trimming goes no further. `lag_records` are not in the table, the oldest of them `lag_ms` old by its timestamp.
    `error` says why the rest is missing, or that the table is not the one that Redis knows.
    """

    topic: str
    partition: int
    start: int | None = None
    local_start: int | None = None
    archived: int | None = None
    mirrored: int | None = None
    end: int | None = None
    lag_records: int | None = None
    lag_ms: int | None = None
    files: int = 0
    rows: int = 0
    bytes: int = 0
    error: str | None = None


def status(
    source: LakeSource, lake: str, storage_options: StorageOptions = None, names: Sequence[str] = ()
) -> list[PartitionStatus]:
    """Return the status of every partition with a remote tier, or of those of the topics named.

    Raises KafkaError and StorageUnavailableError; ValueError for a name of no topic with a remote tier.
    """
    with source.opened() as stores:
        found = []
        for topic in source.topics(stores, names):
            # Before the table is opened: Redis is updated after a commit, so the table holds what Redis says now.
            known = stores.logs.bounds(topic.partitions)
            try:
                table = ArchiveTable.open(lake, topic.name, topic.id, storage_options)
                found += _of_topic(stores, topic, table, known)
            except LakeError as error:
                found += [_failed(partition, error) for partition in topic.partitions]
        return found


def _of_topic(
    stores: LakeStores, topic: SourceTopic, table: ArchiveTable | None, known: Sequence[Bounds | KafkaError]
) -> list[PartitionStatus]:
    files: dict[int, list[TableFile]] = defaultdict(list)
    for file in table.files() if table is not None else ():
        files[file.partition].append(file)
    found = []
    now = stores.logs.bounds(topic.partitions)
    for partition, before, bounds in zip(topic.partitions, known, now, strict=True):
        next_offset = None if table is None else table.next_offset(partition.index)
        if isinstance(bounds, KafkaError):
            found.append(_failed(partition, bounds))
            continue
        first = max(next_offset or 0, bounds.log_start if bounds.remote is None else bounds.remote.end)
        lag_records, lag_ms = _lag(stores, partition, first, bounds)
        found.append(
            PartitionStatus(
                topic=topic.name,
                partition=partition.index,
                start=bounds.log_start,
                local_start=bounds.log_start if bounds.remote is None else bounds.remote.end,
                archived=next_offset,
                mirrored=bounds.archived,
                end=bounds.high_watermark,
                lag_records=lag_records,
                lag_ms=lag_ms,
                files=len(files[partition.index]),
                rows=sum(file.rows for file in files[partition.index]),
                bytes=sum(file.size_bytes for file in files[partition.index]),
                error=None if isinstance(before, KafkaError) else another_lake(before.archived, next_offset),
            )
        )
    return found


def _lag(
    stores: LakeStores, partition: Partition, first: int, bounds: Bounds
) -> tuple[int | None, int | None]:
    """Return how many records lie from `first` on, and how old (ms) the first of them is; None if unknown."""
    if first >= bounds.high_watermark:
        return 0, 0
    [count] = stores.indexes.records_from([LogPosition(partition, first)])
    [read] = stores.logs.read([Read(partition, first, 1)])
    timestamp = -1 if isinstance(read, KafkaError) else _first_timestamp(read)
    lag_ms = max(time.time_ns() // 1_000_000 - timestamp, 0) if timestamp >= 0 else None
    return None if isinstance(count, KafkaError) else count, lag_ms


def _first_timestamp(read: Fetched) -> int:
    if read.batches:
        header = read.batches[0].header
        appended = header.attributes & LOG_APPEND_TIME_BIT
        return header.max_timestamp if appended else header.base_timestamp
    return read.records[0][1] if read.records else -1


def _failed(partition: Partition, error: Exception) -> PartitionStatus:
    message = error.message if isinstance(error, KafkaError) else str(error)
    return PartitionStatus(topic=partition.topic, partition=partition.index, error=message)
