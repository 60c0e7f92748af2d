"""Statistics of logs for /metrics, and the log directory of DescribeLogDirs.

Both come from the counters of the state and the rows of the index, many logs in one round trip; no entry of a stream is
read but the first, for its age, so the cost does not depend on how large records are. Sizes are those that retention
goes by. All brokers share one Redis: it is the one log directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from korvet.cluster.usage import UsageStore
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.state import stale_topic
from korvet.log.store import LogStore
from korvet.log.types import Read
from korvet.logs import Log
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.replies import Reply, listed, malformed, time_ms
from korvet.telemetry.stats import LogStats
from korvet.topics.types import Partition

# Those after `topic` may be absent, which means 0 but for `first`: none before the first entry.
_FIELDS = (
    *("topic", "next", "start", "first", "bytes", "records", "start_records", "start_bytes"),
    *("clean_end", "clean_bytes"),
)
_COMMANDS_PER_LOG = 2


class LogCounters(NamedTuple):
    """The counters of one log.

    `first_offset` is the log start that responses report, the high watermark in an empty log. `records` and
    `size_bytes` (as entries are stored) are what lies between the two, to one row of the index. Below `compacted_end`
    the log is compacted, to `compacted_bytes`; 0 and None: nothing is.
    """

    first_offset: int
    high_watermark: int
    records: int
    size_bytes: int
    index_rows: int
    compacted_end: int
    compacted_bytes: int | None


class LogStatsStore:
    """Reads the counters of logs."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def states(self, partitions: Sequence[Partition]) -> tuple[int, list[LogCounters | KafkaError]]:
        """Return Redis' clock (ms) and the state of each log, all in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError.
        """
        commands: list[Sequence[Arg]] = [("TIME",)]
        for partition in partitions:
            commands += (
                ("HMGET", partition.state, *_FIELDS),
                ("ZCARD", partition.index_key),
            )
        time, *replies = self._redis.pipeline(commands)
        states, rows = replies[::_COMMANDS_PER_LOG], replies[1::_COMMANDS_PER_LOG]
        return time_ms(time), [
            _state(partition, fields, count)
            for partition, fields, count in zip(partitions, states, rows, strict=True)
        ]


def _state(partition: Partition, fields: Reply, index_rows: Reply) -> LogCounters | KafkaError:
    try:
        topic_id, *counters = listed(partition.state, fields)
        if topic_id != partition.topic_id.encode():
            return stale_topic(partition)
        texts = cast("list[bytes | None]", counters)
        end, start, first, size_bytes, records, start_records, start_bytes, *compacted = map(_number, texts)
        compacted_end, compacted_bytes = compacted
    except KafkaError as error:
        return error
    except (ValueError, TypeError):
        return malformed(partition.state, "a field")
    if not isinstance(index_rows, int):
        return malformed(partition.state, "the index")
    # In format `batch` offsets are dense, and so the end is the count.
    written = end if partition.format == "batch" else records
    return LogCounters(
        first_offset=end if texts[2] is None else min(max(start, first), end),
        high_watermark=end,
        records=max(written - start_records, 0),
        size_bytes=max(size_bytes - start_bytes, 0),
        index_rows=index_rows,
        compacted_end=compacted_end,
        compacted_bytes=max(compacted_bytes - start_bytes, 0) if compacted_end > 0 else None,
    )


def _number(text: bytes | None) -> int:
    return 0 if text is None else int(text)


_FIRST_ENTRIES_PER_READ = 10
"""First entries read at once: one may be a batch of many megabytes."""

_Beginning = tuple[str, int, int]
"""Topic id, first offset and end of the compacted part: while they stay the first record does."""


