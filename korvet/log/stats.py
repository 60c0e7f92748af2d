"""Statistics of logs and of their archive for /metrics, and the log directory of DescribeLogDirs.

Those of logs come from the counters of the state and the rows of the index, many logs in one round trip; no entry of a
stream is read but the first, for its age, so the cost does not depend on how large records are. Sizes are those that
retention goes by. All brokers share one Redis: it is the one log directory, or each node of a cluster is one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import gevent
import msgspec
from korvet_core import Fetched

from korvet.cluster.usage import UsageStore
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.index import STATE_FIELDS, IndexStore, read_totals
from korvet.log.store import LogStore
from korvet.log.types import LogPosition, Read
from korvet.logs import Log
from korvet.redis.client import Redis, RedisNode
from korvet.redis.replies import Arg, Reply, malformed, time_ms
from korvet.telemetry.stats import LakeLag, LogStats
from korvet.topics.types import Partition

_COMMANDS_PER_LOG = 2


def read_stats(redis: Redis, partitions: Sequence[Partition]) -> tuple[int, list[LogStats | KafkaError]]:
    """Return Redis' clock (ms) and the statistics of each log but for its age, all in one round trip.

    In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError.
    """
    commands: list[Sequence[Arg]] = [("TIME",)]
    for partition in partitions:
        commands += (
            ("HMGET", partition.state, *STATE_FIELDS),
            ("ZCARD", partition.index_key),
        )
    time, *replies = redis.pipeline(commands)
    states, rows = replies[::_COMMANDS_PER_LOG], replies[1::_COMMANDS_PER_LOG]
    return time_ms(time), [
        _stats(partition, fields, count)
        for partition, fields, count in zip(partitions, states, rows, strict=True)
    ]


def _stats(partition: Partition, fields: Reply, index_rows: Reply) -> LogStats | KafkaError:
    try:
        totals = read_totals(partition, fields)
    except KafkaError as error:
        return error.without_frames()
    if not isinstance(index_rows, int):
        return malformed(partition.state, "the index")
    start, end, first, below = totals.start, totals.end, totals.first, totals.start_bytes
    return LogStats(
        topic=partition.topic,
        partition=partition.index,
        records=max(totals.records - totals.start_records, 0),
        size_bytes=max(totals.bytes - below, 0),
        index_rows=index_rows,
        compacted_bytes=max(totals.compacted_bytes - below, 0) if totals.compacted_end > 0 else None,
        start_offset=end if first is None else min(max(start, first), end),
        end_offset=end,
        oldest_age_ms=None,
        stable_lag=None if totals.open_offset is None else end - min(max(totals.open_offset, start), end),
    )


_FIRST_ENTRIES_PER_READ = 10
"""First entries read at once: one may be a batch of many megabytes."""

_Beginning = tuple[str, int | None, int | None]
"""Topic id, first offset and bytes of the compacted part: while they stay the first record does."""


class LogStatsReader:
    """Reads the statistics of logs; remembers from one round to the next how old the first records were."""

    def __init__(self, redis: Redis, logs: LogStore) -> None:
        self._redis = redis
        self._logs = logs
        # By stream: what the first record depends on, and its timestamp (ms).
        self._before: dict[str, tuple[_Beginning, int]] = {}
        self._now: dict[str, tuple[_Beginning, int]] = {}

    def begin_round(self) -> None:
        """Forget what no log of the last round needed: its topic was deleted."""
        self._before, self._now = self._now, {}

    def read(self, partitions: Sequence[Partition]) -> tuple[list[LogStats], list[KafkaError]]:
        """Return the statistics of these logs, and what is wrong with the others; each log once in a round.

        One round trip, and one for each ten logs whose first record is another than in the round before. Raises
        KafkaError, StorageUnavailableError.
        """
        now_ms, outcomes = read_stats(self._redis, partitions)
        errors = [outcome for outcome in outcomes if isinstance(outcome, KafkaError)]
        stats = [
            (partition, item)
            for partition, item in zip(partitions, outcomes, strict=True)
            if isinstance(item, LogStats)
        ]
        unknown: list[Read] = []
        beginnings: dict[str, _Beginning] = {}
        for partition, item in stats:
            first, stream = item.start_offset or 0, partition.stream
            beginning = _beginning(partition, item)
            before = self._before.get(stream)
            if before is not None and before[0] == beginning:
                self._now[stream] = before
            elif first < (item.end_offset or 0):
                unknown.append(Read(partition, first, 1))
                beginnings[stream] = beginning
        for read, result in _first_found(self._logs, unknown):
            if isinstance(result, KafkaError):
                errors.append(result)
            elif result.first_timestamp is not None:
                stream = read.partition.stream
                self._now[stream] = (beginnings[stream], result.first_timestamp)
        return [self._aged(partition, item, now_ms) for partition, item in stats], errors

    def _aged(self, partition: Partition, stats: LogStats, now_ms: int) -> LogStats:
        known = self._now.get(partition.stream)
        if known is None or stats.start_offset == stats.end_offset:
            return stats
        return msgspec.structs.replace(stats, oldest_age_ms=now_ms - known[1])


def _beginning(partition: Partition, stats: LogStats) -> _Beginning:
    return partition.topic_id, stats.start_offset, stats.compacted_bytes


def _first_found(logs: LogStore, reads: Sequence[Read]) -> Iterator[tuple[Read, Fetched | KafkaError]]:
    """Yield for each read what it finds, which begins with the first record."""
    for at in range(0, len(reads), _FIRST_ENTRIES_PER_READ):
        chunk = reads[at : at + _FIRST_ENTRIES_PER_READ]
        yield from zip(chunk, logs.read(chunk), strict=True)


_SEEN_MAX = 128
"""Times kept of a log that is not archived: of more, every other one."""


class LakeLagReader:
    """Reads how far logs are archived; remembers from one round to the next when it saw them grow.

    Format `batch` keeps no time of an append unless timestamps are that (LogAppendTime): what a producer says may be of
    any time, as in a replay. There a record is as old as this reader has known it.
    """

    def __init__(self, logs: LogStore, indexes: IndexStore) -> None:
        self._logs = logs
        self._indexes = indexes
        # By topic id and partition: ends of the log, and when each was seen first (ms), both rising.
        self._before: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._now: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def begin_round(self) -> None:
        """Forget the logs that were not read in the last round: their topics were deleted."""
        self._before, self._now = self._now, {}

    def read(self, partitions: Sequence[Partition], now_ms: int) -> tuple[list[LakeLag], list[KafkaError]]:
        """Return how far each log is archived, and what is wrong with the others; a few round trips.

        It is what Redis knows of the archive, so it holds for any archiver. Raises StorageUnavailableError.
        """
        lags: list[LakeLag] = []
        errors: list[KafkaError] = []
        lagging: list[tuple[LogPosition, int]] = []
        for partition, bounds in zip(partitions, self._logs.bounds(partitions), strict=True):
            if isinstance(bounds, KafkaError):
                errors.append(bounds)
                continue
            first = max(bounds.archived, bounds.local_start if bounds.remote else bounds.log_start)
            # What transactions may still abort is not archived, however long they take.
            if first < bounds.stable_offset:
                lagging.append((LogPosition(partition, first), bounds.archived))
                self._see(LogPosition(partition, first), bounds.stable_offset, now_ms)
            else:
                lags.append(_lake_lag(partition, bounds.archived, 0, 0))
        counts = self._indexes.records_from([position for position, _ in lagging])
        result = _first_found(self._logs, [Read(*position, 1) for position, _ in lagging])
        for (position, archived), count, (read, fetched) in zip(lagging, counts, result, strict=True):
            if isinstance(count, KafkaError):
                errors.append(count)
            elif isinstance(fetched, KafkaError):
                errors.append(fetched)
            else:
                appended_ms = fetched.first_appended_ms
                if appended_ms is None or appended_ms > now_ms:
                    # No time is kept, or one that is still to come, as an id that another client of Redis chose.
                    [(_, appended_ms), *_] = self._now[read.partition.topic_id, read.partition.index]
                lags.append(_lake_lag(position.partition, archived, count, max(now_ms - appended_ms, 0)))
        return lags, errors

    def _see(self, first: LogPosition, end: int, now_ms: int) -> None:
        key = first.partition.topic_id, first.partition.index
        seen = [row for row in self._before.get(key, ()) if row[0] > first.offset]
        if not seen or seen[-1][0] < end:
            seen.append((end, now_ms))
        if len(seen) > _SEEN_MAX:
            # Of two the later end with the earlier time: none becomes younger.
            pairs = zip(seen[::2], seen[1::2], strict=False)
            seen = [(later[0], earlier[1]) for earlier, later in pairs] + seen[len(seen) // 2 * 2 :]
        self._now[key] = seen


def _lake_lag(partition: Partition, archived: int, records: int, age_ms: int | None) -> LakeLag:
    return LakeLag(
        topic=partition.topic,
        partition=partition.index,
        archived_offset=archived,
        records=records,
        age_ms=age_ms,
    )


_log = Log(__name__)

_LOGS_PER_LOOK = 100
"""Logs read in one round trip: some tenths of a ms of Redis, and 2 ms of a worker that has others to serve too."""


class LogDirSpace(NamedTuple):
    """Bytes of memory that Redis may use in all, and the bytes left of them; -1: no limit is set."""

    total_bytes: int
    usable_bytes: int


class LogDirUsage(NamedTuple):
    """A log directory: its name, without secrets; the bytes of each log; and its space.

    `sizes` are the bytes as entries are stored, exact to one row of the index; None: the log is gone. `error` says why
    nothing is known of it.
    """

    name: str
    sizes: Sequence[tuple[Partition, int | None]] = ()
    space: LogDirSpace = LogDirSpace(-1, -1)
    error: KafkaError | None = None


class LogDirs:
    """The log directories of a worker's broker: its Redis, or each node of a cluster."""

    def __init__(self, redis: Redis, data_dir: Path | None = None) -> None:
        """`data_dir` is the directory of the embedded server."""
        self._redis = redis
        self._data_dir = data_dir

    def describe(self, partitions: Sequence[Partition]) -> list[LogDirUsage]:
        """Describe every directory, with those of the partitions that it has.

        One round trip for each 100. A log whose state cannot be read counts as gone, with a line in the log. Raises
        StorageUnavailableError if no node of a cluster says which they are.
        """
        if not self._redis.is_cluster:
            return [self._describe(self._redis.nodes()[0], partitions)]
        by_node: dict[RedisNode, list[Partition]] = {node: [] for node in self._redis.nodes()}
        for partition in partitions:
            # None has it if its slot has no master.
            with contextlib.suppress(StorageUnavailableError):
                by_node.setdefault(self._redis.node_of(partition.stream), []).append(partition)
        # Side by side: one that does not answer holds up no other.
        described = [gevent.spawn(self._describe, *item) for item in by_node.items()]
        return [greenlet.get() for greenlet in described]

    def offline(self, error: KafkaError) -> list[LogDirUsage]:
        """Return the directories that are known, offline because of an error."""
        return [LogDirUsage(self._name(node), error=error) for node in self._redis.known_nodes()]

    def names(self) -> set[str]:
        """Return the names of all directories; raises StorageUnavailableError."""
        return {self._name(node) for node in self._redis.nodes()}

    def name_of(self, partition: Partition) -> str:
        """Return the name of the directory that a partition is in; raises StorageUnavailableError."""
        return self._name(self._redis.node_of(partition.stream))

    def _name(self, node: RedisNode) -> str:
        return str(self._data_dir) if self._data_dir else node.safe_url

    def _describe(self, node: RedisNode, partitions: Sequence[Partition]) -> LogDirUsage:
        name = self._name(node)
        sizes: list[tuple[Partition, int | None]] = []
        try:
            if not partitions:
                # Nothing else would notice that the node is away.
                node.call("PING")
            for at in range(0, len(partitions), _LOGS_PER_LOOK):
                chunk = partitions[at : at + _LOGS_PER_LOOK]
                _, stats = read_stats(self._redis, chunk)
                sizes += zip(chunk, map(_size, stats), strict=True)
            return LogDirUsage(name, sizes, _space(node))
        except KafkaError as error:
            return LogDirUsage(name, error=error.without_frames())


def _space(node: RedisNode) -> LogDirSpace:
    """Return the space there is; -1 if the server does not say."""
    try:
        usage = UsageStore(node, with_file=False).read()
    except StorageUnavailableError as error:
        _log.debug("usable space of Redis unknown", reason=str(error))
        return LogDirSpace(-1, -1)
    if not usage.memory_limit:
        return LogDirSpace(-1, -1)
    return LogDirSpace(usage.memory_limit, max(usage.memory_limit - usage.memory_used, 0))


def _size(state: LogStats | KafkaError) -> int | None:
    if isinstance(state, LogStats):
        return state.size_bytes
    if state.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        _log.warning("size of a log unknown", reason=state)
    return None
