"""Reading archived records by offset and by time, for consumers.

A record is found among the files of a table by the statistics in its log, and within a file by those of its row groups
(see `row_groups.DataFiles`). So a fetch reads one row group or two, whatever the size of the archive. For one thread at
a time.
"""

from __future__ import annotations

import contextlib
import functools
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from korvet.errors import LakeError
from korvet.lake.encoding import arrow_to_batches
from korvet.lake.files import TableFile
from korvet.lake.row_groups import DataFiles, RowCache, Window, group_overlapping
from korvet.lake.schema import NO_TIMESTAMP, OFFSET, OFFSET_END, between, milliseconds_of
from korvet.lake.table import ArchiveTable, Lake, LakeTopic
from korvet.log.remote.client import RemoteRequest, RemoteResponse
from korvet.protocol.wire import Buffer

TABLES_MAX = 256
"""Tables that are kept open."""


class RecordTimestamp(NamedTuple):
    """A record by its offset, and its timestamp (ms)."""

    offset: int
    timestamp: int


class LakeReader:
    """Reads the tables of one lake."""

    def __init__(self, lake: Lake, version: int | None = None) -> None:
        """Read tables as they are, or one as it was in a `version`."""
        self._lake = lake
        self._version = version
        self._tables: OrderedDict[LakeTopic, _OpenTable] = OrderedDict()
        self._cache = RowCache()

    def answer(self, request: RemoteRequest) -> RemoteResponse:
        """Return what a request asks for.

        Batches end before a file that is damaged or gone, and are none if no more are archived. Raises LakeError: no
        table, no access, less in the table than is known to be archived, or such a file at the offset itself.
        """
        of = LakeTopic(request.topic, request.topic_id)
        table = self._tables.get(of)
        if table is not None:
            self._tables.move_to_end(of)
            # A file that is gone may have been compacted into another one since, and one of Delta's log into another
            # checkpoint.
            with contextlib.suppress(LakeError):
                # One that holds more than Redis knows may have been rewound since.
                if table.next_offset(request.partition) == request.archived:
                    return table.answer(request)
        table = self._open(of)
        if table.next_offset(request.partition) < request.archived:
            message = f"{table.uri}: partition {request.partition} is not archived up to {request.archived}"
            raise LakeError(message)
        return table.answer(request)

    def _open(self, topic: LakeTopic) -> _OpenTable:
        former = self._tables.pop(topic, None)
        snapshot = self._lake.open(topic, self._version)
        if snapshot is None:
            raise LakeError(f"{self._lake.uri(topic)}: there is no such table")
        data = self._lake.data_files(topic, self._cache) if former is None else former.data
        table = self._tables[topic] = _OpenTable(snapshot, data)
        while len(self._tables) > TABLES_MAX:
            self._tables.popitem(last=False)
        return table


