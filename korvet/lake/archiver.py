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

from korvet import logs
from korvet.errors import ErrorCode, KafkaError, LakeError
from korvet.lake.files import StorageOptions, WrittenFile, discard, discard_refused, filesystem
from korvet.lake.scan import PartReader, contradiction
from korvet.lake.source import LakeSource, LakeStores, SourceTopic
from korvet.lake.table import Advance, ArchiveTable, CommitConflictError, Lake, table_uri
from korvet.lake.tasks import (
    RANGES_PER_CORE,
    ArchiveTask,
    LogExtent,
    OffsetRange,
    PlanError,
    ResumePoint,
    SplitPoint,
    TaskOutcome,
    WrittenRange,
    advance,
    range_bytes,
    resume_point,
    split,
)
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


class ArchiveRound(msgspec.Struct, kw_only=True):
    """What a round did, or several. `more`: it left a part of what it found; `conflicts`: commits that came second."""

    records: int = 0
    bytes: int = 0
    files: int = 0
    partitions: int = 0
    conflicts: int = 0
    more: bool = False
    failures: list[ArchiveFailure] = []
    lost: list[LostRange] = []

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

    def failed(self, topic: str, partition: int, error: str) -> None:
        """Add and log a failure."""
        _log.error("could not be archived", topic=topic, partition=partition, reason=error)
        self.failures = [*self.failures, ArchiveFailure(topic, partition, error)]

    def refused(self, partition: Partition, error: KafkaError) -> None:
        """Add an error of Redis; that a topic was deleted is no failure."""
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            _log.info("the topic was deleted meanwhile", topic=partition.topic, partition=partition.index)
        else:
            self.failed(partition.topic, partition.index, error.message)

    def stopped(self, outcome: TaskOutcome) -> None:
        """Add the error that ended a task early, if one did."""
        if outcome.error is not None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if outcome.gone else ErrorCode.KAFKA_STORAGE_ERROR
            message = f"stopped at offset {outcome.next_offset}: {outcome.error}"
            self.refused(outcome.task.partition, KafkaError(code, message))

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


class PartitionPlan(NamedTuple):
    """The ranges of one partition; `more`: the log goes on after the last of them.

    `archived` is what Redis does not know yet of the table as it is, 0 for nothing.
    """

    partition: Partition
    resume: ResumePoint
    log_start: int
    archived: int
    ranges: list[OffsetRange]
    more: bool

    @property
    def passed(self) -> int | None:
        """The table's next offset if there is no record below it any more, and none after it."""
        return self.resume.first if not self.ranges and self.resume.first > self.resume.expected else None


class TopicPlan(NamedTuple):
    """The work for a topic, by the table as it was when that was planned: None if there is none yet."""

    topic: SourceTopic
    table: ArchiveTable | None
    partitions: list[PartitionPlan]


class _PartitionState(NamedTuple):
    """A partition that can be archived: from where on, to which end, and how far table and Redis know it to be."""

    partition: Partition
    resume: ResumePoint
    log_start: int
    next_offset: int
    mirrored: int
    end: int
    splits: tuple[SplitPoint, ...] = ()
    bytes: int = 0

    @property
    def backlog(self) -> int:
        """About how many bytes are not archived."""
        return self.bytes - self.splits[0].bytes if self.splits else 0


