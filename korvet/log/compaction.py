"""Compaction: of each key a log keeps the latest record, at its offset.

A pass of compaction
1. reads the part of the log that is not compacted yet, and remembers the latest offset of each key in it;
2. reads the compacted segment and that part again, and writes what stays of both to a new segment;
3. makes that one the log's compacted segment, in one step;
4. frees the memory of what now lies there twice.
Readers see the log as it was up to 3, and as it is from there on. A pass may end at any step without harm: what it
has written before 3 is garbage, which the next one removes.

When a pass is due, and up to where, follows Kafka's rules for its cleaner, on a log without segments. Kafka never
compacts the active segment; here that is the tail: what lies after the newest row of the index. A tail whose oldest
record is older than segment.ms, or max.compaction.lag.ms if that is shorter, counts as a segment that was rolled.
"""

from __future__ import annotations

import logging
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from korvet_core import LogCleaner, RawReply

from korvet.config.definition import INT64_MAX
from korvet.errors import ErrorCode, KafkaError, or_raise
from korvet.log.compaction_store import (
    CompactionPass,
    CompactionState,
    CompactionStore,
    Period,
    Retained,
    Written,
)
from korvet.log.index import Row, RowBuilder
from korvet.log.store import LogStore
from korvet.log.types import CheckStep, Read
from korvet.protocol.records.compression import refusals
from korvet.telemetry import metrics
from korvet.topics.config import TopicConfig
from korvet.topics.types import Partition

if TYPE_CHECKING:
    from korvet_core import LogPage

_LOG = logging.getLogger(__name__)

HISTORY_MAX = 100
"""Periods of a log's history; beyond it the oldest become one, and their tombstones stay as long as its newest ones."""

ROWS_MAX = 2048
"""Rows that one script puts in the place of the former ones, in a few milliseconds; were they more, they get farther
apart."""

_STEP_BYTES = 1024 * 1024
_STEP_ENTRIES_MAX = 500
"""What a step reads or writes: a millisecond or two in which Redis serves nobody else."""

_FIRST_ENTRIES = 4
"""What the first step reads, while it is not known how large entries are."""

_INDEX_ROWS_MAX = 20_000
"""Rows of the index that one pass looks at: 80 million records, or 20 GiB. What follows takes another pass."""

_REMEMBERED_MAX = 100_000
"""First timestamps, and unreadable batches, that are remembered; all are forgotten beyond it, and looked up again."""


T = TypeVar("T")


class Ages(NamedTuple):
    """Timestamps (ms) of the first record that is not compacted, and of the first of the tail.

    None: there is none, or the plan does not depend on it (`needs_oldest`, `needs_tail`).
    """

    oldest_dirty: int | None = None
    oldest_in_tail: int | None = None


class DuePass(NamedTuple):
    """A pass that is due: the offset up to which it compacts the log, and the dirty share of the log below it."""

    compacted_end: int
    ratio: float


def dirty_start(state: CompactionState) -> int:
    """Return the first offset that is not compacted."""
    return max(state.compacted_end, state.start)


def tail_start(state: CompactionState) -> int:
    """Return the first offset of the tail."""
    return max(dirty_start(state), state.newest.offset if state.newest is not None else 0)


def _ratio(state: CompactionState, end_bytes: int) -> float:
    """Return which share of a log up to `end_bytes` is not compacted; 0 if nothing could be."""
    begin_bytes = _dirty_start_bytes(state)
    clean, dirty = max(begin_bytes - state.start_bytes, 0), max(end_bytes - begin_bytes, 0)
    return dirty / (clean + dirty) if dirty else 0.0


def _dirty_start_bytes(state: CompactionState) -> int:
    """Return how many bytes ever came below the first offset that is not compacted."""
    return state.compacted_bytes if state.compacted_end > state.start else state.start_bytes


def _segment_ms(config: TopicConfig) -> int:
    return min(config.segment_ms, config.max_compaction_lag_ms)


def needs_oldest(state: CompactionState, config: TopicConfig) -> bool:
    """Return whether the plan depends on the age of the first record that is not compacted."""
    return config.max_compaction_lag_ms < INT64_MAX and dirty_start(state) < state.end


