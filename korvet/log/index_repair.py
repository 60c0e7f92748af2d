"""Repair of the sparse index: rows that are missing are rebuilt, timestamps that have left the log are forgotten.

An index is incomplete if its newest row does not match the counters of the state (`Totals.misses_rows`), if a row is
malformed, or if the state asks for it (`reindex`). Then all rows from the log's start on are rebuilt out of the log's
entries, in bounded steps, while the log goes on: what is appended meanwhile writes rows of its own after those rebuilt
here, and lua/index/fill.lua writes nothing if the log was compacted or rows were lost since.

A complete index may still hold timestamps of records that retention has deleted. lua/index/rebase.lua lowers them, and
if the log starts within an interval, the largest timestamp of what is left of it is read from its entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from korvet_core import weights

from korvet.errors import KafkaError
from korvet.log.index import STATE_FIELDS, Row, RowBuilder, Totals, read_rows, read_totals
from korvet.log.state import read_range
from korvet.log.types import CheckStep
from korvet.protocol.records.compression import refusals
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.replies import Arg, Reply, checked, malformed
from korvet.redis.scripts import Script
from korvet.topics.types import Partition

_FILL = scripts.get("index/fill")
_REBASE = scripts.get("index/rebase")
_REBASE_ROWS_MAX = 500
_FIRST_ROWS = 2

ENTRIES_MAX = 1000
"""Entries read at once, if they are small."""

BYTES_PER_READ = 4 * 1024 * 1024
"""About what is read at once, of entries like those before."""

ROWS_PER_STEP = 1000
"""Rows that one script writes: some two milliseconds in which Redis serves nobody else."""


class IndexState(NamedTuple):
    """The totals of a log, and the ends of its index.

    `below` is the last row at or below the log's start, `above` the first two after it. `reindex`: the index must be
    rebuilt.
    """

    totals: Totals
    newest: Row | None
    below: Row | None
    above: Sequence[Row]
    reindex: bool


class StreamRange(NamedTuple):
    """Offsets of a log from `first` up to `end` (exclusive) that lie in one stream."""

    stream: str
    first: int
    end: int


class Corrections(NamedTuple):
    """The records and bytes that lie below the log's start, and by how many of both the state counts too few."""

    start_records: int
    start_bytes: int
    more_records: int
    more_bytes: int


def _index_state(partition: Partition, state: Reply, newest: Reply, lowest: Reply) -> IndexState | KafkaError:
    try:
        totals = read_totals(partition, state)
    except KafkaError as error:
        return error
    reindex = totals.reindex
    try:
        last, first = read_rows(partition, newest), read_rows(partition, lowest)
    except KafkaError:
        # A malformed index is rebuilt: as if nothing were there.
        last, first, reindex = [], [], True
    below = [row for row in first if row.offset <= totals.start]
    return IndexState(
        totals=totals,
        newest=last[0] if last else None,
        below=below[-1] if below else None,
        above=[row for row in first if row.offset > totals.start][:_FIRST_ROWS],
        reindex=reindex,
    )


class Repaired(NamedTuple):
    """What became of an index: how many rows were rebuilt, and of how many the timestamps were lowered."""

    rebuilt: int = 0
    rebased: int = 0


