"""One task of archiving: a range of a partition, read from Redis and written to one file.

Knows how entries become rows; nothing of plans, commits or Spark. It raises nothing that the log or the lake are the
reason of: what was read before a failure is written, and the outcome says how far it came and why no further.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from korvet.errors import ErrorCode, KafkaError, LakeError, StorageUnavailableError
from korvet.lake.batches import batches_to_arrow
from korvet.lake.entries import records_to_arrow
from korvet.lake.files import StorageOptions, WrittenFile, filesystem, write_file
from korvet.lake.plan import RANGE_BYTES_MAX, Gap
from korvet.lake.schema import OFFSET
from korvet.lake.source import Source
from korvet.log.batch_format import StoredBatch
from korvet.log.store import LogStore
from korvet.log.types import Fetched, Read
from korvet.topics.types import Partition

_READ_BYTES = 2 * 1024 * 1024
"""What is read at once: Redis serves nobody else meanwhile, some milliseconds."""

_ENTRIES_FIRST, _ENTRIES_GROWTH = 16, 8
_ENTRIES_MAX = 2000
"""Entries read at once, however small they are: for the same reason."""

_CONTAINERS = 50 * _ENTRIES_MAX
"""Many more lists and tuples than one read makes."""

_ROWS_BYTES_MAX = 4 * RANGE_BYTES_MAX
"""Where nobody could tell how much a range holds, the rest waits for the next plan; in bytes of Arrow."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Records of a partition with offsets `first` to just before `behind`, for the table at `uri`.

    `last`: no other task of the plan lies behind it, so it may end early.
    """

    partition: Partition
    first: int
    behind: int
    bytes: int
    last: bool
    uri: str
    log_append_time: bool


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a task: `file` holds its records up to just before `next_offset`, None: there are none.

    `error`: why that is below `behind`, None also where there was more than one file is to have. `gone`: the topic was
    deleted, or made anew. `gaps` are offsets that Redis should hold, and does not, in their order.
    """

    task: Task
    next_offset: int
    file: WrittenFile | None = None
    error: str | None = None
    gone: bool = False
    gaps: tuple[Gap, ...] = ()


def archive_ranges(source: Source, storage_options: StorageOptions, tasks: Iterable[Task]) -> list[Outcome]:
    """Do tasks one after the other, over one connection to Redis."""
    with source.opened() as stores, _rare_collections():
        return [
            archive_range(stores.logs, task, storage_options, source.decompressed_bytes_max) for task in tasks
        ]


