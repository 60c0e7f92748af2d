"""Retention of whole logs in the lake: what is too old or too much leaves the log, then the table, then the disk.

Knows Kafka's rules for a cold tier (KIP-405): files go in the order of their offsets, as long as all timestamps of the
first one are older than retention.ms, or the log has more than retention.bytes without it; and files below the start of
the log, which DeleteRecords moves, go in any case. First the start of the log is moved in Redis, so no consumer is sent
to a file that is to go; a crash behind that leaves files that the next pass takes. Nothing that is not archived is
looked at: that is local retention's, in the brokers.

Upkeep of all tables at once: small files into large ones, then what logs are not to keep, then files without a name.

Knows the order, and what is worth a log line; compaction and expiry know the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from korvet import logs
from korvet.errors import ErrorCode, KafkaError, LakeError
from korvet.lake.compaction import RunMerges, compact_topics
from korvet.lake.files import DataFiles, filesystem
from korvet.lake.schema import TIMESTAMP, TIMESTAMP_MS, milliseconds_of
from korvet.lake.source import LakeSource, LakeStores, RetentionLimits, SourceTopic
from korvet.lake.table import (
    COMMITS_MAX,
    ArchiveTable,
    CommitConflictError,
    Lake,
    LakeTopic,
    TableFile,
    list_tables,
)
from korvet.log.remote.archived import NOT_ARCHIVED
from korvet.topics.types import Partition

VACUUM_HOURS_MIN = 24
"""Files that no commit names stay so long: an archiver may be about to name them, or a query read them."""

_BITS_ANY = 10
"""Whatever the log of a partition has: only its state is asked for."""


class ExpiredFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What left a partition, which starts at `start` in the lake now; nothing did where `error` says why."""

    topic: str
    partition: int
    start: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    error: str | None = None


class VacuumedFiles(msgspec.Struct, frozen=True):
    """How many files below a topic's table were deleted, or why none were."""

    topic: str
    files: int = 0
    error: str | None = None


class ExpiryRound(msgspec.Struct, frozen=True):
    """What one pass over topics did. `gone` are tables without a topic, which it leaves where they are."""

    expired: list[ExpiredFiles]
    vacuumed: list[VacuumedFiles]
    gone: list[LakeTopic]

    @property
    def moved(self) -> bool:
        """Whether anything went, or is to go."""
        return any(each.files for each in self.expired) or any(each.files for each in self.vacuumed)

    @property
    def failed(self) -> bool:
        """Whether something could not be done."""
        expired = any(each.error is not None for each in self.expired)
        return expired or any(each.error is not None for each in self.vacuumed)


Largest = Callable[[TableFile], int]
"""Returns the largest timestamp (ms) in a file, -1 where no record has one."""


def count_expired(
    files: Sequence[TableFile], retention: RetentionLimits, now_ms: int, hot_bytes: int, largest: Largest
) -> int:
    """Return how many files, the first of a partition, are not to be kept.

    `hot_bytes` is what of the log is in Redis only. Records without a timestamp are as old as those behind them.
    """
    if not retention.delete:
        return 0
    by_time = by_size = 0
    if retention.ms >= 0:
        for count, file in enumerate(files, 1):
            timestamp = largest(file)
            if timestamp > now_ms - retention.ms:
                break
            if timestamp >= 0:
                by_time = count
    if retention.bytes >= 0:
        excess = sum(file.size_bytes for file in files) + hot_bytes - retention.bytes
        by_size = sum(gone <= excess for gone in accumulate(file.size_bytes for file in files))
    return max(by_time, by_size)


def start_after(files: Sequence[TableFile], count: int, next_offset: int) -> int:
    """Return where a log starts whose first `count` files leave it; all of it is archived below `next_offset`."""
    if count == len(files):
        return next_offset
    # Files that others have written may overlap.
    return max(files[count].first_offset, *(each.last_offset + 1 for each in files[:count]), 0)


