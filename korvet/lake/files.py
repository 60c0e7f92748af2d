"""The Parquet files of a table: written, discarded, and read in the order of offsets.

A file holds rows of one partition of the topic, in the order of their offsets, in small row groups: a consumer's fetch
reads one of them. What the table's log says of it are the statistics of Delta's protocol ("Per-file Statistics"). A
file that no table took is deleted if that is certain; vacuum deletes the rest a day later.

Files never change, so footers and row groups are cached until their files are gone. Korvet's own files do not overlap,
so a row group is all that there is between its first offset and its last one. Other writers' files, such as an OPTIMIZE
of Delta Lake leaves, may hold rows in any order: a `Window` of several row groups puts them in order. Until these are
compacted they cost a reader time, and no records. Readers are for one thread at a time.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem, PyFileSystem

from korvet.errors import LakeError
from korvet.lake.schema import OFFSET, PARTITION, SCHEMA, TIMESTAMP, TIMESTAMP_MS

ROW_GROUP_ROWS = 16_384
"""Rows that are read at once: a remote fetch takes some 5 ms, and larger groups would hardly be smaller per row."""

StorageOptions = dict[str, str] | None
"""What deltalake takes for object stores: credentials, region, endpoint."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DATA_COLUMNS = [each.name for each in SCHEMA if each.name != PARTITION]
"""The columns in a file; the partition is in its path."""

_ENCODINGS = dict.fromkeys((OFFSET, TIMESTAMP), "DELTA_BINARY_PACKED")


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that exists, and that no commit has added yet.

    `path` is relative to the table; timestamps are in microseconds since the epoch, None where no row has one.
    """

    path: str
    partition: int
    size_bytes: int
    rows: int
    first_offset: int
    last_offset: int
    first_timestamp: int | None
    last_timestamp: int | None
    rows_without_timestamp: int
    written_ms: int

    def add_action(self, *, data_change: bool = True) -> AddAction:
        """Return the file as an action of Delta's log; not `data_change`: its rows are in the table already."""
        statistics: dict[str, object] = {
            "numRecords": self.rows,
            "minValues": {OFFSET: self.first_offset},
            "maxValues": {OFFSET: self.last_offset},
            "nullCount": {OFFSET: 0, TIMESTAMP: self.rows_without_timestamp},
        }
        if self.first_timestamp is not None and self.last_timestamp is not None:
            # The protocol has milliseconds here: readers take the largest as one more than it says.
            statistics["minValues"] = {OFFSET: self.first_offset, TIMESTAMP: _text(self.first_timestamp)}
            statistics["maxValues"] = {OFFSET: self.last_offset, TIMESTAMP: _text(self.last_timestamp)}
        return AddAction(
            self.path,
            self.size_bytes,
            {PARTITION: str(self.partition)},
            self.written_ms,
            data_change,
            msgspec.json.encode(statistics).decode(),
        )


def filesystem(table_uri: str, storage_options: StorageOptions = None) -> FileSystem:
    """Return the files of a table, by paths relative to it."""
    return PyFileSystem(DeltaStorageHandler(table_uri, storage_options))


def write_file(
    files: FileSystem, partition: int, rows: Iterable[pa.RecordBatch], now_ms: int
) -> WrittenFile | None:
    """Write the rows of one partition, in the order of their offsets, to a new file; None if there is no row.

    The rows are of SCHEMA, or with views for its binaries. No other file is ever overwritten: the name is random.
    Raises OSError, and ValueError if the offsets do not rise.
    """
    path = f"{PARTITION}={partition}/part-{uuid.uuid4()}.parquet"
    try:
        batches = _write(files, path, rows)
    except BaseException:
        # The file is not complete, and no commit will ever name it.
        with contextlib.suppress(OSError):
            files.delete_file(path)
        raise
    if not batches:
        return None
    first = [each.first_timestamp for each in batches if each.first_timestamp is not None]
    last = [each.last_timestamp for each in batches if each.last_timestamp is not None]
    return WrittenFile(
        path=path,
        partition=partition,
        size_bytes=files.get_file_info(path).size,
        rows=sum(each.rows for each in batches),
        first_offset=batches[0].first_offset,
        last_offset=batches[-1].last_offset,
        first_timestamp=min(first, default=None),
        last_timestamp=max(last, default=None),
        rows_without_timestamp=sum(each.without_timestamp for each in batches),
        written_ms=now_ms,
    )