def archive_range(
    logs: LogStore, task: Task, storage_options: StorageOptions, decompressed_bytes_max: int
) -> Outcome:
    """Write the records of a task to a file of its own, which no table knows yet."""
    reading = RangeReading(logs, task, decompressed_bytes_max)
    try:
        files = filesystem(task.uri, storage_options)
        file = write_file(files, task.partition.index, reading.rows(), time.time_ns() // 1_000_000)
    except (OSError, ValueError, pa.ArrowException) as error:
        return Outcome(task=task, next_offset=task.first, error=str(LakeError(f"{task.uri}: {error}")))
    return Outcome(
        task=task,
        next_offset=reading.next_offset,
        file=file,
        error=reading.error,
        gone=reading.gone,
        gaps=tuple(sorted(reading.gaps + reading.holes)),
    )


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the collector of cycles sleep while entries come and go: they have none, and it would take a third more."""
    usual = gc.get_threshold()
    gc.set_threshold(_CONTAINERS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class RangeReading:
    """The records of a task as rows, and how far they were read: up to `next_offset`, and why no further.

    Of what was not there, `gaps` lie below the start of what Redis holds now, and may be in the lake; `removed` below
    the start of the log, where retention or DeleteRecords has moved it; `holes` in the middle of the log, where nobody
    but a hand on Redis removes anything. In format `record` offsets are sparse, and holes cannot be told.
    """

    def __init__(self, logs: LogStore, task: Task, decompressed_bytes_max: int) -> None:
        self.next_offset = task.first
        self.error: str | None = None
        self.gone = False
        self.gaps: list[Gap] = []
        self.removed: list[Gap] = []
        self.holes: list[Gap] = []
        self._logs = logs
        self._task = task
        self._bytes_max = decompressed_bytes_max

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in their order; ends without an exception where no more can be read."""
        entries = _ENTRIES_FIRST
        written = 0
        while self.next_offset < self._task.behind and not (self._task.last and written > _ROWS_BYTES_MAX):
            found = self._read(self.next_offset, entries)
            if isinstance(found, KafkaError):
                if entries > 1 and _is_damage(found):
                    # What lies before it is sound, and is not to wait for it.
                    entries = max(entries // _ENTRIES_GROWTH, 1)
                    continue
                self._fail(found)
                return
            self._pass_removed(found)
            at = self.next_offset
            if not found.holds_any:
                if entries == _ENTRIES_MAX:
                    self._skip(found)
                if self.error is not None:
                    return
                # Fewer may have been nothing but entries of others, with batches behind them.
                entries = _ENTRIES_MAX
                continue
            size = 0
            for rows, next_offset in self._rows_of(found):
                size += rows.nbytes
                yield _slice(rows, at, self._task.behind)
                self.next_offset = next_offset
            self.holes += [each for each in _holes(at, found) if each.behind <= self.next_offset]
            if self.error is not None:
                return
            if not found.more:
                self._pass_rest(found)
            written += size
            entries = _next_entries(len(found.batches or found.records), size)

    def _read(self, offset: int, entries: int) -> Fetched | KafkaError:
        try:
            [found] = self._logs.read([Read(self._task.partition, offset, entries, self._task.behind)])
        except StorageUnavailableError as error:
            return error
        return found

    def _pass_removed(self, found: Fetched) -> None:
        after = min(found.log_start, self._task.behind)
        if after > self.next_offset:
            self.removed.append(Gap(self.next_offset, after))
            self.next_offset = after

    def _skip(self, found: Fetched) -> None:
        """Go on behind what is no more, or never was."""
        if found.remote is not None and self.next_offset < found.remote.end:
            after = min(found.remote.end, self._task.behind)
            self.gaps.append(Gap(self.next_offset, after))
            self.next_offset = after
        elif not found.more:
            self._pass_rest(found)

    def _pass_rest(self, found: Fetched) -> None:
        """Go to the end, before which nothing follows."""
        behind = self._task.behind
        if found.high_watermark < behind:
            message = f"the log ends at {found.high_watermark}: Redis has lost records"
            self._fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message))
            return
        first = max(self.next_offset, found.compacted_end)
        if self._task.partition.format == "batch" and first < behind:
            self.holes.append(Gap(first, behind))
        self.next_offset = max(self.next_offset, behind)

    def _rows_of(self, found: Fetched) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield rows, each with the offset just past them; ends early, with the error kept, at a damaged batch."""
        index = self._task.partition.index
        if not found.batches:
            rows = records_to_arrow(index, found.records, log_append_time=self._task.log_append_time)
            yield rows, found.next_offset
            return
        try:
            yield batches_to_arrow(index, found.batches, self._bytes_max), found.next_offset
        except KafkaError:
            yield from self._one_by_one(index, found.batches)

    def _one_by_one(self, index: int, batches: Sequence[StoredBatch]) -> Iterator[tuple[pa.RecordBatch, int]]:
        for batch in batches:
            try:
                rows = batches_to_arrow(index, [batch], self._bytes_max)
            except KafkaError as error:
                self._fail(error)
                return
            yield rows, batch.next_offset

    def _fail(self, error: KafkaError) -> None:
        self.gone = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.error = error.message


def _holes(first: int, found: Fetched) -> Iterator[Gap]:
    """Yield offsets from `first` on that should be in what was found, and are in no batch."""
    at = max(first, found.compacted_end)
    for batch in found.batches:
        if batch.base_offset > at:
            yield Gap(at, batch.base_offset)
        at = max(at, batch.next_offset)


def _is_damage(error: KafkaError) -> bool:
    return error.code == ErrorCode.KAFKA_STORAGE_ERROR and not isinstance(error, StorageUnavailableError)


def _slice(rows: pa.RecordBatch, first: int, behind: int) -> pa.RecordBatch:
    """Return the rows from `first` on, and before `behind`: a batch may hold others."""
    offsets = rows.column(OFFSET).to_numpy()
    if not len(offsets) or (offsets[0] >= first and offsets[-1] < behind):
        return rows
    start, stop = np.searchsorted(offsets, (first, behind))
    return rows.slice(int(start), int(stop - start))


def _next_entries(entries: int, size: int) -> int:
    """Return how many entries to read next, where the last ones had so many bytes as rows."""
    wished = entries * _READ_BYTES // max(size, 1)
    return max(1, min(wished, entries * _ENTRIES_GROWTH, _ENTRIES_MAX))
