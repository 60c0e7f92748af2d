"""Compaction: of each key's records a log keeps the latest, at its offset.

Knows how a pass goes, and that it may end at any step without harm; nothing of when one is due, which is
compaction_plan's, nor of how entries are laid out. A pass
1. reads the part of the log that is not compacted yet, and remembers the latest offset of each key in it;
2. reads the compacted part and that part again, and writes what stays of both to the clean stream that is not in use;
3. makes that one the compacted part, in one step;
4. gives back the memory of what now lies there twice.
Readers see the log as it was up to 3, and as it is from there on. What a pass that never came to 3 has written is
garbage, which the next one removes.

Which log is to be compacted, and up to where: Kafka's rules for its cleaner, on a log without segments.

Knows ratios, lags and tombstones; nothing of how a pass is made. What Kafka never compacts is its active segment; here
that is the tail: what lies behind the newest row of the index. A tail whose oldest record is older than segment.ms, or
max.compaction.lag.ms where that is shorter, counts as one that would have been rolled.

The index rows of what a pass of compaction has kept.

Knows how often there is to be a row, and that rows count back from the end of the pass; nothing of Redis or of records.
"""

from __future__ import annotations

import logging
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from korvet.config.definition import INT64_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.log.compaction_store import (
    BatchEntry,
    Buffer,
    CompactionState,
    CompactionStore,
    Kept,
    KeptRow,
    Keyed,
    OffsetMap,
    Pass,
    Period,
    RecordEntry,
    Row,
    Written,
)
from korvet.log.index import BYTES_PER_ROW, RECORDS_PER_ROW
from korvet.log.store import LogStore
from korvet.log.types import Read
from korvet.topics.config import TopicConfig
from korvet.topics.types import Partition

HISTORY_MAX = 100
"""Periods of a log's history; beyond it the oldest become one, and their tombstones stay as long as its newest ones."""


class Ages(NamedTuple):
    """Timestamps (ms) of the first record that is not compacted, and of the first of the tail.

    None: there is none, or nobody has to know (`asks_for_oldest`, `asks_for_tail`).
    """

    oldest_dirty: int | None = None
    oldest_in_tail: int | None = None


class Due(NamedTuple):
    """A pass that is due: the offset up to which it is to compact the log, and which share of that is dirty."""

    clean_end: int
    ratio: float


def dirty_start(look: CompactionState) -> int:
    """Return the first offset that is not compacted."""
    return max(look.clean_end, look.start)


def tail_start(look: CompactionState) -> int:
    """Return the first offset of the tail."""
    return max(dirty_start(look), look.newest.offset if look.newest is not None else 0)


def dirty_ratio(look: CompactionState) -> float:
    """Return which share of a log, by bytes, is not compacted though it could be; 0 where nothing could."""
    return _ratio(look, look.newest.bytes if look.newest is not None else 0)


def _ratio(look: CompactionState, end_bytes: int) -> float:
    begin_bytes = _dirty_start_bytes(look)
    clean, dirty = max(begin_bytes - look.start_bytes, 0), max(end_bytes - begin_bytes, 0)
    return dirty / (clean + dirty) if dirty else 0.0


def _dirty_start_bytes(look: CompactionState) -> int:
    """Return how many bytes ever came below the first offset that is not compacted."""
    return look.clean_bytes if look.clean_end > look.start else look.start_bytes


def _segment_ms(config: TopicConfig) -> int:
    return min(config.segment_ms, config.max_compaction_lag_ms)


def asks_for_oldest(look: CompactionState, config: TopicConfig) -> bool:
    """Return whether a plan hangs on the age of the first record that is not compacted."""
    return config.max_compaction_lag_ms < INT64_MAX and dirty_start(look) < look.end


def asks_for_tail(look: CompactionState, config: TopicConfig) -> bool:
    """Return whether a plan hangs on the age of the tail's first record."""
    if tail_start(look) >= look.end:
        return False
    is_enough = _ratio(look, look.bytes) > config.min_cleanable_dirty_ratio
    return is_enough or config.max_compaction_lag_ms < INT64_MAX


def asks_for_rows(look: CompactionState, config: TopicConfig) -> bool:
    """Return whether a plan hangs on the rows of the index behind the compacted part."""
    return config.min_compaction_lag_ms > 0 and dirty_start(look) < look.end


def tombstones_due(look: CompactionState, config: TopicConfig) -> bool:
    """Return whether there are tombstones in the compacted part that were kept for as long as they are to be."""
    return look.start < look.clean_end and any(
        _is_due(period, look.now_ms, config.delete_retention_ms) for period in look.history
    )


