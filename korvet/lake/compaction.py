"""Compaction of a topic's table: the rows of small files in fewer large ones, in the order of their offsets.

Knows how rows are written anew and how that comes into the table; which files are worth it is the plan's, and where
merges are done their caller's: one needs nothing but values and returns nothing else. The rows are the same before and
after, and at no time is one of them in the table twice or not at all: the commit is the next one behind a version in
which all files are there that were read, or there is none. Whoever reads goes on in the old files, which are deleted
hours later (see expiry.py).

Which files of a partition are to become fewer: pure functions over what the table says of them.

Knows sizes and offsets; nothing of how files are written or committed. Files that are large enough stay as they are,
neighbours that are not become one. What is written again and again is kept small: newer files wait for each other until
they are about as large as the one before them, so a row is written as often as its file doubles, not at every pass.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
from deltalake.exceptions import DeltaError

from korvet.errors import LakeError
from korvet.lake.files import (
    ROW_GROUP_ROWS,
    DataFiles,
    RowGroup,
    StorageOptions,
    WrittenFile,
    discard,
    filesystem,
    group_overlapping,
    write_file,
)
from korvet.lake.schema import OFFSET, PARTITION, SCHEMA
from korvet.lake.source import LakeSource
from korvet.lake.table import (
    COMMITS_MAX,
    ArchiveTable,
    CommitConflictError,
    Lake,
    LakeTopic,
    TableFile,
    table_uri,
)

FILE_BYTES_MIN = 64 * 1024 * 1024
"""A file from here on stays as it is."""

FILE_BYTES_MAX = 128 * 1024 * 1024
"""What becomes one file; large files are read as quickly as small ones, for a fetch reads one row group."""

_OWN = re.compile(r"partition=[0-9]+/part-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")


class FileSizes(NamedTuple):
    """From where on a file stays as it is, and how large others become together, in bytes."""

    file_bytes_min: int = FILE_BYTES_MIN
    file_bytes_max: int = FILE_BYTES_MAX


SIZES = FileSizes()
"""Those that are meant; tests take smaller ones."""


class Merge(NamedTuple):
    """Files of one partition, in the order of their offsets, whose rows are to lie in `into` files instead."""

    partition: int
    files: tuple[TableFile, ...]
    into: int

    @property
    def size_bytes(self) -> int:
        """What the files have together."""
        return sum(each.size_bytes for each in self.files)

    @property
    def rows(self) -> int:
        """What the files have together."""
        return sum(each.rows for each in self.files)


class _Neighbors(NamedTuple):
    """Files that cannot be told apart by offset, mostly one; `foreign`: they are to be written anew in any case."""

    files: tuple[TableFile, ...]
    size_bytes: int
    foreign: bool


def merges(files: Sequence[TableFile], sizes: FileSizes = SIZES) -> list[Merge]:
    """Return what is to be done for a table; `files` are by partition and offset, as it has them."""
    found: list[Merge] = []
    for partition, some in groupby(files, key=lambda each: each.partition):
        for pieces in _runs(_pieces(list(some)), sizes):
            members = tuple(file for piece in pieces for file in piece.files)
            size = sum(each.size_bytes for each in members)
            found.append(Merge(partition, members, max(1, -(-size // sizes.file_bytes_max))))
    return found


def is_own(path: str) -> bool:
    """Tell whether a file has a name as Korvet gives them: others may hold rows in any order."""
    return _OWN.fullmatch(path) is not None


def _pieces(files: Sequence[TableFile]) -> Iterator[_Neighbors]:
    """Yield the files of a partition, those together whose offsets overlap."""
    return map(_piece, group_overlapping(files))


def _piece(files: list[TableFile]) -> _Neighbors:
    foreign = len(files) > 1 or not is_own(files[0].path)
    return _Neighbors(tuple(files), sum(each.size_bytes for each in files), foreign)


def _runs(pieces: Iterator[_Neighbors], sizes: FileSizes) -> Iterator[list[_Neighbors]]:
    """Yield neighbours that are to become one file."""
    run: list[_Neighbors] = []
    for piece in pieces:
        stays = piece.size_bytes >= sizes.file_bytes_min and not piece.foreign
        if run and (stays or _bytes(run) + piece.size_bytes > sizes.file_bytes_max):
            # Nothing is going to lie beside these that they could wait for.
            yield from _worth_it(run)
            run = []
        if not stays:
            run.append(piece)
    if _bytes(run) < sizes.file_bytes_min:
        while len(run) > 1 and not run[0].foreign and run[0].size_bytes > _bytes(run[1:]):
            run = run[1:]
    yield from _worth_it(run)


def _worth_it(run: list[_Neighbors]) -> Iterator[list[_Neighbors]]:
    if len(run) > 1 or (run and run[0].foreign):
        yield run


def _bytes(run: Sequence[_Neighbors]) -> int:
    return sum(each.size_bytes for each in run)


ROW_GROUP_BYTES_MAX = 4 * 1024 * 1024
"""Of rows in memory: a group has fewer rows where they are large, or a fetch of one would read all the others."""

_COLUMNS = pa.schema([each for each in SCHEMA if each.name != PARTITION])


class MergeTask(msgspec.Struct, frozen=True):
    """A merge and the table that it is for; goes to any process."""

    of: LakeTopic
    uri: str
    merge: Merge


class WrittenMerge(msgspec.Struct, frozen=True):
    """The files that hold the rows of a merge now, and that no commit has added yet; or why there are none."""

    task: MergeTask
    written: tuple[WrittenFile, ...] = ()
    error: str | None = None


class MergeOutcome(msgspec.Struct, frozen=True):
    """What became of a merge. `done` is False where its files were not in the table any more, which harms nobody."""

    topic: str
    partition: int
    rows: int
    files_before: int
    bytes_before: int
    files_after: int = 0
    bytes_after: int = 0
    done: bool = False
    error: str | None = None


RunMerges: TypeAlias = Callable[[Sequence[MergeTask]], Iterable[WrittenMerge]]
"""Does merges, somewhere, and returns them in any order."""


def plan_merges(lake: Lake, of: LakeTopic, sizes: FileSizes = SIZES) -> list[MergeTask]:
    """Return what is to be done for a topic; raises LakeError, also where its files may not be rewritten."""
    table = ArchiveTable.open(lake.path, *of, lake.storage_options)
    if table is None:
        return []
    table.check_rewritable()
    uri = table_uri(lake.path, *of)
    return [MergeTask(of, uri, each) for each in merges(table.files(), sizes)]


def rewrite(task: MergeTask, storage_options: StorageOptions) -> WrittenMerge:
    """Write the rows of a merge to new files; what prevents it is an answer, not an exception."""
    written: list[WrittenFile] = []
    try:
        for file in _written(task, storage_options):
            written.append(file)  # noqa: PERF402 - those before a failure are deleted
        _check(task.merge, written)
    except (LakeError, DeltaError, OSError, ValueError, pa.ArrowException) as error:
        discard(task.uri, storage_options, written)
        return WrittenMerge(task, error=f"{task.uri} partition {task.merge.partition}: {error}")
    return WrittenMerge(task, tuple(written))


def _written(task: MergeTask, storage_options: StorageOptions) -> Iterator[WrittenFile]:
    merge = task.merge
    files = filesystem(task.uri, storage_options)
    rows = _grouped(_in_order(DataFiles(task.uri, files), [each.path for each in merge.files]))
    count = 0
    for number in range(1, merge.into + 1):
        part = rows
        if number < merge.into:
            part = _first(rows, merge.rows * number // merge.into - count)
        file = write_file(files, merge.partition, part, time.time_ns() // 1_000_000)
        if file is not None:
            count += file.rows
            yield file


def _check(merge: Merge, written: Sequence[WrittenFile]) -> None:
    """Raise ValueError where the new files do not hold as many rows as the old ones."""
    count = sum(each.rows for each in written)
    if count != merge.rows:
        raise ValueError(f"the files hold {count} rows, and the table says {merge.rows}")


def commit(lake: Lake, merged: WrittenMerge) -> MergeOutcome:
    """Let the table have the new files instead of the old ones, where all of these are still there."""
    task = merged.task
    merge = task.merge
    outcome = MergeOutcome(task.of.topic, merge.partition, merge.rows, len(merge.files), merge.size_bytes)
    if merged.error is not None:
        return msgspec.structs.replace(outcome, error=merged.error)
    done = msgspec.structs.replace(
        outcome,
        files_after=len(merged.written),
        bytes_after=sum(each.size_bytes for each in merged.written),
        done=True,
    )
    before, after = {each.path for each in merge.files}, {each.path for each in merged.written}
    tried = False
    for _ in range(COMMITS_MAX):
        try:
            table = ArchiveTable.open(lake.path, *task.of, lake.storage_options)
            active = set() if table is None else {each.path for each in table.files()}
            if tried and after <= active:
                # The answer to a commit before was lost, or deltalake took its own for somebody else's.
                return done
            if table is None or not before <= active:
                # After a try it may be that the files came into the table, and were compacted once more since.
                if not tried:
                    discard(task.uri, lake.storage_options, merged.written)
                return outcome
            tried = True
            table.replace(merge.files, merged.written, time.time_ns() // 1_000_000)
        except CommitConflictError:
            continue
        except LakeError as error:
            # Nobody knows whether the commit is there: the new files stay, and vacuum takes what none names.
            return msgspec.structs.replace(outcome, error=str(error))
        return done
    message = f"{task.uri}: others committed before each of {COMMITS_MAX} tries"
    return msgspec.structs.replace(outcome, error=message)


def run_here(storage_options: StorageOptions) -> RunMerges:
    """Return what does merges in this process, one after the other."""
    return lambda tasks: (rewrite(task, storage_options) for task in tasks)


def compact(
    lake: Lake, of: LakeTopic, sizes: FileSizes = SIZES, run: RunMerges | None = None
) -> Iterator[MergeOutcome]:
    """Do for a topic what there is to do, and commit each merge as soon as it is written; raises LakeError."""
    for merged in (run or run_here(lake.storage_options))(plan_merges(lake, of, sizes)):
        yield commit(lake, merged)


def compact_topics(
    source: LakeSource, lake: Lake, names: Sequence[str], run: RunMerges | None = None
) -> Iterator[MergeOutcome]:
    """Do what there is to do for the topics with a cold tier, or for those named; what fails hinders no other topic.

    Raises KafkaError and StorageUnavailableError; ValueError for a name of no topic with a cold tier.
    """
    for of in topics_of(source, names):
        try:
            yield from compact(lake, of, run=run)
        except LakeError as error:
            yield MergeOutcome(of.topic, -1, 0, 0, 0, error=str(error))


def topics_of(source: LakeSource, names: Sequence[str]) -> list[LakeTopic]:
    """Return the topics with a cold tier, or those named; raises as `compact_topics`."""
    with source.opened() as stores:
        return [LakeTopic(each.name, each.id) for each in source.topics(stores, names)]


def _in_order(files: DataFiles, paths: list[str]) -> Iterator[pa.Table]:
    """Yield the rows of files by their offsets; memory is what overlaps, and between files of Korvet's nothing does."""
    groups: list[tuple[str, RowGroup]] = [(path, group) for path in paths for group in files.groups(path)]
    groups.sort(key=lambda each: each[1].first_offset)
    pending = _COLUMNS.empty_table()
    for at, (path, group) in enumerate(groups):
        rows = pa.Table.from_batches([files.rows(path, group)]).select(_COLUMNS.names).cast(_COLUMNS)
        pending = _sorted(pa.concat_tables([pending, rows]))
        count = pending.num_rows
        if at + 1 < len(groups):
            offsets = pending.column(OFFSET).to_numpy()
            count = int(offsets.searchsorted(groups[at + 1][1].first_offset))
        yield pending.slice(0, count)
        pending = pending.slice(count)


