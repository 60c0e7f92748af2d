"""The sparse index of a log: where a timestamp may lie, and how many records follow an offset.

A row is written by the append that makes the records or the bytes that ever came cross a multiple of RECORDS_PER_ROW or
BYTES_PER_ROW, so the newest row and the state alone say whether a row is missing (index_repair.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from korvet.errors import KafkaError
from korvet.log.packed import LOG_FIELD, PackedLog
from korvet.log.state import SEGMENTS, stale_topic
from korvet.log.types import LogPosition
from korvet.redis import scripts
from korvet.redis.client import Redis, ScriptCall
from korvet.redis.replies import Reply, listed, malformed, parsed
from korvet.topics.entry_ids import OFFSETS_END
from korvet.topics.types import Partition

_FIND = scripts.get("index/find")
_COUNT = scripts.get("index/count")
_AGE = scripts.get("index/age")

RECORDS_PER_ROW, BYTES_PER_ROW = 2048, 512 * 1024
"""The distances of lua/shared/index_steps.lua."""

TIMESTAMP_MAX = 2**63 - 1

STATE_FIELDS = (
    *("topic", LOG_FIELD, "start_records", "start_bytes"),
    *("clean", "clean_end", "clean_bytes", "archived", "reindex", "rebase", "open"),
)
"""What `read_totals` takes of the state."""

_ROWS_MAX = 1000
"""Rows that one search looks at besides those it bisects: less than a millisecond of Redis."""

_INTERVALS_MAX = 8
"""Intervals that one search returns: mostly the first holds the answer."""

_PAGE_ROWS = 1000
"""Rows that are read at once."""

_COUNT_MAX = 2000
"""Entries that are counted at once: some two milliseconds in which Redis serves nobody else."""

_ROW = re.compile(rb"(\d{1,19}):(\d{1,19}):(-?\d{1,20}):(-?\d{1,20})")
_AGE_TEXT = re.compile(rb"(?:-?\d{1,20})?")


class Row(NamedTuple):
    """A row of the index: what ever came below `offset`, and timestamps (ms) that nothing below it exceeds.

    `largest` is of everything below that is still in the log, `interval` of what lies after the row before.
    """

    offset: int
    records: int
    bytes: int
    largest: int
    interval: int


class RowBuilder:
    """Counts entries in the order of the log, and makes their rows; a timestamp past 2^53 ms counts as 2^53."""

    records_per_row, bytes_per_row = RECORDS_PER_ROW, BYTES_PER_ROW

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.records = self.bytes = 0
        self._largest = self._interval = -1
        self._records_at_row = self._bytes_at_row = 0

    def add(self, next_offset: int, records: int, size_bytes: int, max_timestamp: int) -> None:
        """Count an entry that ends before `next_offset`."""
        self.records += records
        self.bytes += size_bytes
        stamp = min(max_timestamp, OFFSETS_END)
        self._largest = max(self._largest, stamp)
        self._interval = max(self._interval, stamp)
        is_far = self.records - self._records_at_row >= self.records_per_row
        if is_far or self.bytes - self._bytes_at_row >= self.bytes_per_row:
            self.end_row(next_offset)

    def end_row(self, offset: int) -> None:
        """Make a row at an offset past all that was counted, unless there is one."""
        if self.rows and self.rows[-1].offset == offset:
            return
        self.rows.append(Row(offset, self.records, self.bytes, self._largest, self._interval))
        self._interval = -1
        self._records_at_row, self._bytes_at_row = self.records, self.bytes


class Totals(NamedTuple):
    """What ever came into a log, where it begins and ends, and what its index lacks.

    `first` is the first offset reported, None before the first entry; `interval` and `largest` are as a row has them;
    `start_records` and `start_bytes` lay below the start, to one row. Below `compacted_end` the log lies in the
    compacted segment number `segment`, None without one, and `compacted_bytes` ever came. The remote tier holds the
    records up to `archived`. `reindex`: the index has to be rebuilt; `rebase`: it may hold
    timestamps that have left the log. The first open transaction begins at `open_offset`, None without one.
    """

    start: int
    end: int
    first: int | None
    records: int
    bytes: int
    largest: int
    interval: int
    start_records: int
    start_bytes: int
    segment: int | None
    compacted_end: int
    compacted_bytes: int
    archived: int
    reindex: bool
    rebase: bool
    open_offset: int | None

    def misses_rows(self, newest: Row | None) -> bool:
        """Return whether rows are missing after the newest one."""
        if newest is None and self.start < self.end and self.largest > self.interval:
            # A log that was compacted may have its only row anywhere: the largest timestamp lies below it.
            return True
        records, size = (0, 0) if newest is None else (newest.records, newest.bytes)
        floors = (records // RECORDS_PER_ROW, size // BYTES_PER_ROW)
        return floors != (self.records // RECORDS_PER_ROW, self.bytes // BYTES_PER_ROW)


class Interval(NamedTuple):
    """The offsets from `first` up to `end` (exclusive), of which no timestamp (ms) exceeds `bound`."""

    first: int
    end: int
    bound: int


class Search(NamedTuple):
    """A search for the intervals with records of `timestamp` (ms) or later; `offset` -1: from the log's start on."""

    partition: Partition
    timestamp: int
    offset: int = -1