def _is_due(period: Period, now_ms: int, delete_retention_ms: int) -> bool:
    return now_ms - period.ms >= delete_retention_ms


def due(look: CompactionState, config: TopicConfig, ages: Ages, rows: Sequence[Row]) -> Due | None:
    """Return the pass that is due now, None where none is.

    `rows` are those of the index behind the compacted part, needed only where `asks_for_rows` says so.
    """
    begin = dirty_start(look)
    end = tail_start(look)
    end_bytes = look.newest.bytes if look.newest is not None else look.start_bytes
    tail_is_old = ages.oldest_in_tail is not None and look.now_ms - ages.oldest_in_tail >= _segment_ms(config)
    if end < look.end and tail_is_old:
        end, end_bytes = look.end, look.bytes
    if config.min_compaction_lag_ms > 0:
        young = _first_young(look, rows, look.now_ms - config.min_compaction_lag_ms)
        if young is not None and young.offset < end:
            end, end_bytes = young.offset, young.bytes
    ratio = _ratio(look, end_bytes)
    if end > begin and (_is_overdue(look, config, ages) or ratio > config.min_cleanable_dirty_ratio):
        return Due(end, ratio)
    if tombstones_due(look, config):
        return Due(max(end, look.clean_end), ratio)
    return None


def _is_overdue(look: CompactionState, config: TopicConfig, ages: Ages) -> bool:
    """Return whether the first record that is not compacted has waited too long.

    One without a time tells nothing (Kafka's LogCleanerManager.maxCompactionDelay); were it as old as can be, whatever
    comes would have the whole log compacted again.
    """
    oldest = ages.oldest_dirty
    return oldest is not None and oldest > 0 and look.now_ms - oldest >= config.max_compaction_lag_ms


def _first_young(look: CompactionState, rows: Sequence[Row], limit_ms: int) -> Row | None:
    """Return where the first interval begins that holds a record younger than `limit_ms`, None where none does."""
    before = Row(dirty_start(look), 0, _dirty_start_bytes(look), -1)
    for row in rows:
        if row.interval > limit_ms:
            return before
        before = row
    return before if look.interval > limit_ms else None


class Tombstones:
    """How long each tombstone of a log's compacted part is to stay."""

    def __init__(self, history: Sequence[Period], now_ms: int, delete_retention_ms: int) -> None:
        """`history` is CleanLook's, `delete_retention_ms` the topic's delete.retention.ms."""
        self.history = _coalesced(
            [period for period in history if not _is_due(period, now_ms, delete_retention_ms)]
        )
        """What the history is when all that are due are gone."""
        self._ends = [period.end for period in history]
        self._due = [_is_due(period, now_ms, delete_retention_ms) for period in history]

    def is_due(self, offset: int) -> bool:
        """Return whether a tombstone of the compacted part at `offset` is to go."""
        at = bisect_right(self._ends, offset)
        return at == len(self._ends) or self._due[at]


def _coalesced(history: list[Period]) -> list[Period]:
    # One more comes with the pass that this is for.
    while len(history) >= HISTORY_MAX:
        first, second = history[:2]
        history[:2] = [Period(second.end, max(first.ms, second.ms))]
    return history


ROWS_MAX = 2048
"""Rows that one script puts in the place of the former ones, in a few milliseconds; were they more, they get farther
apart."""


class _Passed(NamedTuple):
    """A row at `offset`: what was kept below it."""

    offset: int
    records: int
    bytes: int
    largest: int
    interval: int