class _OpenTable:
    """A table at one moment, and its files, whose contents never change."""

    def __init__(self, snapshot: ArchiveTable, data: DataFiles) -> None:
        """Raise LakeError if the table's log cannot be read."""
        self.data = data
        self.uri = snapshot.uri
        # Delta's log is searched for it, which takes a tenth of a fetch.
        self.next_offset = functools.cache(lambda partition: snapshot.next_offset(partition) or 0)
        self._by_partition = {
            partition: [_OverlappingFiles(overlapping) for overlapping in group_overlapping(files)]
            for partition, files in snapshot.files_by_partition().items()
        }

    def answer(self, request: RemoteRequest) -> RemoteResponse:
        """See LakeReader.answer."""
        if request.kind == "read":
            return self._read(request)
        record = self._first_from(request) if request.kind == "first_from" else self._largest(request)
        return RemoteResponse(request.number, **(record._asdict() if record is not None else {}))

    def _read(self, request: RemoteRequest) -> RemoteResponse:
        pieces: list[Buffer] = []
        size_bytes = count = 0
        next_offset, more = request.offset, False
        windows = _until_error(self._windows_from(request))
        following = next(windows, None)
        while following is not None:
            window, following = following, None
            try:
                if isinstance(window, LakeError):
                    raise window
                if window.bytes_from(request.offset) < request.bytes_max - size_bytes:
                    # Most likely the next one is needed, too.
                    following = next(windows, None)
                    if isinstance(following, Window):
                        self.data.begin(following)
                rows = self.data.rows(window)
            except LakeError:
                if not count:
                    raise
                # What is sound comes first: the read after it gets the error.
                more = True
                break
            served = arrow_to_batches(
                between(rows, request.offset, OFFSET_END),
                codec=request.codec,
                epochs=request.epochs,
                bytes_max=request.bytes_max - size_bytes,
                at_least_one=request.at_least_one and not count,
            )
            pieces += served.pieces
            size_bytes += served.size_bytes
            count += served.record_count
            next_offset = max(next_offset, served.next_offset)
            if served.full:
                more = True
                break
            following = following or next(windows, None)
        if not more:
            next_offset = max(next_offset, self.next_offset(request.partition))
        data = b"".join(pieces)
        return RemoteResponse(
            request.number, data=data, record_count=count, next_offset=next_offset, more=more
        )

    def _first_from(self, request: RemoteRequest) -> RecordTimestamp | None:
        timestamp = request.timestamp
        for window in self._windows_from(request, timestamp * 1000):
            offsets, stamps = self._stamps(window, request.offset)
            places = np.flatnonzero(stamps >= timestamp)
            if len(places):
                return RecordTimestamp(int(offsets[places[0]]), int(stamps[places[0]]))
        return None

    def _largest(self, request: RemoteRequest) -> RecordTimestamp | None:
        best: RecordTimestamp | None = None
        for window in sorted(self._windows_from(request), key=_bound, reverse=True):
            if best is not None and _bound(window) < best.timestamp * 1000:
                break
            offsets, stamps = self._stamps(window, request.offset)
            if not len(stamps):
                continue
            at = int(stamps.argmax())
            record = RecordTimestamp(int(offsets[at]), int(stamps[at]))
            if record.timestamp != NO_TIMESTAMP and (best is None or _precedes(record, best)):
                best = record
        return best

    def _windows_from(self, request: RemoteRequest, bound_min: float = -np.inf) -> Iterator[Window]:
        """Yield the windows with rows from an offset on, in order, that may have so large a timestamp (us)."""
        files = self._by_partition.get(request.partition, [])
        for file in files[bisect_left(files, request.offset, key=lambda file: file.last_offset) :]:
            if file.are_older(bound_min):
                continue
            for window in self.data.windows(file.files):
                if window.last_offset >= request.offset and _bound(window) >= bound_min:
                    yield window

    def _stamps(self, window: Window, offset: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.data.stamps(window)
        rows = between(rows, offset, OFFSET_END)
        stamps = milliseconds_of(rows)
        return rows.column(OFFSET).to_numpy(), stamps


class _OverlappingFiles:
    """A file, or files that overlap."""

    def __init__(self, files: Sequence[TableFile]) -> None:
        self.files = files
        self.last_offset = max(file.last_offset for file in files)
        # The table's timestamps are truncated to milliseconds, and some rows may have none.
        self._bound = max(
            np.inf
            if file.last_timestamp is None or file.rows_without_timestamp
            else file.last_timestamp + 999
            for file in files
        )

    def are_older(self, bound_min: float) -> bool:
        """Return whether all timestamps (us) are smaller."""
        return self._bound < bound_min


def _until_error(windows: Iterator[Window]) -> Iterator[Window | LakeError]:
    """Yield the windows, and last the error that ended them."""
    try:
        yield from windows
    except LakeError as error:
        yield error


def _bound(window: Window) -> float:
    """Return the largest timestamp (us) that a window may have."""
    return np.inf if window.largest is None else float(window.largest)


def _precedes(one: RecordTimestamp, other: RecordTimestamp) -> bool:
    return one.timestamp > other.timestamp or (one.timestamp == other.timestamp and one.offset < other.offset)