def _sorted(rows: pa.Table) -> pa.Table:
    offsets = rows.column(OFFSET).to_numpy()
    # Equal ones stay: a row that is there twice is for somebody to look at, and nothing to be written anew.
    return rows.sort_by(OFFSET) if (offsets[1:] < offsets[:-1]).any() else rows


def _grouped(tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the rows as row groups are to have them."""
    pending: list[pa.Table] = []
    count = size = 0
    for table in tables:
        at = 0
        row_bytes = max(table.nbytes // max(table.num_rows, 1), 1)
        while at < table.num_rows:
            room = min(
                ROW_GROUP_ROWS - count, max((ROW_GROUP_BYTES_MAX - size) // row_bytes, 1 - bool(count))
            )
            if room:
                part = table.slice(at, room)
                pending.append(part)
                count, size, at = count + part.num_rows, size + part.num_rows * row_bytes, at + part.num_rows
            if not room or count == ROW_GROUP_ROWS:
                yield _one(pending)
                pending, count, size = [], 0, 0
    if pending:
        yield _one(pending)


def _one(tables: list[pa.Table]) -> pa.RecordBatch:
    return pa.concat_tables(tables).combine_chunks().to_batches()[0]


def _first(rows: Iterator[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    """Yield batches until they have so many rows together; others stay in the iterator."""
    for part in rows:
        yield part
        count -= part.num_rows
        if count <= 0:
            return