def _write(files: FileSystem, path: str, rows: Iterable[pa.RecordBatch]) -> list[_BatchStatistics]:
    """Write rows to a file, to none if there are no rows; returns statistics batch by batch."""
    writer: pq.ParquetWriter | None = None
    written: list[_BatchStatistics] = []
    try:
        for part in rows:
            if not part.num_rows:
                continue
            written.append(_BatchStatistics(part))
            if len(written) > 1 and written[-2].last_offset >= written[-1].first_offset:
                raise ValueError(f"offset {written[-1].first_offset} follows {written[-2].last_offset}")
            data = part.select(DATA_COLUMNS)
            if writer is None:
                writer = pq.ParquetWriter(
                    path,
                    data.schema,
                    filesystem=files,
                    compression="zstd",
                    use_dictionary=False,
                    column_encoding=_ENCODINGS,
                    store_schema=False,
                    write_statistics=[OFFSET, TIMESTAMP],
                    # Batches are rebuilt from rows, so nothing else would tell a consumer of a bit that flipped.
                    write_page_checksum=True,
                )
            writer.write_batch(data, row_group_size=ROW_GROUP_ROWS)
    finally:
        if writer is not None:
            writer.close()
    return written


class _BatchStatistics:
    """What one batch of rows adds to the statistics of its file."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        """Raise ValueError if the offsets do not rise."""
        offsets = rows.column(OFFSET).to_numpy()
        if (offsets[1:] <= offsets[:-1]).any():
            raise ValueError("the offsets of the rows do not rise")
        times = rows.column(TIMESTAMP)
        extremes = pc.min_max(times.view(pa.int64()))
        self.rows: int = rows.num_rows
        self.first_offset = int(offsets[0])
        self.last_offset = int(offsets[-1])
        self.first_timestamp: int | None = extremes["min"].as_py()
        self.last_timestamp: int | None = extremes["max"].as_py()
        self.without_timestamp: int = times.null_count


def _text(microseconds: int) -> str:
    """Return a timestamp as the statistics have it, truncated to milliseconds."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="milliseconds")


def discard(uri: str, storage_options: StorageOptions, written: Iterable[WrittenFile]) -> None:
    """Delete files that no commit names, nor ever will, as far as that is possible; vacuum deletes the rest."""
    for each in written:
        with contextlib.suppress(OSError):
            filesystem(uri, storage_options).delete_file(each.path)


def discard_refused(
    uri: str, storage_options: StorageOptions, written: Iterable[WrittenFile], commits: Iterable[int]
) -> None:
    """Delete the files of a commit that was refused, unless one of `commits` names them.

    These are the numbers at which it was tried. An object store may have taken a commit that it then reported as
    another writer's: a write is repeated if its answer was lost.
    """
    try:
        files = filesystem(uri, storage_options)
        named = b""
        for number in commits:
            with files.open_input_stream(f"_delta_log/{number:020}.json") as log:
                named += log.readall()
    except OSError:
        return
    # The log spells paths its own way; the last part is the same in each.
    discard(
        uri, storage_options, [each for each in written if each.path.rsplit("/", 1)[-1].encode() not in named]
    )


FOOTERS_MAX = 1024
"""Files whose footers are cached: some kilobytes each."""

GROUPS_BYTES_MAX = 32 * 1024 * 1024
"""Rows cached as they were read, of all tables: a consumer takes a row group in several fetches, and others follow."""

TIMESTAMP_COLUMNS = (OFFSET, TIMESTAMP, TIMESTAMP_MS)
_TIMESTAMP_TYPE = SCHEMA.field(TIMESTAMP).type


class RowGroup(msgspec.Struct, frozen=True):
    """A row group: its place in the file, the offsets of its first and last row, and its largest timestamp (us).

    `largest` is None if some row has a timestamp that the statistics do not cover, or none.
    """

    index: int
    first_offset: int
    last_offset: int
    largest: int | None


class _Footer(NamedTuple):
    metadata: pq.FileMetaData
    groups: list[RowGroup]


class RowCache:
    """Rows of any number of tables by key; those that were used last stay."""

    def __init__(self) -> None:
        self._rows: OrderedDict[Hashable, pa.RecordBatch] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> pa.RecordBatch | None:
        """Return the rows, None if they are not cached."""
        found = self._rows.get(key)
        if found is not None:
            self._rows.move_to_end(key)
        return found

    def put(self, key: Hashable, rows: pa.RecordBatch) -> None:
        """Cache rows that are not cached yet, and drop older ones if that is too much; these stay, however large."""
        self._rows[key] = rows
        self._bytes += rows.nbytes
        while self._bytes > GROUPS_BYTES_MAX and len(self._rows) > 1:
            _, dropped = self._rows.popitem(last=False)
            self._bytes -= dropped.nbytes


