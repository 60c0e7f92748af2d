"""Takes the figures of logs out of Redis, many at a time and without reading again what cannot have changed.

Knows which entries have to be looked at; what the figures mean stands in log_figures.py.

What Redis knows about the size of logs, many in one round trip: the state's counters and the index's rows.

Knows which fields of the state count something; nothing of what is made of them. It asks for no entry of a stream, so
what a look costs does not hang on how large records are.

The log directory that administrators are told of: where the logs lie, how large each is, and how much room is left.

Knows that all brokers share one Redis, and what a size is; nothing of messages. Sizes are those that retention goes by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.store import LogStore
from korvet.log.types import Read
from korvet.logs import Log
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys
from korvet.redis.replies import Reply, listed, malformed, time_ms
from korvet.redis.server_info import UsageStore
from korvet.telemetry.stats import LogStats
from korvet.topics.types import Partition

# Those behind `topic` may be absent, which means 0 but for `first`: none before the first entry.
_FIELDS = (
    *("topic", "next", "start", "first", "bytes", "records", "start_records", "start_bytes"),
    *("clean_end", "clean_bytes"),
)
_COMMANDS_PER_LOG = 2


class LogLook(NamedTuple):
    """One log as its state tells of it.

    `first_offset` is the log start that responses report, the high watermark in an empty log. `records` and
    `size_bytes` (as entries are stored) are what lies between the two, to one row of the index. Below `clean_end` the
    log is compacted, to `compacted_bytes`; 0 and None: nowhere.
    """

    first_offset: int
    high_watermark: int
    records: int
    size_bytes: int
    index_rows: int
    clean_end: int
    compacted_bytes: int | None


class LogStatsStore:
    """Looks at the logs of one namespace."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def look(self, partitions: Sequence[Partition]) -> tuple[int, list[LogLook | KafkaError]]:
        """Return Redis' clock (ms) and what its state tells of each log, all in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError.
        """
        commands: list[Sequence[Arg]] = [("TIME",)]
        for partition in partitions:
            commands += (
                ("HMGET", partition.state, *_FIELDS),
                ("ZCARD", self._keys.index(partition.topic, partition.index)),
            )
        time, *replies = self._redis.pipeline(commands)
        states, rows = replies[::_COMMANDS_PER_LOG], replies[1::_COMMANDS_PER_LOG]
        return time_ms(time), [
            _look(partition, state, count)
            for partition, state, count in zip(partitions, states, rows, strict=True)
        ]


def _look(partition: Partition, state: Reply, index_rows: Reply) -> LogLook | KafkaError:
    try:
        topic_id, *fields = listed(partition.state, state)
        if topic_id != partition.topic_id.encode():
            message = f"{partition.stream} does not belong to topic id {partition.topic_id}"
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        texts = cast("list[bytes | None]", fields)
        end, start, first, size_bytes, records, start_records, start_bytes, *clean = map(_number, texts)
        clean_end, clean_bytes = clean
    except KafkaError as error:
        return error
    except (ValueError, TypeError):
        return malformed(partition.state, "a field")
    if not isinstance(index_rows, int):
        return malformed(partition.state, "the index")
    # In format `batch` offsets are dense, and so the end is the count.
    written = end if partition.format == "batch" else records
    return LogLook(
        first_offset=end if texts[2] is None else min(max(start, first), end),
        high_watermark=end,
        records=max(written - start_records, 0),
        size_bytes=max(size_bytes - start_bytes, 0),
        index_rows=index_rows,
        clean_end=clean_end,
        compacted_bytes=max(clean_bytes - start_bytes, 0) if clean_end > 0 else None,
    )


def _number(text: bytes | None) -> int:
    return 0 if text is None else int(text)


_FIRST_ENTRIES_PER_READ = 10
"""First entries asked for at once: one may be a batch of many megabytes."""

_Beginning = tuple[str, int, int]
"""Topic id, first offset and end of the compacted part: while they stay the first record does."""


