"""How far topics are archived, and whether tables hold what they say, and the same as Redis if both hold it.

Nothing is changed. A discrepancy is reported, not raised: one damaged file hides no other. Where offsets are dense
every offset of a log is a record, unless it was compacted once or had transactions, so gaps are found; with
offset.encoding=time offsets are sparse, and what is missing is found only while Redis still has it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem

from korvet.errors import KafkaError, LakeError
from korvet.lake.files import TableFile
from korvet.lake.row_groups import DataFiles, group_overlapping
from korvet.lake.schema import NO_DATE, OFFSET, SCHEMA, TIMESTAMP, Ints, between, date_name
from korvet.lake.source import LakeSource, LakeStores, SourceTopic
from korvet.lake.table import ArchiveTable, lake_errors
from korvet.lake.tasks import RangeReader, another_lake
from korvet.lake.unreadable import KeptFile, KeptRange, batch_ranges, kept_files, merged
from korvet.log.remote.archived import NOT_ARCHIVED
from korvet.log.types import Bounds, LogPosition, Read
from korvet.topics.types import Partition

Kind = Literal["unreadable", "statistics", "order", "duplicate", "gap", "unequal", "archived"]

_CLOCKS_DIFFER_MS = 1000
"""How far Redis' clock may be ahead of this machine's."""

_COMPARED = {
    # In format `record` the log does not know the type of a timestamp, nor the producer of a record.
    "record": ("offset", "timestamp", "timestamp_ms", "key", "value", "headers"),
    "batch": tuple(field.name for field in SCHEMA if field.name != "partition"),
}


class Discrepancy(msgspec.Struct, frozen=True):
    """What is wrong, and from which offset on; -1 if it is about no single offset."""

    kind: Kind
    offset: int
    message: str


class VerifiedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: what was read of its table, how many records were compared with Redis, and what is wrong.

    `known_holes` are no fault: batches that did not decode, whose bytes are kept.
    """

    topic: str
    partition: int
    files: int = 0
    rows: int = 0
    compared: int = 0
    findings: tuple[Discrepancy, ...] = ()
    known_holes: tuple[KeptRange, ...] = ()


class DiscrepancyError(Exception):
    """Ends the check of a file or of a comparison."""

    def __init__(self, kind: Kind, offset: int, message: str) -> None:
        super().__init__(message)
        self.finding = Discrepancy(kind, offset, message)


class _PartitionView(NamedTuple):
    """A partition by table and log; `start` is where the log starts in the lake.

    Offsets may be missing in `holes`, and below `sparse_end`: there records were compacted or aborted, or are markers.
    """

    partition: Partition
    bounds: Bounds
    start: int
    files: Sequence[TableFile]
    next_offset: int
    data: DataFiles
    sizes: dict[str, int]
    sparse_end: int
    holes: Sequence[KeptRange]
    damaged: Sequence[Discrepancy]

    def after_holes(self, first: int) -> int:
        """Return the first offset from `first` on that is in no known hole."""
        for hole in self.holes:
            if hole.first <= first < hole.end:
                first = hole.end
        return first


def verify(stores: LakeStores, topic: SourceTopic) -> Iterator[VerifiedPartition]:
    """Verify each partition of a topic that has a table.

    Raises LakeError if the table cannot be opened, StorageUnavailableError.
    """
    table = stores.lake.open(topic.of)
    for partition, bounds in zip(topic.partitions, stores.logs.bounds(topic.partitions), strict=True):
        finding = None
        if isinstance(bounds, KafkaError):
            finding = Discrepancy("unreadable", -1, bounds.message)
        elif table is not None:
            [start] = stores.remote.expire([(partition, 0)])
            if not isinstance(start, KafkaError):
                yield _verified(stores, _view(stores, table, topic, partition, bounds, start))
                continue
            finding = Discrepancy("unreadable", -1, start.message)
        elif bounds.archived:
            message = f"Redis knows {bounds.archived} as archived, but there is no table"
            finding = Discrepancy("archived", bounds.archived, message)
        if finding is not None:
            yield VerifiedPartition(topic=topic.name, partition=partition.index, findings=(finding,))


