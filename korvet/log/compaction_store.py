"""The compacted part of logs in Redis: what a pass of compaction reads and writes, step by step.

Knows the scripts under lua/compaction, the clean streams and where a log's entries lie before and behind the end of
the compacted part; nothing of which records are to stay. A pass is known by its token: once another pass of the same
log was begun no step of it does anything any more. Nor where Redis has lost a step that it had confirmed, for the token
changes with every write.

Entries as compaction sees them: which keys their records have, and what is left of an entry without some of them.

Knows both storage formats; nothing of which records are to stay. An entry that stays whole stays byte for byte; one
that nobody can read stays as well, for only what is understood may be removed.

The latest offset of each key, for so many keys as a number of bytes holds.

Knows keys as digests of 16 bytes: that two of a billion keys have the same one is a matter of 10^-20, and Kafka's
cleaner relies on it too. Open addressing in three flat arrays, since a dict takes eight times the memory.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import compress, count
from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError
from korvet.log.batch_format import StoredBatch, batch_args, read_batches
from korvet.log.record_format import ENTRY_ARGS_MAX, OFFSETS_END, SAFE_DIGITS, Arg, Entry, timestamp_of
from korvet.log.state import range_start
from korvet.protocol.records.record import StoredRecord
from korvet.protocol.records.stored import retained_batch, stored_records
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.replies import Reply, RespError, listed, malformed, refused
from korvet.redis.scripts import Script
from korvet.topics.types import AtRest, Partition

_LOOK = scripts.get("compaction/look")
_BEGIN = scripts.get("compaction/begin")
_WRITE = scripts.get("compaction/write")
_SWITCH = scripts.get("compaction/switch")
_GIVE_UP = scripts.get("compaction/give_up")
_FREE = scripts.get("compaction/free")

_FREE_ENTRIES_MAX = 100
"""Entries that one XTRIM takes where they are small: as many as a node of a stream has by default."""

_FREE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that it takes where they are large: a few milliseconds of Redis."""

_LOOK_ANSWERS = 14
_ROW = re.compile(rb"(\d{1,19}):(\d{1,19}):(-?\d{1,19}):(-?\d{1,19})")
_PERIOD = re.compile(rb"(\d{1,19})@(\d{1,19})")

Written = tuple[bytes, Sequence[Arg]]
"""An entry to be written: its id, its fields and values."""


class CompactionSupersededError(Exception):
    """Another pass of the same log was begun, this one given up, or a write of it lost: it must not go on."""


class Row(NamedTuple):
    """A row of the index: what ever came below `offset`, and the largest timestamp (ms) since the row before it."""

    offset: int
    records: int
    bytes: int
    interval: int


class Period(NamedTuple):
    """What lies below `end`, and not below an earlier period's, was compacted for the first time at `ms`."""

    end: int
    ms: int


class CompactionState(NamedTuple):
    """A log as its state tells of it, at `now_ms` by Redis' clock.

    The log lies between `start` and `end`; `bytes` ever came, `start_bytes` of them below the start. Below `clean_end`
    it is compacted, and lies in the stream number `clean`; `clean_bytes` ever came below. `newest` is the last row of
    the index, `interval` (ms) the largest timestamp behind it. `history` names the parts of the compacted log that hold
    tombstones. `token`: a pass is under way, or one was and has left something behind.
    """

    now_ms: int
    end: int
    start: int
    bytes: int
    interval: int
    start_bytes: int
    clean_end: int
    clean: int | None
    history: tuple[Period, ...]
    token: str
    clean_bytes: int
    newest: Row | None


class Pass(NamedTuple):
    """A pass of compaction under way, up to the offset `clean_end`, which is a row of the index.

    It reads the clean stream `source` below `dirty_start`, the log itself from there on, and writes the stream
    `target`.
    """

    partition: Partition
    token: str
    source: int | None
    target: int
    start: int
    dirty_start: int
    clean_end: int
    end: int


class KeptRow(NamedTuple):
    """A row at `offset` of what a pass has kept: what of it lies behind, and the largest timestamps (ms) below.

    `largest` is of all below the row, `interval` of what lies between the row before and this one; -1: none.
    """

    offset: int
    records_from: int
    bytes_behind: int
    largest: int
    interval: int