class SearchResult(NamedTuple):
    """Where such records may lie: from the first offset of an interval up to the other (exclusive), in order.

    `start` and `end` are the log's. Below `searched` there are no others; if it is below `end`, search on from there.
    """

    start: int
    end: int
    searched: int
    intervals: list[tuple[int, int]]


class Lag(NamedTuple):
    """How many records a log has from an offset on, and the age (ms) of the first of them, by its timestamp.

    The age is 0 without records, or if the first has no timestamp; negative if that lies in the future.
    """

    records: int
    age_ms: int


class IndexStore:
    """Every method raises StorageUnavailableError while Redis is away."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def find(self, searches: Sequence[Search]) -> list[SearchResult | KafkaError]:
        """Search for each, all in one round trip; answers stand in the same order.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.
        """
        replies = self._redis.scripts([_find_call(search) for search in searches])
        return [_result(search.partition, reply) for search, reply in zip(searches, replies, strict=True)]

    def intervals(self, partition: Partition) -> list[Interval]:
        """Return the whole log, from its start to its end, interval by interval of the index.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.
        """
        totals, rows = self.page(partition, -1)
        intervals: list[Interval] = []
        newest: Row | None = None
        first = totals.start
        while True:
            for row in rows:
                if totals.start < row.offset:
                    intervals.append(Interval(first, row.offset, row.interval))
                    first = row.offset
                newest = row
            if len(rows) < _PAGE_ROWS:
                break
            totals, rows = self.page(partition, rows[-1].offset)
        if first < totals.end:
            bound = totals.largest if newest is None else totals.interval
            if totals.misses_rows(newest):
                bound = TIMESTAMP_MAX
            intervals.append(Interval(first, totals.end, bound))
        return intervals

    def page(self, partition: Partition, offset: int) -> tuple[Totals, list[Row]]:
        """Return the totals of the state, and the first rows after an offset.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.
        """
        scored = (f"({offset}", "+inf", "WITHSCORES", "LIMIT", 0, _PAGE_ROWS)
        state, rows = self._redis.transaction(
            [
                ("HMGET", partition.state, *STATE_FIELDS),
                ("ZRANGEBYSCORE", partition.index_key, *scored),
            ]
        )
        return read_totals(partition, state), read_rows(partition, rows)

    def records_from(self, positions: Sequence[LogPosition]) -> list[int | KafkaError]:
        """Return how many records each log has from an offset on, which is a consumer's lag.

        In format `batch` that is a difference of offsets; in format `record` the index knows it but for one interval,
        the entries of which are counted. Records that compaction or others removed after the offset are not counted if
        they lie in that interval or the index was rebuilt since. In the answers KafkaError:
        UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.
        """
        counted = dict.fromkeys(range(len(positions)), 0)
        waiting = dict(enumerate(positions))
        outcomes: dict[int, int | KafkaError] = {}
        while waiting:
            replies = self._redis.scripts([_count_call(position) for position in waiting.values()])
            for (place, position), reply in zip(list(waiting.items()), replies, strict=True):
                what = "the answer of lua/index/count.lua"
                step = parsed(position.partition.state, what, reply, lambda r: (r[0], int(r[1])))
                if isinstance(step, KafkaError):
                    outcomes[place] = step
                    del waiting[place]
                    continue
                records, offset = step
                counted[place] += records
                if offset < 0:
                    outcomes[place] = counted[place]
                    del waiting[place]
                else:
                    waiting[place] = LogPosition(position.partition, offset)
        return [outcomes[place] for place in range(len(positions))]

    def lags(self, positions: Sequence[LogPosition]) -> list[Lag | KafkaError]:
        """Return the lag of each position: one round trip more than `records_from`, if there is any.

        In format `batch` it is the age of the first record of the offset's batch; records in the remote tier alone are
        unknown here. In the answers KafkaError as from `records_from`.
        """
        counts = self.records_from(positions)
        lagging = [place for place, count in enumerate(counts) if isinstance(count, int) and count > 0]
        replies = self._redis.scripts([_age_call(positions[place]) for place in lagging])
        ages = {
            place: _age(positions[place].partition, reply)
            for place, reply in zip(lagging, replies, strict=True)
        }
        lags: list[Lag | KafkaError] = []
        for place, count in enumerate(counts):
            age = ages.get(place, 0)
            if isinstance(count, KafkaError):
                lags.append(count)
            else:
                lags.append(age if isinstance(age, KafkaError) else Lag(count, age))
        return lags


def read_totals(partition: Partition, reply: Reply) -> Totals:
    """Return the totals of STATE_FIELDS; raises KafkaError as `IndexStore.page` does."""
    topic_id, *fields = cast("list[bytes | None]", listed(partition.state, reply))
    if topic_id != partition.topic_id.encode():
        raise stale_topic(partition)
    try:
        packed, start_records, start_bytes, segment, compacted_end, compacted_bytes, *rest = fields
        archived, reindex, rebase, open_offset = rest
        log = PackedLog.unpack(packed)
        return Totals(
            start=log.start,
            end=log.next_offset,
            first=log.first if log.first >= 0 else None,
            records=log.records,
            bytes=log.size_bytes,
            largest=log.largest,
            interval=log.interval,
            start_records=int(start_records or 0),
            start_bytes=int(start_bytes or 0),
            segment=SEGMENTS.index(segment) if segment else None,
            compacted_end=int(compacted_end or 0),
            compacted_bytes=int(compacted_bytes or 0),
            archived=int(archived or 0),
            reindex=reindex == b"1",
            rebase=rebase is not None,
            open_offset=int(open_offset) if open_offset else None,
        )
    except (ValueError, TypeError) as error:
        raise malformed(partition.state, "a field") from error


def read_rows(partition: Partition, reply: Reply) -> list[Row]:
    """Return the rows of an answer WITHSCORES; raises KafkaError KAFKA_STORAGE_ERROR if one is malformed."""
    members = cast("list[bytes]", listed(partition.index_key, reply))
    rows: list[Row] = []
    for member, score in zip(members[::2], members[1::2], strict=True):
        fields = _ROW.fullmatch(member)
        if fields is None:
            raise malformed(partition.index_key, "a row")
        rows.append(Row(int(float(score)), *map(int, fields.groups())))
    return rows


def _result(partition: Partition, reply: Reply) -> SearchResult | KafkaError:
    def read(numbers: list[bytes]) -> SearchResult:
        start, end, searched, *edges = map(int, numbers)
        return SearchResult(start, end, searched, list(zip(edges[::2], edges[1::2], strict=True)))

    return parsed(partition.state, "the answer of lua/index/find.lua", reply, read)


def _find_call(search: Search) -> ScriptCall:
    partition, timestamp, offset = search
    args = (partition.topic_id, min(timestamp, OFFSETS_END), offset, _ROWS_MAX, _INTERVALS_MAX)
    return _FIND, (partition.state, partition.index_key), args


def _count_call(position: LogPosition) -> ScriptCall:
    partition, offset = position
    keys = (partition.state, partition.index_key, partition.stream, *partition.compacted)
    return _COUNT, keys, (partition.topic_id, partition.bits, offset, _COUNT_MAX)


def _age_call(position: LogPosition) -> ScriptCall:
    partition, offset = position
    keys = (partition.state, partition.stream, *partition.compacted)
    return _AGE, keys, (partition.topic_id, partition.bits, offset)


def _age(partition: Partition, reply: Reply) -> int | KafkaError:
    def read(text: bytes) -> int:
        if not _AGE_TEXT.fullmatch(text):
            raise ValueError(text)
        return int(text or 0)

    return parsed(partition.state, "the answer of lua/index/age.lua", reply, read)
