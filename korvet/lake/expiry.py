"""Retention of whole logs in the lake: what is too old or too much leaves the log, then the table, then the disk.

Kafka's rules for a remote tier (KIP-405) hold: files expire in the order of their offsets, as long as all timestamps of
the first one are older than retention.ms, or the log has more than retention.bytes without it; and files below the
start of the log, which DeleteRecords moves, expire in any case. First the start of the log is moved in Redis, so no
consumer is sent to a file that is about to be deleted; after a crash the next pass takes the files. Records
that are not archived are left to local retention, in the brokers.

`run_upkeep` is one round for all topics: small files into large ones, then expiry, then the files that no commit names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from korvet import logs
from korvet.errors import ErrorCode, KafkaError, LakeError
from korvet.lake.compaction import RunMerges, compact_topics
from korvet.lake.files import TableFile
from korvet.lake.row_groups import group_overlapping
from korvet.lake.schema import milliseconds_of
from korvet.lake.source import LakeSource, LakeStores, RetentionLimits, SourceTopic, answered
from korvet.lake.table import CommitConflictError, LakeTopic, lake_errors
from korvet.lake.unreadable import kept_files
from korvet.log.remote.archived import NOT_ARCHIVED
from korvet.topics.types import Partition

_log = logs.Log(__name__)

VACUUM_HOURS_MIN = 24
"""How long files stay that no commit names: an archiver may be about to commit them, or a query read them."""

_BITS_ANY = 10
"""Not used: only the state of a log is read, which is the same for any number."""


class ExpiredFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What left a partition, which starts at `start` in the lake now; nothing if `error` says why."""

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
    """What one pass over topics did. `gone` are tables without a topic, which stay where they are."""

    expired: list[ExpiredFiles]
    vacuumed: list[VacuumedFiles]
    gone: list[LakeTopic]

    @property
    def moved(self) -> bool:
        """Whether anything was deleted, or would be."""
        return any(result.files for result in self.expired) or any(result.files for result in self.vacuumed)

    @property
    def failed(self) -> bool:
        """Whether something could not be done."""
        expired = any(result.error is not None for result in self.expired)
        return expired or any(result.error is not None for result in self.vacuumed)


LargestTimestamp = Callable[[TableFile], int]
"""Returns the largest timestamp (ms) in a file, -1 if no record has one."""


def count_expired(
    files: Sequence[TableFile],
    retention: RetentionLimits,
    now_ms: int,
    local_bytes: int,
    largest: LargestTimestamp,
) -> int:
    """Return how many files, the first of a partition, have expired.

    `local_bytes` of the log are in Redis only. Records without a timestamp are as old as those after them.
    """
    if not retention.delete:
        return 0
    by_time = by_size = 0
    # Files that overlap, as those of several dates, expire together: the log starts at one offset.
    groups = list(group_overlapping(files))
    if retention.ms >= 0:
        for count, group in enumerate(groups, 1):
            timestamp = max(map(largest, group))
            if timestamp > now_ms - retention.ms:
                break
            if timestamp >= 0:
                by_time = count
    if retention.bytes >= 0:
        excess = sum(file.size_bytes for file in files) + local_bytes - retention.bytes
        sizes = accumulate(sum(file.size_bytes for file in group) for group in groups)
        by_size = sum(gone <= excess for gone in sizes)
    return sum(len(group) for group in groups[: max(by_time, by_size)])


def start_after(files: Sequence[TableFile], count: int, next_offset: int) -> int:
    """Return where a log starts whose first `count` files leave it; all of it is archived below `next_offset`."""
    return next_offset if count == len(files) else files[count].first_offset


