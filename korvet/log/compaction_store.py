"""What a pass of compaction reads and writes (compaction.py): states, entries by key, and a map of keys.

A pass is known by its token: once another pass of the same log has begun, its steps do nothing any more. The same holds
if Redis has lost a step that it had confirmed, since the token changes with every write.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import compress, count
from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError
from korvet.log.batch_format import batch_args, read_batches
from korvet.log.index import STATE_FIELDS, Row, read_rows, read_totals
from korvet.log.record_format import (
    CONTROL,
    ENTRY_ARGS_MAX,
    PRODUCER,
    SAFE_DIGITS,
    Arg,
    Entry,
    timestamp_of,
)
from korvet.log.share_parts import convert_redis_groups
from korvet.log.state import range_end, range_start
from korvet.log.types import StoredBatch
from korvet.protocol.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, retained_batch
from korvet.protocol.records.record import StoredRecord
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.replies import Reply, RespError, checked, listed, malformed, time_ms
from korvet.redis.scripts import Script
from korvet.topics.entry_ids import BATCH, OFFSETS_END, added_ms, end_of_id
from korvet.topics.types import AtRest, Partition

_BEGIN = scripts.get("compaction/begin")
_WRITE = scripts.get("compaction/write")
_SWITCH = scripts.get("compaction/switch")
_GIVE_UP = scripts.get("compaction/give_up")
_FREE = scripts.get("compaction/free")

_FREE_ENTRIES_MAX = 100
"""Entries that one XTRIM takes if they are small: as many as a node of a stream has by default."""

_FREE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that it takes if they are large: a few milliseconds of Redis."""

_ABORTED_PER_READ = 10_000

_PERIOD = re.compile(rb"(\d{1,19})@(\d{1,19})")

Written = tuple[bytes, Sequence[Arg]]
"""An entry to be written: its id, its fields and values."""

Buffer = bytes | memoryview


class CompactionSupersededError(Exception):
    """Another pass of the same log was begun, this one given up, or a write of it lost: it must not go on."""


class Period(NamedTuple):
    """What lies below `end`, and not below an earlier period's, was compacted for the first time at `ms`."""

    end: int
    ms: int


class CompactionState(NamedTuple):
    """The state of a log at `now_ms` by Redis' clock, as far as compaction goes by it.

    The log lies between `start` and `end`, and is decided below `stable`, where the first open transaction begins;
    `bytes` ever came, `start_bytes` of them below the start. Below
    `compacted_end` it lies in the compacted segment number `segment`; `compacted_bytes` ever came below. `newest` is
    the last row of the index, `interval` (ms) the largest timestamp after it. `history` names the parts of the
    compacted log that hold tombstones. `token`: a pass is under way, or one was and has left something behind.
    """

    now_ms: int
    end: int
    start: int
    bytes: int
    interval: int
    start_bytes: int
    compacted_end: int
    segment: int | None
    history: tuple[Period, ...]
    token: str
    compacted_bytes: int
    newest: Row | None
    stable: int


class CompactionPass(NamedTuple):
    """A pass under way, up to the offset `compacted_end`, which is a row of the index.

    It reads the segment `source` below `dirty_start`, the log itself from there on, and writes the segment `target`.
    """

    partition: Partition
    token: str
    source: int | None
    target: int
    start: int
    dirty_start: int
    compacted_end: int
    end: int


class RetainedRow(NamedTuple):
    """A row at `offset` of what a pass retains: what of it lies after the row, and the largest timestamps (ms) below.

    `largest` is of all below the row, `interval` of what lies between the row before and this one; -1: none.
    """

    offset: int
    records_after: int
    bytes_after: int
    largest: int
    interval: int


class Retained(NamedTuple):
    """What a pass retains. `interval` is the largest timestamp (ms) after the last of `rows`, -1: none.

    `history` is the one before without what is over; `tombstones`: some, or markers, were compacted for the first time.
    Below `markers_end` no marker of a transaction was retained.
    """

    records: int
    bytes: int
    interval: int
    rows: Sequence[RetainedRow]
    history: Sequence[Period]
    tombstones: bool
    markers_end: int = 0