def needs_tail(state: CompactionState, config: TopicConfig) -> bool:
    """Return whether the plan depends on the age of the tail's first record."""
    if tail_start(state) >= state.end:
        return False
    is_enough = _ratio(state, state.bytes) > config.min_cleanable_dirty_ratio
    return is_enough or config.max_compaction_lag_ms < INT64_MAX


def needs_rows(state: CompactionState, config: TopicConfig) -> bool:
    """Return whether the plan depends on the rows of the index after the compacted part."""
    return (config.min_compaction_lag_ms > 0 or state.stable < state.end) and dirty_start(state) < state.end


def tombstones_due(state: CompactionState, config: TopicConfig) -> bool:
    """Return whether there are tombstones in the compacted part that were kept long enough."""
    return state.start < state.compacted_end and any(
        _is_due(period, state.now_ms, config.delete_retention_ms) for period in state.history
    )


def _is_due(period: Period, now_ms: int, delete_retention_ms: int) -> bool:
    return now_ms - period.ms >= delete_retention_ms


def due(state: CompactionState, config: TopicConfig, ages: Ages, rows: Sequence[Row]) -> DuePass | None:
    """Return the pass that is due now, None if none is.

    `rows` are those of the index after the compacted part, needed only if `needs_rows` says so.
    """
    begin = dirty_start(state)
    end = tail_start(state)
    end_bytes = state.newest.bytes if state.newest is not None else state.start_bytes
    tail_is_old = ages.oldest_in_tail is not None and state.now_ms - ages.oldest_in_tail >= _segment_ms(
        config
    )
    if end < state.end and tail_is_old:
        end, end_bytes = state.end, state.bytes
    limits: list[Row | None] = [_last_decided(state, rows)] if state.stable < end else []
    if config.min_compaction_lag_ms > 0:
        limits.append(_first_young(state, rows, state.now_ms - config.min_compaction_lag_ms))
    for limit in limits:
        if limit is not None and limit.offset < end:
            end, end_bytes = limit.offset, limit.bytes
    ratio = _ratio(state, end_bytes)
    if end > begin and (_is_overdue(state, config, ages) or ratio > config.min_cleanable_dirty_ratio):
        return DuePass(end, ratio)
    if tombstones_due(state, config):
        return DuePass(max(end, state.compacted_end), ratio)
    return None


def _is_overdue(state: CompactionState, config: TopicConfig, ages: Ages) -> bool:
    """Return whether the first record that is not compacted has waited too long.

    One without a time does not count (Kafka's LogCleanerManager.maxCompactionDelay); if it counted as
    oldest, every append would have the whole log compacted again.
    """
    oldest = ages.oldest_dirty
    return oldest is not None and oldest > 0 and state.now_ms - oldest >= config.max_compaction_lag_ms


def _last_decided(state: CompactionState, rows: Sequence[Row]) -> Row:
    """Return the last row up to which every transaction has ended: what is undecided is not compacted, as in Kafka."""
    decided = [row for row in rows if row.offset <= state.stable]
    return decided[-1] if decided else Row(dirty_start(state), 0, _dirty_start_bytes(state), -1, -1)


def _first_young(state: CompactionState, rows: Sequence[Row], limit_ms: int) -> Row | None:
    """Return where the first interval begins that holds a record younger than `limit_ms`, None if none does."""
    before = Row(dirty_start(state), 0, _dirty_start_bytes(state), -1, -1)
    for row in rows:
        if row.interval > limit_ms:
            return before
        before = row
    return before if state.interval > limit_ms else None


