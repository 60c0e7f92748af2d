"""Compaction: of each key's records a log keeps the latest, at its offset.

Knows how a pass goes, and that it may end at any step without harm; nothing of when one is due, which is
compaction_plan's, nor of how entries are laid out. A pass
1. reads the part of the log that is not compacted yet, and remembers the latest offset of each key in it;
2. reads the compacted part and that part again, and writes what stays of both to the clean stream that is not in use;
3. makes that one the compacted part, in one step;
4. gives back the memory of what now lies there twice.
Readers see the log as it was up to 3, and as it is from there on. What a pass that never came to 3 has written is
garbage, which the next one removes.
"""

from __future__ import annotations

import logging
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from korvet.domain import compaction_plan
from korvet.domain.compaction_plan import Ages, Tombstones
from korvet.domain.compaction_rows import KeptRows
from korvet.domain.key_map import KeyMap
from korvet.domain.topic_config import TopicConfig
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT
from korvet.storage.clean_entry import BatchEntry, Buffer, Keyed, RecordEntry
from korvet.storage.clean_store import CleanLook, CleanStore, Kept, Pass, Row, Written
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Fetched, Partition, Read

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
    look: CleanLook
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
        self, store: CleanStore, logs: LogStore, *, buffer_bytes: int, decompressed_bytes_max: int
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

    def _plan(self, partition: Partition, config: TopicConfig, look: CleanLook) -> Plan | None:
        ages = Ages(
            self._timestamp(partition, compaction_plan.dirty_start(look))
            if compaction_plan.asks_for_oldest(look, config)
            else None,
            self._timestamp(partition, compaction_plan.tail_start(look))
            if compaction_plan.asks_for_tail(look, config)
            else None,
        )
        rows: Sequence[Row] = ()
        if compaction_plan.asks_for_rows(look, config):
            rows = self._store.rows(partition, compaction_plan.dirty_start(look), look.end, _ROWS_MAX)
        due = compaction_plan.due(look, config, ages, rows)
        return None if due is None else Plan(partition, config, look, *due)

    def _timestamp(self, partition: Partition, offset: int) -> int | None:
        """Return the timestamp (ms) of the first record from `offset` on, None where there is none."""
        place = (partition.stream, partition.topic_id, offset)
        if place not in self._timestamps:
            [fetched] = self._logs.read([Read(partition, offset, 1)])
            if isinstance(fetched, KafkaError):
                raise fetched
            found = _first_timestamp(fetched)
            if found is None:
                return None
            if len(self._timestamps) >= _REMEMBERED_MAX:
                self._timestamps.clear()
            self._timestamps[place] = found
        return self._timestamps[place]

    def _tidy(self, partition: Partition, look: CleanLook, check: Check, *, is_due: bool) -> None:
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


def _first_timestamp(fetched: Fetched) -> int | None:
    if fetched.batches:
        header = fetched.batches[0].header
        return header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else header.base_timestamp
    return fetched.records[0][1] if fetched.records else None


class _Passing:
    """One pass, from its begin to the switch."""

    def __init__(
        self, store: CleanStore, plan: Plan, under_way: Pass, check: Check, decompressed_bytes_max: int
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

    def _map(self, buffer_bytes: int) -> KeyMap:
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
        keys = KeyMap(buffer_bytes, max(records_max, 0))
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

    def _copy(self, keys: KeyMap) -> None:
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

    def _reduced(self, entry: RecordEntry | BatchEntry, keys: KeyMap) -> Sequence[Buffer] | None:
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

    def _stays(self, record: Keyed, keys: KeyMap) -> bool:
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