class AbortedTransactions:
    """Which records of a log belong to transactions that were aborted."""

    def __init__(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """`rows` have producer id, first offset and the offset of the marker, in order of the last."""
        self._of: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first, marker in rows:
            firsts, markers = self._of.setdefault(producer_id, ([], []))
            firsts.append(first)
            markers.append(marker)

    def has(self, producer_id: int, offset: int) -> bool:
        """Return whether a transactional record of that producer was aborted."""
        firsts, markers = self._of.get(producer_id, ((), ()))
        at = bisect_right(firsts, offset) - 1
        return at >= 0 and offset < markers[at]


class CompactionStore:
    """Every method raises StorageUnavailableError while Redis is away, KafkaError if it answers with an error."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def states(self, partitions: Sequence[Partition]) -> list[CompactionState | KafkaError]:
        """Return the state of every log, all in one round trip after that for the time.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.
        """
        calls = [
            (
                ("HMGET", partition.state, *STATE_FIELDS, "clean_history", "clean_token"),
                ("ZREVRANGE", partition.index_key, 0, 0, "WITHSCORES"),
            )
            for partition in partitions
        ]
        [clock] = self._redis.pipeline([("TIME",)])
        now_ms = time_ms(clock)
        replies = self._redis.transactions(calls)
        return [
            _state(partition, now_ms, reply) for partition, reply in zip(partitions, replies, strict=True)
        ]

    def rows(self, partition: Partition, after: int, last: int, rows_max: int) -> list[Row]:
        """Return the first rows of the index after the offset `after`, up to `last`."""
        scored = (f"({after}", last, "WITHSCORES", "LIMIT", 0, rows_max)
        [reply] = self._redis.pipeline([("ZRANGEBYSCORE", partition.index_key, *scored)])
        return read_rows(partition, reply)

    def entry_count(self, partition: Partition) -> int:
        """Return how many entries the log itself has, those included that were compacted and are not freed yet."""
        [reply] = self._redis.pipeline([("XLEN", partition.stream)])
        length = checked(partition.stream, reply)
        if isinstance(length, int):
            return length
        raise malformed(partition.stream, "the answer to XLEN")

    def aborted(self, partition: Partition, start: int) -> AbortedTransactions:
        """Return the transactions that were aborted by markers from `start` on."""
        rows: list[tuple[int, int, int]] = []
        while True:
            page = ("LIMIT", len(rows), _ABORTED_PER_READ)
            command = ("ZRANGEBYSCORE", partition.aborted, start, "+inf", "WITHSCORES", *page)
            [reply] = self._redis.pipeline([command])
            flat = cast("list[bytes]", listed(partition.aborted, reply))
            try:
                for member, marker in zip(flat[::2], flat[1::2], strict=True):
                    producer_id, first, _ = member.split(b":")
                    rows.append((int(producer_id), int(first), int(marker)))
            except ValueError as error:
                raise malformed(partition.aborted, "an aborted transaction") from error
            if len(flat) < 2 * _ABORTED_PER_READ:
                return AbortedTransactions(rows)

    def begin(
        self, partition: Partition, token: str, state: CompactionState, end: int
    ) -> CompactionPass | None:
        """Begin a pass up to `end`, a row of the index or the end of the log, where this writes a row.

        A pass that was begun before does not go on. Returns None, having done nothing, if the log has changed since
        `state` was read.
        """
        keys = (partition.state, partition.index_key, *partition.compacted)
        reply = self._run(_BEGIN, keys, (partition.topic_id, token, state.compacted_end, end))
        match reply:
            case [b"CHANGED", *_]:
                return None
            case [b"BEGUN", (0 | 1) as target, bytes() as first, bytes() as last, bytes()] if first.isdigit():
                # Only a pass moves the end of the compacted part, and none did since the state was read.
                start, dirty_start = int(first), max(state.compacted_end, int(first))
                source = state.segment
                return CompactionPass(partition, token, source, target, start, dirty_start, end, int(last))
        raise malformed(partition.state, "the answer of compaction/begin")

    def convert_redis_groups(self, partition: Partition) -> None:
        """Convert what share groups have in Redis groups: entries that a pass moves leave the stream."""
        convert_redis_groups(self._redis, partition)

    def read(self, under_way: CompactionPass, offset: int, entries_max: int) -> list[Entry]:
        """Return the first entries of a pass from `offset` on: compacted ones below `dirty_start`, then the log's."""
        partition, dirty_start = under_way.partition, under_way.dirty_start
        entries: list[Entry] = []
        if offset < dirty_start and under_way.source is not None:
            segment = partition.compacted[under_way.source]
            entries = self._range(partition, segment, offset, dirty_start, entries_max)
        if not entries:
            first = max(offset, dirty_start)
            entries = self._range(partition, partition.stream, first, under_way.compacted_end, entries_max)
        return entries

    def _range(
        self, partition: Partition, stream: str, first: int, end: int, entries_max: int
    ) -> list[Entry]:
        begin, last = range_start(partition, first), range_end(partition, end)
        [reply] = self._redis.pipeline([("XRANGE", stream, begin, last, "COUNT", entries_max)])
        return cast("list[Entry]", listed(stream, reply))

    def write(self, under_way: CompactionPass, entries: Sequence[Written]) -> CompactionPass:
        """Write survivors after those written before; returns the pass as it goes on.

        Raises CompactionSupersededError.
        """
        partition = under_way.partition
        pass_id, _, writes = under_way.token.partition(":")
        token = f"{pass_id}:{int(writes or 0) + 1}"
        args: list[Arg] = [partition.topic_id, under_way.token, token]
        for entry_id, fields in entries:
            if len(fields) > ENTRY_ARGS_MAX:
                message = (
                    f"{partition.stream}: entry {entry_id.decode()} has {len(fields) // 2} fields, too many to "
                    "compact it; remove it with XDEL"
                )
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
            args += (entry_id, len(fields), *fields)
        self._step(_WRITE, (partition.state, partition.compacted[under_way.target]), args)
        return under_way._replace(token=token)

    def switch(self, under_way: CompactionPass, retained: Retained) -> None:
        """Make what was written the compacted part of the log, and end the pass. Raises CompactionSupersededError."""
        partition = under_way.partition
        history = " ".join(f"{period.end}@{period.ms}" for period in retained.history)
        args: list[Arg] = [partition.topic_id, under_way.token, under_way.target, under_way.compacted_end]
        args += (retained.records, retained.bytes, retained.interval, history)
        args += ("tombstones" if retained.tombstones else "", retained.markers_end)
        for row in retained.rows:
            args += row
        keys = (partition.state, partition.index_key, *partition.compacted, partition.aborted)
        self._step(_SWITCH, keys, args)

    def give_up(self, partition: Partition, token: str) -> bool:
        """End the pass of that present token and remove what it has written; returns whether it was under way."""
        reply = self._run(_GIVE_UP, (partition.state, *partition.compacted), (partition.topic_id, token))
        if reply in (0, 1):
            return reply == 1
        raise malformed(partition.state, "the answer of compaction/give_up")

    def free(self, partition: Partition) -> bool:
        """Free some of what was compacted and still lies in the log itself; returns whether there may be more."""
        args = (partition.topic_id, partition.bits, _FREE_ENTRIES_MAX, _FREE_BYTES_MAX)
        match self._run(_FREE, (partition.stream, partition.state), args):
            case [int(), int() as more]:
                return more == 1
        raise malformed(partition.stream, "the answer of compaction/free")

    def _step(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> None:
        reply = self._run(script, keys, args)
        if reply == 0:
            raise CompactionSupersededError
        if reply != 1:
            raise malformed(keys[0], f"the answer of {script.name}")

    def _run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        [reply] = self._redis.scripts([(script, keys, args)])
        return checked(keys[0], reply)


def _state(
    partition: Partition, now_ms: int, replies: list[Reply] | RespError | KafkaError
) -> CompactionState | KafkaError:
    try:
        state, newest = listed(partition.state, replies)
        totals = read_totals(partition, cast("list[Reply]", state)[: len(STATE_FIELDS)])
        rows = read_rows(partition, newest)
        history, token = cast("list[bytes | None]", state)[len(STATE_FIELDS) :]
        return CompactionState(
            now_ms=now_ms,
            end=totals.end,
            start=totals.start,
            bytes=totals.bytes,
            interval=totals.interval,
            start_bytes=totals.start_bytes,
            compacted_end=totals.compacted_end,
            segment=totals.segment,
            history=_history(history or b""),
            token=(token or b"").decode("ascii", "backslashreplace"),
            compacted_bytes=totals.compacted_bytes,
            newest=rows[0] if rows else None,
            stable=totals.end if totals.open_offset is None else min(totals.open_offset, totals.end),
        )
    except KafkaError as error:
        return error.without_frames()
    except (ValueError, TypeError):
        return malformed(partition.state, "a field")


def _history(text: bytes) -> tuple[Period, ...]:
    found = [_PERIOD.fullmatch(word) for word in text.split()]
    if None in found:
        msg = f"{text!r} is no history"
        raise ValueError(msg)
    return tuple(Period(int(each[1]), int(each[2])) for each in found if each)


class KeyedRecord(NamedTuple):
    """What decides whether a record stays. Compaction keeps nothing for a record without a `key`.

    `producer_id` is that of a transaction, -1 outside of one. A marker of one, `is_marker`, has no key.
    """

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool
    producer_id: int = -1
    is_marker: bool = False


class RecordEntry:
    """An entry of format `record`: one record, which can always be read."""

    __slots__ = ("_fields", "entry_id", "records")

    damage: str | None = None
    producer_id = -1
    record_count = 1
    max_timestamp = -1

    def __init__(self, entry: Entry, bits: int) -> None:
        """Raise ValueError, TypeError, AttributeError or IndexError for what is no answer to XRANGE."""
        self.entry_id, self._fields = entry
        end = end_of_id(self.entry_id, bits)
        if end is None:
            raise ValueError(f"{self.entry_id!r} names no offset")
        offset = end - 1
        # The fields of nearly every record with a key, in the order in which they are written.
        match self._fields:
            case [b"key", key, b"value", _, b"timestamp", stamp, *rest] if (
                stamp.isdigit() and len(stamp) <= SAFE_DIGITS and PRODUCER not in rest
            ):
                self.records = [KeyedRecord(offset, int(stamp), key, is_tombstone=False)]
            case fields:
                self.records = [_keyed(offset, added_ms(offset, bits), fields)]

    @property
    def next_offset(self) -> int:
        """The offset just past the entry."""
        return self.records[0].offset + 1

    def retained(self, keep: Sequence[bool], at_rest: AtRest) -> Sequence[Buffer] | None:  # noqa: ARG002 - as BatchEntry's
        """Return the fields of the entry with the records that `keep` says, None if that is none."""
        return self._fields if keep[0] else None


def _keyed(offset: int, added_ms: int, fields: Sequence[bytes]) -> KeyedRecord:
    key: bytes | None = None
    timestamp: int | None = None
    is_tombstone = True
    producer_id, is_marker = -1, False
    for name, content in zip(fields[::2], fields[1::2], strict=True):
        if name == b"key" and key is None:
            key = content
        elif name == b"value":
            is_tombstone = False
        elif name == b"timestamp" and timestamp is None:
            timestamp = timestamp_of(content)
        elif name == PRODUCER and (owner := content.partition(b":")[0]).isdigit():
            producer_id = int(owner)
        elif name == CONTROL:
            is_marker = True
    at = added_ms if timestamp is None else timestamp
    return KeyedRecord(offset, at, key, is_tombstone, producer_id, is_marker)


class BatchEntry:
    """An entry of format `batch`: a producer's batch. `damage` says why it cannot be read, if so."""

    __slots__ = ("_batch", "_fields", "_stored", "damage", "entry_id", "next_offset", "records")

    def __init__(self, entry: Entry, bytes_max: int) -> None:
        """Decompress to `bytes_max` bytes at the most; a batch beyond it counts as damaged.

        Raises ValueError, TypeError, AttributeError or IndexError for what is no answer to XRANGE.
        """
        self._fields: list[bytes]
        self.entry_id, self._fields = entry
        self.next_offset = end_of_id(self.entry_id, BATCH) or 0
        self.records: list[KeyedRecord] = []
        self.damage: str | None = None
        self._stored: list[StoredRecord] = []
        self._batch: StoredBatch | None = None
        try:
            batches, external = read_batches([entry], OFFSETS_END)
            if external:
                return
            [self._batch] = batches
            batch = self._batch
            self._stored = list(batch.records(bytes_max))
        except (ValueError, KafkaError) as error:
            self.damage = str(error)
            return
        header = batch.header
        owner = header.producer_id if header.attributes & TRANSACTIONAL_BIT else -1
        if header.attributes & CONTROL_BIT:
            self.records = [KeyedRecord(each[0], each[1], None, False, owner, True) for each in self._stored]  # noqa: FBT003 - in the order of the fields
        else:
            self.records = [KeyedRecord(*each[:3], each[3] is None, owner) for each in self._stored]

    @property
    def producer_id(self) -> int:
        """That of a transaction by the header, -1 outside of one."""
        header = None if self._batch is None else self._batch.header
        return header.producer_id if header and header.attributes & TRANSACTIONAL_BIT else -1

    @property
    def max_timestamp(self) -> int:
        """What the header says; -1 without one."""
        return -1 if self._batch is None else self._batch.header.max_timestamp

    @property
    def record_count(self) -> int:
        """How many records the batch has, by its header."""
        return 0 if self._batch is None else self._batch.header.record_count

    def retained(self, keep: Sequence[bool], at_rest: AtRest) -> Sequence[Buffer] | None:
        """Return the fields of the entry with the records that `keep` says, None if that is none.

        An entry that stays whole stays byte for byte; one that nobody can read stays as well, for only what is
        understood may be removed. An external entry is no record in this format, and goes.
        """
        if self.damage is not None:
            return self._fields
        if self._batch is None or not any(keep):
            return None
        if all(keep):
            return self._fields
        header = self._batch.header
        try:
            data = retained_batch(
                self._batch.stored, self._batch.base_offset, list(compress(self._stored, keep))
            )
        except KafkaError:
            return self._fields
        return cast("list[Buffer]", batch_args(memoryview(data), header.codec, at_rest))


SLOT_BYTES = 24
"""Two words of a digest and an offset."""

_FILLED_MAX = 0.75  # up to here a key that is not in the map is found so in four steps on average
_DIGEST_BYTES = 16
_SLOTS_MIN = 64
_words = struct.Struct("<QQ").unpack


class OffsetMap:
    """The latest offset of each of up to `keys_max` keys, or of as many as fit `bytes_max` bytes if these are fewer.

    Keys are digests of 16 bytes: that two of a billion keys have the same one is a matter of 10^-20, and Kafka's
    cleaner relies on it too. Open addressing in three flat arrays, since a dict takes eight times the memory.
    """

    __slots__ = ("_ends", "_firsts", "_keys_max", "_seconds", "_slots", "keys")

    def __init__(self, bytes_max: int, keys_max: int) -> None:
        # A prime number of slots: whatever the step, it comes to every one of them.
        self._slots = _prime(max(_SLOTS_MIN, int(keys_max / _FILLED_MAX) + 1), 1)
        if self._slots * SLOT_BYTES > bytes_max:
            self._slots = _prime(max(_SLOTS_MIN, bytes_max // SLOT_BYTES), -1)
        self._keys_max = int(self._slots * _FILLED_MAX)
        empty = bytes(8 * self._slots)
        self._firsts, self._seconds, self._ends = array("Q", empty), array("Q", empty), array("Q", empty)
        self.keys = 0

    @property
    def size_bytes(self) -> int:
        """The memory that the map takes, however many keys are in it."""
        return self._slots * SLOT_BYTES

    def put(self, key: bytes, offset: int) -> bool:
        """Remember `offset` as the latest of `key`; returns False, and does nothing, if no other key fits."""
        first, second = _words(blake2b(key, digest_size=_DIGEST_BYTES).digest())
        at = self._find(first, second)
        if not self._ends[at]:
            if self.keys >= self._keys_max:
                return False
            self.keys += 1
            self._firsts[at], self._seconds[at] = first, second
        self._ends[at] = offset + 1
        return True

    def latest(self, key: bytes) -> int:
        """Return the offset that was put last for `key`, -1 if none was."""
        first, second = _words(blake2b(key, digest_size=_DIGEST_BYTES).digest())
        return self._ends[self._find(first, second)] - 1

    def _find(self, first: int, second: int) -> int:
        """Return the slot of a digest, or the empty one where it belongs."""
        slots, ends = self._slots, self._ends
        at, step = first % slots, second % (slots - 1) + 1
        while ends[at] and not (self._firsts[at] == first and self._seconds[at] == second):
            at += step
            if at >= slots:
                at -= slots
        return at


def _prime(begin: int, step: int) -> int:
    return next(n for n in count(begin, step) if all(n % by for by in range(2, int(n**0.5) + 1)))
