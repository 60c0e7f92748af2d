"""Archiving: rounds that bring what topics hold in Redis into their tables, each record once.

Knows the order of things: look at log and table, plan, write files, commit by compare and set, tell Redis. Nothing of
Spark: who runs the tasks is an argument. A crash or another archiver may come anywhere: what is not committed does not
count, a commit goes on from the offset that its plan began at or is refused, and the next round tells Redis what this
one could not.

What a round of archiving did: what came into the lake, what did not, and why.

Knows counts and errors, each of which is logged as it is noted; nothing of how records are archived.
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


class ArchiveFailure(msgspec.Struct, frozen=True):
    """Why a partition, or with -1 a topic, did not come as far as it should."""

    topic: str
    partition: int
    error: str


class LostRange(msgspec.Struct, frozen=True):
    """Offsets `first` to just before `behind` that left Redis before they were archived, though nobody deleted them."""

    topic: str
    partition: int
    first: int
    behind: int


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
        """Take in what a later round did; its failures replace these, for it has tried again."""
        self.records += other.records
        self.bytes += other.bytes
        self.files += other.files
        self.partitions += other.partitions
        self.conflicts += other.conflicts
        self.more = other.more
        self.failures = other.failures
        self.lost = [*self.lost, *other.lost]

    def failed(self, failure: ArchiveFailure) -> None:
        """Note what did not come as far as it should."""
        _log.error(
            "could not be archived", topic=failure.topic, partition=failure.partition, reason=failure.error
        )
        self.failures = [*self.failures, failure]

    def refused(self, partition: Partition, error: KafkaError) -> None:
        """Note why Redis said no; that a topic was deleted is no failure."""
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            _gone(partition)
        else:
            self.failed(ArchiveFailure(partition.topic, partition.index, error.message))

    def stopped(self, outcome: TaskOutcome) -> None:
        """Note why a task ended early, where an error was the reason."""
        partition = outcome.task.partition
        if outcome.gone:
            _gone(partition)
        elif outcome.error is not None:
            message = f"stopped at offset {outcome.next_offset}: {outcome.error}"
            self.failed(ArchiveFailure(partition.topic, partition.index, message))

    def missed(self, lost: Sequence[LostRange]) -> None:
        """Note records that can be archived no more."""
        for gap in lost:
            _log.error(
                "records left Redis before they were archived",
                topic=gap.topic,
                partition=gap.partition,
                first=gap.first,
                behind=gap.behind,
            )
        self.lost = [*self.lost, *lost]


def _gone(partition: Partition) -> None:
    _log.info("the topic was deleted meanwhile", topic=partition.topic, partition=partition.index)


RunTasks: TypeAlias = Callable[[Sequence[ArchiveTask]], Iterable[TaskOutcome]]
"""Does tasks, somewhere, and returns their outcomes in any order."""


class PartitionPlan(NamedTuple):
    """The ranges of one partition; `more`: the log goes on behind the last of them.

    `archived` is what Redis is to be told of the table as it is, 0 for nothing.
    """

    partition: Partition
    begin: ResumePoint
    log_start: int
    archived: int
    ranges: list[OffsetRange]
    more: bool

    @property
    def passed(self) -> int | None:
        """The offset that the table is to have next where there is no record below it any more, and none behind it."""
        return self.begin.first if not self.ranges and self.begin.first > self.begin.expected else None


class TopicPlan(NamedTuple):
    """What is to be done for a topic, by the table as it was when that was planned: None where there is none yet."""

    topic: SourceTopic
    table: ArchiveTable | None
    partitions: list[PartitionPlan]


EndOffsets: TypeAlias = dict[tuple[str, int], int]
"""Offsets that rounds are not to pass, by topic id and partition."""


class Archiver:
    """Archives the topics of a source, all that have a cold tier or those of `names`, into the tables of `lake`."""

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
        # Of these topics the table is known to be the one that Redis was told of.
        self._seen: set[str] = set()

    def plan(self) -> tuple[list[TopicPlan], ArchiveRound]:
        """Return what a round would do, and a round that did nothing with what prevents more.

        Raises KafkaError and StorageUnavailableError; ValueError for a name of no topic with a cold tier.
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
            self._mirror(stores, [_known(each) for some in plans for each in some.partitions], done)
            tables = self._tables(plans, done)
            tasks = [task for some in plans if some.topic.id in tables for task in _tasks(some, self._lake)]
        outcomes: dict[Partition, list[TaskOutcome]] = defaultdict(list)
        for outcome in run(tasks) if tasks else ():
            outcomes[outcome.task.partition].append(outcome)
        # The other connection was idle all the time that the tasks took, and may be lost.
        with self._source.opened() as stores:
            for some in plans:
                if some.topic.id in tables:
                    archived = self._commit(some, tables[some.topic.id], outcomes, done)
                    self._mirror(stores, archived, done)
        return done

    def _plan(self, stores: LakeStores, ends: EndOffsets, done: ArchiveRound) -> list[TopicPlan]:
        topics = self._source.topics(stores, self._names)
        bounds = stores.logs.bounds([each for topic in topics for each in topic.partitions])
        at = iter(bounds)
        looked = []
        for topic in topics:
            logs_of = [next(at) for _ in topic.partitions]
            # Where Redis says that all is archived nobody has to look into the lake, which may be far away: but once,
            # for it may be another lake.
            if topic.id in self._seen and all(map(_is_archived, logs_of)):
                continue
            failures = len(done.failures)
            if look := self._look(stores, topic, logs_of, done):
                looked.append(look)
            if len(done.failures) == failures:
                self._seen.add(topic.id)
        backlog = 0
        sized: list[tuple[SourceTopic, ArchiveTable | None, list[_PartitionState]]] = []
        for topic, table, partitions in looked:
            bounded = [_bounded(each, ends) for each in partitions]
            sized.append((topic, table, [_sized(stores, each) for each in bounded]))
            backlog += sum(each.backlog for each in sized[-1][2])
        waiting = sum(each.begin.first < each.end for _, _, some in sized for each in some)
        target = range_bytes(backlog, self._cores)
        count_max = max(1, self._cores * RANGES_PER_CORE // max(waiting, 1))
        plans = []
        for topic, table, some in sized:
            planned = [_planned(each, target, count_max) for each in some]
            plans.append(TopicPlan(topic, table, planned))
            done.more = done.more or any(each.more for each in planned)
        return plans

    def _look(
        self,
        stores: LakeStores,
        topic: SourceTopic,
        bounds: Sequence[Bounds | KafkaError],
        done: ArchiveRound,
    ) -> tuple[SourceTopic, ArchiveTable | None, list[_PartitionState]] | None:
        """Open the table, behind the look at the logs: what they say was archived must be there."""
        lake = Lake(self._lake, self._options)
        reading = PartReader(stores, lake, self._source, fail_on_data_loss=False)
        try:
            table = ArchiveTable.open(self._lake, topic.name, topic.id, self._options)
            looked = []
            for partition, each in zip(topic.partitions, bounds, strict=True):
                next_offset = None if table is None else table.next_offset(partition.index)
                if isinstance(each, Bounds) and next_offset is not None and next_offset > each.high_watermark:
                    # Another archiver may have seen more of the log than that look did.
                    [each] = stores.logs.bounds([partition])  # noqa: PLW2901 - a later look at the same
                if isinstance(each, KafkaError):
                    done.refused(partition, each)
                    continue
                why = contradiction(reading, topic, partition, each, next_offset or 0)
                if why is not None:
                    done.failed(ArchiveFailure(partition.topic, partition.index, why))
                elif (begin := _begin(partition, next_offset, each, done)) is not None:
                    known = next_offset or 0
                    looked.append(
                        _PartitionState(
                            partition, begin, each.log_start, known, each.archived, each.high_watermark
                        )
                    )
        except LakeError as error:
            done.failed(ArchiveFailure(topic.name, -1, str(error)))
            return None
        return topic, table, looked

    def _tables(self, plans: Sequence[TopicPlan], done: ArchiveRound) -> dict[str, ArchiveTable]:
        """Return the tables of topics with something to do, by topic id; those that are missing are made now."""
        tables: dict[str, ArchiveTable] = {}
        for some in plans:
            if not any(each.ranges or each.passed for each in some.partitions):
                continue
            try:
                tables[some.topic.id] = some.table or ArchiveTable.create(
                    self._lake, some.topic.name, some.topic.id, self._options
                )
            except LakeError as error:
                done.failed(ArchiveFailure(some.topic.name, -1, str(error)))
        return tables

    def _commit(
        self,
        some: TopicPlan,
        table: ArchiveTable,
        outcomes: dict[Partition, list[TaskOutcome]],
        done: ArchiveRound,
    ) -> list[Archived]:
        """Commit what tasks have written of a topic; returns what Redis is to be told of it."""
        advances, files, lost = [], [], []
        archived = []
        for each in some.partitions:
            of = sorted(outcomes[each.partition], key=lambda outcome: outcome.task.first)
            steps = [WrittenRange(one.task.first, one.task.behind, one.next_offset) for one in of]
            at, taken = advance(each.begin.expected, steps)
            at = max(at, each.passed or 0)
            hidden = (one.file for place, one in enumerate(of) if place not in taken)
            discard(table.uri, self._options, [file for file in hidden if file is not None])
            lost += _gaps(each, [of[place] for place in taken])
            done.more = done.more or any(at < one.behind for one in each.ranges)
            for outcome in of:
                done.stopped(outcome)
            if at > each.begin.expected:
                files += [file for place in taken if (file := of[place].file) is not None]
                advances.append(Advance(each.partition.index, each.begin.expected, at))
                archived.append(Archived(each.partition, at, each.log_start))
        if not advances:
            return []
        before = table.version
        try:
            self._check_seen(table, files)
            table.append(files, advances)
        except CommitConflictError as error:
            _log.info("another archiver came first", topic=some.topic.name, reason=error)
            discard_refused(table.uri, self._options, files, range(before + 1, table.version + 1))
            done.conflicts += 1
            done.more = True
            return []
        except LakeError as error:
            done.failed(ArchiveFailure(some.topic.name, -1, str(error)))
            return []
        done.records += sum(file.rows for file in files)
        done.bytes += sum(file.size_bytes for file in files)
        done.files += len(files)
        done.partitions += len(advances)
        done.missed(lost)
        return archived

    def _check_seen(self, table: ArchiveTable, written: Sequence[WrittenFile]) -> None:
        """Raise LakeError where a task has written to a directory that has the same name on another machine."""
        if "://" in self._lake or not written:
            return
        try:
            found = filesystem(table.uri, self._options).get_file_info([each.path for each in written])
        except OSError as error:
            raise LakeError(f"{table.uri}: {error}") from error
        for each, info in zip(written, found, strict=True):
            if info.size != each.size_bytes:
                message = f"{each.path} is not where it was written: a directory has to be one that all machines share"
                raise LakeError(f"{table.uri}: {message}")

    def _mirror(self, stores: LakeStores, archived: Iterable[Archived | None], done: ArchiveRound) -> None:
        """Tell Redis how far the tables are. A crash before leaves that to the next round."""
        told = [each for each in archived if each is not None]
        if not told:
            return
        for each, outcome in zip(told, stores.lake.mirror(told), strict=True):
            if isinstance(outcome, KafkaError):
                done.refused(each.partition, outcome)


class _PartitionState(NamedTuple):
    """A partition that can be archived: from where on, to which end, and how far table and Redis know it to be."""

    partition: Partition
    begin: ResumePoint
    log_start: int
    next_offset: int
    mirrored: int
    end: int
    cuts: tuple[SplitPoint, ...] = ()
    bytes: int = 0

    @property
    def backlog(self) -> int:
        return self.bytes - self.cuts[0].bytes if self.cuts else 0


def _is_archived(bounds: Bounds | KafkaError) -> bool:
    return isinstance(bounds, Bounds) and bounds.archived >= bounds.high_watermark


def _begin(
    partition: Partition, next_offset: int | None, bounds: Bounds, done: ArchiveRound
) -> ResumePoint | None:
    cold = bounds.remote
    extent = LogExtent(
        next_offset=next_offset,
        local_start=bounds.log_start if cold is None else cold.end,
        end=bounds.high_watermark,
        archived=bounds.archived,
        deleted=cold is None,
    )
    try:
        return resume_point(extent)
    except PlanError as error:
        done.failed(ArchiveFailure(partition.topic, partition.index, str(error)))
        return None


def _bounded(looked: _PartitionState, ends: EndOffsets) -> _PartitionState:
    end = ends.setdefault((looked.partition.topic_id, looked.partition.index), looked.end)
    return looked._replace(end=min(looked.end, end))


def _sized(stores: LakeStores, looked: _PartitionState) -> _PartitionState:
    """Add what the index tells of sizes, for a log with something to archive."""
    if looked.begin.first >= looked.end:
        return looked
    try:
        totals, rows = stores.indexes.page(looked.partition, looked.begin.first)
    except KafkaError:
        # Where cuts may lie is not needed: what is wrong with the log, the task will tell.
        return looked
    cuts = tuple(SplitPoint(row.offset, row.bytes) for row in rows)
    return looked._replace(cuts=cuts, bytes=totals.bytes)


def _planned(looked: _PartitionState, target: int, count_max: int) -> PartitionPlan:
    first, end = looked.begin.first, SplitPoint(looked.end, looked.bytes)
    ranges = split(first, end, looked.cuts, target, count_max)
    more = first < looked.end and ranges[-1].behind < looked.end
    # Redis is told again what it was not told, or has forgotten.
    archived = looked.next_offset if looked.next_offset > looked.mirrored else 0
    return PartitionPlan(looked.partition, looked.begin, looked.log_start, archived, ranges, more)


def _known(planned: PartitionPlan) -> Archived | None:
    if not planned.archived:
        return None
    return Archived(planned.partition, planned.archived, planned.log_start)


def _tasks(some: TopicPlan, lake: str) -> list[ArchiveTask]:
    return [
        ArchiveTask(
            partition=each.partition,
            first=one.first,
            behind=one.behind,
            bytes=one.bytes,
            last=one is each.ranges[-1],
            uri=table_uri(lake, some.topic.name, some.topic.id),
            log_append_time=some.topic.log_append_time,
        )
        for each in some.partitions
        for one in each.ranges
    ]


def _gaps(planned: PartitionPlan, outcomes: Sequence[TaskOutcome]) -> list[LostRange]:
    found = [planned.begin.gap] if planned.begin.gap is not None else []
    found += [gap for outcome in outcomes for gap in outcome.gaps]
    partition = planned.partition
    return [LostRange(partition.topic, partition.index, *gap) for gap in found]