class KeptRows:
    """Counts what is kept, in the order of the log, and makes a row of it now and then."""

    def __init__(self, start: int) -> None:
        """`start` is the log's start: where it is not 0 the first row lies there, for what is counted from it on."""
        self.records = 0
        self.bytes = 0
        self._largest = -1
        self._interval = -1
        self._rows = [_Passed(start, 0, 0, -1, -1)] if start > 0 else []
        self._records_at_row = self._bytes_at_row = 0

    def add(self, next_offset: int, records: int, size_bytes: int, max_timestamp: int) -> None:
        """Count an entry that ends before `next_offset`."""
        self.records += records
        self.bytes += size_bytes
        self._largest = max(self._largest, max_timestamp)
        self._interval = max(self._interval, max_timestamp)
        if (
            self.records - self._records_at_row >= RECORDS_PER_ROW
            or self.bytes - self._bytes_at_row >= BYTES_PER_ROW
        ):
            self._rows.append(_Passed(next_offset, self.records, self.bytes, self._largest, self._interval))
            self._records_at_row, self._bytes_at_row, self._interval = self.records, self.bytes, -1

    def finish(self) -> tuple[list[KeptRow], int]:
        """Return the rows, and the largest timestamp (ms) behind the last of them: -1 for none.

        Behind each row lies something: one at the end would say the same as the row where the pass ends. Of too many
        rows some are left out, and the next one left tells the largest timestamp since the one before.
        """
        rows, interval = list(self._rows), self._interval
        while rows and rows[-1].records == self.records:
            interval = max(interval, rows.pop().interval)
        step = -(-len(rows) // ROWS_MAX)
        if step > 1:
            left = []
            for at in range(0, len(rows), step):
                since = rows[max(at - step + 1, 0) : at + 1]
                left.append(rows[at]._replace(interval=max(row.interval for row in since)))
            interval = max(interval, *(row.interval for row in rows[(len(left) - 1) * step + 1 :]), -1)
            rows = left
        return [
            KeptRow(row.offset, self.records - row.records, self.bytes - row.bytes, row.largest, row.interval)
            for row in rows
        ], interval


_LOG = logging.getLogger(__name__)

_STEP_BYTES = 1024 * 1024
_STEP_ENTRIES_MAX = 500
"""What a step reads or writes: a millisecond or two in which Redis serves nobody else."""

_FIRST_ENTRIES = 4
"""What the first step reads, while nobody knows how large entries are."""

_ROWS_MAX = 20_000
"""Rows of the index that one pass looks at: 80 million records, or 20 GiB. What lies behind takes another pass."""

_REMEMBERED_MAX = 100_000
"""Logs whose first timestamps are remembered; all are forgotten beyond it, and looked up again."""

Check = Callable[[], None]
"""To be called before every step; whatever it raises ends the pass there."""


class Plan(NamedTuple):
    """A pass that is due: up to `clean_end`, where `ratio` of what lies below that is not compacted yet."""

    partition: Partition
    config: TopicConfig
    look: CompactionState
    clean_end: int
    ratio: float


class Compacted(NamedTuple):
    """What a pass did: the log is compacted up to `clean_end`.

    `unkeyed` of the `removed` records had no key: other Redis clients wrote them, or they came before the topic was
    compacted. `unreadable` entries were kept because nobody can read them.
    """

    clean_end: int
    kept: int
    removed: int
    unkeyed: int
    unreadable: int


class Compactor:
    """Compacts logs, one at a time. Its methods raise KafkaError, StorageUnavailableError where Redis is away."""

    def __init__(
        self, store: CompactionStore, logs: LogStore, *, buffer_bytes: int, decompressed_bytes_max: int
    ) -> None:
        """`buffer_bytes` is log.cleaner.dedupe.buffer.size, the other one record.decompressed.max.bytes."""
        self._store = store
        self._logs = logs
        self._buffer_bytes = buffer_bytes
        self._decompressed_bytes_max = decompressed_bytes_max
        # By stream and offset: a record there, or none, is what it is for as long as the log is.
        self._timestamps: dict[tuple[str, str, int], int] = {}
        self._tidied: set[tuple[str, str]] = set()

    def plans(
        self, logs: Sequence[tuple[Partition, TopicConfig]], check: Check
    ) -> tuple[list[Plan], list[KafkaError]]:
        """Return the passes that are due now, the dirtiest log's first, and what is wrong with other logs.

        Looks at all of `logs` in one round trip. Tidies up behind passes that others did not finish.
        """
        plans: list[Plan] = []
        errors: list[KafkaError] = []
        looks = self._store.look([partition for partition, _ in logs])
        for (partition, config), look in zip(logs, looks, strict=True):
            if isinstance(look, KafkaError):
                errors.append(look)
                continue
            try:
                plan = self._plan(partition, config, look)
                self._tidy(partition, look, check, is_due=plan is not None)
            except KafkaError as error:
                errors.append(error)
            else:
                plans += [] if plan is None else [plan]
        return sorted(plans, key=lambda plan: -plan.ratio), errors

    def _plan(self, partition: Partition, config: TopicConfig, look: CompactionState) -> Plan | None:
        ages = Ages(
            self._timestamp(partition, dirty_start(look)) if asks_for_oldest(look, config) else None,
            self._timestamp(partition, tail_start(look)) if asks_for_tail(look, config) else None,
        )
        rows: Sequence[Row] = ()
        if asks_for_rows(look, config):
            rows = self._store.rows(partition, dirty_start(look), look.end, _ROWS_MAX)
        found = due(look, config, ages, rows)
        return None if found is None else Plan(partition, config, look, *found)

    def _timestamp(self, partition: Partition, offset: int) -> int | None:
        """Return the timestamp (ms) of the first record from `offset` on, None where there is none."""
        place = (partition.stream, partition.topic_id, offset)
        if place not in self._timestamps:
            [fetched] = self._logs.read([Read(partition, offset, 1)])
            if isinstance(fetched, KafkaError):
                raise fetched
            found = fetched.first_timestamp
            if found is None:
                return None
            if len(self._timestamps) >= _REMEMBERED_MAX:
                self._timestamps.clear()
            self._timestamps[place] = found
        return self._timestamps[place]

    def _tidy(self, partition: Partition, look: CompactionState, check: Check, *, is_due: bool) -> None:
        """Undo what is left of a pass that ended in the middle, unless the next one does so anyway."""
        if look.token and not is_due:
            check()
            self._store.give_up(partition, look.token)
        incarnation = (partition.stream, partition.topic_id)
        if incarnation not in self._tidied and look.clean_end > 0:
            self._free(partition, check)
        if len(self._tidied) >= _REMEMBERED_MAX:
            self._tidied.clear()
        self._tidied.add(incarnation)

    def compact(self, plan: Plan, check: Check) -> Compacted | None:
        """Do a pass; returns None where the log has changed since it was planned, having done nothing.

        Raises PassOverError where another pass of the log was begun meanwhile, and what `check` raises; KafkaError
        where the keys of less than one interval of the index do not fit the buffer.
        """
        check()
        under_way = self._store.begin(plan.partition, uuid.uuid4().hex, plan.look, plan.clean_end)
        if under_way is None:
            return None
        incarnation = (plan.partition.stream, plan.partition.topic_id)
        self._tidied.discard(incarnation)
        passing = _Passing(self._store, plan, under_way, check, self._decompressed_bytes_max)
        try:
            done = passing.run(self._buffer_bytes)
        except KafkaError:
            self._give_up(plan.partition, passing.token)
            raise
        self._free(plan.partition, check)
        self._tidied.add(incarnation)
        return done

    def _give_up(self, partition: Partition, token: str) -> None:
        """Remove what was written: where memory is full nobody else may come to do it."""
        try:
            self._store.give_up(partition, token)
        except KafkaError as error:
            _LOG.warning(
                "%s: what a pass of compaction has written stays for now: %s", partition.stream, error
            )

    def _free(self, partition: Partition, check: Check) -> None:
        more = True
        while more:
            check()
            more = self._store.free(partition)


class _Passing:
    """One pass, from its begin to the switch."""

    def __init__(
        self, store: CompactionStore, plan: Plan, under_way: Pass, check: Check, decompressed_bytes_max: int
    ) -> None:
        self._store = store
        self._config = plan.config
        self._partition = plan.partition
        self._pass = under_way
        self._check = check
        self._decompressed_bytes_max = decompressed_bytes_max
        self._tombstones = Tombstones(plan.look.history, plan.look.now_ms, plan.config.delete_retention_ms)
        self._kept = KeptRows(under_way.start)
        self._new_tombstones = False
        self._seen = self._unkeyed = self._unreadable = 0

    @property
    def token(self) -> str:
        """The token by which Redis knows the pass now."""
        return self._pass.token

    def run(self, buffer_bytes: int) -> Compacted:
        """Do it."""
        keys = self._map(buffer_bytes)
        self._copy(keys)
        rows, interval = self._kept.finish()
        kept = Kept(
            records=self._kept.records,
            bytes=self._kept.bytes,
            interval=interval,
            rows=rows,
            history=self._tombstones.history,
            tombstones=self._new_tombstones,
        )
        self._check()
        self._store.switch(self._pass, kept)
        removed = self._seen - kept.records
        return Compacted(self._pass.clean_end, kept.records, removed, self._unkeyed, self._unreadable)

    def _map(self, buffer_bytes: int) -> OffsetMap:
        """Return the latest offset of each key of the dirty part; ends the pass earlier where not all of them fit.

        Keys of what lies behind that earlier end may be in it: that they come again is true all the same.
        """
        begin = self._pass.dirty_start
        rows = self._store.rows(self._partition, begin, self._pass.clean_end, _ROWS_MAX)
        row_offsets = [row.offset for row in rows]
        if len(rows) == _ROWS_MAX:
            self._end_at(row_offsets[-1])
        if self._partition.format == "batch":
            records_max = self._pass.clean_end - begin
        else:
            records_max = self._store.entry_count(self._partition)
        keys = OffsetMap(buffer_bytes, max(records_max, 0))
        for entries in self._steps(begin):
            for entry in entries:
                for record in entry.records:
                    # A batch in which the log starts holds some below, which nobody sees and no slot is meant for.
                    if record.key is None or record.offset < begin:
                        continue
                    if not keys.put(record.key, record.offset):
                        passed = bisect_right(row_offsets, record.offset)
                        if not passed:
                            message = (
                                f"{self._partition.stream}: {keys.keys} keys are fewer than lie between two rows of "
                                f"its index; log.cleaner.dedupe.buffer.size={buffer_bytes} is too small for it"
                            )
                            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
                        self._end_at(row_offsets[passed - 1])
                        return keys
        return keys

    def _end_at(self, offset: int) -> None:
        self._pass = self._pass._replace(clean_end=offset)

    def _copy(self, keys: OffsetMap) -> None:
        """Write what stays of the compacted part, then of the dirty one."""
        buffered: list[Written] = []
        buffered_bytes = 0
        for entries in self._steps(self._pass.start):
            for entry in entries:
                fields = self._reduced(entry, keys)
                if fields is None:
                    continue
                buffered.append((entry.entry_id, fields))
                buffered_bytes += sum(map(len, fields))
                if buffered_bytes >= _STEP_BYTES or len(buffered) >= _STEP_ENTRIES_MAX:
                    self._write(buffered)
                    buffered, buffered_bytes = [], 0
        self._write(buffered)

    def _write(self, buffered: list[Written]) -> None:
        if buffered:
            self._check()
            self._pass = self._store.write(self._pass, buffered)

    def _reduced(self, entry: RecordEntry | BatchEntry, keys: OffsetMap) -> Sequence[Buffer] | None:
        """Return what stays of an entry, None for nothing; counts it."""
        if entry.damage is not None:
            _LOG.warning("%s: kept as it is: %s", self._partition.stream, entry.damage)
            self._unreadable += 1
            self._seen += entry.record_count
            fields = entry.without((), self._config.at_rest)
            records, largest = entry.record_count, entry.max_timestamp
        else:
            keep = [self._stays(record, keys) for record in entry.records]
            self._seen += len(keep)
            fields = entry.without(keep, self._config.at_rest)
            stamps = [record.timestamp for record in compress(entry.records, keep)]
            records, largest = len(stamps), max(stamps, default=-1)
        if fields is not None:
            self._kept.add(entry.next_offset, records, sum(map(len, fields)), largest)
        return fields

    def _stays(self, record: Keyed, keys: OffsetMap) -> bool:
        if record.offset < self._pass.start:
            # The log starts within its batch, so nobody sees it; that it goes is no work of compaction.
            self._seen -= 1
            return False
        # Whoever reads up to the high watermark must get there, and there is nothing behind.
        is_last = record.offset == self._pass.end - 1
        if record.key is None:
            self._unkeyed += not is_last
            return is_last
        if keys.latest(record.key) > record.offset:
            return False
        if record.is_tombstone:
            if record.offset < self._pass.dirty_start:
                return is_last or not self._tombstones.is_due(record.offset)
            self._new_tombstones = True
        return True

    def _steps(self, offset: int) -> Iterator[list[RecordEntry | BatchEntry]]:
        """Yield the entries of the pass from `offset` on, so many at a time that a step stays small."""
        partition, count = self._partition, _FIRST_ENTRIES
        while True:
            self._check()
            found = self._store.read(self._pass, offset, count)
            if not found:
                return
            try:
                entries: list[RecordEntry | BatchEntry] = (
                    [BatchEntry(entry, self._decompressed_bytes_max) for entry in found]
                    if partition.format == "batch"
                    else [RecordEntry(entry, partition.bits) for entry in found]
                )
            except (ValueError, TypeError, AttributeError, IndexError) as error:
                message = f"{partition.stream}: an entry is malformed ({error})"
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
            yield entries
            offset = entries[-1].next_offset
            size = sum([sum(map(len, fields)) for _, fields in found])
            count = max(1, min(_STEP_ENTRIES_MAX, _STEP_BYTES * len(found) // max(size, 1)))