def _view(
    stores: LakeStores,
    table: ArchiveTable,
    topic: SourceTopic,
    partition: Partition,
    bounds: Bounds,
    start: int,
) -> _PartitionView:
    table_files = table.files_by_partition()[partition.index]
    next_offset = table.next_offset(partition.index) or 0
    with lake_errors(table.uri):
        files = stores.lake.filesystem(topic.of)
        infos = files.get_file_info([file.path for file in table_files])
        # Later records belong to a commit that never came.
        kept = [kept_file for kept_file in kept_files(files) if kept_file.partition == partition.index]
        holes, damaged = _holes(files, [file for file in kept if file.first_offset < next_offset])
    sizes = {info.path: info.size for info in infos if info.size is not None}
    if start == NOT_ARCHIVED:
        # Until Redis knows that the log is archived, only the table knows its start.
        start = min((file.first_offset for file in table_files), default=next_offset)
    data = stores.lake.data_files(topic.of)
    sparse_end = max(bounds.compacted_end, table.left_out(partition.index))
    return _PartitionView(
        *(partition, bounds, start, table_files, next_offset, data, sizes, sparse_end),
        holes=holes,
        damaged=damaged,
    )


def _holes(files: FileSystem, kept: Sequence[KeptFile]) -> tuple[list[KeptRange], list[Discrepancy]]:
    """Return the offsets whose batches are kept, and the files of such bytes that are damaged."""
    ranges: list[KeptRange] = []
    damaged = []
    for kept_file in kept:
        try:
            ranges += batch_ranges(files, kept_file)
        except (LakeError, OSError) as error:
            damaged.append(Discrepancy("unreadable", kept_file.first_offset, str(error)))
    return merged(ranges), damaged


