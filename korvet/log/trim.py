"""Moving the start of a log: for readers at once, while the memory below it is freed step by step.

A start only moves forward. Retention moves it (retention.py), and administrators do (DeleteRecords), by Kafka's rules
(Partition.deleteRecordsOnLeader): an offset past the high watermark is out of range, one below the log start changes
nothing, and both the answer and the start of the log are exact, however much memory below is still to be freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import gevent

from korvet import logs
from korvet.errors import ErrorCode, KafkaError, or_raise
from korvet.log import high_watermark
from korvet.log.index import STATE_FIELDS, Row, Totals, read_rows, read_totals
from korvet.log.remote.archived import RemoteOffsetStore
from korvet.log.share_parts import convert_redis_groups
from korvet.log.store import LogStore
from korvet.log.types import Bounds, LogPosition, Read
from korvet.redis import scripts
from korvet.redis.client import Redis, ScriptCall
from korvet.redis.replies import Arg, Reply, parsed, time_ms
from korvet.topics.types import Partition

_log = logs.Log(__name__)

_TRIM = scripts.get("log/trim")

HIGH_WATERMARK = -1
"""The offset that stands for the end of the log."""

_FIRST_RECORDS_PER_READ = 10
"""First records read at once: one may be a batch of many megabytes."""

_STEP_ENTRIES_MAX = 100
"""Entries that a step frees if it is not known how large they are: as many as a node has by default."""

_STEP_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that a step frees: some 0.3 ms of Redis, be they few entries or ten thousands (loadtest/micro/trim.py)."""


class TrimState(NamedTuple):
    """What a log holds: its totals, and the first rows of its index.

    `interval` of the totals is the largest timestamp (ms) after the last row, negative without any and if rows were
    lost; with `reindex` the rows count too many bytes, for compaction has removed some. `rows` are the first of those
    that lie above the start, all of them unless there may be `more_rows`. `unfinished`: memory is still to be freed.
    """

    totals: Totals
    rows: Sequence[Row]
    more_rows: bool
    unfinished: bool


class Trim(NamedTuple):
    """A step: the log starts at `start` from now on, and the first record from there is `first`.

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
    """Reads states and moves starts; every method raises StorageUnavailableError while Redis is away."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def states(
        self, partitions: Sequence[Partition], rows_max: int
    ) -> tuple[int, list[TrimState | KafkaError]]:
        """Return Redis' clock (ms) and the state of each log, with up to `rows_max` rows, in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises KafkaError.
        """
        commands: list[Sequence[Arg]] = [("TIME",)]
        for partition in partitions:
            commands += (
                ("HMGET", partition.state, *STATE_FIELDS),
                # One more: the lowest row may lie below the start, or at it.
                ("ZRANGE", partition.index_key, 0, rows_max, "WITHSCORES"),
            )
        time, *replies = self._redis.pipeline(commands)
        states, rows = replies[::2], replies[1::2]
        return time_ms(time), [
            _extent(partition, state, chunk, rows_max)
            for partition, state, chunk in zip(partitions, states, rows, strict=True)
        ]

    def convert_redis_groups(self, partition: Partition) -> None:
        """Convert what share groups have in Redis groups: what the remote tier keeps is to leave the stream."""
        convert_redis_groups(self._redis, partition)

    def trim(self, trims: Sequence[Trim]) -> list[Trimmed | KafkaError]:
        """Do each step, all in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE (the start would lie past the end),
        KAFKA_STORAGE_ERROR.
        """
        replies = self._redis.scripts([_call(trim) for trim in trims])
        what = "the answer of log/trim"
        return [
            parsed(trim.partition.stream, what, reply, lambda r: Trimmed(int(r[0]), r[1], r[3] == 1))
            for trim, reply in zip(trims, replies, strict=True)
        ]


def _call(trim: Trim) -> ScriptCall:
    partition = trim.partition
    keys = (partition.stream, partition.state, partition.index_key, *partition.compacted, partition.aborted)
    limits = (_STEP_ENTRIES_MAX, _STEP_BYTES_MAX)
    return _TRIM, keys, (partition.topic_id, partition.bits, trim.start, trim.first, *limits)


def _extent(partition: Partition, state: Reply, rows: Reply, rows_max: int) -> TrimState | KafkaError:
    try:
        totals = read_totals(partition, state)
        every = read_rows(partition, rows)
    except KafkaError as error:
        return error.without_frames()
    # A row that came since the state was read is for the next turn.
    known = [row for row in every if row.offset <= totals.end]
    more_rows = len(every) > rows_max and known == every
    lost_rows = not more_rows and totals.misses_rows(known[-1] if known else None)
    # It covers records since the last row written, wherever that row is now.
    interval = -1 if lost_rows else totals.interval if known else totals.largest
    return TrimState(
        totals=totals._replace(interval=interval),
        rows=[row for row in known if row.offset > totals.start],
        more_rows=more_rows,
        unfinished=len(every) > 1 and every[1].offset <= totals.start,
    )


Reason = Literal["time", "size", "delete_records"]
"""Why records leave a log."""

CountTrimmed = Callable[[Reason, int], None]
"""Called with the number of records that left a log."""


