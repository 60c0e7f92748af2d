"""The rows of a table's Parquet files, read by row groups and in the order of offsets.

Files never change, so footers and row groups are cached. Korvet's own files of one date do not overlap, so without
others a row group is all that there is between its first offset and its last one. Other writers' files, such as an
OPTIMIZE of Delta Lake leaves, may hold rows in any order: a `Window` of several row groups puts them in order. Until
these are compacted they cost a reader time, and no records. Readers are for one thread at a time.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from korvet.errors import LakeError
from korvet.lake import files as data_files
from korvet.lake.files import DATA_COLUMNS, TableFile
from korvet.lake.schema import OFFSET, SCHEMA, TIMESTAMP, TIMESTAMP_MS

FOOTERS_MAX = 1024
"""Files whose footers are cached: some kilobytes each."""

WINDOWS_MAX = 1024
"""Files, or groups of files that overlap, whose windows are cached."""

GROUPS_BYTES_MAX = 32 * 1024 * 1024
"""Rows cached as they were read, of all tables: a consumer takes a row group in several fetches, and others follow."""

TIMESTAMP_COLUMNS = (OFFSET, TIMESTAMP, TIMESTAMP_MS)
_TIMESTAMP_TYPE = SCHEMA.field(TIMESTAMP).type

_AHEAD = ThreadPoolExecutor(1, "lake read ahead")
_BEGUN_MAX = 2
"""Row groups of all tables that were begun: the one that is asked for next, and the one after it."""


class RowGroup(msgspec.Struct, frozen=True):
    """A row group of a file: its rows, their bytes, the offsets of the first and the last, the largest timestamp (us).

    `largest` is None if some row has a timestamp that the statistics do not cover, or none.
    """

    path: str
    index: int
    rows: int
    size_bytes: int
    first_offset: int
    last_offset: int
    largest: int | None


R = TypeVar("R", TableFile, RowGroup)


def group_overlapping(ranges: Iterable[R]) -> Iterator[list[R]]:
    """Yield lists of ranges of offsets that overlap; `ranges` are in the order of their first offsets."""
    members: list[R] = []
    last = -1
    for member in ranges:
        if members and member.first_offset > last:
            yield members
            members = []
        members.append(member)
        last = max(last, member.last_offset)
    if members:
        yield members


class Window(msgspec.Struct, frozen=True):
    """All rows from an offset to another one, and the row groups that hold them.

    None of their timestamps (us) exceeds `largest`, None if that is not known.
    """

    first_offset: int
    last_offset: int
    largest: int | None
    groups: tuple[RowGroup, ...]

    def bytes_from(self, offset: int) -> float:
        """Return about how many bytes the rows from an offset on have."""
        part = (self.last_offset - max(offset, self.first_offset) + 1) / (
            self.last_offset - self.first_offset + 1
        )
        return part * sum(group.size_bytes for group in self.groups)

    def cut(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return those of the rows that are within the window."""
        offsets = rows.column(OFFSET).to_numpy()
        return rows.filter(pa.array((offsets >= self.first_offset) & (offsets <= self.last_offset)))

    def is_whole(self, rows: pa.RecordBatch) -> bool:
        """Return whether these are the rows of the window, in order."""
        offsets = rows.column(OFFSET).to_numpy()
        inside = offsets[0] == self.first_offset and offsets[-1] == self.last_offset
        return bool(inside and (offsets[1:] > offsets[:-1]).all())


class RowCache:
    """Rows of any number of tables by key; those that were used last stay."""

    def __init__(self) -> None:
        self.begun: dict[Hashable, Future[pa.RecordBatch]] = {}
        """Rows by key that another thread reads."""
        self._rows: OrderedDict[Hashable, pa.RecordBatch] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> pa.RecordBatch | None:
        """Return the rows, None if they are not cached."""
        rows = self._rows.get(key)
        if rows is not None:
            self._rows.move_to_end(key)
        return rows

    def put(self, key: Hashable, rows: pa.RecordBatch) -> None:
        """Cache rows that are not cached yet, and drop older ones if that is too much; these stay, however large."""
        self._rows[key] = rows
        self._bytes += rows.nbytes
        while self._bytes > GROUPS_BYTES_MAX and len(self._rows) > 1:
            _, dropped = self._rows.popitem(last=False)
            self._bytes -= dropped.nbytes


