"""The rows of a table's files in the order of their offsets, whoever has written the files.

Knows that Korvet's own files are in that order and do not overlap, so a row group is all that there is between its
first offset and its last one; and that files of others, such as an OPTIMIZE of Delta Lake leaves, may hold rows in any
order. Until these are compacted they cost a reader time, and no records. For one thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from korvet.lake import files as lake_files
from korvet.lake.data_files import DataFiles, Group
from korvet.lake.schema import OFFSET

LISTS_MAX = 1024
"""Files, or files that overlap, whose windows are kept."""


class Ranged(Protocol):
    """Something with rows from one offset to another."""

    @property
    def first_offset(self) -> int:
        """The smallest offset."""

    @property
    def last_offset(self) -> int:
        """The largest offset."""


R = TypeVar("R", bound=Ranged)


class Window(msgspec.Struct, frozen=True):
    """All rows from an offset to another one, and the row groups, of files by their paths, that they are in.

    `largest` is none of their timestamps (us) exceeds, None where that is not known.
    """

    first_offset: int
    last_offset: int
    largest: int | None
    groups: tuple[tuple[str, Group], ...]


def apart(ranges: Iterable[R]) -> Iterator[list[R]]:
    """Yield what is given in the order of its first offsets, those together that overlap."""
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
        kept = self._files.kept.get(key)
        if kept is not None:
            return kept
        found, as_read = self._in_order(window, self._files.rows)
        if not as_read:
            self._files.kept.keep(key, found)
        return found

    def stamps(self, window: Window) -> pa.RecordBatch:
        """Return offsets and timestamps of the rows, in the order of offsets; raises LakeError."""
        return self._in_order(window, self._files.stamps)[0]

    def _windows(self, paths: tuple[str, ...]) -> Iterator[Window]:
        groups = [_GroupOf(path, each) for path in paths for each in self._files.groups(path)]
        groups.sort(key=lambda each: each.first_offset)
        for members in apart(groups):
            if len(members) == 1:
                yield _window(members[0].first_offset, members[0].last_offset, members)
            else:
                yield from self._cut(members)

    def _cut(self, groups: list[_GroupOf]) -> Iterator[Window]:
        """Yield windows of row groups that overlap, each of as many rows as a row group of Korvet's has."""
        columns = [
            np.sort(self._files.stamps(each.path, each.group).column(OFFSET).to_numpy()) for each in groups
        ]
        offsets = np.sort(np.concatenate(columns))
        firsts = np.unique(offsets[:: lake_files.ROW_GROUP_ROWS])
        lasts = np.append(firsts[1:] - 1, offsets[-1])
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            members = [
                each
                for each, column in zip(groups, columns, strict=True)
                if column.searchsorted(first) < column.searchsorted(last, "right")
            ]
            yield _window(first, last, members)

    def _in_order(
        self, window: Window, read: Callable[[str, Group], pa.RecordBatch]
    ) -> tuple[pa.RecordBatch, bool]:
        """Return the rows of a window, and whether they were read just so."""
        parts = [read(path, group) for path, group in window.groups]
        if len(parts) == 1 and _is_just(parts[0], window):
            return parts[0], True
        rows = pa.Table.from_batches([_between(each, window) for each in parts])
        return rows.sort_by(OFFSET).combine_chunks().to_batches()[0], False


class _GroupOf(msgspec.Struct, frozen=True):
    """A row group and the path of its file."""

    path: str
    group: Group

    @property
    def first_offset(self) -> int:
        return self.group.first_offset

    @property
    def last_offset(self) -> int:
        return self.group.last_offset


def _window(first: int, last: int, members: Sequence[_GroupOf]) -> Window:
    known = [each.group.largest for each in members if each.group.largest is not None]
    largest = max(known) if len(known) == len(members) else None
    return Window(first, last, largest, tuple((each.path, each.group) for each in members))


def _between(rows: pa.RecordBatch, window: Window) -> pa.RecordBatch:
    offsets = rows.column(OFFSET).to_numpy()
    return rows.filter(pa.array((offsets >= window.first_offset) & (offsets <= window.last_offset)))


def _is_just(rows: pa.RecordBatch, window: Window) -> bool:
    """Tell whether these are the rows of a window, in order."""
    offsets = rows.column(OFFSET).to_numpy()
    inside = offsets[0] == window.first_offset and offsets[-1] == window.last_offset
    return bool(inside and (offsets[1:] > offsets[:-1]).all())