class LogStatsReader:
    """Takes the figures of logs; remembers from one round to the next how old the first records were."""

    def __init__(self, store: LogStatsStore, logs: LogStore) -> None:
        self._store = store
        self._logs = logs
        # By stream: what the first record hangs on, and its timestamp (ms).
        self._before: dict[str, tuple[_Beginning, int]] = {}
        self._now: dict[str, tuple[_Beginning, int]] = {}

    def begin_round(self) -> None:
        """Forget what no log of the last round needed: its topic was deleted."""
        self._before, self._now = self._now, {}

    def read(self, partitions: Sequence[Partition]) -> tuple[list[LogStats], list[KafkaError]]:
        """Return the figures of these logs, and what is wrong with the others; each log once in a round.

        One round trip, and one for each ten logs whose first record is another than in the round before. Raises
        KafkaError, StorageUnavailableError.
        """
        now_ms, outcomes = self._store.look(partitions)
        pairs = list(zip(partitions, outcomes, strict=True))
        looks = {partition: look for partition, look in pairs if isinstance(look, LogLook)}
        errors = [look for look in outcomes if isinstance(look, KafkaError)]
        oldest = self._oldest(looks, errors)
        return [_figures(*pair, oldest.get(pair[0]), now_ms) for pair in looks.items()], errors

    def _oldest(self, looks: dict[Partition, LogLook], errors: list[KafkaError]) -> dict[Partition, int]:
        """Return the timestamp (ms) of the first record of each log that has one."""
        oldest: dict[Partition, int] = {}
        unknown: list[Read] = []
        for partition, look in looks.items():
            if look.first_offset >= look.high_watermark:
                continue
            before = self._before.get(partition.stream)
            if before is not None and before[0] == _beginning(partition, look):
                oldest[partition] = before[1]
            else:
                unknown.append(Read(partition, look.first_offset, 1))
        for at in range(0, len(unknown), _FIRST_ENTRIES_PER_READ):
            reads = unknown[at : at + _FIRST_ENTRIES_PER_READ]
            for read, fetched in zip(reads, self._logs.read(reads), strict=True):
                if isinstance(fetched, KafkaError):
                    errors.append(fetched)
                elif (found := fetched.first_timestamp) is not None:
                    oldest[read.partition] = found
        for partition, timestamp in oldest.items():
            self._now[partition.stream] = (_beginning(partition, looks[partition]), timestamp)
        return oldest


def _beginning(partition: Partition, look: LogLook) -> _Beginning:
    return partition.topic_id, look.first_offset, look.clean_end


def _figures(partition: Partition, look: LogLook, oldest_ms: int | None, now_ms: int) -> LogStats:
    return LogStats(
        topic=partition.topic,
        partition=partition.index,
        records=look.records,
        size_bytes=look.size_bytes,
        index_rows=look.index_rows,
        compacted_bytes=look.compacted_bytes,
        start_offset=look.first_offset,
        end_offset=look.high_watermark,
        oldest_age_ms=None if oldest_ms is None else now_ms - oldest_ms,
    )


_log = Log(__name__)

_LOGS_PER_LOOK = 100
"""Logs asked for in one round trip: some tenths of a ms of Redis, and 2 ms of a worker that has others to serve too."""


class Room(NamedTuple):
    """Bytes that Redis may hold in memory, for everything, and those that are left of them; -1: nobody set a limit."""

    total_bytes: int
    usable_bytes: int


class LogDir:
    """The one log directory of a worker's broker; `place` is its name, without secrets."""

    def __init__(self, place: str, figures: LogStatsStore, usage: UsageStore) -> None:
        self.place = place
        self._figures = figures
        self._usage = usage

    def sizes(self, partitions: Sequence[Partition]) -> list[int | None]:
        """Return the bytes of each log as its entries are stored, exact to one row of the index; None where it is gone.

        One round trip for each 100. A log whose state nobody can read counts as gone, with a line in the log. Raises
        StorageUnavailableError.
        """
        sizes: list[int | None] = []
        for at in range(0, len(partitions), _LOGS_PER_LOOK):
            _, looks = self._figures.look(partitions[at : at + _LOGS_PER_LOOK])
            sizes += [_size(look) for look in looks]
        return sizes

    def room(self) -> Room:
        """Return the room there is; unknown where Redis does not tell."""
        try:
            usage = self._usage.read()
        except StorageUnavailableError as error:
            _log.debug("what Redis has left is unknown", reason=str(error))
            return Room(-1, -1)
        if not usage.memory_limit:
            return Room(-1, -1)
        return Room(usage.memory_limit, max(usage.memory_limit - usage.memory_used, 0))


def _size(look: LogLook | KafkaError) -> int | None:
    if isinstance(look, LogLook):
        return look.size_bytes
    if look.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        _log.warning("no size of a log", reason=look)
    return None
