"""What is archived next and what of it may be committed, and one task: a range read from Redis and written to a file.

The plan is pure functions over offsets: where tables and logs begin and end, and how large the log between them is. A
range is one task's work and becomes one file. Few records make small files, soon; a backlog makes files of some 100 MB,
split where the log's index knows how many bytes lie below an offset.

A task raises nothing that the log or the lake cause: what was read before a failure is written, and the outcome says
how far it came and why no further.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from korvet_core import Fetched

from korvet.errors import ErrorCode, KafkaError, LakeError, StorageUnavailableError
from korvet.lake.decoding import to_arrow
from korvet.lake.files import DATA_COLUMNS, TableFile, write_files
from korvet.lake.schema import SCHEMA, between
from korvet.lake.source import LakeSource, LakeStores
from korvet.lake.table import LakeTopic
from korvet.lake.unreadable import BatchKeeper, KeptFile, UnreadableRange
from korvet.log.store import LogStore
from korvet.log.types import Bounds, Read
from korvet.protocol.records.compression import refusals
from korvet.topics.types import Partition

RANGE_BYTES_MIN = 8 * 1024 * 1024
"""A smaller task is not worth starting only to keep another core busy."""

RANGE_BYTES_MAX = 128 * 1024 * 1024
"""Bytes as stored in Redis; a file of them has between a third and all of it."""

RANGES_PER_CORE = 4
"""Of one round, which ends with a commit: what a crash may cost, and how often progress is seen."""

T = TypeVar("T")


class OffsetGap(NamedTuple):
    """Offsets `first` to just before `end` that neither the table nor Redis holds, though nobody deleted them."""

    first: int
    end: int


class ResumePoint(NamedTuple):
    """Where archiving resumes: the table is at `expected`, and the first record to take lies at `first` or after."""

    expected: int
    first: int
    gap: OffsetGap | None


class SplitPoint(NamedTuple):
    """An offset between two entries of the log, and the bytes ever appended below it."""

    offset: int
    bytes: int


class OffsetRange(NamedTuple):
    """The offsets `first` to just before `end`, and about how many bytes they are."""

    first: int
    end: int
    bytes: int


class PlanError(Exception):
    """Table and log contradict each other, and nothing may be archived before somebody has checked; says how."""


def another_lake(archived: int, next_offset: int | None) -> str | None:
    """Return what is wrong if Redis knows more to be archived than the table holds; None if nothing is."""
    if (next_offset or 0) >= archived:
        return None
    reached = "nothing" if next_offset is None else f"it up to {next_offset}"
    return f"archived up to {archived} as Redis knows, but this lake holds {reached}: is it another one?"


def resume_point(bounds: Bounds, next_offset: int | None) -> ResumePoint:
    """Return where to resume a log of which a table has all below `next_offset`, None: nothing.

    Raises PlanError if that would lose or repeat records.
    """
    start, end = bounds.redis_start, bounds.high_watermark
    expected = start if next_offset is None else next_offset
    if other := another_lake(bounds.archived, next_offset):
        raise PlanError(other)
    if expected > end:
        raise PlanError(f"archived up to {expected}, but the log ends at {end}: Redis has lost records")
    if next_offset is not None and expected > (stable := bounds.stable_offset):
        message = (
            f"archived up to {expected}, but a transaction is open from {stable} on: Redis has lost its end"
        )
        raise PlanError(message)
    # Without a remote part, what lies below the start was deleted on purpose.
    gap = OffsetGap(expected, start) if expected < start and bounds.remote is not None else None
    return ResumePoint(expected, max(expected, start), gap)


def range_bytes(backlog: int, cores: int) -> int:
    """Return how large ranges should be, so that a backlog of this size keeps all cores busy."""
    return min(max(backlog // max(cores, 1), RANGE_BYTES_MIN), RANGE_BYTES_MAX)


def split(
    first: int, end: SplitPoint, points: Sequence[SplitPoint], target: int, count_max: int
) -> list[OffsetRange]:
    """Return up to `count_max` ranges of about `target` bytes, one after the other, from `first` up to `end` at most.

    `points` lie above `first`, and rise. Without any, all is one range.
    """
    ranges: list[OffsetRange] = []
    if first >= end.offset:
        return ranges
    known = [point for point in points if first < point.offset < end.offset]
    below = known[0].bytes if known else end.bytes
    for point in known:
        if len(ranges) == count_max:
            return ranges
        if point.bytes - below >= target:
            ranges.append(OffsetRange(first, point.offset, point.bytes - below))
            first, below = point.offset, point.bytes
    rest = OffsetRange(first, end.offset, max(end.bytes - below, 0))
    # More than that lies after the last known point: the next plan knows more.
    if len(ranges) < count_max and (not ranges or rest.bytes <= 2 * target):
        ranges.append(rest)
    return ranges


def bins(sizes: Sequence[int], count_max: int) -> list[list[int]]:
    """Spread tasks of these sizes, named by their places, over up to `count_max` bins that are about equally full."""
    groups: list[list[int]] = [[] for _ in range(min(count_max, len(sizes)))]
    full = [0] * len(groups)
    for place in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        least = full.index(min(full))
        groups[least].append(place)
        # Each costs something, however small it is.
        full[least] += sizes[place] + 1
    return groups


def alternating(groups: Sequence[Sequence[T]]) -> list[T]:
    """Return the first of each group, then the second of each, and so on: neighbours are of different groups."""
    return [
        group[at] for at in range(max(map(len, groups), default=0)) for group in groups if at < len(group)
    ]


_READ_BYTES = 2 * 1024 * 1024
"""Read at once: Redis serves nobody else meanwhile, some milliseconds."""

_ENTRIES_FIRST, _ENTRIES_GROWTH = 16, 8
_ENTRIES_MAX = 2000
"""Entries read at once, however small: for the same reason."""

_CONTAINERS = 50 * _ENTRIES_MAX
"""Many more lists and tuples than one read makes."""

_ROWS_BYTES_MAX = 4 * RANGE_BYTES_MAX
"""If the size of a range was not known, the rest of it waits for the next plan; in bytes of Arrow."""


class ArchiveTask(msgspec.Struct, frozen=True, kw_only=True):
    """Records of a partition with offsets `first` to just before `end`, for its topic's table.

    `last`: no other task of the plan lies after it, so it may end early. `by_date`: the table is partitioned by date.
    """

    partition: Partition
    first: int
    end: int
    bytes: int
    last: bool
    log_append_time: bool
    by_date: bool = False


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task: `files` hold its records up to just before `next_offset`, one for each date or one.

    `error`: why that is below `end`, None also if there was more than one file takes. `gone`: the topic was deleted, or
    re-created. `gaps` are offsets that Redis should hold, and does not, in their order. Markers and what was aborted
    were left out below `left_out`, 0 if nothing was. Batches that do not decode are `unreadable`, and `kept` as bytes.
    """

    task: ArchiveTask
    next_offset: int
    files: tuple[TableFile, ...] = ()
    error: str | None = None
    gone: bool = False
    gaps: tuple[OffsetGap, ...] = ()
    left_out: int = 0
    unreadable: tuple[UnreadableRange, ...] = ()
    kept: tuple[KeptFile, ...] = ()


