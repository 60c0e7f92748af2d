"""Archiving: rounds that bring what topics hold in Redis into their tables, each record once.

A round looks at logs and tables, plans, writes files, commits by compare and set, and then reports to Redis how far the
tables are. Who runs the tasks is an argument. A crash or another archiver may come at any point: what is not committed
does not count, a commit goes on from the offset that its plan began at or is refused, and the next round reports to
Redis what this one could not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
from pyarrow.fs import FileSystem

from korvet import logs
from korvet.errors import ErrorCode, KafkaError, LakeError, StorageUnavailableError
from korvet.lake.files import TableFile, discard, discard_refused
from korvet.lake.scan import PartReader, check_same_past
from korvet.lake.source import LakeSource, LakeStores, SourceTopic, answered
from korvet.lake.table import Advance, ArchiveTable, CommitConflictError, Lake, LakeTopic, lake_errors
from korvet.lake.tasks import (
    RANGES_PER_CORE,
    ArchiveTask,
    OffsetRange,
    PlanError,
    ResumePoint,
    SplitPoint,
    TaskOutcome,
    advance,
    range_bytes,
    resume_point,
    split,
)
from korvet.lake.unreadable import DIRECTORY, KeptFile
from korvet.log.remote.archived import Archived
from korvet.log.types import Bounds
from korvet.topics.types import Partition

_log = logs.Log(__name__)

RunTasks: TypeAlias = Callable[[Sequence[ArchiveTask]], Iterable[TaskOutcome]]
"""Runs tasks, somewhere, and returns their outcomes in any order."""

EndOffsets: TypeAlias = dict[tuple[str, int], int]
"""Offsets that rounds do not pass, by topic id and partition."""


class ArchiveFailure(msgspec.Struct, frozen=True):
    """Why a partition, or with -1 a topic, was not archived to its end."""

    topic: str
    partition: int
    error: str


class LostRange(msgspec.Struct, frozen=True):
    """Offsets `first` to just before `end` that left Redis before they were archived, though nobody deleted them."""

    topic: str
    partition: int
    first: int
    end: int


class UnreadableBatches(msgspec.Struct, frozen=True):
    """Offsets `first` to just before `end` of batches that do not decode: they are kept as bytes (`unreadable`)."""

    topic: str
    partition: int
    first: int
    end: int
    batches: int
    reason: str


class ArchiveRound(msgspec.Struct, kw_only=True):
    """The results of one round or several. `more`: the next round has work; `conflicts`: commits that lost."""

    records: int = 0
    bytes: int = 0
    files: int = 0
    partitions: int = 0
    conflicts: int = 0
    more: bool = False
    failures: list[ArchiveFailure] = []
    lost: list[LostRange] = []
    unreadable: list[UnreadableBatches] = []

    @property
    def moved(self) -> bool:
        """Whether something was archived, by this archiver or by another one."""
        return self.partitions > 0 or self.conflicts > 0

    def add(self, other: ArchiveRound) -> None:
        """Add a later round; its failures replace these, for it has tried again."""
        self.records += other.records
        self.bytes += other.bytes
        self.files += other.files
        self.partitions += other.partitions
        self.conflicts += other.conflicts
        self.more = other.more
        self.failures = other.failures
        self.lost = [*self.lost, *other.lost]
        self.unreadable = [*self.unreadable, *other.unreadable]

    def failed(self, topic: str, partition: int, error: str) -> None:
        """Add and log a failure."""
        _log.error("could not be archived", topic=topic, partition=partition, reason=error)
        self.failures = [*self.failures, ArchiveFailure(topic, partition, error)]

    def refused(self, partition: Partition, message: str, *, gone: bool) -> None:
        """Add why a partition was not archived; that its topic was deleted is no failure."""
        if gone:
            _log.info("the topic was deleted meanwhile", topic=partition.topic, partition=partition.index)
        else:
            self.failed(partition.topic, partition.index, message)

    def refused_by_redis(self, partition: Partition, error: KafkaError) -> None:
        """Add an error of Redis."""
        self.refused(partition, error.message, gone=error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def missed(self, lost: Sequence[LostRange]) -> None:
        """Add and log records that cannot be archived any more."""
        for gap in lost:
            _log.error(
                "records left Redis before they were archived",
                topic=gap.topic,
                partition=gap.partition,
                first=gap.first,
                end=gap.end,
            )
        self.lost = [*self.lost, *lost]

    def passed(self, unreadable: Sequence[UnreadableBatches]) -> None:
        """Add and log batches that the archive holds as bytes only."""
        for batches in unreadable:
            _log.error(
                "batches do not decode: they are archived as bytes, not as records",
                **msgspec.structs.asdict(batches),
                directory=f"{DIRECTORY}/partition={batches.partition}",
            )
        self.unreadable = [*self.unreadable, *unreadable]


class PartitionPlan(NamedTuple):
    """A partition up to `end`, and its ranges; `more`: the log goes on after the last of them.

    `archived` is what Redis does not know yet of the table as it is, 0 for nothing. `splits` and `bytes` are what the
    log's index knows of the sizes.
    """

    partition: Partition
    resume: ResumePoint
    log_start: int
    archived: int
    end: int
    splits: tuple[SplitPoint, ...] = ()
    bytes: int = 0
    ranges: Sequence[OffsetRange] = ()
    more: bool = False

    @property
    def passed(self) -> int | None:
        """The table's next offset if there is no record below it any more, and none after it."""
        return self.resume.first if not self.ranges and self.resume.first > self.resume.expected else None

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to archive."""
        return self.resume.first < self.end

    @property
    def backlog(self) -> int:
        """About how many bytes are not archived."""
        return self.bytes - self.splits[0].bytes if self.splits else 0

    def with_ranges(self, target: int, count_max: int) -> PartitionPlan:
        """Return the plan with at most `count_max` ranges of about `target` bytes."""
        end = SplitPoint(self.end, self.bytes)
        ranges = split(self.resume.first, end, self.splits, target, count_max)
        return self._replace(ranges=ranges, more=self.is_waiting and ranges[-1].end < self.end)


class TopicPlan(NamedTuple):
    """The work for a topic, by the table as it was when that was planned: None if there is none yet."""

    topic: SourceTopic
    table: ArchiveTable | None
    partitions: list[PartitionPlan]


class Archiver:
    """Archives the topics of a source, all that have a remote tier or those of `names`, into the tables of its lake."""

    def __init__(self, source: LakeSource, *, names: Sequence[str] = (), cores: int = 1) -> None:
        """`cores` are the tasks that run at once."""
        self._source = source
        self._names = names
        self._cores = cores
        self._iceberg = source.iceberg_tables()
        # Of these topics the table is known to be the one that Redis knows of.
        self._seen: set[str] = set()

    def plan(self) -> tuple[list[TopicPlan], ArchiveRound]:
        """Return the plan of a round, and an empty round with the reasons that prevent more.

        Raises KafkaError and StorageUnavailableError; ValueError for a name of no topic with a remote tier.
        """
        with self._source.opened() as stores:
            done = ArchiveRound()
            return self._plan(stores, {}, done), done

    def round(self, run: RunTasks, ends: EndOffsets | None = None) -> ArchiveRound:
        """Archive what there is, up to some 100 MB for each core and no further than `ends`; returns what was done.

        New partitions are added to `ends`. Raises as `plan` and `run` do; earlier commits stay.
        """
        done = ArchiveRound()
        with self._source.opened() as stores:
            plans = self._plan(stores, {} if ends is None else ends, done)
            known = [
                Archived(partition.partition, partition.archived, partition.log_start)
                for topic_plan in plans
                for partition in topic_plan.partitions
                if partition.archived
            ]
            _mirror(stores, known, done)
            tables = _tables(stores.writable_lake(), plans, done)
            tasks = [
                task
                for item in plans
                if item.topic.id in tables
                for task in _tasks(item, by_date=tables[item.topic.id].by_date)
            ]
        outcomes: dict[Partition, list[TaskOutcome]] = defaultdict(list)
        for outcome in run(tasks) if tasks else ():
            outcomes[outcome.task.partition].append(outcome)
        # The other connection was idle all the time that the tasks took, and may be lost.
        with self._source.opened() as stores:
            for plan in plans:
                if plan.topic.id in tables:
                    archived = self._commit(plan, tables[plan.topic.id], outcomes, done)
                    _mirror(stores, archived, done)
        for plan in plans:
            self._sync_iceberg(plan.topic.of, done)
        return done

    def _plan(self, stores: LakeStores, ends: EndOffsets, done: ArchiveRound) -> list[TopicPlan]:
        topics = [topic for topic in stores.remote_topics(self._names) if topic.copied]
        # What replicas do not have a failover may take back, and put other records at its offsets.
        bounds = iter(stores.held_bounds([partition for topic in topics for partition in topic.partitions]))
        planned: list[TopicPlan] = []
        for topic in topics:
            of_topic = [next(bounds) for _ in topic.partitions]
            # If Redis says that all is archived nobody has to look into the lake, which may be far away: but once, for
            # it may be another lake.
            if topic.id in self._seen and all(map(_is_archived, of_topic)):
                continue
            failures = len(done.failures)
            try:
                planned.append(_opened(stores, topic, of_topic, ends, done))
            except LakeError as error:
                done.failed(topic.name, -1, str(error))
            if len(done.failures) == failures:
                self._seen.add(topic.id)
        every = [partition for plan in planned for partition in plan.partitions]
        target = range_bytes(sum(item.backlog for item in every), self._cores)
        count_max = max(1, self._cores * RANGES_PER_CORE // max(sum(item.is_waiting for item in every), 1))
        plans = [
            plan._replace(
                partitions=[partition.with_ranges(target, count_max) for partition in plan.partitions]
            )
            for plan in planned
        ]
        done.more = any(partition.more for plan in plans for partition in plan.partitions)
        return plans

    def _commit(
        self,
        topic_plan: TopicPlan,
        table: ArchiveTable,
        outcomes: dict[Partition, list[TaskOutcome]],
        done: ArchiveRound,
    ) -> list[Archived]:
        """Commit what tasks have written of a topic; returns how far its partitions are archived now."""
        advances, files, lost, archived = [], [], [], []
        unreadable: list[UnreadableBatches] = []
        kept: list[KeptFile] = []
        try:
            with lake_errors(table.uri):
                data_files = self._source.lake.filesystem(topic_plan.topic.of)
        except LakeError as error:
            done.failed(topic_plan.topic.name, -1, str(error))
            return []
        for planned in topic_plan.partitions:
            of = sorted(outcomes[planned.partition], key=lambda outcome: outcome.task.first)
            at, taken = advance(planned.resume.expected, of)
            at = max(at, planned.passed or 0)
            discard(data_files, [file for one in of if one not in taken for file in one.files])
            done.more = done.more or any(at < one.end for one in planned.ranges)
            for stopped in (outcome for outcome in of if outcome.error is not None):
                message = f"stopped at offset {stopped.next_offset}: {stopped.error}"
                done.refused(planned.partition, message, gone=stopped.gone)
            if at > planned.resume.expected:
                # What is missing where nothing is committed the next round finds again.
                lost += _lost_ranges(planned, taken)
                files += [file for one in taken for file in one.files]
                left_out = max((one.left_out for one in taken), default=0)
                batches = sum(passed.batches for one in taken for passed in one.unreadable)
                index, expected = planned.partition.index, planned.resume.expected
                advances.append(Advance(index, expected, at, left_out, batches))
                unreadable += _unreadable(planned.partition, taken)
                kept += [file for one in taken for file in one.kept]
                archived.append(Archived(planned.partition, at, planned.log_start))
        if not advances:
            return []
        before = table.version
        try:
            if "://" not in self._source.lake.path:
                _check_shared(table.uri, data_files, [*files, *kept])
            table.append(files, advances)
        except CommitConflictError as error:
            _log.info("another archiver committed first", topic=topic_plan.topic.name, reason=error)
            discard_refused(data_files, files, range(before + 1, table.version + 1))
            done.conflicts += 1
            done.more = True
            return []
        except LakeError as error:
            done.failed(topic_plan.topic.name, -1, str(error))
            return []
        done.records += sum(file.rows for file in files)
        done.bytes += sum(file.size_bytes for file in files)
        done.files += len(files)
        done.partitions += len(advances)
        done.missed(lost)
        done.passed(unreadable)
        return archived

    def _sync_iceberg(self, topic: LakeTopic, done: ArchiveRound) -> None:
        """Bring the topic's Iceberg table into step: with this round's commit, and with any after a crash."""
        if self._iceberg is None:
            return
        try:
            self._iceberg.sync(topic)
        except LakeError as error:
            done.failed(topic.topic, -1, str(error))
            # The next round tries again, also if Redis has nothing more to archive.
            self._seen.discard(topic.topic_id)


def _opened(
    stores: LakeStores,
    topic: SourceTopic,
    bounds: Sequence[Bounds | KafkaError],
    ends: EndOffsets,
    done: ArchiveRound,
) -> TopicPlan:
    """Open the table after the bounds of the logs were read: what they say was archived must be there."""
    reader = PartReader(stores, fail_on_data_loss=False)
    table = stores.lake.open(topic.of)
    plans = []
    for partition, bound in zip(topic.partitions, bounds, strict=True):
        next_offset = None if table is None else table.next_offset(partition.index)
        if isinstance(bound, KafkaError):
            done.refused_by_redis(partition, bound)
            continue
        try:
            # Another archiver may have seen more of the log than these bounds say.
            late = next_offset is not None and next_offset > bound.stable_offset
            known = answered(*stores.held_bounds([partition])) if late else bound
            resume = resume_point(known, next_offset)
            check_same_past(reader, topic, partition, known, table)
        except KafkaError as error:
            if isinstance(error, StorageUnavailableError) and not stores.redis.is_cluster:
                raise
            done.refused_by_redis(partition, error)
        except PlanError as error:
            done.failed(partition.topic, partition.index, str(error))
        else:
            # What transactions may still abort is not archived.
            end = ends.setdefault((topic.id, partition.index), known.stable_offset)
            plan = PartitionPlan(
                partition=partition,
                resume=resume,
                log_start=known.log_start,
                # Redis gets again what it never got, or has forgotten.
                archived=next_offset if next_offset and next_offset > known.archived else 0,
                end=min(end, known.stable_offset),
            )
            plans.append(_sized(stores, plan))
    return TopicPlan(topic, table, plans)


def _check_shared(uri: str, data_files: FileSystem, written: Sequence[TableFile | KeptFile]) -> None:
    """Raise LakeError if a task has written to a directory that has the same name on another machine."""
    with lake_errors(uri):
        infos = data_files.get_file_info([file.path for file in written])
    for item, info in zip(written, infos, strict=True):
        if info.size != item.size_bytes:
            message = f"{item.path} is not where it was written: all machines must share the directory"
            raise LakeError(f"{uri}: {message}")


def _mirror(stores: LakeStores, archived: Sequence[Archived], done: ArchiveRound) -> None:
    """Report to Redis how far the tables are. A crash before leaves that to the next round."""
    for position, outcome in zip(archived, stores.remote.mirror(archived) if archived else (), strict=True):
        if isinstance(outcome, KafkaError):
            done.refused_by_redis(position.partition, outcome)


def _is_archived(bounds: Bounds | KafkaError) -> bool:
    return isinstance(bounds, Bounds) and bounds.archived >= bounds.stable_offset


def _sized(stores: LakeStores, plan: PartitionPlan) -> PartitionPlan:
    """Add the sizes that the index knows, for a log with something to archive."""
    if not plan.is_waiting:
        return plan
    try:
        totals, rows = stores.indexes.page(plan.partition, plan.resume.first)
    except KafkaError:
        # Where files may end is not needed: what is wrong with the log, the task will report.
        return plan
    return plan._replace(splits=tuple(SplitPoint(row.offset, row.bytes) for row in rows), bytes=totals.bytes)


def _tables(lake: Lake, plans: Sequence[TopicPlan], done: ArchiveRound) -> dict[str, ArchiveTable]:
    """Return the tables of topics with something to do, by topic id; creates those that are missing."""
    tables: dict[str, ArchiveTable] = {}
    for plan in plans:
        if not any(partition.ranges or partition.passed for partition in plan.partitions):
            continue
        try:
            lake.claim()
            tables[plan.topic.id] = plan.table or lake.create(plan.topic.of, by_date=plan.topic.by_date)
        except LakeError as error:
            done.failed(plan.topic.name, -1, str(error))
    return tables


def _tasks(topic_plan: TopicPlan, *, by_date: bool) -> list[ArchiveTask]:
    return [
        ArchiveTask(
            partition=partition.partition,
            first=one.first,
            end=one.end,
            bytes=one.bytes,
            last=one is partition.ranges[-1],
            log_append_time=topic_plan.topic.log_append_time,
            by_date=by_date,
        )
        for partition in topic_plan.partitions
        for one in partition.ranges
    ]


def _lost_ranges(planned: PartitionPlan, outcomes: Sequence[TaskOutcome]) -> list[LostRange]:
    gaps = [planned.resume.gap] if planned.resume.gap is not None else []
    gaps += [gap for outcome in outcomes for gap in outcome.gaps]
    partition = planned.partition
    return [LostRange(partition.topic, partition.index, *gap) for gap in gaps]


def _unreadable(partition: Partition, outcomes: Sequence[TaskOutcome]) -> list[UnreadableBatches]:
    return [
        UnreadableBatches(partition.topic, partition.index, *batch)
        for outcome in outcomes
        for batch in outcome.unreadable
    ]
