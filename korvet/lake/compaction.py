"""Compaction of a topic's table: the rows of small files in fewer large ones, in the order of their offsets.

Files that are large enough stay as they are; smaller neighbours become one. To keep small what is written again
and again, newer files wait for each other until they are about as large as the one before them: a row is written as
often as its file doubles, not at every pass.

The rows are the same before and after, and at no time is one of them in the table twice or not at all: the commit is
the next one after a version that has all files that were read, or there is none. It changes no data, so streams and
change feeds of Delta ignore it; but so does deltalake when it checks what another writer's OPTIMIZE conflicts with. A
commit after it therefore seals it: what began before is refused. If a writer came between the two and has rewritten the
same rows, the merge is undone.

Readers go on in the old files, which are deleted hours later (see expiry.py). A merge is planned from plain values and
returns plain values, so any process can run it.
"""

from __future__ import annotations

import contextlib
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
    DATA_COLUMNS,
    TableFile,
    discard,
    log_entry,
    name_of,
    row_groups,
    write_files,
)
from korvet.lake.row_groups import DataFiles, group_overlapping
from korvet.lake.schema import OFFSET, SCHEMA
from korvet.lake.source import LakeSource
from korvet.lake.table import CommitConflictError, Lake, LakeTopic

FILE_BYTES_MIN = 64 * 1024 * 1024
"""A file of this size or more stays as it is."""

FILE_BYTES_MAX = 128 * 1024 * 1024
"""Of a file of merged rows; large files are read as fast as small ones, for a fetch reads one row group."""

_OWN = re.compile(r"partition=[0-9]+/(date=[^/]+/)?part-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")


class Merge(NamedTuple):
    """Files of one partition, in the order of their offsets, whose rows go to `into` files instead."""

    partition: int
    files: tuple[TableFile, ...]
    into: int

    @property
    def size_bytes(self) -> int:
        """The files together."""
        return sum(file.size_bytes for file in self.files)

    @property
    def rows(self) -> int:
        """The files together."""
        return sum(file.rows for file in self.files)


class _Overlap(NamedTuple):
    """Files whose offsets overlap: one, or one for each of their dates; `external`: they are rewritten in any case."""

    files: tuple[TableFile, ...]
    size_bytes: int
    external: bool