class DataFiles:
    """The files of one table; it may share `cache` with other tables."""

    def __init__(self, uri: str, files: FileSystem, cache: RowCache | None = None) -> None:
        self.uri = uri
        self.cache = RowCache() if cache is None else cache
        self._files = files
        self._footers: OrderedDict[str, _Footer] = OrderedDict()

    def groups(self, path: str) -> Sequence[RowGroup]:
        """Return the row groups of a file, in the order of their offsets; raises LakeError."""
        return self._footer(path).groups

    def rows(self, path: str, group: RowGroup) -> pa.RecordBatch:
        """Return the rows of a group with all columns but the partition; raises LakeError."""
        key = (self.uri, path, group.index)
        found = self.cache.get(key)
        if found is None:
            found = self._read(path, group, DATA_COLUMNS)
            self.cache.put(key, found)
        return found

    def stamps(self, path: str, group: RowGroup) -> pa.RecordBatch:
        """Return offsets and timestamps of the rows of a group; raises LakeError."""
        return self.cache.get((self.uri, path, group.index)) or self._read(path, group, TIMESTAMP_COLUMNS)

    def _read(self, path: str, group: RowGroup, columns: Sequence[str]) -> pa.RecordBatch:
        metadata = self._footer(path).metadata
        try:
            # Other writers use other units of timestamps: INT96 is Spark's own.
            with pq.ParquetFile(
                path,
                metadata=metadata,
                filesystem=self._files,
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=True,
            ) as file:
                # In this thread alone: threads of Arrow's that outlive the interpreter abort it.
                table = file.read_row_group(group.index, columns=list(columns), use_threads=False)
            at = table.column_names.index(TIMESTAMP)
            table = table.set_column(at, TIMESTAMP, table.column(at).cast(_TIMESTAMP_TYPE))
        except (OSError, pa.ArrowException) as error:
            self._footers.pop(path, None)
            raise self._damaged(path, error) from error
        return table.combine_chunks().to_batches()[0]

    def _footer(self, path: str) -> _Footer:
        found = self._footers.get(path)
        if found is None:
            try:
                with pq.ParquetFile(path, filesystem=self._files) as file:
                    metadata = file.metadata
                found = self._footers[path] = _Footer(metadata, _groups(metadata))
            except (OSError, pa.ArrowException, ValueError) as error:
                raise self._damaged(path, error) from error
            while len(self._footers) > FOOTERS_MAX:
                self._footers.popitem(last=False)
        self._footers.move_to_end(path)
        return found

    def _damaged(self, path: str, error: Exception) -> LakeError:
        return LakeError(f"{self.uri}/{path} cannot be read: {error}")