class Tombstones:
    """How long each tombstone of a log's compacted part stays."""

    def __init__(self, history: Sequence[Period], now_ms: int, delete_retention_ms: int) -> None:
        """`history` is CompactionState's, `delete_retention_ms` the topic's delete.retention.ms."""
        self.history = _coalesced(
            [period for period in history if not _is_due(period, now_ms, delete_retention_ms)]
        )
        """The history once all tombstones that are due are gone."""
        self.periods = [(period.end, _is_due(period, now_ms, delete_retention_ms)) for period in history]
        """The end of each part of the compacted log, and whether the tombstones in it go now."""

    def due_end(self, dirty_start: int) -> int:
        """Return the offset up to which all tombstones of the compacted part go, which ends at `dirty_start`."""
        kept = next((at for at, (_, is_due) in enumerate(self.periods) if not is_due), None)
        return dirty_start if kept is None else self.periods[kept - 1][0] if kept else 0


def _coalesced(history: list[Period]) -> list[Period]:
    # One more comes with the pass that this is for.
    while len(history) >= HISTORY_MAX:
        first, second = history[:2]
        history[:2] = [Period(second.end, max(first.ms, second.ms))]
    return history


class RetainedRows(RowBuilder):
    """The index rows of what a pass retains; those of `finish` count back from the end of the pass."""

    def __init__(self, start: int) -> None:
        """`start` is the log's start: if it is not 0 the first row lies there, for what is counted from it on."""
        super().__init__()
        if start > 0:
            self.rows.append(Row(start, 0, 0, -1, -1))

    def finish(self) -> tuple[list[Row], int]:
        """Return the rows, and the largest timestamp (ms) after the last of them: -1 for none.

        After each row lies something: one at the end would say the same as the row where the pass ends. Of too many
        rows some are left out, and the next one left has the largest timestamp since the one before.
        """
        rows, interval = list(self.rows), self._interval
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
            row._replace(records=self.records - row.records, bytes=self.bytes - row.bytes) for row in rows
        ], interval


class CompactionPlan(NamedTuple):
    """A pass that is due, up to `compacted_end`; `ratio`: the share of the log below it that is not compacted yet."""

    partition: Partition
    config: TopicConfig
    state: CompactionState
    compacted_end: int
    ratio: float


class CompactionResult(NamedTuple):
    """What a pass did: the log is compacted up to `compacted_end`.

    `unkeyed` of the `removed` records had no key: other Redis clients wrote them, or they came before the topic was
    compacted.
    """

    compacted_end: int
    kept: int
    removed: int
    unkeyed: int