def merges(files: Sequence[TableFile]) -> list[Merge]:
    """Return the merges that a table needs; `files` are in the order of partition and offset."""
    planned: list[Merge] = []
    for partition, of_partition in groupby(files, key=lambda item: item.partition):
        for run in _runs(map(_overlap, group_overlapping(of_partition))):
            members = tuple(file for overlap in run for file in overlap.files)
            size = sum(member.size_bytes for member in members)
            planned.append(Merge(partition, members, max(1, -(-size // FILE_BYTES_MAX))))
    return planned


def is_own(path: str) -> bool:
    """Return whether a file has a name as Korvet gives them: others may hold rows in any order."""
    return _OWN.fullmatch(path) is not None


def _overlap(files: list[TableFile]) -> _Overlap:
    external = len({file.date for file in files}) < len(files) or not all(is_own(file.path) for file in files)
    return _Overlap(tuple(files), sum(file.size_bytes for file in files), external)


def _runs(overlaps: Iterable[_Overlap]) -> Iterator[list[_Overlap]]:
    """Yield neighbours that become one file."""
    run: list[_Overlap] = []
    for overlap in overlaps:
        stays = overlap.size_bytes >= FILE_BYTES_MIN and not overlap.external
        if run and (stays or _bytes(run) + overlap.size_bytes > FILE_BYTES_MAX):
            # No file will come beside these that they could wait for.
            yield from _worth_it(run)
            run = []
        if not stays:
            run.append(overlap)
    run = _of_same_dates(run)
    if _bytes(run) < FILE_BYTES_MIN:
        while len(run) > 1 and not run[0].external and run[0].size_bytes > _bytes(run[1:]):
            run = run[1:]
    yield from _worth_it(run)


def _worth_it(run: list[_Overlap]) -> Iterator[list[_Overlap]]:
    run = _of_same_dates(run)
    # As many files will be left as there are dates: at most half of those that are read, or it would be again.
    files = [file for member in run for file in member.files]
    shrinks = len(run) > 1 and len(files) >= 2 * len({file.date for file in files})
    if shrinks or any(member.external for member in run):
        yield run


def _of_same_dates(run: list[_Overlap]) -> list[_Overlap]:
    """Return a run without those at its ends whose date, that of most of their rows, no other one has."""
    dates = [max(member.files, key=lambda file: file.rows).date for member in run]
    first, end = 0, len(run)
    while end - first > 1 and not run[first].external and dates[first] not in dates[first + 1 : end]:
        first += 1
    while end - first > 1 and not run[end - 1].external and dates[end - 1] not in dates[first : end - 1]:
        end -= 1
    return run[first:end]


def _bytes(run: Sequence[_Overlap]) -> int:
    return sum(member.size_bytes for member in run)


_COLUMNS = pa.schema([SCHEMA.field(name) for name in DATA_COLUMNS])


class MergeTask(msgspec.Struct, frozen=True):
    """A merge and its table; plain values, for any process."""

    of: LakeTopic
    merge: Merge


class WrittenMerge(msgspec.Struct, frozen=True):
    """The files that hold the rows of a merge, and that no commit has added yet; or why there are none."""

    task: MergeTask
    written: tuple[TableFile, ...] = ()
    error: str | None = None


class MergeOutcome(msgspec.Struct, frozen=True):
    """The result of a merge. `done` is False if its files were not in the table any more, which is no error."""

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
"""Runs merges, somewhere, and returns them in any order."""


def plan_merges(lake: Lake, topic: LakeTopic) -> list[MergeTask]:
    """Return the merges that a topic needs; raises LakeError, also if its files may not be rewritten."""
    table = lake.open(topic)
    if table is None:
        return []
    table.check_rewritable()
    return [MergeTask(topic, merge) for merge in merges(table.files())]


def rewrite(lake: Lake, task: MergeTask) -> WrittenMerge:
    """Write the rows of a merge to new files; returns what prevents it, and does not raise it."""
    written: list[TableFile] = []
    try:
        for file in _written(lake, task):
            written.append(file)  # noqa: PERF402 - those before a failure are deleted
        count = sum(item.rows for item in written)
        if count != task.merge.rows:
            raise ValueError(f"the files hold {count} rows, and the table says {task.merge.rows}")  # noqa: TRY301 - as of a file that cannot be read
    except (LakeError, DeltaError, OSError, ValueError, pa.ArrowException) as error:
        if written:
            discard(lake.filesystem(task.of), written)
        return WrittenMerge(task, error=f"{lake.uri(task.of)} partition {task.merge.partition}: {error}")
    return WrittenMerge(task, tuple(written))


def _written(lake: Lake, task: MergeTask) -> Iterator[TableFile]:
    merge = task.merge
    files = lake.filesystem(task.of)
    rows = row_groups(in_order(lake.data_files(task.of), [file.path for file in merge.files]))
    count = 0
    for number in range(1, merge.into + 1):
        part = rows
        if number < merge.into:
            part = _first(rows, merge.rows * number // merge.into - count)
        now_ms = time.time_ns() // 1_000_000
        for file in write_files(files, merge.partition, part, now_ms, by_date=bool(merge.files[0].date)):
            count += file.rows
            yield file


def commit(lake: Lake, merged: WrittenMerge) -> MergeOutcome:
    """Commit the new files instead of the old ones, if all of these are still there."""
    task, merge = merged.task, merged.task.merge
    outcome = MergeOutcome(task.of.topic, merge.partition, merge.rows, len(merge.files), merge.size_bytes)
    if merged.error is not None:
        return msgspec.structs.replace(outcome, error=merged.error)
    size_bytes = sum(item.size_bytes for item in merged.written)
    done = msgspec.structs.replace(
        outcome, files_after=len(merged.written), bytes_after=size_bytes, done=True
    )
    before, after = {file.path for file in merge.files}, {item.path for item in merged.written}
    number = 0
    try:
        for table in lake.attempts(task.of):
            active = {file.path for file in table.files()}
            if number and after <= active:
                # The answer to a former commit was lost, or deltalake took its own for another writer's.
                return done if _seal(lake, task.of, number) else outcome
            if not before <= active:
                # After a try the files may have come into the table, and been compacted once more since.
                if not number:
                    discard(lake.filesystem(task.of), merged.written)
                break
            number = table.version + 1
            with contextlib.suppress(CommitConflictError):
                table.replace(merge.files, merged.written, time.time_ns() // 1_000_000)
                return done if _seal(lake, task.of, number) else outcome
    except LakeError as failure:
        # It is unknown whether the commit is there: the new files stay, and vacuum deletes what no commit names.
        return msgspec.structs.replace(outcome, error=str(failure))
    return outcome


def _seal(lake: Lake, topic: LakeTopic, number: int) -> bool:
    """Seal the commit of a merge; returns False if a writer came between that had read the files, and it was undone.

    Raises LakeError. Then, as after a crash, the next compaction does it.
    """
    sealed = 0
    for table in lake.attempts(topic):
        with contextlib.suppress(CommitConflictError):
            sealed = table.seal()
            break
    crossed = _removed(lake, topic, range(number + 1, sealed))
    before, after = (lake.open(topic, version) if crossed else None for version in (number - 1, number))
    if before is None or after is None:
        return True
    old, new = set(before.files()) - set(after.files()), set(after.files()) - set(before.files())
    # What the other writer has removed and added counts; the rest is as it was before.
    kept = [file for file in old if name_of(file.path) not in crossed]
    if len(kept) == len(old):
        return True
    for table in lake.attempts(topic):
        if not new <= set(table.files()):
            # Another compactor has undone it.
            break
        undone = table.version + 1
        with contextlib.suppress(CommitConflictError):
            table.replace(list(new), kept, time.time_ns() // 1_000_000)
            _seal(lake, topic, undone)
            break
    return False


def _removed(lake: Lake, topic: LakeTopic, numbers: Iterable[int]) -> set[str]:
    """Return the names of the files that commits have removed; of a commit that the log has no more, none."""
    files, names = lake.filesystem(topic), set[str]()
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):
            actions = map(msgspec.json.decode, log_entry(files, number).splitlines())
            names |= {name_of(action["remove"]["path"]) for action in actions if "remove" in action}
    return names


def compact(lake: Lake, topic: LakeTopic, run: RunMerges | None = None) -> Iterator[MergeOutcome]:
    """Merge what a topic needs, by `run` or in this process, and commit each merge as soon as it is written.

    Raises LakeError.
    """
    table = lake.open(topic)
    if table is not None and table.unsealed is not None:
        _seal(lake, topic, table.unsealed)
    tasks = plan_merges(lake, topic)
    for merged in run(tasks) if run else (rewrite(lake, task) for task in tasks):
        yield commit(lake, merged)


def compact_topics(
    source: LakeSource, names: Sequence[str], run: RunMerges | None = None
) -> Iterator[MergeOutcome]:
    """Merge what the topics with a remote tier need, or those named; a failure affects no other topic.

    Raises KafkaError and StorageUnavailableError; ValueError for a name of no topic with a remote tier.
    """
    iceberg = source.iceberg_tables()
    with contextlib.closing(iceberg) if iceberg is not None else contextlib.nullcontext():
        for of in topics_of(source, names):
            try:
                yield from compact(source.lake, of, run)
                if iceberg is not None:
                    iceberg.sync(of)
            except LakeError as error:
                yield MergeOutcome(of.topic, -1, 0, 0, 0, error=str(error))


def topics_of(source: LakeSource, names: Sequence[str]) -> list[LakeTopic]:
    """Return the topics with a remote tier, or those named; raises as `compact_topics`."""
    with source.opened() as stores:
        return [remote_topic.of for remote_topic in stores.remote_topics(names)]


def in_order(files: DataFiles, paths: list[str]) -> Iterator[pa.Table]:
    """Yield the rows of files by offset; memory holds what overlaps, and Korvet's own files do not overlap."""
    groups = sorted(
        (group for path in paths for group in files.groups(path)), key=lambda item: item.first_offset
    )
    pending = _COLUMNS.empty_table()
    for at, group in enumerate(groups):
        rows = pa.Table.from_batches([files.group_rows(group)]).select(_COLUMNS.names).cast(_COLUMNS)
        pending = _sorted(pa.concat_tables([pending, rows]))
        count = pending.num_rows
        if at + 1 < len(groups):
            offsets = pending.column(OFFSET).to_numpy()
            count = int(offsets.searchsorted(groups[at + 1].first_offset))
        yield pending.slice(0, count)
        pending = pending.slice(count)


def _sorted(rows: pa.Table) -> pa.Table:
    offsets = rows.column(OFFSET).to_numpy()
    # Equal offsets stay: a row that is there twice is for an operator to examine, not for a rewrite to hide.
    return rows.sort_by(OFFSET) if (offsets[1:] < offsets[:-1]).any() else rows


def _first(rows: Iterator[pa.Table], count: int) -> Iterator[pa.Table]:
    """Yield tables until they have `count` rows together; others stay in the iterator."""
    for part in rows:
        yield part
        count -= part.num_rows
        if count <= 0:
            return