class DataFiles:
    """The files of one table, read by row groups and by windows; it may share `cache` with other tables."""

    def __init__(
        self,
        uri: str,
        files: FileSystem,
        cache: RowCache | None = None,
        columns: Iterable[str] = DATA_COLUMNS,
    ) -> None:
        """Read these columns, and the offset; others than all of them need a cache of their own."""
        self._uri = uri
        self._columns = list(dict.fromkeys((OFFSET, *columns)))
        self._cache = RowCache() if cache is None else cache
        self._files = files
        self._footer = functools.lru_cache(FOOTERS_MAX)(self._read_footer)
        self._cached_windows = functools.lru_cache(WINDOWS_MAX)(self._windows)

    def groups(self, path: str) -> Sequence[RowGroup]:
        """Return the row groups of a file, in the order of their offsets; raises LakeError."""
        return self._footer(path)[1]

    def group_rows(self, group: RowGroup) -> pa.RecordBatch:
        """Return the rows of a group; raises LakeError."""
        rows = self._cache.get((self._uri, group))
        if rows is None:
            begun = self._cache.begun.pop((self._uri, group), None)
            rows = self._read(group, self._columns) if begun is None else begun.result()
            self._cache.put((self._uri, group), rows)
        return rows

    def group_stamps(self, group: RowGroup) -> pa.RecordBatch:
        """Return offsets and timestamps of the rows of a group; raises LakeError."""
        return self._cache.get((self._uri, group)) or self._read(group, TIMESTAMP_COLUMNS)

    def windows(self, files: Iterable[TableFile]) -> Sequence[Window]:
        """Return the windows of a file, or of files that overlap, in the order of offsets; raises LakeError."""
        return self._cached_windows(tuple(file.path for file in files))

    def windows_between(self, files: Iterable[TableFile], first: int, end: int) -> Iterator[Window]:
        """Yield the windows with rows from offset `first` to just before `end`, in the order of offsets.

        `files` are in the order of their first offsets. Raises LakeError.
        """
        wanted = [file for file in files if file.last_offset >= first and file.first_offset < end]
        for overlapping in group_overlapping(wanted):
            for window in self.windows(overlapping):
                if window.last_offset >= first and window.first_offset < end:
                    yield window

    def begin(self, window: Window) -> None:
        """Let another thread read the rows, if they are one row group that is not cached, until `rows` is asked."""
        [group, *others] = window.groups
        key, begun = (self._uri, group), self._cache.begun
        if not others and key not in begun and self._cache.get(key) is None:
            if len(begun) == _BEGUN_MAX:
                begun.pop(next(iter(begun)))  # nobody has asked for it
            begun[key] = _AHEAD.submit(self._read, group, self._columns)

    def rows(self, window: Window) -> pa.RecordBatch:
        """Return the rows in the order of their offsets; raises LakeError."""
        ordered = self._cache.get((self._uri, window))
        if ordered is None:
            ordered = _in_order(window, [self.group_rows(group) for group in window.groups])
            # The rows of a whole row group are cached as such.
            if self._cache.get((self._uri, window.groups[0])) is not ordered:
                self._cache.put((self._uri, window), ordered)
        return ordered

    def count(self, window: Window) -> int:
        """Return how many rows there are, of a whole row group by what its file's footer says; raises LakeError."""
        group, *others = window.groups
        is_whole = (group.first_offset, group.last_offset) == (window.first_offset, window.last_offset)
        return group.rows if is_whole and not others else self.rows(window).num_rows

    def stamps(self, window: Window) -> pa.RecordBatch:
        """Return offsets and timestamps of the rows, in the order of offsets; raises LakeError."""
        return _in_order(window, [self.group_stamps(group) for group in window.groups])

    def _read(self, group: RowGroup, columns: Sequence[str]) -> pa.RecordBatch:
        try:
            # Other writers use other units of timestamps: INT96 is Spark's own.
            with pq.ParquetFile(
                group.path,
                metadata=self._footer(group.path)[0],
                filesystem=self._files,
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=True,
            ) as file:
                # In this thread alone: threads of Arrow's that outlive the interpreter abort it.
                table = file.read_row_group(group.index, columns=list(columns), use_threads=False)
            if TIMESTAMP in columns:
                at = table.column_names.index(TIMESTAMP)
                table = table.set_column(at, TIMESTAMP, table.column(at).cast(_TIMESTAMP_TYPE))
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(group.path, error) from error
        return table.combine_chunks().to_batches()[0]

    def _read_footer(self, path: str) -> tuple[pq.FileMetaData, list[RowGroup]]:
        try:
            with pq.ParquetFile(path, filesystem=self._files) as file:
                return file.metadata, _row_groups(path, file.metadata)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise self._damaged(path, error) from error

    def _damaged(self, path: str, error: Exception) -> LakeError:
        return LakeError(f"{self._uri}/{path} cannot be read: {error}")

    def _windows(self, paths: tuple[str, ...]) -> list[Window]:
        groups = sorted(
            (group for path in paths for group in self.groups(path)), key=lambda item: item.first_offset
        )
        windows: list[Window] = []
        for members in group_overlapping(groups):
            if len(members) == 1:
                windows.append(_window(members[0].first_offset, members[0].last_offset, members))
            else:
                windows += self._split(members)
        return windows

    def _split(self, groups: list[RowGroup]) -> Iterator[Window]:
        """Yield windows of row groups that overlap, each of as many rows as a row group of Korvet's has."""
        columns = [np.sort(self.group_stamps(group).column(OFFSET).to_numpy()) for group in groups]
        offsets = np.sort(np.concatenate(columns))
        firsts = np.unique(offsets[:: data_files.ROW_GROUP_ROWS])
        lasts = np.append(firsts[1:] - 1, offsets[-1])
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            members = [
                item
                for item, column in zip(groups, columns, strict=True)
                if column.searchsorted(first) < column.searchsorted(last, "right")
            ]
            yield _window(first, last, members)


def _in_order(window: Window, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of a window's row groups that are within it, in the order of their offsets."""
    if len(parts) == 1 and window.is_whole(parts[0]):
        return parts[0]
    rows = pa.Table.from_batches([window.cut(part) for part in parts])
    return rows.sort_by(OFFSET).combine_chunks().to_batches()[0]


def _row_groups(path: str, metadata: pq.FileMetaData) -> list[RowGroup]:
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
        size = group.num_rows, group.total_byte_size
        groups.append(RowGroup(path, index, *size, offsets.min, offsets.max, largest))
    return groups


def _window(first: int, last: int, members: Sequence[RowGroup]) -> Window:
    known = [member.largest for member in members if member.largest is not None]
    return Window(first, last, max(known) if len(known) == len(members) else None, tuple(members))
