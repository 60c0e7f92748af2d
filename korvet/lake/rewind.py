"""Bringing tables back to the logs of a Redis that was restored, or has lost its last writes.

Records are committed to the lake before Redis may trim them. So the table of a living lake, or a copy of it that is
newer than the copy of Redis, has all records that Redis lacks. It also has rows that Redis has lost: past the end of a
log, in a transaction that is open there again, or at offsets that got other records since. These rows leave the table
by one commit, and the partition is archived again from the first of them on, for Redis still holds all records that it
does not know as archived. Records that expired in the lake since Redis was copied leave the log there too.

A crash leaves the table as it was, or as it will be. Bytes of batches that do not decode go before the commit: a
second run removes what then has no bytes.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyarrow.fs import FileSystem

from korvet.errors import KafkaError, LakeError
from korvet.lake import expiry
from korvet.lake.compaction import in_order
from korvet.lake.files import TableFile, discard_refused, write_files
from korvet.lake.row_groups import DataFiles
from korvet.lake.schema import OFFSET
from korvet.lake.source import LakeSource, LakeStores, SourceTopic, answered
from korvet.lake.table import COMMITS_MAX, ArchiveTable, CommitConflictError, LakeTopic, lake_errors
from korvet.lake.tasks import PlanError, another_lake
from korvet.lake.unreadable import KeptFile, cut, kept_files
from korvet.lake.verify import DiscrepancyError, compare
from korvet.log.remote.archived import NOT_ARCHIVED
from korvet.log.types import Bounds
from korvet.topics.types import Partition


class RewoundPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that is archived again from offset `first` on, up to which nothing changes; it was up to `end`.

    `records` left its table, with `files` or parts of them. The log begins at `start` now, None: where it did. With an
    `error` nothing was done; partition -1 is all of the topic.
    """

    topic: str
    partition: int
    first: int = 0
    end: int = 0
    records: int = 0
    files: int = 0
    start: int | None = None
    error: str | None = None


class RewindRound(msgspec.Struct, frozen=True):
    """The partitions whose tables are not as Redis, and tables without a topic, which stay as they are."""

    rewound: list[RewoundPartition]
    gone: list[LakeTopic]


class _Rewind(NamedTuple):
    """A partition to archive again from `first` on: `removed` have rows from there on, and `kept` have batches."""

    partition: Partition
    first: int
    end: int
    removed: list[TableFile]
    kept: list[KeptFile]
    start: int | None


def rewind(source: LakeSource, names: Sequence[str], *, dry_run: bool) -> RewindRound:
    """Rewind the topics with tables, or those of `names`; with `dry_run` nothing is changed.

    A failure affects no other topic. Raises KafkaError and StorageUnavailableError; LakeError; ValueError for a name of
    no topic with a remote tier, and if there are tables and no topic at all.
    """
    rewound: list[RewoundPartition] = []
    iceberg = source.iceberg_tables()
    with contextlib.ExitStack() as closing:
        stores = closing.enter_context(source.opened())
        if iceberg is not None:
            closing.enter_context(contextlib.closing(iceberg))
        if not dry_run:
            stores.writable_lake().claim()
        for topic in stores.remote_topics(names, ids={table.topic_id for table in stores.lake.tables()}):
            try:
                rewound += _TableRewind(stores, topic).rewound(dry_run=dry_run)
                if iceberg is not None and not dry_run:
                    iceberg.sync(topic.of)
            except LakeError as error:
                rewound.append(RewoundPartition(topic=topic.name, partition=-1, error=str(error)))
        return RewindRound(rewound, [] if names else expiry.gone(stores))


