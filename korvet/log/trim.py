"""Moving the start of a log: at once for whoever reads, while the memory below it is given back step by step.

Knows that a start moves forward only, and who counts what left; nothing of why it moves. In the background a worker
works at each partition once at a time, and what fails there is told once, not to a client: the keeper does it again.

How much a log holds and from where on, and the script that moves its start and gives memory back.

Knows the state's counters and lua/log/trim.lua; nothing of what is to be kept.

Deleting the oldest records at an administrator's word (DeleteRecords).

Knows what an offset to delete up to may be, and what is answered; nothing of messages or of topics. Kafka's rules
(Partition.deleteRecordsOnLeader): an offset behind the high watermark is out of range, one below the log start changes
nothing, and both the answer and the start of the log are exact, whatever the memory below is still to be given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, cast

import gevent
import msgspec

from korvet import logs
from korvet.errors import ErrorCode, KafkaError
from korvet.log.index import STATE_FIELDS, Row, read_rows, read_totals
from korvet.log.remote.archived import RemoteOffsetStore
from korvet.log.store import LogStore
from korvet.log.types import Bounds, Read
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.replies import Reply, RespError, listed, malformed, refused, time_ms
from korvet.topics.types import Partition

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
        return time_ms(time), [
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
    return (partition.stream, partition.state, partition.index_key, *partition.compacted)


def _arguments(trim: Trim) -> list[Arg]:
    partition = trim.partition
    bits = -1 if partition.format == "batch" else partition.bits
    return [partition.topic_id, bits, trim.start, trim.first, _STEP_ENTRIES_MAX, _STEP_BYTES_MAX]


def _trimmed(partition: Partition, reply: Reply) -> Trimmed | KafkaError:
    if isinstance(reply, KafkaError):
        return reply
    if isinstance(reply, RespError):
        return refused(partition.stream, reply)
    match reply:
        case [bytes() as start, int() as records, int(), int() as more] if start.isdigit():
            return Trimmed(int(start), records, more == 1)
    return malformed(partition.stream, "the answer of log/trim")


def _extent(partition: Partition, state: Reply, rows: Reply, rows_max: int) -> Extent | KafkaError:
    try:
        fields = listed(partition.state, state)
        totals = read_totals(partition, fields[: len(STATE_FIELDS)])
        every = read_rows(partition, rows)
    except KafkaError as error:
        return error
    try:
        more = cast("list[bytes | None]", fields[len(STATE_FIELDS) :])
        start_bytes, archived, reindex = (int(text or 0) for text in more)
    except (ValueError, TypeError):
        return malformed(partition.state, "a field")
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


_log = logs.Log(__name__)

_FIRST_RECORDS_PER_READ = 10
"""First records asked for at once: one may be a batch of many megabytes."""

Reason = Literal["time", "size", "delete_records"]
"""Why records leave a log."""

CountTrimmed = Callable[[Reason, int], None]
"""Is told of records that left a log."""


class Start(NamedTuple):
    """An offset that a log is to start at."""

    partition: Partition
    offset: int


class Trimmer:
    """Moves the starts of logs."""

    def __init__(self, log: LogStore, store: TrimStore, count: CountTrimmed) -> None:
        self._log = log
        self._store = store
        self._count = count

    def move(self, starts: Sequence[Start], reason: Reason) -> list[Trimmed | KafkaError]:
        """Move each start, unless it lies there or behind already, and give back a first piece of memory.

        What is reported as log start is the first record from there on. In the answers KafkaError:
        UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE (behind the end), KAFKA_STORAGE_ERROR. Raises
        StorageUnavailableError.
        """
        trims: list[Trim] = []
        for at in range(0, len(starts), _FIRST_RECORDS_PER_READ):
            some = starts[at : at + _FIRST_RECORDS_PER_READ]
            fetched = self._log.read([Read(start.partition, start.offset, 1) for start in some])
            for (partition, offset), found in zip(some, fetched, strict=True):
                first = -1
                # Without an answer the script, which asks for the same key, says what is wrong.
                if not isinstance(found, KafkaError):
                    if found.batches:
                        first = max(found.batches[0].base_offset, offset)
                    elif found.records:
                        first = found.records[0][0]
                trims.append(Trim(partition, offset, first))
        outcomes = self._store.trim(trims)
        for outcome in outcomes:
            if isinstance(outcome, Trimmed) and outcome.records:
                self._count(reason, outcome.records)
        return outcomes

    def give_back(self, partition: Partition) -> bool:
        """Give back a piece of the memory below the start; returns whether there is more.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR; StorageUnavailableError.
        """
        [outcome] = self._store.trim([Trim(partition)])
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome.more


class BackgroundTrims:
    """Work at logs that no request waits for: at most one greenlet for each partition."""

    def __init__(self) -> None:
        self._under_way: set[str] = set()
        self._warned: set[str] = set()

    def begin(self, partition: Partition, work: Callable[[], None]) -> None:
        """Do `work` beside everything else, unless something is being done for the partition already."""
        if partition.stream not in self._under_way:
            self._under_way.add(partition.stream)
            gevent.spawn(self._run, partition.stream, work)

    def give_back(self, partition: Partition, trimmer: Trimmer) -> None:
        """Give back all memory below the partition's start."""

        def work() -> None:
            while trimmer.give_back(partition):
                pass

        self.begin(partition, work)

    def _run(self, stream: str, work: Callable[[], None]) -> None:
        try:
            work()
        except KafkaError as error:
            # A topic that was deleted meanwhile has nothing left to be trimmed.
            is_gone = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not is_gone and stream not in self._warned:
                self._warned.add(stream)
                _log.warning("log not trimmed", key=stream, reason=error)
        else:
            self._warned.discard(stream)
        finally:
            self._under_way.discard(stream)