class Expiry:
    """Deletes or expires what exceeds the retention of a source's logs in its lake."""

    def __init__(self, source: LakeSource, *, dry_run: bool = False) -> None:
        """With `dry_run` it only reports what would be deleted."""
        self._source = source
        self._lake = source.lake
        self._iceberg = source.iceberg_tables()
        self._dry_run = dry_run

    def round(self, names: Sequence[str], hours: int, now_ms: int) -> ExpiryRound:
        """Expire and vacuum the topics that have tables, or those named, and then list tables whose topics are gone.

        A failure affects no other topic. Raises KafkaError and StorageUnavailableError; ValueError for a name of no
        topic with a remote tier, and as `vacuum` does.
        """
        expired: list[ExpiredFiles] = []
        vacuumed: list[VacuumedFiles] = []
        closing = contextlib.nullcontext() if self._iceberg is None else contextlib.closing(self._iceberg)
        with closing, self._source.opened() as stores:
            # What was archived of a topic expires by its retention, whether or not more is archived.
            archived = {table.topic_id for table in self._lake.tables()}
            topics = stores.remote_topics(names, ids=archived)
            retentions = stores.retentions()
            for topic in topics:
                try:
                    if topic.id in retentions:
                        expired += self.expire(stores, topic, retentions[topic.id], now_ms)
                    else:
                        message = "its retention cannot be read"
                        expired.append(ExpiredFiles(topic=topic.name, partition=-1, error=message))
                except LakeError as error:
                    expired.append(ExpiredFiles(topic=topic.name, partition=-1, error=str(error)))
                    continue
                vacuumed.append(self.vacuum(topic, hours))
            unknown = [] if names else gone(stores)
        return ExpiryRound(expired, vacuumed, unknown)

    def expire(
        self, stores: LakeStores, topic: SourceTopic, retention: RetentionLimits, now_ms: int
    ) -> list[ExpiredFiles]:
        """Remove expired files from the log and the table of a topic; returns what left each partition with files.

        Raises StorageUnavailableError; LakeError if the table cannot be read or written.
        """
        table = self._lake.open(topic.of)
        if table is None:
            return []
        outcomes: list[ExpiredFiles] = []
        starts: dict[int, int] = {}
        by_partition, largest = table.files_by_partition(), self._largest(topic)
        with lake_errors(table.uri):
            kept = kept_files(self._lake.filesystem(topic.of))
        for partition in topic.partitions:
            next_offset = table.next_offset(partition.index) or 0
            # Bytes of batches that do not decode expire as records do. A commit that passes them may be still to come.
            passed = [kept_file.as_table_file for kept_file in kept if kept_file.partition == partition.index]
            passed = [item for item in passed if item.last_offset < next_offset]
            files = sorted(by_partition[partition.index] + passed, key=lambda item: item.first_offset)
            if not files:
                continue
            try:
                local_bytes = _local_bytes(stores, partition, next_offset) if retention.bytes >= 0 else 0
                count = count_expired(files, retention, now_ms, local_bytes, largest)
                wanted = start_after(files, count, next_offset) if count else 0
                start = self._move_start(stores, partition, wanted)
            except (KafkaError, LakeError) as error:
                outcomes.append(ExpiredFiles(topic=topic.name, partition=partition.index, error=_text(error)))
                continue
            starts[partition.index] = start
            outcomes.append(_expired(topic.name, partition.index, start, files))
        if not self._dry_run:
            self._remove(topic, starts, now_ms)
            with lake_errors(table.uri):
                data_files = self._lake.filesystem(topic.of)
                for file in kept:
                    if file.end_offset <= starts.get(file.partition, 0):
                        # Another one may expire them at the same time.
                        with contextlib.suppress(FileNotFoundError):
                            data_files.delete_file(file.path)
        return outcomes

    def vacuum(self, topic: SourceTopic, hours: int) -> VacuumedFiles:
        """Delete the files of a topic that no commit has named for `hours`, or ever.

        Raises ValueError for less than VACUUM_HOURS_MIN.
        """
        if hours < VACUUM_HOURS_MIN:
            raise ValueError(f"files stay for {VACUUM_HOURS_MIN} hours at least, not for {hours}")
        try:
            if self._iceberg is not None and not self._dry_run:
                # Before the vacuum: as long as this fails, Iceberg's table may name files that left Delta's.
                self._iceberg.maintain(topic.of, hours)
            table = self._lake.open(topic.of)
            gone = [] if table is None else table.vacuum(hours, dry_run=self._dry_run)
            gone += self._lake.remove_staged(topic.of, hours, dry_run=self._dry_run)
        except LakeError as error:
            return VacuumedFiles(topic.name, error=str(error))
        return VacuumedFiles(topic.name, len(gone))

    def _largest(self, topic: SourceTopic) -> LargestTimestamp:
        data = self._lake.data_files(topic.of)

        def largest(file: TableFile) -> int:
            known = -1 if file.last_timestamp is None else file.last_timestamp // 1000
            if file.last_timestamp is not None and not file.rows_without_timestamp:
                return known
            # Some records have no timestamp, or one that no calendar has, which the table does not know; or it knows
            # none.
            for group in data.groups(file.path):
                rows = data.group_stamps(group)
                stamps = milliseconds_of(rows)
                known = max(known, int(stamps.max()))
            return known

        return largest

    def _move_start(self, stores: LakeStores, partition: Partition, wanted: int) -> int:
        """Return where the log starts in the lake from now on; 0: Redis does not know yet that it is there."""
        start = answered(*stores.remote.expire([(partition, 0 if self._dry_run else wanted)]))
        return 0 if start == NOT_ARCHIVED else max(start, wanted)

    def _remove(self, topic: SourceTopic, starts: dict[int, int], now_ms: int) -> None:
        """Remove the files below the starts from the table, all by one commit."""
        for table in self._lake.attempts(topic.of):
            gone = [file for file in table.files() if file.last_offset < starts.get(file.partition, 0)]
            with contextlib.suppress(CommitConflictError):
                if gone:
                    table.remove(gone, now_ms)
                return