class Trimmer:
    """Moves the starts of logs."""

    def __init__(self, log: LogStore, store: TrimStore, count: CountTrimmed) -> None:
        self._log = log
        self._store = store
        self._count = count

    def move(self, starts: Sequence[LogPosition], reason: Reason) -> list[Trimmed | KafkaError]:
        """Move each start, unless it is there or further already, and free a first piece of memory.

        The log start reported is the first record from there on. In the answers KafkaError:
        UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE (past the end), KAFKA_STORAGE_ERROR. Raises
        StorageUnavailableError.
        """
        trims: list[Trim] = []
        for at in range(0, len(starts), _FIRST_RECORDS_PER_READ):
            chunk = starts[at : at + _FIRST_RECORDS_PER_READ]
            fetched = self._log.read([Read(start.partition, start.offset, 1) for start in chunk])
            for (partition, offset), result in zip(chunk, fetched, strict=True):
                first = -1
                # After an error the script, which reads the same key, reports what is wrong.
                if not isinstance(result, KafkaError) and result.first is not None:
                    first = max(result.first, offset)
                trims.append(Trim(partition, offset, first))
        outcomes = self._store.trim(trims)
        for outcome in outcomes:
            if isinstance(outcome, Trimmed) and outcome.records:
                self._count(reason, outcome.records)
        return outcomes

    def free(self, partition: Partition) -> bool:
        """Free a piece of the memory below the start; returns whether there is more.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR; StorageUnavailableError.
        """
        outcome = or_raise(*self._store.trim([Trim(partition)]))
        return outcome.more


class BackgroundTrims:
    """Work on logs that no request waits for: at most one greenlet for each partition.

    What fails is logged once for each log and reported to no client: the keeper does it again.
    """

    def __init__(self) -> None:
        self._under_way: set[str] = set()
        self._warned: set[str] = set()

    def begin(self, partition: Partition, work: Callable[[], None]) -> None:
        """Do `work` in the background, unless some is under way for the partition already."""
        if partition.stream not in self._under_way:
            self._under_way.add(partition.stream)
            gevent.spawn(self._run, partition.stream, work)

    def free(self, partition: Partition, trimmer: Trimmer) -> None:
        """Free all memory below the partition's start."""

        def work() -> None:
            while trimmer.free(partition):
                pass

        self.begin(partition, work)

    def _run(self, stream: str, work: Callable[[], None]) -> None:
        try:
            work()
        except KafkaError as error:
            # A topic that was deleted meanwhile has nothing left to trim.
            is_gone = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not is_gone and stream not in self._warned:
                self._warned.add(stream)
                _log.warning("log not trimmed", key=stream, reason=error)
        else:
            self._warned.discard(stream)
        finally:
            self._under_way.discard(stream)


class RecordDeletion:
    """DeleteRecords for one worker: the start moves in Redis, and in the remote tier if the log is archived."""

    def __init__(
        self, log: LogStore, remote: RemoteOffsetStore, trimmer: Trimmer, background: BackgroundTrims
    ) -> None:
        self._log = log
        self._remote = remote
        self._trimmer = trimmer
        self._background = background

    def delete(self, ends: Sequence[LogPosition]) -> list[int | KafkaError]:
        """Delete each log below an offset, HIGH_WATERMARK for all of it; returns the log starts in order.

        In the answers KafkaError: OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises
        StorageUnavailableError.
        """
        answers: list[int | KafkaError] = []
        starts: dict[int, LogPosition] = {}
        archived: set[int] = set()
        bounds = self._log.visible_bounds([end.partition for end in ends])
        for place, (end, log_bounds) in enumerate(zip(ends, bounds, strict=True)):
            if isinstance(log_bounds, KafkaError):
                answers.append(log_bounds)
                continue
            target = _target(end.offset, log_bounds)
            if not isinstance(target, KafkaError):
                if target > log_bounds.log_start:
                    starts[place] = LogPosition(end.partition, target)
                    if log_bounds.archived > 0:
                        archived.add(place)
                target = max(target, log_bounds.first_offset)
            answers.append(target)
        for place, error in self._delete(starts, archived):
            answers[place] = error
        return answers

    def _delete(self, starts: dict[int, LogPosition], archived: set[int]) -> Iterator[tuple[int, KafkaError]]:
        """Move the starts in both tiers; yields the places that failed."""
        failed = dict(self._expire({place: starts[place] for place in archived}))
        starts = {place: start for place, start in starts.items() if place not in failed}
        outcomes = self._trimmer.move(list(starts.values()), "delete_records")
        for (place, start), outcome in zip(starts.items(), outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                failed[place] = outcome
            elif outcome.more:
                self._background.free(start.partition, self._trimmer)
        # Of these nothing was archived at first; by now an archiver may have archived what was deleted.
        failed |= self._expire({place: start for place, start in starts.items() if place not in archived})
        yield from failed.items()

    def _expire(self, starts: dict[int, LogPosition]) -> Iterator[tuple[int, KafkaError]]:
        """Move the starts in the remote tier, if logs are archived; yields the places that failed.

        This comes first: a start in Redis past the one in the remote tier would bring back what is deleted.
        """
        expired = self._remote.expire(list(starts.values())) if starts else []
        for place, outcome in zip(starts, expired, strict=True):
            if isinstance(outcome, KafkaError):
                yield place, outcome


def _target(asked: int, bounds: Bounds) -> int | KafkaError:
    if bounds.high_watermark < 0:
        return high_watermark.unknown()
    offset = bounds.high_watermark if asked == HIGH_WATERMARK else asked
    if 0 <= offset <= bounds.high_watermark:
        return offset
    message = f"{asked} is not in {bounds.log_start}..{bounds.high_watermark}"
    return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