def advance(expected: int, outcomes: Iterable[TaskOutcome]) -> tuple[int, list[TaskOutcome]]:
    """Return the offset up to which a partition may be committed, and whose records that takes.

    The outcomes are one plan's, by offset. After a task that ended early the later ones are left out.
    """
    at, taken = expected, []
    for outcome in outcomes:
        if outcome.next_offset > outcome.task.first:
            at = outcome.next_offset
            taken.append(outcome)
        if outcome.next_offset < outcome.task.end:
            break
    return at, taken


def archive_ranges(source: LakeSource, tasks: Iterable[ArchiveTask]) -> list[TaskOutcome]:
    """Run tasks one after the other, over one connection to Redis."""
    with source.opened() as stores, _rare_collections():
        return [archive_range(stores, task) for task in tasks]


def archive_range(stores: LakeStores, task: ArchiveTask) -> TaskOutcome:
    """Write the records of a task to a file of its own, which no table knows yet."""
    partition = task.partition
    of = LakeTopic(partition.topic, partition.topic_id)
    try:
        files = stores.lake.filesystem(of)
        keeper = BatchKeeper(files, partition.index)
        reader = RangeReader(
            stores.logs,
            partition,
            (task.first, task.end),
            log_append_time=task.log_append_time,
            rows_bytes_max=_ROWS_BYTES_MAX if task.last else None,
            keeper=keeper,
        )
        now_ms = time.time_ns() // 1_000_000
        written = write_files(files, partition.index, reader.rows(), now_ms, by_date=task.by_date)
        keeper.flush()
    except (OSError, ValueError, pa.ArrowException) as error:
        failure = LakeError(f"{stores.lake.uri(of)}: {error}")
        return TaskOutcome(task=task, next_offset=task.first, error=str(failure))
    return TaskOutcome(
        task=task,
        next_offset=reader.next_offset,
        files=tuple(written),
        error=reader.error,
        gone=reader.gone,
        gaps=tuple(sorted(reader.gaps + reader.holes)),
        left_out=reader.left_out,
        unreadable=tuple(reader.unreadable),
        kept=tuple(keeper.written),
    )


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect cycles rarely while entries are read: they have none, and collections would take a third more time."""
    usual = gc.get_threshold()
    gc.set_threshold(_CONTAINERS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class RangeReader:
    """Records of a partition in Redis as rows, and how far they were read: up to `next_offset`, and why no further.

    Of transactions only what was committed becomes rows. What was aborted, and markers, lie below `left_out`, 0 without
    any; the range must end at the last stable offset.

    Of the offsets that were missing, `gaps` lie below the start of what Redis holds now, and may be in the lake;
    `removed` below the start of the log, which retention or DeleteRecords has moved; `holes` in the middle of the log,
    where only a user of Redis can have deleted entries. Where offsets are times, holes are not found.

    A batch that does not decode becomes no rows: `unreadable` are the offsets of these.
    """

    def __init__(
        self,
        logs: LogStore,
        partition: Partition,
        offsets: tuple[int, int],
        *,
        log_append_time: bool = False,
        rows_bytes_max: int | None = None,
        columns: Collection[str] = DATA_COLUMNS,
        keeper: BatchKeeper | None = None,
    ) -> None:
        """Read the range `offsets`, its end excluded; it may end early after `rows_bytes_max` bytes of rows.

        Other columns than `columns` may be null. `keeper` gets each batch that does not decode, before it is passed.
        """
        self.next_offset, self._end = offsets
        self.error: str | None = None
        self.gone = False
        self.gaps: list[OffsetGap] = []
        self.removed: list[OffsetGap] = []
        self.holes: list[OffsetGap] = []
        self.left_out = 0
        self.unreadable: list[UnreadableRange] = []
        self._keeper = keeper
        self._logs = logs
        self._partition = partition
        self._log_append_time = log_append_time
        self._columns = columns
        self._rows_bytes_max = math.inf if rows_bytes_max is None else rows_bytes_max

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in their order; ends without an exception if no more can be read."""
        entries = _ENTRIES_FIRST
        written = 0
        while self.next_offset < self._end and written <= self._rows_bytes_max:
            fetched = self._read(self.next_offset, entries)
            if isinstance(fetched, KafkaError):
                self._fail(fetched)
                return
            self._pass_removed(fetched)
            at = self.next_offset
            if fetched.next_offset is None:
                if entries == _ENTRIES_MAX:
                    self._skip(fetched)
                if self.error is not None:
                    return
                # Fewer may have been nothing but external entries, with batches after them.
                entries = _ENTRIES_MAX
                continue
            size = 0
            for rows, next_offset in self._rows_of(fetched):
                size += rows.nbytes
                # A batch may hold others.
                yield between(rows, at, self._end)
                self.next_offset = next_offset
            if self._partition.is_dense:
                self.holes += [hole for hole in _holes(at, fetched) if hole.end <= self.next_offset]
            if self.error is not None:
                return
            if not fetched.more:
                self._pass_rest(fetched)
            # Columns that nobody wants are no part of the rows.
            size = max(size, fetched.size_bytes)
            written += size
            entries = _next_entries(len(fetched), size)

    def _read(self, offset: int, entries: int) -> Fetched | KafkaError:
        try:
            [fetched] = self._logs.read([Read(self._partition, offset, entries, self._end, committed=True)])
        except StorageUnavailableError as error:
            return error
        return fetched

    def _pass_removed(self, fetched: Fetched) -> None:
        after = min(fetched.log_start, self._end)
        if after > self.next_offset:
            self.removed.append(OffsetGap(self.next_offset, after))
            self.next_offset = after

    def _skip(self, fetched: Fetched) -> None:
        """Continue after offsets that are gone, or never were."""
        if fetched.remote_end is not None and self.next_offset < fetched.remote_end:
            after = min(fetched.remote_end, self._end)
            self.gaps.append(OffsetGap(self.next_offset, after))
            self.next_offset = after
        elif not fetched.more:
            self._pass_rest(fetched)

    def _pass_rest(self, fetched: Fetched) -> None:
        end = self._end
        if fetched.high_watermark < end:
            message = f"the log ends at {fetched.high_watermark}: Redis has lost records"
            self._fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message))
            return
        first = max(self.next_offset, fetched.compacted_end)
        if self._partition.is_dense and first < end:
            self.holes.append(OffsetGap(first, end))
        self.next_offset = max(self.next_offset, end)

    def _rows_of(self, fetched: Fetched) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield rows, each with the offset just past them; none of a batch that does not decode."""
        with refusals():
            seen = fetched.visible()
        next_offset = fetched.next_offset or self.next_offset
        if len(seen) < len(fetched):
            self.left_out = min(next_offset, self._end)
        try:
            yield self._as_rows(seen), next_offset
        except KafkaError:
            yield from self._one_by_one(seen)

    def _as_rows(self, fetched: Fetched) -> pa.RecordBatch:
        append_time = self._log_append_time
        return to_arrow(self._partition.index, fetched, self._columns, log_append_time=append_time)

    def _one_by_one(self, fetched: Fetched) -> Iterator[tuple[pa.RecordBatch, int]]:
        for batch in fetched.each():
            [(first, last)] = batch.spans()
            try:
                rows = self._as_rows(batch)
            except KafkaError as error:
                if self._keeper is not None:
                    self._keeper.add(batch)
                self._pass_unreadable(max(first, self.next_offset), last + 1, error)
                rows = _NO_ROWS
            yield rows, last + 1

    def _pass_unreadable(self, first: int, end: int, error: KafkaError) -> None:
        passed = UnreadableRange(first, end, 1, error.message)
        if self.unreadable and self.unreadable[-1].end == passed.first:
            former = self.unreadable.pop()
            passed = former._replace(end=passed.end, batches=former.batches + 1)
        self.unreadable.append(passed)

    def _fail(self, error: KafkaError) -> None:
        self.gone = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.error = error.message


_NO_ROWS = pa.RecordBatch.from_arrays([pa.nulls(0, type_) for type_ in SCHEMA.types], schema=SCHEMA)


def _holes(first: int, fetched: Fetched) -> Iterator[OffsetGap]:
    """Yield offsets from `first` on that should have been found in a dense log, and are in no batch and no record."""
    at = max(first, fetched.compacted_end)
    for begin, last in fetched.spans():
        if begin > at:
            yield OffsetGap(at, begin)
        at = max(at, last + 1)


def _next_entries(entries: int, size: int) -> int:
    """Return how many entries to read next, after some that became rows of `size` bytes."""
    return max(1, min(entries * _READ_BYTES // max(size, 1), entries * _ENTRIES_GROWTH, _ENTRIES_MAX))