def _verified(stores: LakeStores, view: _PartitionView) -> VerifiedPartition:
    findings = [*_ends(view), *view.damaged]
    rows = 0
    for overlapping in group_overlapping(view.files):
        rows += _check_overlapping(view, overlapping, findings)
    findings += _gaps_between(view)
    compared = 0
    try:
        offsets = (
            max(view.bounds.local_start, view.start),
            min(view.next_offset, view.bounds.high_watermark),
        )
        for count in compare(stores, view.partition, offsets, view.files, view.data):
            compared += count
    except DiscrepancyError as wrong:
        findings.append(wrong.finding)
    except LakeError as error:
        # Each file that cannot be read is reported above.
        if not any(finding.kind == "unreadable" for finding in findings):
            findings.append(Discrepancy("unreadable", -1, str(error)))
    return VerifiedPartition(
        topic=view.partition.topic,
        partition=view.partition.index,
        files=len(view.files),
        rows=rows,
        compared=compared,
        findings=tuple(findings),
        known_holes=tuple(hole for hole in view.holes if view.start < hole.end <= view.next_offset),
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
    last = max((file.last_offset for file in view.files), default=-1)
    if last >= view.next_offset:
        message = f"a file reaches {last}, but only what is below {view.next_offset} is archived"
        yield Discrepancy("archived", view.next_offset, message)


def _check_overlapping(view: _PartitionView, files: Sequence[TableFile], findings: list[Discrepancy]) -> int:
    """Return how many rows a file has, or files that overlap, and add what is wrong with them."""
    # Files of several dates may overlap, each with the offsets of its own.
    of_dates = len({item.date for item in files}) > 1
    rows, last = 0, -1
    for file in files:
        try:
            rows += _check_file(view, file, alone=not of_dates)
        except DiscrepancyError as wrong:
            findings.append(wrong.finding)
        except LakeError as error:
            findings.append(Discrepancy("unreadable", file.first_offset, str(error)))
        if file.first_offset <= last and not of_dates:
            message = f"{file.path} begins at {file.first_offset}, but another file reaches {last}"
            findings.append(Discrepancy("duplicate", file.first_offset, message))
        last = max(last, file.last_offset)
    # One that cannot be read is reported above.
    with contextlib.suppress(LakeError):
        try:
            if of_dates:
                _check_dates(view, files)
        except DiscrepancyError as wrong:
            findings.append(wrong.finding)
    return rows


def _check_dates(view: _PartitionView, files: Sequence[TableFile]) -> None:
    """Raise DiscrepancyError if files of several dates do not hold each offset once; LakeError."""
    last: int | None = None
    for window in view.data.windows(files):
        offsets = view.data.stamps(window).column(OFFSET).to_numpy()
        _check_order(view, files[0].path, offsets, last)
        last = int(offsets[-1])


def _check_file(view: _PartitionView, file: TableFile, *, alone: bool) -> int:
    """Return how many rows a file has; raises DiscrepancyError and LakeError.

    `alone`: no other file has offsets between its own.
    """
    if view.sizes.get(file.path) != file.size_bytes:
        message = f"{file.path} has {view.sizes.get(file.path, 'no')} bytes instead of {file.size_bytes}"
        raise DiscrepancyError("unreadable", file.first_offset, message)
    rows = without = 0
    last: int | None = None
    times: list[int] = []
    for group in view.data.groups(file.path):
        # All columns: a page that is damaged says so when it is read.
        part = view.data.group_rows(group)
        offsets = part.column(OFFSET).to_numpy()
        _check_order(view, file.path, offsets, last, alone=alone)
        if (group.first_offset, group.last_offset) != (int(offsets[0]), int(offsets[-1])):
            message = f"{file.path}: row group {group.index} says other offsets than it has"
            raise DiscrepancyError("statistics", int(offsets[0]), message)
        last = int(offsets[-1])
        rows += part.num_rows
        without += part.column(TIMESTAMP).null_count
        extremes = pc.min_max(part.column(TIMESTAMP).view(pa.int64())).values()
        times += [extreme.as_py() for extreme in extremes if extreme.is_valid]
    said, actual = (file.rows, file.rows_without_timestamp, file.last_offset), (rows, without, last)
    if said != actual:
        message = (
            f"{file.path}: the table says {file.rows} rows, {file.rows_without_timestamp} without a timestamp, up to"
            f" {file.last_offset}, and it has {rows}, {without}, {last}"
        )
        raise DiscrepancyError("statistics", file.first_offset, message)
    low, high = file.first_timestamp, file.last_timestamp
    # The table has timestamps (us) truncated to milliseconds.
    if times and (low is None or high is None or low > min(times) or high + 999 < max(times)):
        message = (
            f"{file.path}: the table says timestamps {low} to {high}, and it has {min(times)} to {max(times)}"
        )
        raise DiscrepancyError("statistics", file.first_offset, message)
    dates = {_date_of(time_us) for time_us in (min(times, default=None), max(times, default=None))}
    if file.date and dates | ({NO_DATE} if without else set()) != {file.date}:
        message = f"{file.path} has records of {', '.join(sorted(dates))}"
        raise DiscrepancyError("statistics", file.first_offset, message)
    return rows


def _date_of(microseconds: int | None) -> str:
    return date_name(pa.scalar(microseconds, SCHEMA.field(TIMESTAMP).type).cast(pa.date32()).as_py())


def _check_order(
    view: _PartitionView, path: str, offsets: Ints, last: int | None, *, alone: bool = True
) -> None:
    """Raise DiscrepancyError if offsets, after `last` in the same file, do not rise, or leave out a record."""
    steps = np.diff(offsets, prepend=offsets[0] - 1 if last is None else last)
    is_dense = view.partition.is_dense and alone
    wrong = (steps <= 0) | ((steps > 1) & (offsets > view.sparse_end)) if is_dense else steps <= 0
    for place in np.flatnonzero(wrong):
        step, at = int(steps[place]), int(offsets[place])
        if step > 1 and view.after_holes(max(at - step + 1, view.sparse_end)) >= at:
            continue
        kind: Kind = "gap" if step > 1 else "order" if step else "duplicate"
        raise DiscrepancyError(kind, at, f"{path}: offset {at} follows {at - step}")


def _gaps_between(view: _PartitionView) -> Iterator[Discrepancy]:
    """Yield offsets that are missing between files, for a dense log; `_check_file` finds those within a file."""
    if not view.partition.is_dense:
        return
    at = max(view.start, min(view.sparse_end, view.next_offset))
    for file in view.files:
        at = view.after_holes(at)
        if file.first_offset > at:
            yield Discrepancy("gap", at, f"offsets {at} to {file.first_offset - 1} are missing")
        at = max(file.last_offset + 1, at)
    at = view.after_holes(at)
    if at < view.next_offset:
        yield Discrepancy("gap", at, f"offsets {at} to {view.next_offset - 1} are missing")


def compare(
    stores: LakeStores,
    partition: Partition,
    offsets: tuple[int, int],
    files: Sequence[TableFile],
    data: DataFiles,
) -> Iterator[int]:
    """Yield counts of records from the first of `offsets` to just before the second that are the same in both tiers.

    Raises DiscrepancyError with the first offset at which they are not; LakeError.
    """
    at, end = offsets
    if at >= end:
        return
    reader = RangeReader(stores.logs, partition, offsets)
    schema = pa.schema([SCHEMA.field(name) for name in _COMPARED[partition.format]])
    for rows in reader.rows():
        if not rows.num_rows:
            continue
        rows_end = rows.column(OFFSET)[-1].as_py() + 1
        # Retention went on meanwhile: there is nothing to compare with what it deleted in Redis.
        at = max([at, *(gap.end for gap in reader.gaps)])
        _check_same(_archived(files, data, at, rows_end), rows, schema)
        yield rows.num_rows
        at = rows_end
    if reader.error is not None:
        raise DiscrepancyError("unreadable", reader.next_offset, f"Redis: {reader.error}")
    at = max([at, *(gap.end for gap in reader.gaps)])
    nothing = pa.RecordBatch.from_pylist([], schema=schema)
    _check_same(_archived(files, data, at, end), nothing, schema)


def _archived(files: Sequence[TableFile], data: DataFiles, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table from offset `first` to just before `end`, as they are read."""
    for window in data.windows_between(files, first, end):
        rows = between(data.rows(window), first, end)
        if rows.num_rows:
            yield rows


def _check_same(archived: Iterator[pa.RecordBatch], local: pa.RecordBatch, schema: pa.Schema) -> None:
    """Raise DiscrepancyError if rows of the table are not those of Redis; what is read ends with the first other."""
    rest = local.select(schema.names).cast(schema)
    for rows in archived:
        count = int(rest.column(OFFSET).to_numpy().searchsorted(rows.column(OFFSET)[-1].as_py(), "right"))
        _check_equal(rows.select(schema.names).cast(schema), rest.slice(0, count))
        rest = rest.slice(count)
    _check_equal(rest.slice(0, 0), rest)


def _check_equal(archived: pa.RecordBatch, local: pa.RecordBatch) -> None:
    in_lake, in_redis = archived.column(OFFSET).to_numpy(), local.column(OFFSET).to_numpy()
    count = min(len(in_lake), len(in_redis))
    other = np.flatnonzero(in_lake[:count] != in_redis[:count])
    same = int(other[0]) if len(other) else count
    places: dict[int, str] = {}
    for name in archived.column_names:
        one, another = archived.column(name)[:same], local.column(name)[:same]
        if not one.equals(another):
            pairs = zip(one.to_pylist(), another.to_pylist(), strict=True)
            places.setdefault(next(row for row, (left, right) in enumerate(pairs) if left != right), name)
    if places:
        at = int(in_lake[min(places)])
        message = f"offset {at} has another {places[min(places)]} in the table than in Redis"
        raise DiscrepancyError("unequal", at, message)
    if same < len(in_redis) and (same == len(in_lake) or in_redis[same] < in_lake[same]):
        at = int(in_redis[same])
        raise DiscrepancyError("gap", at, f"offset {at} is in Redis, but not in the table")
    if same < len(in_lake):
        at = int(in_lake[same])
        raise DiscrepancyError("unequal", at, f"offset {at} is in the table, but not so in Redis")


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: the log's `start` in lake and Redis together, and its `end`; None for what is unknown.

    The table holds it up to `archived`, None for nothing yet, and Redis knows it up to `mirrored`, 0 for nothing:
    trimming goes no further. `lag_records` are not in the table, the first of them was appended `lag_ms` ago.
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


def status(source: LakeSource, names: Sequence[str] = ()) -> list[PartitionStatus]:
    """Return the status of every partition with a remote tier, or of those of the topics named.

    Raises KafkaError and StorageUnavailableError; ValueError for a name of no topic with a remote tier.
    """
    with source.opened() as stores:
        statuses = []
        for topic in stores.remote_topics(names):
            # Before the table is opened: Redis is updated after a commit, so the table holds what Redis says now.
            known = stores.logs.bounds(topic.partitions)
            try:
                statuses += _of_topic(stores, topic, source.lake.open(topic.of), known)
            except LakeError as error:
                statuses += [_failed(partition, str(error)) for partition in topic.partitions]
        return statuses


def _of_topic(
    stores: LakeStores, topic: SourceTopic, table: ArchiveTable | None, known: Sequence[Bounds | KafkaError]
) -> list[PartitionStatus]:
    by_partition = {} if table is None else table.files_by_partition()
    statuses = []
    now = stores.logs.bounds(topic.partitions)
    for partition, before, bounds in zip(topic.partitions, known, now, strict=True):
        next_offset = None if table is None else table.next_offset(partition.index)
        if isinstance(bounds, KafkaError):
            statuses.append(_failed(partition, bounds.message))
            continue
        files = by_partition.get(partition.index, [])
        first = max(next_offset or 0, bounds.redis_start)
        lag_records, lag_ms = _lag(stores, partition, first, bounds)
        statuses.append(
            PartitionStatus(
                topic=topic.name,
                partition=partition.index,
                start=bounds.log_start,
                local_start=bounds.redis_start,
                archived=next_offset,
                mirrored=bounds.archived,
                end=bounds.high_watermark,
                lag_records=lag_records,
                lag_ms=lag_ms,
                files=len(files),
                rows=sum(file.rows for file in files),
                bytes=sum(file.size_bytes for file in files),
                error=None if isinstance(before, KafkaError) else another_lake(before.archived, next_offset),
            )
        )
    return statuses


def _lag(
    stores: LakeStores, partition: Partition, first: int, bounds: Bounds
) -> tuple[int | None, int | None]:
    """Return how many records lie from `first` on, and how long ago (ms) the first was appended; None if unknown."""
    if first >= bounds.stable_offset:
        return 0, 0
    [count] = stores.indexes.records_from([LogPosition(partition, first)])
    [read] = stores.logs.read([Read(partition, first, 1)])
    appended_ms = None if isinstance(read, KafkaError) else read.first_appended_ms
    lag_ms = None if appended_ms is None else time.time_ns() // 1_000_000 - appended_ms
    if lag_ms is not None:
        # A time that is still to come was chosen, as the id of an entry by another client of Redis.
        lag_ms = max(lag_ms, 0) if lag_ms > -_CLOCKS_DIFFER_MS else None
    return None if isinstance(count, KafkaError) else count, lag_ms


def _failed(partition: Partition, message: str) -> PartitionStatus:
    return PartitionStatus(topic=partition.topic, partition=partition.index, error=message)