def _groups(metadata: pq.FileMetaData) -> list[RowGroup]:
    """Return the row groups that have rows; raises ValueError if one has no statistics of its offsets."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    offset_at, timestamp_at = names.index(OFFSET), names.index(TIMESTAMP)
    in_microseconds = metadata.schema.to_arrow_schema().field(TIMESTAMP).type == _TIMESTAMP_TYPE
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if not group.num_rows:
            continue
        offsets, timestamps = (group.column(at).statistics for at in (offset_at, timestamp_at))
        if offsets is None or not offsets.has_min_max:
            raise ValueError("a row group has no statistics of its offsets")
        known = timestamps is not None and timestamps.has_min_max and not timestamps.null_count
        largest = timestamps.max_raw if known and in_microseconds else None
        groups.append(RowGroup(index, offsets.min, offsets.max, largest))
    return groups


LISTS_MAX = 1024
"""Files, or groups of files that overlap, whose windows are cached."""


class OffsetSpan(Protocol):
    """Something with rows from one offset to another."""

    @property
    def first_offset(self) -> int:
        """The smallest offset."""

    @property
    def last_offset(self) -> int:
        """The largest offset."""


R = TypeVar("R", bound=OffsetSpan)


class Window(msgspec.Struct, frozen=True):
    """All rows from an offset to another one, and the row groups, with the paths of their files, that hold them.

    None of their timestamps (us) exceeds `largest`, None if that is not known.
    """

    first_offset: int
    last_offset: int
    largest: int | None
    groups: tuple[tuple[str, RowGroup], ...]


def group_overlapping(ranges: Iterable[R]) -> Iterator[list[R]]:
    """Yield lists of ranges that overlap; `ranges` are in the order of their first offsets."""
    members: list[R] = []
    last = -1
    for each in ranges:
        if members and each.first_offset > last:
            yield members
            members = []
        members.append(each)
        last = max(last, each.last_offset)
    if members:
        yield members


class Windows:
    """The files below one table, as windows."""

    def __init__(self, files: DataFiles) -> None:
        self._files = files
        self._lists: OrderedDict[tuple[str, ...], list[Window]] = OrderedDict()

    def of(self, paths: tuple[str, ...]) -> Sequence[Window]:
        """Return the windows of a file, or of files that overlap, in the order of offsets; raises LakeError."""
        found = self._lists.get(paths)
        if found is None:
            found = self._lists[paths] = list(self._windows(paths))
            while len(self._lists) > LISTS_MAX:
                self._lists.popitem(last=False)
        self._lists.move_to_end(paths)
        return found

    def rows(self, window: Window) -> pa.RecordBatch:
        """Return the rows with all columns but the partition, in the order of offsets; raises LakeError."""
        key = (self._files.uri, window)
        cached = self._files.cache.get(key)
        if cached is not None:
            return cached
        found, as_read = self._in_order(window, self._files.rows)
        if not as_read:
            self._files.cache.put(key, found)
        return found

    def stamps(self, window: Window) -> pa.RecordBatch:
        """Return offsets and timestamps of the rows, in the order of offsets; raises LakeError."""
        return self._in_order(window, self._files.stamps)[0]

    def _windows(self, paths: tuple[str, ...]) -> Iterator[Window]:
        groups = [_FileRowGroup(path, each) for path in paths for each in self._files.groups(path)]
        groups.sort(key=lambda each: each.first_offset)
        for members in group_overlapping(groups):
            if len(members) == 1:
                yield _window(members[0].first_offset, members[0].last_offset, members)
            else:
                yield from self._split(members)

    def _split(self, groups: list[_FileRowGroup]) -> Iterator[Window]:
        """Yield windows of row groups that overlap, each of as many rows as a row group of Korvet's has."""
        columns = [
            np.sort(self._files.stamps(each.path, each.group).column(OFFSET).to_numpy()) for each in groups
        ]
        offsets = np.sort(np.concatenate(columns))
        firsts = np.unique(offsets[::ROW_GROUP_ROWS])
        lasts = np.append(firsts[1:] - 1, offsets[-1])
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            members = [
                each
                for each, column in zip(groups, columns, strict=True)
                if column.searchsorted(first) < column.searchsorted(last, "right")
            ]
            yield _window(first, last, members)

    def _in_order(
        self, window: Window, read: Callable[[str, RowGroup], pa.RecordBatch]
    ) -> tuple[pa.RecordBatch, bool]:
        """Return the rows of a window, and whether they are one row group as it was read."""
        parts = [read(path, group) for path, group in window.groups]
        if len(parts) == 1 and _is_whole(parts[0], window):
            return parts[0], True
        rows = pa.Table.from_batches([_between(each, window) for each in parts])
        return rows.sort_by(OFFSET).combine_chunks().to_batches()[0], False


class _FileRowGroup(msgspec.Struct, frozen=True):
    """A row group and the path of its file."""

    path: str
    group: RowGroup

    @property
    def first_offset(self) -> int:
        return self.group.first_offset

    @property
    def last_offset(self) -> int:
        return self.group.last_offset


def _window(first: int, last: int, members: Sequence[_FileRowGroup]) -> Window:
    known = [each.group.largest for each in members if each.group.largest is not None]
    largest = max(known) if len(known) == len(members) else None
    return Window(first, last, largest, tuple((each.path, each.group) for each in members))


def _between(rows: pa.RecordBatch, window: Window) -> pa.RecordBatch:
    offsets = rows.column(OFFSET).to_numpy()
    return rows.filter(pa.array((offsets >= window.first_offset) & (offsets <= window.last_offset)))


def _is_whole(rows: pa.RecordBatch, window: Window) -> bool:
    """Return whether these are the rows of a window, in order."""
    offsets = rows.column(OFFSET).to_numpy()
    inside = offsets[0] == window.first_offset and offsets[-1] == window.last_offset
    return bool(inside and (offsets[1:] > offsets[:-1]).all())