class Expiry:
    """Lets go what the logs of a source are not to keep in a lake."""

    def __init__(self, source: LakeSource, lake: Lake, *, dry_run: bool = False) -> None:
        """With `dry_run` it only tells what would go."""
        self._source = source
        self._lake = lake
        self._dry_run = dry_run

    def round(self, names: Sequence[str], hours: int, now_ms: int) -> ExpiryRound:
        """Do for the topics that have tables, or for those named, what there is to do; then tell which tables are gone.

        What fails hinders no other topic. Raises KafkaError and StorageUnavailableError; ValueError for a name of no
        topic with a cold tier, and as `vacuum` does.
        """
        expired: list[ExpiredFiles] = []
        vacuumed: list[VacuumedFiles] = []
        with self._source.opened() as stores:
            # What was archived of a topic goes by its retention, whether or not more is archived.
            archived = {each.topic_id for each in list_tables(self._lake)}
            topics = self._source.topics(stores, names, ids=archived)
            retentions = self._source.retentions(stores)
            for topic in topics:
                try:
                    if topic.id in retentions:
                        expired += self.expire(stores, topic, retentions[topic.id], now_ms)
                    else:
                        message = "nobody can tell what it is to keep"
                        expired.append(ExpiredFiles(topic=topic.name, partition=-1, error=message))
                except LakeError as error:
                    expired.append(ExpiredFiles(topic=topic.name, partition=-1, error=str(error)))
                    continue
                vacuumed.append(self.vacuum(topic, hours))
            unknown = [] if names else gone(stores, self._lake)
        return ExpiryRound(expired, vacuumed, unknown)

    def expire(
        self, stores: LakeStores, topic: SourceTopic, retention: RetentionLimits, now_ms: int
    ) -> list[ExpiredFiles]:
        """Let files leave the log and the table of a topic; returns what did, of the partitions that have files.

        Raises StorageUnavailableError; LakeError where the table cannot be read or written.
        """
        table = ArchiveTable.open(self._lake.path, topic.name, topic.id, self._lake.storage_options)
        if table is None:
            return []
        outcomes: list[ExpiredFiles] = []
        starts: dict[int, int] = {}
        for partition in topic.partitions:
            some = [file for file in table.files() if file.partition == partition.index]
            if not some:
                continue
            try:
                wished = self._wished(stores, partition, table, some, retention, now_ms)
                start = self._move(stores, partition, wished)
            except (KafkaError, LakeError) as error:
                outcomes.append(ExpiredFiles(topic=topic.name, partition=partition.index, error=_text(error)))
                continue
            starts[partition.index] = start
            outcomes.append(_expired(topic.name, partition.index, start, some))
        if not self._dry_run:
            self._remove(topic, starts, now_ms)
        return outcomes

    def vacuum(self, topic: SourceTopic, hours: int) -> VacuumedFiles:
        """Delete the files of a topic that no commit names since so many hours, or never did.

        Raises ValueError for less than VACUUM_HOURS_MIN.
        """
        if hours < VACUUM_HOURS_MIN:
            raise ValueError(f"files stay for {VACUUM_HOURS_MIN} hours at least, not for {hours}")
        try:
            table = ArchiveTable.open(self._lake.path, topic.name, topic.id, self._lake.storage_options)
            gone = [] if table is None else table.vacuum(hours, dry_run=self._dry_run)
        except LakeError as error:
            return VacuumedFiles(topic.name, error=str(error))
        return VacuumedFiles(topic.name, len(gone))

    def _wished(
        self,
        stores: LakeStores,
        partition: Partition,
        table: ArchiveTable,
        files: Sequence[TableFile],
        retention: RetentionLimits,
        now_ms: int,
    ) -> int:
        next_offset = table.next_offset(partition.index) or 0
        hot_bytes = _hot_bytes(stores, partition, next_offset) if retention.bytes >= 0 else 0
        data = DataFiles(table.uri, filesystem(table.uri, self._lake.storage_options))
        count = count_expired(files, retention, now_ms, hot_bytes, lambda file: _largest(data, file))
        return start_after(files, count, next_offset) if count else 0

    def _move(self, stores: LakeStores, partition: Partition, wished: int) -> int:
        """Return where the log starts in the lake, from now on; 0: nobody has told Redis yet that it is there."""
        [start] = stores.lake.expire([(partition, 0 if self._dry_run else wished)])
        if isinstance(start, KafkaError):
            raise start
        if start == NOT_ARCHIVED:
            return 0
        return max(start, wished)

    def _remove(self, topic: SourceTopic, starts: dict[int, int], now_ms: int) -> None:
        """Take the files below the starts out of the table, all by one commit."""
        for _ in range(COMMITS_MAX):
            table = ArchiveTable.open(self._lake.path, topic.name, topic.id, self._lake.storage_options)
            if table is None:
                return
            gone = [file for file in table.files() if file.last_offset < starts.get(file.partition, 0)]
            if not gone:
                return
            try:
                table.replace(gone, [], now_ms)
            except CommitConflictError:
                continue
            return
        raise CommitConflictError(f"{topic.name}: others committed before each of {COMMITS_MAX} tries")