class Compactor:
    """Compacts logs, one at a time; `check` is called before every step.

    Its methods raise KafkaError, StorageUnavailableError while Redis is away, and what `check` raises.
    """

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
        self._unreadable: set[tuple[str, str, int]] = set()

    def plans(
        self, logs: Sequence[tuple[Partition, TopicConfig]], check: CheckStep
    ) -> tuple[list[CompactionPlan], list[KafkaError]]:
        """Return the passes that are due now, the dirtiest log's first, and what is wrong with other logs.

        Reads the state of all `logs` in one round trip. Removes what unfinished passes of others have left.
        """
        plans: list[CompactionPlan] = []
        errors: list[KafkaError] = []
        states = self._store.states([partition for partition, _ in logs])
        for (partition, config), state in zip(logs, states, strict=True):
            if isinstance(state, KafkaError):
                errors.append(state)
                continue
            try:
                plan = self._plan(partition, config, state)
                self._tidy(partition, state, check, is_due=plan is not None)
            except KafkaError as error:
                errors.append(error)
            else:
                if plan is not None:
                    plans.append(plan)
        return sorted(plans, key=lambda plan: -plan.ratio), errors

    def _plan(
        self, partition: Partition, config: TopicConfig, state: CompactionState
    ) -> CompactionPlan | None:
        ages = Ages(
            self._timestamp(partition, dirty_start(state)) if needs_oldest(state, config) else None,
            self._timestamp(partition, tail_start(state)) if needs_tail(state, config) else None,
        )
        rows: Sequence[Row] = ()
        if needs_rows(state, config):
            rows = self._store.rows(partition, dirty_start(state), state.end, _INDEX_ROWS_MAX)
        plan = due(state, config, ages, rows)
        return None if plan is None else CompactionPlan(partition, config, state, *plan)

    def _timestamp(self, partition: Partition, offset: int) -> int | None:
        """Return the timestamp (ms) of the first record from `offset` on, None without one."""
        place = (partition.stream, partition.topic_id, offset)
        if place not in self._timestamps:
            fetched = or_raise(*self._logs.read([Read(partition, offset, 1)]))
            timestamp = fetched.first_timestamp
            if timestamp is None:
                return None
            if len(self._timestamps) >= _REMEMBERED_MAX:
                self._timestamps.clear()
            self._timestamps[place] = timestamp
        return self._timestamps[place]

    def _tidy(self, partition: Partition, state: CompactionState, check: CheckStep, *, is_due: bool) -> None:
        """Undo what is left of a pass that ended in the middle, unless the next one does so anyway."""
        if state.token and not is_due:
            check()
            self._store.give_up(partition, state.token)
        incarnation = (partition.stream, partition.topic_id)
        if incarnation not in self._tidied and state.compacted_end > 0:
            self._free(partition, check)
        if len(self._tidied) >= _REMEMBERED_MAX:
            self._tidied.clear()
        self._tidied.add(incarnation)

    def compact(self, plan: CompactionPlan, check: CheckStep) -> CompactionResult | None:
        """Do a pass; returns None if the log has changed since it was planned, having done nothing.

        Raises CompactionSupersededError if another pass of the log was begun meanwhile; KafkaError if the keys of less
        than one interval of the index do not fit the buffer.
        """
        check()
        under_way = self._store.begin(plan.partition, uuid.uuid4().hex, plan.state, plan.compacted_end)
        if under_way is None:
            return None
        incarnation = (plan.partition.stream, plan.partition.topic_id)
        self._tidied.discard(incarnation)
        running = _RunningPass(self._store, plan, under_way, check, self._decompressed_bytes_max)
        try:
            # From the begin of a pass on, share groups begin none any more.
            self._store.convert_redis_groups(plan.partition)
            done = running.run(self._buffer_bytes)
        except KafkaError:
            self._give_up(plan.partition, running.token)
            raise
        finally:
            for end, why in running.unreadable:
                self._note_unreadable(plan.partition, end, why)
        self._free(plan.partition, check)
        self._tidied.add(incarnation)
        return done

    def _give_up(self, partition: Partition, token: str) -> None:
        """Remove what was written: if memory is full no other pass may come to do it."""
        try:
            self._store.give_up(partition, token)
        except KafkaError as error:
            _LOG.warning(
                "%s: the garbage of a failed compaction pass stays for now: %s", partition.stream, error
            )

    def _note_unreadable(self, partition: Partition, end: int, why: str) -> None:
        """Log and count the batch before offset `end`, which stays as it is, once and not in every pass."""
        batch = (partition.stream, partition.topic_id, end)
        if batch in self._unreadable:
            return
        if len(self._unreadable) >= _REMEMBERED_MAX:
            self._unreadable.clear()
        self._unreadable.add(batch)
        metrics.COMPACTION_UNREADABLE.inc()
        _LOG.warning(
            "%s: the batch before offset %d cannot be read, and is kept: %s", partition.stream, end, why
        )

    def _free(self, partition: Partition, check: CheckStep) -> None:
        more = True
        while more:
            check()
            more = self._store.free(partition)