class IndexRepair:
    """Repairs indexes. `check` is called before each step."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def repair(
        self, partitions: Sequence[Partition], check: CheckStep
    ) -> Iterator[tuple[Partition, Repaired | KafkaError]]:
        """Repair partitions one after the other; yields the repaired ones.

        Errors, yielded: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError, and what
        `check` raises.
        """
        for partition, state in zip(partitions, self._states(partitions), strict=True):
            if isinstance(state, KafkaError):
                yield partition, state
                continue
            try:
                repaired = self._repair(partition, state, check)
            except KafkaError as error:
                yield partition, error
                continue
            if any(repaired):
                yield partition, repaired

    def _repair(self, partition: Partition, state: IndexState, check: CheckStep) -> Repaired:
        if state.reindex or state.totals.misses_rows(state.newest):
            return Repaired(rebuilt=self._rebuild(partition, state, check))
        first, interval = self._first_interval(partition, state, check)
        if not state.totals.rebase and not _is_stale(state) and first < 0:
            return Repaired()
        rebased, more = 0, True
        while more:
            check()
            changed, more = self._rebase(partition, first, interval)
            rebased += changed
        return Repaired(rebased=rebased)

    def _rebuild(self, partition: Partition, state: IndexState, check: CheckStep) -> int:
        """Rebuild all rows from the log's start on; returns how many, 0 if the log was compacted meanwhile."""
        totals = state.totals
        built = RowBuilder()
        for part in _ranges(partition, state):
            for weight in self._weights(partition, part, check):
                built.add(*weight)
            built.end_row(part.end)
        below_records, below_bytes = totals.records - built.records, totals.bytes - built.bytes
        # Dense offsets count records, unless compaction has taken some away.
        is_dense = partition.is_dense and totals.start >= totals.compacted_end
        if is_dense:
            below_records = totals.start
        counts = Corrections(
            start_records=max(below_records, 0),
            start_bytes=max(below_bytes, 0),
            more_records=max(-below_records, 0),
            more_bytes=max(-below_bytes, 0),
        )
        rows = iter(built.rows)
        after = totals.start if totals.start < totals.end else totals.start - 1
        written = 0
        while written < len(built.rows):
            check()
            chunk = [
                row._replace(
                    records=row.offset if is_dense else row.records + counts.start_records,
                    bytes=row.bytes + counts.start_bytes,
                )
                for row in islice(rows, ROWS_PER_STEP)
            ]
            written += len(chunk)
            is_last = written == len(built.rows)
            if not self._fill(partition, totals, chunk, counts, after=after, is_last=is_last):
                return 0
            after = chunk[-1].offset
        return written

    def _weights(
        self, partition: Partition, part: StreamRange, check: CheckStep
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield of each entry its end, how many records and bytes it has, and the largest timestamp (ms)."""
        stream, first, end = part
        count = 1  # until it is known how large entries are
        while first < end:
            check()
            with refusals():
                entry_weights = weights(
                    partition, read_range(self._redis, partition, stream, first, end, count)
                )
            if not entry_weights:
                return
            yield from entry_weights
            average = sum(size for _, _, size, _ in entry_weights) // len(entry_weights) + 1
            count = max(1, min(ENTRIES_MAX, BYTES_PER_READ // average))
            first = entry_weights[-1][0]

    def _first_interval(self, partition: Partition, state: IndexState, check: CheckStep) -> tuple[int, int]:
        """Return the first row after the start and the largest timestamp up to it; -1 if the row is right.

        If the start lies within an interval, the record with its largest timestamp may have left the log. That matters
        if this one is larger than those that follow: lookups would read every interval in between.
        """
        start, below = state.totals.start, state.below
        if not state.above or start == 0 or (below is not None and below.offset == start):
            return -1, -1
        first, *following = state.above
        next_largest = following[0].largest if following else state.totals.largest
        if first.interval < next_largest or first.largest > first.interval:
            return -1, -1
        largest = -1
        for part in _ranges(partition, state, end=first.offset):
            for *_, timestamp in self._weights(partition, part, check):
                largest = max(largest, timestamp)
        return (first.offset, largest) if largest < first.interval else (-1, -1)

    def _states(self, partitions: Sequence[Partition]) -> list[IndexState | KafkaError]:
        commands: list[Sequence[Arg]] = []
        for partition in partitions:
            commands += (
                ("HMGET", partition.state, *STATE_FIELDS),
                ("ZREVRANGE", partition.index_key, 0, 0, "WITHSCORES"),
                # One row at or below the start: more of them only while a log is being trimmed.
                ("ZRANGE", partition.index_key, 0, _FIRST_ROWS, "WITHSCORES"),
            )
        replies = self._redis.pipeline(commands)
        return [
            _index_state(partition, *replies[at : at + 3])
            for partition, at in zip(partitions, range(0, len(replies), 3), strict=True)
        ]

    def _fill(
        self,
        partition: Partition,
        totals: Totals,
        rows: Sequence[Row],
        counts: Corrections,
        *,
        after: int,
        is_last: bool,
    ) -> bool:
        """Put `rows` in the place of those from `after` (exclusive) up to the last of them; `is_last`: no more follow.

        Returns False, having written none, if the log was compacted or rows were lost since `totals` were read.
        """
        compacted = ("", "") if totals.segment is None else (totals.segment, totals.compacted_end)
        replaced = (after, rows[-1].offset, "last" if is_last else "")
        args: list[Arg] = [partition.topic_id, *compacted, totals.start, *replaced, *counts]
        for row in rows:
            args += (row.offset, f"{row.records}:{row.bytes}:{row.largest}:{row.interval}")
        return self._run(partition, _FILL, args) == 1

    def _rebase(self, partition: Partition, first: int, interval: int) -> tuple[int, bool]:
        """Do a step of forgetting old timestamps; returns the rows changed, and whether another step is needed.

        `interval` (ms) is the largest timestamp between the log's start and the first row after it, at `first`; -1 if
        that is not known.
        """
        match self._run(partition, _REBASE, [partition.topic_id, _REBASE_ROWS_MAX, first, interval]):
            case [int() as changed, int() as more]:
                return changed, more == 1
        raise malformed(partition.index_key, "the answer of lua/index/rebase.lua")

    def _run(self, partition: Partition, script: Script, args: Sequence[Arg]) -> Reply:
        [reply] = self._redis.scripts([(script, (partition.state, partition.index_key), args)])
        return checked(partition.index_key, reply)


def _ranges(partition: Partition, state: IndexState, end: int | None = None) -> list[StreamRange]:
    """Return where the log lies, up to `end`, or to its end."""
    first, end = state.totals.start, state.totals.end if end is None else end
    compacted_end = state.totals.compacted_end
    ranges = [StreamRange(partition.stream, max(first, compacted_end), max(end, compacted_end))]
    if first < compacted_end:
        segment = partition.compacted[state.totals.segment or 0]
        ranges.insert(0, StreamRange(segment, first, min(compacted_end, end)))
    return [member for member in ranges if member.first < member.end] or [
        StreamRange(partition.stream, end, end)
    ]


def _is_stale(state: IndexState) -> bool:
    """Return whether the index knows a timestamp that no record from the log's start on has."""
    if state.above:
        return state.above[0].largest > state.above[0].interval
    return state.totals.start > 0 and state.totals.largest > state.totals.interval