class LogStatsReader:
    """Reads the statistics of logs; remembers from one round to the next how old the first records were."""

    def __init__(self, store: LogStatsStore, logs: LogStore) -> None:
        self._store = store
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
        now_ms, outcomes = self._store.states(partitions)
        pairs = list(zip(partitions, outcomes, strict=True))
        states = {partition: state for partition, state in pairs if isinstance(state, LogCounters)}
        errors = [state for state in outcomes if isinstance(state, KafkaError)]
        oldest = self._oldest(states, errors)
        return [_stats(*pair, oldest.get(pair[0]), now_ms) for pair in states.items()], errors

    def _oldest(self, states: dict[Partition, LogCounters], errors: list[KafkaError]) -> dict[Partition, int]:
        """Return the timestamp (ms) of the first record of each log that has one."""
        oldest: dict[Partition, int] = {}
        unknown: list[Read] = []
        for partition, state in states.items():
            if state.first_offset >= state.high_watermark:
                continue
            before = self._before.get(partition.stream)
            if before is not None and before[0] == _beginning(partition, state):
                oldest[partition] = before[1]
            else:
                unknown.append(Read(partition, state.first_offset, 1))
        for at in range(0, len(unknown), _FIRST_ENTRIES_PER_READ):
            reads = unknown[at : at + _FIRST_ENTRIES_PER_READ]
            for read, fetched in zip(reads, self._logs.read(reads), strict=True):
                if isinstance(fetched, KafkaError):
                    errors.append(fetched)
                elif (found := fetched.first_timestamp) is not None:
                    oldest[read.partition] = found
        for partition, timestamp in oldest.items():
            self._now[partition.stream] = (_beginning(partition, states[partition]), timestamp)
        return oldest


def _beginning(partition: Partition, state: LogCounters) -> _Beginning:
    return partition.topic_id, state.first_offset, state.compacted_end


def _stats(partition: Partition, state: LogCounters, oldest_ms: int | None, now_ms: int) -> LogStats:
    return LogStats(
        topic=partition.topic,
        partition=partition.index,
        records=state.records,
        size_bytes=state.size_bytes,
        index_rows=state.index_rows,
        compacted_bytes=state.compacted_bytes,
        start_offset=state.first_offset,
        end_offset=state.high_watermark,
        oldest_age_ms=None if oldest_ms is None else now_ms - oldest_ms,
    )


_log = Log(__name__)

_LOGS_PER_LOOK = 100
"""Logs read in one round trip: some tenths of a ms of Redis, and 2 ms of a worker that has others to serve too."""


class LogDirSpace(NamedTuple):
    """Bytes that Redis may hold in memory, for everything, and those that are left of them; -1: no limit is set."""

    total_bytes: int
    usable_bytes: int


class RedisLogDir:
    """The one log directory of a worker's broker; `place` is its name, without secrets."""

    def __init__(self, place: str, store: LogStatsStore, usage: UsageStore) -> None:
        self.place = place
        self._store = store
        self._usage = usage

    def sizes(self, partitions: Sequence[Partition]) -> list[int | None]:
        """Return the bytes of each log as its entries are stored, exact to one row of the index; None if it is gone.

        One round trip for each 100. A log whose state cannot be read counts as gone, with a line in the log. Raises
        StorageUnavailableError.
        """
        sizes: list[int | None] = []
        for at in range(0, len(partitions), _LOGS_PER_LOOK):
            _, states = self._store.states(partitions[at : at + _LOGS_PER_LOOK])
            sizes += [_size(state) for state in states]
        return sizes

    def space(self) -> LogDirSpace:
        """Return the space there is; -1 if Redis does not answer."""
        try:
            usage = self._usage.read()
        except StorageUnavailableError as error:
            _log.debug("usable space of Redis unknown", reason=str(error))
            return LogDirSpace(-1, -1)
        if not usage.memory_limit:
            return LogDirSpace(-1, -1)
        return LogDirSpace(usage.memory_limit, max(usage.memory_limit - usage.memory_used, 0))


def _size(state: LogCounters | KafkaError) -> int | None:
    if isinstance(state, LogCounters):
        return state.size_bytes
    if state.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        _log.warning("size of a log unknown", reason=state)
    return None