class Kept(NamedTuple):
    """What a pass has kept. `interval` is the largest timestamp (ms) behind the last of `rows`, -1: none.

    `history` is the one before without what is over; `tombstones`: some were compacted for the first time.
    """

    records: int
    bytes: int
    interval: int
    rows: Sequence[KeptRow]
    history: Sequence[Period]
    tombstones: bool


class CompactionStore:
    """Every method raises StorageUnavailableError where Redis is away, KafkaError where it answers with an error."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def look(self, partitions: Sequence[Partition]) -> list[CompactionState | KafkaError]:
        """Look at every log, all in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.
        """
        calls = [(_LOOK, (one.state, one.index_key), (one.topic_id,)) for one in partitions]
        replies = self._redis.scripts(calls)
        return [_look(partition, reply) for partition, reply in zip(partitions, replies, strict=True)]

    def rows(self, partition: Partition, after: int, last: int, rows_max: int) -> list[Row]:
        """Return the first rows of the index behind the offset `after`, up to `last`."""
        flat = cast(
            "list[bytes]",
            self._list(
                *("ZRANGEBYSCORE", partition.index_key, f"({after}", last, "WITHSCORES", "LIMIT", 0, rows_max)
            ),
        )
        return [_row(partition, *pair) for pair in zip(flat[::2], flat[1::2], strict=True)]

    def entry_count(self, partition: Partition) -> int:
        """Return how many entries the log itself has, those included that were compacted and are still to go."""
        [reply] = self._redis.pipeline([("XLEN", partition.stream)])
        if isinstance(reply, int):
            return reply
        raise _error(partition.stream, reply, "the answer to XLEN")

    def begin(self, partition: Partition, token: str, look: CompactionState, clean_end: int) -> Pass | None:
        """Begin a pass up to `clean_end`, a row of the index or the end of the log, where a row is written then.

        Nobody who began one before goes on. Returns None, having done nothing, where the log has changed since `look`.
        """
        keys = (partition.state, partition.index_key, *partition.compacted)
        dense = "dense" if partition.format == "batch" else ""
        reply = self._run(_BEGIN, keys, (partition.topic_id, token, look.clean_end, clean_end, dense))
        match reply:
            case [b"CHANGED", *_]:
                return None
            case [b"BEGUN", (0 | 1) as target, bytes() as start, bytes() as end, bytes()] if start.isdigit():
                # Nothing else makes a part compacted, so what was compacted when we looked is so still.
                dirty_start = max(look.clean_end, int(start))
                return Pass(
                    partition, token, look.clean, target, int(start), dirty_start, clean_end, int(end)
                )
        raise _error(partition.state, reply, "the answer of compaction/begin")

    def read(self, under_way: Pass, offset: int, count: int) -> list[Entry]:
        """Return the first entries of a pass from `offset` on: compacted ones below `dirty_start`, then the log's."""
        partition = under_way.partition
        entries: list[Entry] = []
        if offset < under_way.dirty_start and under_way.source is not None:
            stream, last = partition.compacted[under_way.source], _last_id(partition, under_way.dirty_start)
            entries = self._range(stream, range_start(partition, offset), last, count)
        if not entries:
            begin = range_start(partition, max(offset, under_way.dirty_start))
            last = _last_id(partition, under_way.clean_end)
            entries = self._range(partition.stream, begin, last, count)
        return entries

    def _range(self, stream: str, begin: str, last: str, count: int) -> list[Entry]:
        return cast("list[Entry]", self._list("XRANGE", stream, begin, last, "COUNT", count))

    def _list(self, name: str, key: str, *args: Arg) -> list[Reply]:
        [reply] = self._redis.pipeline([(name, key, *args)])
        return listed(key, reply)

    def _run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        [reply] = self._redis.scripts([(script, keys, args)])
        return reply

    def write(self, under_way: Pass, entries: Sequence[Written]) -> Pass:
        """Write survivors behind those written before; returns the pass as it goes on. Raises PassOverError."""
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
        keys = (partition.state, partition.compacted[under_way.target])
        _check(partition, self._run(_WRITE, keys, args), "compaction/write")
        return under_way._replace(token=token)

    def switch(self, under_way: Pass, kept: Kept) -> None:
        """Make what was written the compacted part of the log, and end the pass. Raises PassOverError."""
        partition = under_way.partition
        history = " ".join(f"{period.end}@{period.ms}" for period in kept.history)
        args: list[Arg] = [partition.topic_id, under_way.token, under_way.target, under_way.clean_end]
        args += (kept.records, kept.bytes, kept.interval, history, "tombstones" if kept.tombstones else "")
        for row in kept.rows:
            args += row
        keys = (partition.state, partition.index_key, *partition.compacted)
        _check(partition, self._run(_SWITCH, keys, args), "compaction/switch")

    def give_up(self, partition: Partition, token: str) -> bool:
        """End the pass of that present token and remove what it has written; returns whether it was under way."""
        reply = self._run(_GIVE_UP, (partition.state, *partition.compacted), (partition.topic_id, token))
        if reply in (0, 1):
            return reply == 1
        raise _error(partition.state, reply, "the answer of compaction/give_up")

    def free(self, partition: Partition) -> bool:
        """Give back some of what was compacted and still lies in the log itself; returns whether there may be more."""
        bits = -1 if partition.format == "batch" else partition.bits
        args = (partition.topic_id, bits, _FREE_ENTRIES_MAX, _FREE_BYTES_MAX)
        reply = self._run(_FREE, (partition.stream, partition.state), args)
        match reply:
            case [int(), int() as more]:
                return more == 1
        raise _error(partition.stream, reply, "the answer of compaction/free")


