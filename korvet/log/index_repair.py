"""Keeping the sparse index of a log right: made anew where it is missing, and rid of timestamps that have left the log.

Knows when an index is wrong and how one is made out of a log's entries; nothing of scripts. The log goes on meanwhile:
what is appended writes rows of its own behind those that are made here.

Keeping the sparse index right: what its look tells, the entries it is made of, and the scripts that write it.

Knows lua/index/fill.lua and lua/index/rebase.lua and what an entry adds to the counters; nothing of when the index is
made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, cast

from korvet.errors import KafkaError
from korvet.log import batch_format as batch_entry
from korvet.log import index as index_store
from korvet.log.index import BYTES_PER_ROW, RECORDS_PER_ROW, Row, Totals
from korvet.log.record_format import Entry, timestamp_of
from korvet.log.state import entries, range_end, range_start
from korvet.protocol.records.batch import HEADER, HEADER_BYTES, BatchHeader
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.replies import Reply, RespError, listed, malformed, refused
from korvet.redis.scripts import Script
from korvet.topics.types import Partition

_FILL = scripts.get("index/fill")
_REBASE = scripts.get("index/rebase")
_REBASE_ROWS_MAX = 500
_FIRST_ROWS = 2
_INTERVAL = index_store.STATE_FIELDS.index("interval")


class IndexLook(NamedTuple):
    """What the state and the ends of the index tell; texts are None where the state has no such field.

    `below` is the last row at or below the log's start, `above` the first two behind it. `reindex`: somebody asked for
    the index to be made anew. `rebase` is where forgetting old timestamps has come to.
    """

    totals: Totals
    newest: Row | None
    below: Row | None
    above: Sequence[Row]
    clean: bytes | None
    clean_end: bytes | None
    reindex: bool
    rebase: bytes | None


class Part(NamedTuple):
    """A stretch of a log that lies in one stream: offsets from `first` to just before `behind`."""

    stream: str
    first: int
    behind: int


class Weight(NamedTuple):
    """What one entry, the last offset of which lies just before `behind`, adds to the counters."""

    behind: int
    records: int
    bytes: int
    timestamp: int


class Fill(NamedTuple):
    """Rows that take the place of those from `behind` (exclusive) to `last` (inclusive).

    `start_records` and `start_bytes` lie below the log's start; by `more_records` and `more_bytes` the state counts too
    few.
    """

    rows: Sequence[Row]
    behind: int
    last: int
    is_last: bool
    start_records: int
    start_bytes: int
    more_records: int
    more_bytes: int


class IndexRepairStore:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def look(self, partitions: Sequence[Partition]) -> list[IndexLook | KafkaError]:
        """Look at the index of each, all in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.
        """
        commands: list[Sequence[Arg]] = []
        for partition in partitions:
            commands += (
                (
                    "HMGET",
                    partition.state,
                    *index_store.STATE_FIELDS,
                    "clean",
                    "clean_end",
                    "reindex",
                    "rebase",
                ),
                ("ZREVRANGE", partition.index_key, 0, 0, "WITHSCORES"),
                # One row at or below the start: more of them only while a log is being trimmed.
                ("ZRANGE", partition.index_key, 0, _FIRST_ROWS, "WITHSCORES"),
            )
        replies = self._redis.pipeline(commands)
        return [
            _look(partition, *replies[at : at + 3])
            for partition, at in zip(partitions, range(0, len(replies), 3), strict=True)
        ]

    def entries(self, partition: Partition, part: Part, count: int) -> list[Weight]:
        """Return what the first entries of a part weigh; raises KafkaError KAFKA_STORAGE_ERROR."""
        first = range_start(partition, part.first)
        last = range_end(partition, part.behind)
        [reply] = self._redis.pipeline([("XRANGE", part.stream, first, last, "COUNT", count)])
        weigh = _batch_weight if partition.format == "batch" else _record_weight
        try:
            found = [weigh(entry, partition.bits) for entry in entries(partition, reply)]
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise malformed(part.stream, "an entry") from error
        return [weight for weight in found if weight is not None]

    def fill(self, partition: Partition, look: IndexLook, fill: Fill) -> bool:
        """Replace rows; returns False where the log was compacted or rows were lost since `look`, and none was written.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.
        """
        args: list[Arg] = [
            partition.topic_id,
            look.clean or b"",
            look.clean_end or b"",
            look.totals.start,
            fill.behind,
            fill.last,
            "last" if fill.is_last else "",
            fill.start_records,
            fill.start_bytes,
            fill.more_records,
            fill.more_bytes,
        ]
        for row in fill.rows:
            args += (row.offset, f"{row.records}:{row.bytes}:{row.largest}:{row.interval}")
        return self._run(partition, _FILL, args) == 1

    def rebase(self, partition: Partition, first: int = -1, interval: int = -1) -> tuple[int, bool]:
        """Do a step of forgetting old timestamps; returns the rows changed, and whether another step is needed.

        `interval` (ms) is the largest timestamp between the log's start and the first row behind it, at `first`; -1
        where that is not known. Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.
        """
        match self._run(partition, _REBASE, [partition.topic_id, _REBASE_ROWS_MAX, first, interval]):
            case [int() as changed, int() as more]:
                return changed, more == 1
        raise malformed(partition.index_key, "the answer of lua/index/rebase.lua")

    def _run(self, partition: Partition, script: Script, args: Sequence[Arg]) -> Reply:
        [reply] = self._redis.scripts([(script, (partition.state, partition.index_key), args)])
        if isinstance(reply, RespError):
            raise refused(partition.index_key, reply)
        if isinstance(reply, KafkaError):
            raise reply
        return reply


def _look(partition: Partition, state: Reply, newest: Reply, lowest: Reply) -> IndexLook | KafkaError:
    try:
        fields = listed(partition.state, state)
        known = len(index_store.STATE_FIELDS)
        totals = index_store.read_totals(partition, fields[:known])
        clean, clean_end, reindex, rebase = cast("list[bytes | None]", fields[known:])
        try:
            last = index_store.read_rows(partition, newest)
            first = index_store.read_rows(partition, lowest)
        except KafkaError:
            # What is malformed is to be made anew: as if nothing were there.
            last, first, reindex = [], [], b"1"
    except KafkaError as error:
        return error
    below = [row for row in first if row.offset <= totals.start]
    return IndexLook(
        totals=totals,
        newest=last[0] if last else None,
        below=below[-1] if below else None,
        above=[row for row in first if row.offset > totals.start][:_FIRST_ROWS],
        clean=clean,
        clean_end=clean_end,
        # Without this field nobody has counted anything yet.
        reindex=reindex == b"1" or (fields[_INTERVAL] is None and totals.end > 0),
        rebase=rebase,
    )


def _record_weight(entry: Entry, bits: int) -> Weight | None:
    entry_id, fields = entry
    ms, _, sequence = entry_id.partition(b"-")
    timestamp = int(ms)
    names = fields[::2]
    if b"timestamp" in names:
        stamps = (
            timestamp_of(content)
            for name, content in zip(names, fields[1::2], strict=True)
            if name == b"timestamp"
        )
        timestamp = next((stamp for stamp in stamps if stamp is not None), timestamp)
    return Weight((int(ms) << bits) + int(sequence) + 1, 1, sum(map(len, fields)), timestamp)


def _batch_weight(entry: Entry, _bits: int) -> Weight | None:
    entry_id, fields = entry
    if fields[0] != batch_entry.FIELD or len(fields[1]) < HEADER_BYTES:
        return None  # nobody counted it
    header = BatchHeader._make(HEADER.unpack_from(fields[1]))
    behind = int(entry_id.partition(b"-")[0])
    return Weight(behind, header.record_count, sum(map(len, fields)), header.max_timestamp)


ENTRIES_MAX = 1000
"""Entries read at once, where they are small."""

BYTES_PER_READ = 4 * 1024 * 1024
"""About what is read at once, of entries like those before."""

ROWS_PER_STEP = 1000
"""Rows that one script writes: some two milliseconds in which Redis serves nobody else."""

CheckTurn = Callable[[], None]
"""Is called before each step, and raises where no other step may be done."""


class Mended(NamedTuple):
    """What became of an index: how many rows were made anew, and of how many the timestamps were."""

    made: int = 0
    rebased: int = 0


class IndexRepair:
    """Looks at indexes and mends them."""

    def __init__(self, store: IndexRepairStore) -> None:
        self._store = store

    def mend(
        self, partitions: Sequence[Partition], check_turn: CheckTurn
    ) -> Iterator[tuple[Partition, Mended | KafkaError]]:
        """Do what is needed for each partition, one after the other; yields those for which something was.

        Errors, yielded: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError, and what
        `check_turn` raises.
        """
        for partition, look in zip(partitions, self._store.look(partitions), strict=True):
            if isinstance(look, KafkaError):
                yield partition, look
                continue
            try:
                mended = self._mend(partition, look, check_turn)
            except KafkaError as error:
                yield partition, error
                continue
            if any(mended):
                yield partition, mended

    def _mend(self, partition: Partition, look: IndexLook, check_turn: CheckTurn) -> Mended:
        if look.reindex or look.totals.misses_rows(look.newest):
            return Mended(made=self._make(partition, look, check_turn))
        first, interval = self._first_interval(partition, look, check_turn)
        if look.rebase is None and not _is_stale(look) and first < 0:
            return Mended()
        rebased, more = 0, True
        while more:
            check_turn()
            changed, more = self._store.rebase(partition, first, interval)
            rebased += changed
        return Mended(rebased=rebased)

    def _make(self, partition: Partition, look: IndexLook, check_turn: CheckTurn) -> int:
        """Make all rows from the log's start on; returns how many, 0 where the log was compacted meanwhile."""
        totals = look.totals
        making = _Making()
        for part in _parts(partition, look):
            for weight in self._weights(partition, part, check_turn):
                making.add(weight)
            making.end_part(part.behind)
        below_records, below_bytes = totals.records - making.records, totals.bytes - making.bytes
        # In format `batch` offsets count records, unless compaction has taken some away.
        is_dense = partition.format == "batch" and totals.start >= _clean_end(look)
        if is_dense:
            below_records = totals.start
        more_records, more_bytes = max(-below_records, 0), max(-below_bytes, 0)
        below_records, below_bytes = max(below_records, 0), max(below_bytes, 0)
        rows = iter(making.rows)
        behind = totals.start if totals.start < totals.end else totals.start - 1
        made = 0
        while made < len(making.rows):
            check_turn()
            some = [
                row._replace(
                    records=row.offset if is_dense else row.records + below_records,
                    bytes=row.bytes + below_bytes,
                )
                for row in islice(rows, ROWS_PER_STEP)
            ]
            made += len(some)
            fill = Fill(
                rows=some,
                behind=behind,
                last=some[-1].offset,
                is_last=made == len(making.rows),
                start_records=below_records,
                start_bytes=below_bytes,
                more_records=more_records,
                more_bytes=more_bytes,
            )
            if not self._store.fill(partition, look, fill):
                return 0
            behind = some[-1].offset
        return made

    def _weights(self, partition: Partition, part: Part, check_turn: CheckTurn) -> Iterator[Weight]:
        count = 1  # until it is known how large entries are
        while part.first < part.behind:
            check_turn()
            weights = self._store.entries(partition, part, count)
            if not weights:
                return
            yield from weights
            average = sum(weight.bytes for weight in weights) // len(weights) + 1
            count = max(1, min(ENTRIES_MAX, BYTES_PER_READ // average))
            part = part._replace(first=weights[-1].behind)

    def _first_interval(
        self, partition: Partition, look: IndexLook, check_turn: CheckTurn
    ) -> tuple[int, int]:
        """Return the first row behind the start and the largest timestamp up to it; -1 where the row tells as much.

        Where the start lies within an interval, the record with its largest timestamp may have left the log. That
        matters where this one is larger than those that follow: lookups would look at every interval in between.
        """
        start, below = look.totals.start, look.below
        if not look.above or start == 0 or (below is not None and below.offset == start):
            return -1, -1
        first, *following = look.above
        next_largest = following[0].largest if following else look.totals.largest
        if first.interval < next_largest or first.largest > first.interval:
            return -1, -1
        largest = -1
        for part in _parts(partition, look, behind=first.offset):
            for weight in self._weights(partition, part, check_turn):
                largest = max(largest, weight.timestamp)
        return (first.offset, largest) if largest < first.interval else (-1, -1)


class _Making:
    """Counts entries from the log's start on and makes rows of them, which count from there too."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.records = self.bytes = 0
        self._largest = self._interval = -1
        self._records_at_row = self._bytes_at_row = 0

    def add(self, weight: Weight) -> None:
        """Count an entry."""
        self.records += weight.records
        self.bytes += weight.bytes
        self._largest = max(self._largest, weight.timestamp)
        self._interval = max(self._interval, weight.timestamp)
        is_far = self.records - self._records_at_row >= RECORDS_PER_ROW
        if is_far or self.bytes - self._bytes_at_row >= BYTES_PER_ROW:
            self.end_part(weight.behind)

    def end_part(self, offset: int) -> None:
        """Make a row at an offset behind all that was counted, unless there is one."""
        if self.rows and self.rows[-1].offset == offset:
            return
        self.rows.append(Row(offset, self.records, self.bytes, self._largest, self._interval))
        self._interval = -1
        self._records_at_row, self._bytes_at_row = self.records, self.bytes


def _clean_end(look: IndexLook) -> int:
    """Return the offset below which the log lies in a clean stream."""
    return int(look.clean_end or 0) if look.clean is not None else 0


def _parts(partition: Partition, look: IndexLook, behind: int | None = None) -> list[Part]:
    """Return where the log lies, up to `behind`, or to its end."""
    first, end = look.totals.start, look.totals.end if behind is None else behind
    clean_end = _clean_end(look)
    parts = [Part(partition.stream, max(first, clean_end), max(end, clean_end))]
    if first < clean_end:
        parts.insert(0, Part(partition.compacted[int(look.clean or 0)], first, min(clean_end, end)))
    return [part for part in parts if part.first < part.behind] or [Part(partition.stream, end, end)]


def _is_stale(look: IndexLook) -> bool:
    """Tell whether the index knows a timestamp that no record from the log's start on has."""
    if look.above:
        return float(look.above[0].largest) > float(look.above[0].interval)
    return look.totals.start > 0 and float(look.totals.largest) > float(look.totals.interval)