HIGH_WATERMARK = -1
"""The offset that stands for the end of the log."""


class Deletion(msgspec.Struct, frozen=True):
    """Everything in `partition` below `offset` is to go; HIGH_WATERMARK is all there is."""

    partition: Partition
    offset: int


class RecordDeletion:
    """Deletes for the administrators of one worker."""

    def __init__(
        self, log: LogStore, lake: RemoteOffsetStore, trimmer: Trimmer, background: BackgroundTrims
    ) -> None:
        self._log = log
        self._lake = lake
        self._trimmer = trimmer
        self._background = background

    def delete(self, deletions: Sequence[Deletion]) -> list[int | KafkaError]:
        """Do each deletion; returns in order the log starts, or why there is none.

        In the answers KafkaError: OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises
        StorageUnavailableError.
        """
        answers: list[int | KafkaError] = []
        starts: dict[int, Start] = {}
        archived: set[int] = set()
        bounds = self._log.bounds([deletion.partition for deletion in deletions])
        for place, (deletion, found) in enumerate(zip(deletions, bounds, strict=True)):
            if isinstance(found, KafkaError):
                answers.append(found)
                continue
            wished = _wished(deletion, found)
            if not isinstance(wished, KafkaError):
                if wished > found.log_start:
                    starts[place] = Start(deletion.partition, wished)
                    if found.archived > 0:
                        archived.add(place)
                wished = max(wished, found.first_offset)
            answers.append(wished)
        for place, error in self._delete(starts, archived):
            answers[place] = error
        return answers

    def _delete(self, starts: dict[int, Start], archived: set[int]) -> Iterator[tuple[int, KafkaError]]:
        """Let logs start there in both tiers; yields the places where that failed."""
        failed = dict(self._expire({place: starts[place] for place in archived}))
        starts = {place: start for place, start in starts.items() if place not in failed}
        outcomes = self._trimmer.move(list(starts.values()), "delete_records")
        for (place, start), outcome in zip(starts.items(), outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                failed[place] = outcome
            elif outcome.more:
                self._background.give_back(start.partition, self._trimmer)
        # Of these nothing was archived at first; by now an archiver may have told of what was deleted.
        failed |= self._expire({place: start for place, start in starts.items() if place not in archived})
        yield from failed.items()

    def _expire(self, starts: dict[int, Start]) -> Iterator[tuple[int, KafkaError]]:
        """Let logs start there in the lake, where they are archived; yields the places where that failed.

        This comes first: a start in Redis that lies behind the one in the lake would bring back what is deleted.
        """
        expired = self._lake.expire(list(starts.values())) if starts else []
        for place, outcome in zip(starts, expired, strict=True):
            if isinstance(outcome, KafkaError):
                yield place, outcome


def _wished(deletion: Deletion, bounds: Bounds) -> int | KafkaError:
    offset = bounds.high_watermark if deletion.offset == HIGH_WATERMARK else deletion.offset
    if 0 <= offset <= bounds.high_watermark:
        return offset
    message = f"{deletion.offset} is not in {bounds.log_start}..{bounds.high_watermark}"
    return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