class Archiver:
    """Archives the topics of a source, all that have a remote tier or those of `names`, into the tables of `lake`."""

    def __init__(
        self,
        source: LakeSource,
        lake: str,
        storage_options: StorageOptions = None,
        *,
        names: Sequence[str] = (),
        cores: int = 1,
    ) -> None:
        """`cores` are the tasks that run at once."""
        self._source = source
        self._lake = lake
        self._options = storage_options
        self._names = names
        self._cores = cores
        # Of these topics the table is known to be the one that Redis knows of.
        self._seen: set[str] = set()

    def plan(self) -> tuple[list[TopicPlan], ArchiveRound]:
        """Return what a round would do, and a round that did nothing with what prevents more.

        Raises KafkaError and StorageUnavailableError; ValueError for a name of no topic with a remote tier.
        """
        with self._source.opened() as stores:
            done = ArchiveRound()
            return self._plan(stores, {}, done), done

    def round(self, run: RunTasks, ends: EndOffsets | None = None) -> ArchiveRound:
        """Archive what there is, up to some 100 MB for each core and no further than `ends`; returns what was done.

        Partitions that are new are added to `ends`. Raises as `plan` does, and what `run` raises; what was committed by
        then stays.
        """
        done = ArchiveRound()
        with self._source.opened() as stores:
            plans = self._plan(stores, {} if ends is None else ends, done)
            known = [
                Archived(each.partition, each.archived, each.log_start)
                for topic_plan in plans
                for each in topic_plan.partitions
                if each.archived
            ]
            self._mirror(stores, known, done)
            tables = self._tables(plans, done)
            tasks = [task for each in plans if each.topic.id in tables for task in _tasks(each, self._lake)]
        outcomes: dict[Partition, list[TaskOutcome]] = defaultdict(list)
        for outcome in run(tasks) if tasks else ():
            outcomes[outcome.task.partition].append(outcome)
        # The other connection was idle all the time that the tasks took, and may be lost.
        with self._source.opened() as stores:
            for each in plans:
                if each.topic.id in tables:
                    archived = self._commit(each, tables[each.topic.id], outcomes, done)
                    self._mirror(stores, archived, done)
        return done

    def _plan(self, stores: LakeStores, ends: EndOffsets, done: ArchiveRound) -> list[TopicPlan]:
        topics = self._source.topics(stores, self._names)
        bounds = iter(stores.logs.bounds([each for topic in topics for each in topic.partitions]))
        found: list[tuple[SourceTopic, ArchiveTable | None, list[_PartitionState]]] = []
        for topic in topics:
            of_topic = [next(bounds) for _ in topic.partitions]
            # If Redis says that all is archived nobody has to look into the lake, which may be far away: but once, for
            # it may be another lake.
            if topic.id in self._seen and all(map(_is_archived, of_topic)):
                continue
            failures = len(done.failures)
            try:
                table, states = self._states(stores, topic, of_topic, done)
                found.append((topic, table, [_sized(stores, _bounded(each, ends)) for each in states]))
            except LakeError as error:
                done.failed(topic.name, -1, str(error))
            if len(done.failures) == failures:
                self._seen.add(topic.id)
        every = [each for _, _, states in found for each in states]
        waiting = sum(each.resume.first < each.end for each in every)
        target = range_bytes(sum(each.backlog for each in every), self._cores)
        count_max = max(1, self._cores * RANGES_PER_CORE // max(waiting, 1))
        plans = [
            TopicPlan(topic, table, [_planned(each, target, count_max) for each in states])
            for topic, table, states in found
        ]
        done.more = any(each.more for topic_plan in plans for each in topic_plan.partitions)
        return plans

    def _states(
        self,
        stores: LakeStores,
        topic: SourceTopic,
        bounds: Sequence[Bounds | KafkaError],
        done: ArchiveRound,
    ) -> tuple[ArchiveTable | None, list[_PartitionState]]:
        """Open the table after the bounds of the logs were read: what they say was archived must be there."""
        reader = PartReader(stores, Lake(self._lake, self._options), self._source, fail_on_data_loss=False)
        table = ArchiveTable.open(self._lake, topic.name, topic.id, self._options)
        states = []
        for partition, each in zip(topic.partitions, bounds, strict=True):
            next_offset = None if table is None else table.next_offset(partition.index)
            if isinstance(each, Bounds) and next_offset is not None and next_offset > each.high_watermark:
                # Another archiver may have seen more of the log than these bounds say.
                [each] = stores.logs.bounds([partition])  # noqa: PLW2901 - the same, read later
            if isinstance(each, KafkaError):
                done.refused(partition, each)
                continue
            try:
                resume = resume_point(LogExtent.of(each, next_offset))
            except PlanError as error:
                done.failed(partition.topic, partition.index, str(error))
                continue
            why = contradiction(reader, topic, partition, each, next_offset or 0)
            if why is not None:
                done.failed(partition.topic, partition.index, why)
                continue
            state = _PartitionState(
                partition, resume, each.log_start, next_offset or 0, each.archived, each.high_watermark
            )
            states.append(state)
        return table, states

    def _tables(self, plans: Sequence[TopicPlan], done: ArchiveRound) -> dict[str, ArchiveTable]:
        """Return the tables of topics with something to do, by topic id; creates those that are missing."""
        tables: dict[str, ArchiveTable] = {}
        for each in plans:
            if not any(partition.ranges or partition.passed for partition in each.partitions):
                continue
            topic = each.topic
            try:
                tables[topic.id] = each.table or ArchiveTable.create(
                    self._lake, topic.name, topic.id, self._options
                )
            except LakeError as error:
                done.failed(topic.name, -1, str(error))
        return tables

    def _commit(
        self,
        topic_plan: TopicPlan,
        table: ArchiveTable,
        outcomes: dict[Partition, list[TaskOutcome]],
        done: ArchiveRound,
    ) -> list[Archived]:
        """Commit what tasks have written of a topic; returns how far its partitions are archived now."""
        advances, files, lost = [], [], []
        archived = []
        for each in topic_plan.partitions:
            of = sorted(outcomes[each.partition], key=lambda outcome: outcome.task.first)
            steps = [WrittenRange(one.task.first, one.task.end, one.next_offset) for one in of]
            at, taken = advance(each.resume.expected, steps)
            at = max(at, each.passed or 0)
            hidden = (one.file for place, one in enumerate(of) if place not in taken)
            discard(table.uri, self._options, [file for file in hidden if file is not None])
            lost += _lost_ranges(each, [of[place] for place in taken])
            done.more = done.more or any(at < one.end for one in each.ranges)
            for outcome in of:
                done.stopped(outcome)
            if at > each.resume.expected:
                files += [file for place in taken if (file := of[place].file) is not None]
                advances.append(Advance(each.partition.index, each.resume.expected, at))
                archived.append(Archived(each.partition, at, each.log_start))
        if not advances:
            return []
        before = table.version
        try:
            self._check_shared(table, files)
            table.append(files, advances)
        except CommitConflictError as error:
            _log.info("another archiver committed first", topic=topic_plan.topic.name, reason=error)
            discard_refused(table.uri, self._options, files, range(before + 1, table.version + 1))
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
        return archived

    def _check_shared(self, table: ArchiveTable, written: Sequence[WrittenFile]) -> None:
        """Raise LakeError if a task has written to a directory that has the same name on another machine."""
        if "://" in self._lake or not written:
            return
        try:
            found = filesystem(table.uri, self._options).get_file_info([each.path for each in written])
        except OSError as error:
            raise LakeError(f"{table.uri}: {error}") from error
        for each, info in zip(written, found, strict=True):
            if info.size != each.size_bytes:
                message = f"{each.path} is not where it was written: all machines must share the directory"
                raise LakeError(f"{table.uri}: {message}")

    def _mirror(self, stores: LakeStores, archived: Sequence[Archived], done: ArchiveRound) -> None:
        """Report to Redis how far the tables are. A crash before leaves that to the next round."""
        if not archived:
            return
        for each, outcome in zip(archived, stores.lake.mirror(archived), strict=True):
            if isinstance(outcome, KafkaError):
                done.refused(each.partition, outcome)


def _is_archived(bounds: Bounds | KafkaError) -> bool:
    return isinstance(bounds, Bounds) and bounds.archived >= bounds.high_watermark


def _bounded(state: _PartitionState, ends: EndOffsets) -> _PartitionState:
    end = ends.setdefault((state.partition.topic_id, state.partition.index), state.end)
    return state._replace(end=min(state.end, end))


def _sized(stores: LakeStores, state: _PartitionState) -> _PartitionState:
    """Add the sizes that the index knows, for a log with something to archive."""
    if state.resume.first >= state.end:
        return state
    try:
        totals, rows = stores.indexes.page(state.partition, state.resume.first)
    except KafkaError:
        # Where files may end is not needed: what is wrong with the log, the task will report.
        return state
    splits = tuple(SplitPoint(row.offset, row.bytes) for row in rows)
    return state._replace(splits=splits, bytes=totals.bytes)


def _planned(state: _PartitionState, target: int, count_max: int) -> PartitionPlan:
    first, end = state.resume.first, SplitPoint(state.end, state.bytes)
    ranges = split(first, end, state.splits, target, count_max)
    more = first < state.end and ranges[-1].end < state.end
    # Redis gets again what it never got, or has forgotten.
    archived = state.next_offset if state.next_offset > state.mirrored else 0
    return PartitionPlan(state.partition, state.resume, state.log_start, archived, ranges, more)


def _tasks(topic_plan: TopicPlan, lake: str) -> list[ArchiveTask]:
    topic = topic_plan.topic
    return [
        ArchiveTask(
            partition=each.partition,
            first=one.first,
            end=one.end,
            bytes=one.bytes,
            last=one is each.ranges[-1],
            uri=table_uri(lake, topic.name, topic.id),
            log_append_time=topic.log_append_time,
        )
        for each in topic_plan.partitions
        for one in each.ranges
    ]


def _lost_ranges(planned: PartitionPlan, outcomes: Sequence[TaskOutcome]) -> list[LostRange]:
    found = [planned.resume.gap] if planned.resume.gap is not None else []
    found += [gap for outcome in outcomes for gap in outcome.gaps]
    partition = planned.partition
    return [LostRange(partition.topic, partition.index, *gap) for gap in found]