def _last_id(partition: Partition, end: int) -> str:
    """Return the id of the last entry that can lie below the offset `end`, which is above 0."""
    if partition.format == "batch":
        return f"{end}-0"
    last = end - 1
    return f"{last >> partition.bits}-{last & (1 << partition.bits) - 1}"


def _check(partition: Partition, reply: Reply, script: str) -> None:
    if reply == 0:
        raise CompactionSupersededError
    if reply != 1:
        raise _error(partition.state, reply, f"the answer of {script}")


def _error(key: str, reply: Reply, what: str) -> KafkaError:
    if isinstance(reply, KafkaError):
        return reply
    return refused(key, reply) if isinstance(reply, RespError) else malformed(key, what)


def _look(partition: Partition, reply: Reply) -> CompactionState | KafkaError:
    if not isinstance(reply, list) or len(reply) != _LOOK_ANSWERS:
        return _error(partition.state, reply, "the answer of compaction/look")
    texts = cast("list[bytes]", reply)
    try:
        return CompactionState(
            now_ms=int(texts[0]),
            end=int(texts[1]),
            start=int(texts[2]),
            bytes=int(texts[3]),
            # Without the field nothing is known of the records behind the last row.
            interval=int(texts[5] or -1),
            start_bytes=int(texts[6] or 0),
            clean_end=int(texts[7] or 0),
            clean=(b"0", b"1").index(texts[8]) if texts[8] else None,
            history=_history(texts[9]),
            token=texts[10].decode("ascii", "backslashreplace"),
            clean_bytes=int(texts[11] or 0),
            newest=_row(partition, texts[13], texts[12]) if texts[13] else None,
        )
    except KafkaError as error:
        return error
    except (ValueError, TypeError):
        return malformed(partition.state, "a field")


def _history(text: bytes) -> tuple[Period, ...]:
    found = [_PERIOD.fullmatch(word) for word in text.split()]
    if None in found:
        msg = f"{text!r} is no history"
        raise ValueError(msg)
    return tuple(Period(int(each[1]), int(each[2])) for each in found if each)


def _row(partition: Partition, member: bytes, score: bytes) -> Row:
    found = _ROW.fullmatch(member)
    if found is None:
        raise malformed(partition.index_key, "a row")
    return Row(int(float(score)), int(found[1]), int(found[2]), int(found[4]))


Buffer = bytes | memoryview


class Keyed(NamedTuple):
    """A record by what decides whether it stays; without a `key` it is none that compaction knows."""

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool


class RecordEntry:
    """An entry of format `record`: one record. There is none that nobody can read."""

    __slots__ = ("_fields", "entry_id", "records")

    damage: str | None = None
    record_count = 1
    max_timestamp = -1

    def __init__(self, entry: Entry, bits: int) -> None:
        """Raise ValueError, TypeError, AttributeError or IndexError for what is no answer to XRANGE."""
        self.entry_id, self._fields = entry
        ms, _, sequence = self.entry_id.partition(b"-")
        offset = (int(ms) << bits) + int(sequence)
        # The fields of nearly every record with a key, in the order in which they are written.
        match self._fields:
            case [b"key", key, b"value", _, b"timestamp", stamp, *_] if (
                stamp.isdigit() and len(stamp) <= SAFE_DIGITS
            ):
                self.records = [Keyed(offset, int(stamp), key, is_tombstone=False)]
            case fields:
                self.records = [_keyed(offset, int(ms), fields)]

    @property
    def next_offset(self) -> int:
        """The offset just past the entry."""
        return self.records[0].offset + 1

    def without(self, keep: Sequence[bool], at_rest: AtRest) -> Sequence[Buffer] | None:  # noqa: ARG002 - as BatchEntry's
        """Return the fields of the entry with those of its records that `keep` says, None where that is none."""
        return self._fields if keep[0] else None


def _keyed(offset: int, added_ms: int, fields: Sequence[bytes]) -> Keyed:
    key: bytes | None = None
    timestamp: int | None = None
    is_tombstone = True
    for name, content in zip(fields[::2], fields[1::2], strict=True):
        if name == b"key" and key is None:
            key = content
        elif name == b"value":
            is_tombstone = False
        elif name == b"timestamp" and timestamp is None:
            timestamp = timestamp_of(content)
    return Keyed(offset, added_ms if timestamp is None else timestamp, key, is_tombstone)


class BatchEntry:
    """An entry of format `batch`: a producer's batch. `damage` says why nobody can read it, if so."""

    __slots__ = ("_batch", "_fields", "_stored", "damage", "entry_id", "next_offset", "records")

    def __init__(self, entry: Entry, bytes_max: int) -> None:
        """Decompress to `bytes_max` bytes at the most; a batch beyond it counts as one that nobody can read.

        Raises ValueError, TypeError, AttributeError or IndexError for what is no answer to XRANGE.
        """
        self.entry_id, self._fields = entry
        self.next_offset = int(self.entry_id.partition(b"-")[0])
        self.records: list[Keyed] = []
        self.damage: str | None = None
        self._stored: list[StoredRecord] = []
        self._batch: StoredBatch | None = None
        try:
            batches, external = read_batches([entry], OFFSETS_END)
            if external:
                return
            [self._batch] = batches
            batch = self._batch
            self._stored = stored_records(batch.header, batch.payload, batch.base_offset, bytes_max)
        except (ValueError, KafkaError) as error:
            self.damage = str(error)
            return
        self.records = [Keyed(record[0], record[1], record[2], record[3] is None) for record in self._stored]

    @property
    def max_timestamp(self) -> int:
        """What the header says; -1 where there is none."""
        return -1 if self._batch is None else self._batch.header.max_timestamp

    @property
    def record_count(self) -> int:
        """How many records the batch has, by its header."""
        return 0 if self._batch is None else self._batch.header.record_count

    def without(self, keep: Sequence[bool], at_rest: AtRest) -> Sequence[Buffer] | None:
        """Return the fields of the entry with those of its records that `keep` says, None where that is none.

        What others wrote is no record in this format, and goes.
        """
        if self.damage is not None:
            return self._fields
        if self._batch is None or not any(keep):
            return None
        if all(keep):
            return self._fields
        header = self._batch.header
        data = retained_batch(header, self._batch.base_offset, list(compress(self._stored, keep)))
        return cast("list[Buffer]", batch_args(memoryview(data), header.codec, at_rest))


SLOT_BYTES = 24
"""Two words of a digest and an offset."""

_FILLED_MAX = 0.75  # up to here a key that is not in the map is found so in four steps on average
_DIGEST_BYTES = 16
_SLOTS_MIN = 64
_words = struct.Struct("<QQ").unpack


class OffsetMap:
    """Holds up to `keys_max` keys, or as many as fit `bytes_max` bytes where these are fewer."""

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
        """Remember `offset` as the latest of `key`; returns False, and does nothing, where no other key fits."""
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
        """Return the offset that was put last for `key`, -1 where none was."""
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
    """Return the first prime number from `begin` on, upwards or downwards; there is one."""
    return next(n for n in count(begin, step) if all(n % by for by in range(2, int(n**0.5) + 1)))