def gone(stores: LakeStores) -> list[LakeTopic]:
    """Return the tables of topics that were deleted, or re-created since, by name; of others' tables none.

    Raises KafkaError and StorageUnavailableError; LakeError; ValueError if there is no topic at all: then it is more
    likely that this is not the Redis or not the namespace of the lake.
    """
    # Tables first: a topic that is created after this has none of them.
    tables = stores.lake.tables()
    registry = stores.topics.load()
    rows = registry.rows.values()
    if tables and not rows:
        raise ValueError("there is no topic at all: do Redis and namespace belong to this lake?")
    known = {LakeTopic(row.name, row.id) for row in rows}
    unknown = stores.archives(
        (table for table in tables if table not in known and table.topic not in registry.unreadable), known
    )
    # The row of a topic may be lost (a failover): its log shows that there is one.
    partitions = [stores.logs.partition(item.topic, 0, item.topic_id, _BITS_ANY) for item in unknown]
    answers = stores.remote.expire([(partition, 0) for partition in partitions])
    return [
        item
        for item, answer in zip(unknown, answers, strict=True)
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


def _local_bytes(stores: LakeStores, partition: Partition, archived: int) -> int:
    """Return how many bytes of a log are in Redis only, by the rows of its index: half a megabyte more or less."""
    totals, rows = stores.indexes.page(partition, archived)
    return totals.bytes - rows[0].bytes if rows else 0


def _text(error: Exception) -> str:
    return error.message if isinstance(error, KafkaError) else str(error)


class UpkeepRound(msgspec.Struct, frozen=True):
    """What one round did. `compacted` and `expired` are files that left a table; `failures` were logged."""

    compacted: int = 0
    expired: int = 0
    expired_records: int = 0
    failures: int = 0


def run_upkeep(source: LakeSource, now_ms: int, run: RunMerges | None = None) -> UpkeepRound:
    """Compact, expire and vacuum all topics now; merges are run by `run`, without one in this process.

    Raises KafkaError and StorageUnavailableError; LakeError; ValueError if there are tables and no topic at all.
    """
    compacted = failures = 0
    for merge in compact_topics(source, (), run):
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
    done = Expiry(source).round((), VACUUM_HOURS_MIN, now_ms)
    for result in done.expired:
        if result.error is not None:
            _log.error(
                "could not expire", topic=result.topic, partition=result.partition, reason=result.error
            )
        elif result.files:
            _log.info(
                "expired",
                topic=result.topic,
                partition=result.partition,
                start=result.start,
                records=result.rows,
            )
    for one in done.vacuumed:
        if one.error is not None:
            _log.error("could not be vacuumed", topic=one.topic, reason=one.error)
    failures += sum(result.error is not None for result in done.expired)
    failures += sum(one.error is not None for one in done.vacuumed)
    return UpkeepRound(
        compacted=compacted,
        expired=sum(result.files for result in done.expired),
        expired_records=sum(result.rows for result in done.expired),
        failures=failures,
    )