class _RunningPass:
    """One pass, from its begin to the switch."""

    def __init__(
        self,
        store: CompactionStore,
        plan: CompactionPlan,
        under_way: CompactionPass,
        check: CheckStep,
        decompressed_bytes_max: int,
    ) -> None:
        self.unreadable: list[tuple[int, str]] = []
        """The end of each batch that stays as it is, and why."""
        self._store = store
        self._config = plan.config
        self._partition = plan.partition
        self._pass = under_way
        self._check = check
        self._decompressed_bytes_max = decompressed_bytes_max
        self._tombstones = Tombstones(plan.state.history, plan.state.now_ms, plan.config.delete_retention_ms)
        self._retained = RetainedRows(under_way.start)

    @property
    def token(self) -> str:
        """The token by which Redis knows the pass now."""
        return self._pass.token

    def run(self, buffer_bytes: int) -> CompactionResult:
        """Do it."""
        cleaner = self._map(buffer_bytes)
        self._copy(cleaner)
        rows, interval = self._retained.finish()
        retained = Retained(
            records=self._retained.records,
            bytes=self._retained.bytes,
            interval=interval,
            rows=rows,
            history=self._tombstones.history,
            tombstones=cleaner.has_new_tombstones,
            markers_end=self._tombstones.due_end(self._pass.dirty_start)
            if self._pass.source is not None
            else 0,
        )
        self._check()
        self._store.switch(self._pass, retained)
        removed = cleaner.seen - retained.records
        return CompactionResult(self._pass.compacted_end, retained.records, removed, cleaner.unkeyed)

    def _map(self, buffer_bytes: int) -> LogCleaner:
        """Return what knows the latest offset of each key of the dirty part; ends the pass earlier if not all fit.

        It may have keys from after that earlier end: they do come again.
        """
        begin = self._pass.dirty_start
        rows = self._store.rows(self._partition, begin, self._pass.compacted_end, _INDEX_ROWS_MAX)
        row_offsets = [row.offset for row in rows]
        if len(rows) == _INDEX_ROWS_MAX:
            self._end_at(row_offsets[-1])
        cleaner = self._cleaner(buffer_bytes)
        for _, full_at in self._steps(begin, cleaner.map):
            if full_at is None:
                continue
            passed = bisect_right(row_offsets, full_at)
            if not passed:
                message = (
                    f"{self._partition.stream}: the map of keys holds {cleaner.keys}, too few for one "
                    f"interval of the index: raise log.cleaner.dedupe.buffer.size={buffer_bytes}"
                )
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
            self._end_at(row_offsets[passed - 1])
            break
        return cleaner

    def _cleaner(self, buffer_bytes: int) -> LogCleaner:
        under_way, partition = self._pass, self._partition
        if partition.is_dense:
            records_max = under_way.compacted_end - under_way.dirty_start
        else:
            records_max = self._store.entry_count(partition)
        return LogCleaner(
            partition,
            start=under_way.start,
            dirty_start=under_way.dirty_start,
            end=under_way.end,
            plain_bytes_max=self._decompressed_bytes_max,
            map_bytes_max=buffer_bytes,
            keys_max=max(records_max, 0),
            at_rest=self._config.at_rest,
            aborted=self._store.aborted(partition, under_way.start),
            periods=self._tombstones.periods,
        )

    def _end_at(self, offset: int) -> None:
        self._pass = self._pass._replace(compacted_end=offset)

    def _copy(self, cleaner: LogCleaner) -> None:
        """Write what stays of the compacted part, then of the dirty one."""
        buffered: list[Written] = []
        buffered_bytes = 0
        for _, left in self._steps(self._pass.start, cleaner.retain):
            for entry_id, fields, end, records, size, largest, damage in left:
                if damage is not None:
                    self.unreadable.append((end, damage))
                self._retained.add(end, records, size, largest)
                buffered.append((entry_id, fields))
                buffered_bytes += size
                if buffered_bytes >= _STEP_BYTES or len(buffered) >= _STEP_ENTRIES_MAX:
                    self._write(buffered)
                    buffered, buffered_bytes = [], 0
        self._write(buffered)

    def _write(self, buffered: list[Written]) -> None:
        if buffered:
            self._check()
            self._pass = self._store.write(self._pass, buffered)

    def _steps(
        self, offset: int, look: Callable[[RawReply], tuple[LogPage, T]]
    ) -> Iterator[tuple[LogPage, T]]:
        """Yield what `look` makes of the entries from `offset` on, as many at a time as keep a step small."""
        count = _FIRST_ENTRIES
        while True:
            self._check()
            reply = self._store.read(self._pass, offset, count)
            with refusals():
                looked = look(reply)
            next_offset, entries, size = looked[0]
            if next_offset is not None:
                yield looked
                offset = next_offset
                count = max(1, min(_STEP_ENTRIES_MAX, _STEP_BYTES * entries // max(size, 1)))
            elif offset < self._pass.dirty_start:
                offset = self._pass.dirty_start
            else:
                return
