"""How much a log holds and from where on, and the script that moves its start and gives memory back.

Knows the state's counters and lua/log/trim.lua; nothing of what is to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError
from korvet.storage import log_replies, scripts
from korvet.storage.index_store import STATE_FIELDS, Row, read_rows, read_totals
from korvet.storage.log_types import Partition
from korvet.storage.replies import Reply, RespError
from korvet.storage.resp import Arg, Redis

_TRIM = scripts.get("log/trim")

_STEP_ENTRIES_MAX = 100
"""Entries that a step gives back where nobody knows how large they are: as many as a node has by default."""

_STEP_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that a step gives back: some 0.3 ms of Redis, be they few entries or ten thousands (loadtest/micro/trim.py)."""

_FIELDS = (*STATE_FIELDS, "start_bytes", "archived", "reindex")


class Extent(NamedTuple):
    """What a log holds: the offsets `start`..`end`, and what Redis knows of the bytes and timestamps between.

    `bytes` is what ever came, `start_bytes` what lay below the start, to one row; `interval` the largest timestamp (ms)
    behind the last row, negative without any and where rows were lost. `rows` are the first of those that lie above the
    start, all of them unless there may be `more_rows`. `archived` is the offset up to which the cold tier holds the
    records. `reindex`: what the rows say of bytes is too much, for compaction has removed some. `unfinished`: memory is
    still to be given back.
    """

    start: int
    end: int
    bytes: int
    start_bytes: int
    interval: int
    rows: Sequence[Row]
    more_rows: bool
    archived: int
    reindex: bool
    unfinished: bool


class Trim(NamedTuple):
    """A step to be done: the log is to start at `start`, whose first record from there on is `first`.

    -1: the log starts where it does, or there is no such record. A start below the present one changes nothing.
    """

    partition: Partition
    start: int = -1
    first: int = -1


class Trimmed(NamedTuple):
    """What a step did: the log's start now, the records that left the log, and whether another step is needed."""

    start: int
    records: int
    more: bool


class TrimStore:
    """Looks at logs and moves their starts; every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def look(self, partitions: Sequence[Partition], rows_max: int) -> tuple[int, list[Extent | KafkaError]]:
        """Return Redis' clock (ms) and the extent of each log, with up to `rows_max` rows, in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises KafkaError.
        """
        commands: list[Sequence[Arg]] = [("TIME",)]
        for partition in partitions:
            commands += (
                ("HMGET", partition.state, *_FIELDS),
                # One more: the lowest row may lie below the start, or at it.
                ("ZRANGE", partition.index_key, 0, rows_max, "WITHSCORES"),
            )
        time, *replies = self._redis.pipeline(commands)
        states, rows = replies[::2], replies[1::2]
        return _milliseconds(time), [
            _extent(partition, state, some, rows_max)
            for partition, state, some in zip(partitions, states, rows, strict=True)
        ]

    def trim(self, trims: Sequence[Trim]) -> list[Trimmed | KafkaError]:
        """Do each step, all in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE (the start would lie behind the end),
        KAFKA_STORAGE_ERROR.
        """
        calls = [(_TRIM, _keys_of(trim.partition), _arguments(trim)) for trim in trims]
        replies = self._redis.scripts(calls)
        return [_trimmed(trim.partition, reply) for trim, reply in zip(trims, replies, strict=True)]


def _keys_of(partition: Partition) -> tuple[str, ...]:
    return (partition.stream, partition.state, partition.index_key, *partition.clean)


def _arguments(trim: Trim) -> list[Arg]:
    partition = trim.partition
    bits = -1 if partition.format == "batch" else partition.bits
    return [partition.topic_id, bits, trim.start, trim.first, _STEP_ENTRIES_MAX, _STEP_BYTES_MAX]


def _trimmed(partition: Partition, reply: Reply) -> Trimmed | KafkaError:
    if isinstance(reply, KafkaError):
        return reply
    if isinstance(reply, RespError):
        return log_replies.refused(partition.stream, reply)
    match reply:
        case [bytes() as start, int() as records, int(), int() as more] if start.isdigit():
            return Trimmed(int(start), records, more == 1)
    return log_replies.malformed(partition.stream, "the answer of log/trim")


def _extent(partition: Partition, state: Reply, rows: Reply, rows_max: int) -> Extent | KafkaError:
    try:
        fields = log_replies.listed(partition.state, state)
        totals = read_totals(partition, fields[: len(STATE_FIELDS)])
        every = read_rows(partition, rows)
    except KafkaError as error:
        return error
    try:
        more = cast("list[bytes | None]", fields[len(STATE_FIELDS) :])
        start_bytes, archived, reindex = (int(text or 0) for text in more)
    except (ValueError, TypeError):
        return log_replies.malformed(partition.state, "a field")
    # A row that came since the state was read belongs to what the next look sees.
    known = [row for row in every if row.offset <= totals.end]
    more_rows = len(every) > rows_max and known == every
    lost_rows = not more_rows and totals.misses_rows(known[-1] if known else None)
    return Extent(
        start=totals.start,
        end=totals.end,
        bytes=totals.bytes,
        start_bytes=start_bytes,
        # What it says of is what came since the last row that was written, wherever that is now.
        interval=-1 if lost_rows else totals.interval if known else totals.largest,
        rows=[row for row in known if row.offset > totals.start],
        more_rows=more_rows,
        archived=archived,
        reindex=reindex == 1,
        unfinished=len(every) > 1 and every[1].offset <= totals.start,
    )


def _milliseconds(time: Reply) -> int:
    try:
        seconds, microseconds = cast("list[bytes]", time)
        return int(seconds) * 1000 + int(microseconds) // 1000
    except (ValueError, TypeError) as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Redis answered TIME with {time!r}") from error