class _TableRewind:
    def __init__(self, stores: LakeStores, topic: SourceTopic) -> None:
        self._stores = stores
        self._topic = topic

    @functools.cached_property
    def _files(self) -> FileSystem:
        return self._stores.lake.filesystem(self._topic.of)

    @functools.cached_property
    def _data(self) -> DataFiles:
        return self._stores.lake.data_files(self._topic.of)

    def rewound(self, *, dry_run: bool) -> list[RewoundPartition]:
        """Rewind the topic; raises LakeError."""
        for _ in range(COMMITS_MAX):
            # Redis learns of a commit after it, so what it knows now is in the table, whose rows it has after that.
            known = self._stores.logs.bounds(self._topic.partitions)
            table = self._stores.lake.open(self._topic.of)
            plans, failures = self._plans(table, known)
            outcomes = sorted([*map(self._outcome, plans), *failures], key=lambda outcome: outcome.partition)
            if dry_run or table is None:
                return outcomes
            with contextlib.suppress(CommitConflictError):
                self._commit(table, [plan for plan in plans if plan.first < plan.end])
                starts = [(plan.partition, plan.start) for plan in plans if plan.start is not None]
                for answer in self._stores.remote.expire(starts) if starts else ():
                    if isinstance(answer, KafkaError):
                        raise LakeError(f"{self._topic.name}: {answer.message}")
                return outcomes
        raise LakeError(f"{self._topic.name}: others committed before each of {COMMITS_MAX} tries")

    def _plans(
        self, table: ArchiveTable | None, known: Sequence[Bounds | KafkaError]
    ) -> tuple[list[_Rewind], list[RewoundPartition]]:
        by_partition = {} if table is None else table.files_by_partition()
        with lake_errors(self._stores.lake.uri(self._topic.of)):
            all_kept = [] if table is None else kept_files(self._files)
        plans: list[_Rewind] = []
        failures: list[RewoundPartition] = []
        now = self._stores.logs.bounds(self._topic.partitions)
        for partition, before, bounds in zip(self._topic.partitions, known, now, strict=True):
            files = by_partition.get(partition.index, [])
            kept = [file for file in all_kept if file.partition == partition.index]
            try:
                plan = self._plan(partition, table, files, kept, answered(before).archived, answered(bounds))
            except (KafkaError, PlanError) as error:
                text = error.message if isinstance(error, KafkaError) else str(error)
                failure = RewoundPartition(topic=self._topic.name, partition=partition.index, error=text)
                failures.append(failure)
            else:
                if plan is not None:
                    plans.append(plan)
        return plans, failures

    def _plan(
        self,
        partition: Partition,
        table: ArchiveTable | None,
        files: Sequence[TableFile],
        kept: Sequence[KeptFile],
        known: int,
        bounds: Bounds,
    ) -> _Rewind | None:
        """Return what is to be done for a partition, which Redis knew as archived up to `known`; None for nothing.

        Raises PlanError if Redis and table contradict each other below that; KafkaError.
        """
        end = None if table is None else table.next_offset(partition.index)
        if other := another_lake(known, end):
            raise PlanError(other)
        if table is None or end is None:
            return None
        first = self._first_other(partition, end, files, known, bounds)
        stay = [
            file
            for file in (*files, *(batches.as_table_file for batches in kept))
            if file.first_offset < first
        ]
        lowest = min((file.first_offset for file in stay), default=first)
        sparse_end = min(max(bounds.compacted_end, table.left_out(partition.index)), first)
        start = self._later_start(partition, lowest, sparse_end)
        if first == end and start is None:
            return None
        removed = [file for file in files if file.last_offset >= first]
        cut_off = [file for file in kept if first < end and file.end_offset > first]
        return _Rewind(partition, first, end, removed, cut_off, start)

    def _later_start(self, partition: Partition, lowest: int, sparse_end: int) -> int | None:
        """Return where a dense log begins if its first records have expired in the lake, and Redis does not know."""
        start = answered(*self._stores.remote.expire([(partition, 0)]))
        has_expired = partition.is_dense and start != NOT_ARCHIVED and lowest > max(start, sparse_end)
        return lowest if has_expired else None

    def _first_other(
        self, partition: Partition, next_offset: int, files: Sequence[TableFile], known: int, bounds: Bounds
    ) -> int:
        """Return up to which offset a table is as Redis."""
        if next_offset == known:
            return known
        end = max(min(next_offset, bounds.stable_offset), known)
        # One file of what Redis knows too shows that both are of one past.
        shared = max((file.first_offset for file in files if file.first_offset < known), default=known)
        offsets = max(shared, bounds.redis_start), end
        try:
            for _ in compare(self._stores, partition, offsets, files, self._data):
                pass
        except DiscrepancyError as wrong:
            if wrong.finding.kind == "unreadable" or wrong.finding.offset < known:
                message = (
                    f"this Redis has another past than the lake, which has its log up to {known}: {wrong}"
                )
                raise PlanError(message) from wrong
            return wrong.finding.offset
        return end

    def _outcome(self, plan: _Rewind) -> RewoundPartition:
        records = 0
        for file in plan.removed:
            records += file.rows
            if file.first_offset < plan.first:
                for group in self._data.groups(file.path):
                    offsets = self._data.group_stamps(group).column(OFFSET).to_numpy()
                    records -= int((offsets < plan.first).sum())
        return RewoundPartition(
            topic=self._topic.name,
            partition=plan.partition.index,
            first=plan.first,
            end=plan.end,
            records=records,
            files=len(plan.removed),
            start=plan.start,
        )

    def _commit(self, table: ArchiveTable, plans: Sequence[_Rewind]) -> None:
        """Write what stays of files, and commit; raises CommitConflictError, LakeError."""
        if not plans:
            return
        table.check_rewritable()
        now_ms = time.time_ns() // 1_000_000
        written: list[TableFile] = []
        with lake_errors(table.uri):
            for plan in plans:
                for file in plan.removed:
                    if file.first_offset < plan.first:
                        rows = _below(self._data, file, plan.first)
                        index, by_date = plan.partition.index, bool(file.date)
                        written += write_files(self._files, index, rows, now_ms, by_date=by_date)
                for kept in plan.kept:
                    cut(self._files, kept, plan.first)
        removed = [file for plan in plans for file in plan.removed]
        number = table.version + 1
        try:
            table.rewind(removed, written, {plan.partition.index: plan.first for plan in plans}, now_ms)
        except CommitConflictError:
            discard_refused(self._files, written, [number])
            raise


def _below(data: DataFiles, file: TableFile, end: int) -> Iterator[pa.Table]:
    for rows in in_order(data, [file.path]):
        yield rows.slice(0, int(rows.column(OFFSET).to_numpy().searchsorted(end)))