def gone(stores: LakeStores, lake: Lake) -> list[LakeTopic]:
    """Return the tables of topics that were deleted, or made anew since, by name.

    Raises KafkaError and StorageUnavailableError; LakeError; ValueError where there is no topic at all: then it is more
    likely that this is not the Redis or not the namespace that the lake belongs to.
    """
    # A topic that is made behind this is in no table that was seen.
    found = list_tables(lake)
    rows = stores.topics.load().rows.values()
    if found and not rows:
        raise ValueError("there is no topic at all: is that the Redis and the namespace of this lake?")
    known = {LakeTopic(row.name, row.id) for row in rows}
    unknown = [each for each in found if each not in known]
    # A row that cannot be read is no topic either; its log tells that it is one.
    partitions = [stores.logs.partition(each.topic, 0, each.topic_id, _BITS_ANY) for each in unknown]
    answers = stores.lake.expire([(partition, 0) for partition in partitions])
    return [
        each
        for each, answer in zip(unknown, answers, strict=True)
        if isinstance(answer, KafkaError) and answer.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ]


def _expired(topic: str, partition: int, start: int, files: Sequence[TableFile]) -> ExpiredFiles:
    gone = [file for file in files if file.last_offset < start]
    return ExpiredFiles(
        topic=topic,
        partition=partition,
        start=start,
        files=len(gone),
        rows=sum(file.rows for file in gone),
        bytes=sum(file.size_bytes for file in gone),
    )


def _hot_bytes(stores: LakeStores, partition: Partition, archived: int) -> int:
    """Return what of a log is in Redis only, as far as the rows of its index tell: half a megabyte more or less."""
    totals, rows = stores.indexes.page(partition, archived)
    return totals.bytes - rows[0].bytes if rows else 0


def _largest(data: DataFiles, file: TableFile) -> int:
    known = -1 if file.last_timestamp is None else file.last_timestamp // 1000
    if file.last_timestamp is not None and not file.rows_without_timestamp:
        return known
    # Some have none, or one that no calendar has, which the table does not tell; or it tells of none at all.
    for group in data.groups(file.path):
        rows = data.stamps(file.path, group)
        known = max(known, int(milliseconds_of(rows.column(TIMESTAMP), rows.column(TIMESTAMP_MS)).max()))
    return known


def _text(error: Exception) -> str:
    return error.message if isinstance(error, KafkaError) else str(error)


_log = logs.Log(__name__)


class UpkeepRound(msgspec.Struct, frozen=True):
    """What one round did. `compacted` and `expired` are files that left a table; `failures` were logged."""

    compacted: int = 0
    expired: int = 0
    expired_records: int = 0
    failures: int = 0


def run_upkeep(source: LakeSource, lake: Lake, now_ms: int, run: RunMerges | None = None) -> UpkeepRound:
    """Do for all topics what there is to do now; merges are done by `run`, without one in this process.

    Raises KafkaError and StorageUnavailableError; LakeError; ValueError where there are tables and no topic at all.
    """
    compacted = failures = 0
    for merge in compact_topics(source, lake, (), run):
        if merge.error is not None:
            failures += 1
            _log.error(
                "could not be compacted", topic=merge.topic, partition=merge.partition, reason=merge.error
            )
        elif merge.done:
            compacted += merge.files_before
            _log.info(
                "compacted",
                topic=merge.topic,
                partition=merge.partition,
                files=merge.files_before,
                into=merge.files_after,
                records=merge.rows,
            )
    done = Expiry(source, lake).round((), VACUUM_HOURS_MIN, now_ms)
    for each in done.expired:
        if each.error is not None:
            _log.error("could not expire", topic=each.topic, partition=each.partition, reason=each.error)
        elif each.files:
            _log.info(
                "expired", topic=each.topic, partition=each.partition, start=each.start, records=each.rows
            )
    for one in done.vacuumed:
        if one.error is not None:
            _log.error("could not be vacuumed", topic=one.topic, reason=one.error)
    failures += sum(each.error is not None for each in done.expired)
    failures += sum(one.error is not None for one in done.vacuumed)
    return UpkeepRound(
        compacted=compacted,
        expired=sum(each.files for each in done.expired),
        expired_records=sum(each.rows for each in done.expired),
        failures=failures,
    )
