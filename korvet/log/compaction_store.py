"""What a pass of compaction reads and writes (compaction.py): states of logs, ranges of their streams, and survivors.

A pass is known by its token: once another pass of the same log has begun, its steps do nothing any more. The same holds
if Redis has lost a step that it had confirmed, since the token changes with every write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from korvet_core import RawReply

from korvet.errors import ErrorCode, KafkaError
from korvet.log.index import STATE_FIELDS, Row, read_rows, read_totals
from korvet.log.share_parts import convert_redis_groups
from korvet.log.state import read_range
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.replies import Arg, Reply, RespError, checked, listed, malformed, time_ms
from korvet.redis.scripts import Script
from korvet.topics.types import Partition

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

ENTRY_ARGS_MAX = 7900
"""Lua's stack holds 8000 values (LUAI_MAXCSTACK), and a script passes all arguments of XADD through it."""

_PERIOD = re.compile(rb"(\d{1,19})@(\d{1,19})")

Written = tuple[bytes, Sequence[Arg]]
"""An entry to be written: its id, its fields and values."""


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


class Retained(NamedTuple):
    """What a pass retains. `interval` is the largest timestamp (ms) after the last of `rows`, -1: none.

    The rows count the records and bytes that it retains after them.
    `history` is the one before without what is over; `tombstones`: some, or markers, were compacted for the first time.
    Below `markers_end` no marker of a transaction was retained.
    """

    records: int
    bytes: int
    interval: int
    rows: Sequence[Row]
    history: Sequence[Period]
    tombstones: bool
    markers_end: int = 0


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

    def aborted(self, partition: Partition, start: int) -> list[tuple[int, int, int]]:
        """Return the transactions that were aborted by markers from `start` on: producer, first offset and marker."""
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
                return rows

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

    def read(self, under_way: CompactionPass, offset: int, entries_max: int) -> RawReply:
        """Return the first entries of a pass from `offset` on: compacted ones below `dirty_start`, then the log's."""
        partition, dirty_start = under_way.partition, under_way.dirty_start
        stream, end = partition.stream, under_way.compacted_end
        if offset < dirty_start and under_way.source is not None:
            stream, end = partition.compacted[under_way.source], dirty_start
        return read_range(self._redis, partition, stream, offset, end, entries_max)

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
    matches = [_PERIOD.fullmatch(word) for word in text.split()]
    if None in matches:
        msg = f"{text!r} is no history"
        raise ValueError(msg)
    return tuple(Period(int(match[1]), int(match[2])) for match in matches if match)
