"""Keeping the sparse index right: what its look tells, the entries it is made of, and the scripts that write it.

Knows lua/index/fill.lua and lua/index/rebase.lua and what an entry adds to the counters; nothing of when the index is
made anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from korvet.errors import KafkaError
from korvet.protocol.records.batch import HEADER, HEADER_BYTES, BatchHeader
from korvet.storage import batch_entry, index_store, log_replies, scripts
from korvet.storage.entry import Entry, timestamp_of
from korvet.storage.index_store import Row, Totals
from korvet.storage.log_types import Partition
from korvet.storage.replies import Reply, RespError
from korvet.storage.resp import Arg, Redis
from korvet.storage.scripts import Script

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


class IndexUpkeep:
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
        first = log_replies.range_start(partition, part.first)
        last = log_replies.range_end(partition, part.behind)
        [reply] = self._redis.pipeline([("XRANGE", part.stream, first, last, "COUNT", count)])
        weigh = _batch_weight if partition.format == "batch" else _record_weight
        try:
            found = [weigh(entry, partition.bits) for entry in log_replies.entries(partition, reply)]
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise log_replies.malformed(part.stream, "an entry") from error
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
        raise log_replies.malformed(partition.index_key, "the answer of lua/index/rebase.lua")

    def _run(self, partition: Partition, script: Script, args: Sequence[Arg]) -> Reply:
        [reply] = self._redis.scripts([(script, (partition.state, partition.index_key), args)])
        if isinstance(reply, RespError):
            raise log_replies.refused(partition.index_key, reply)
        if isinstance(reply, KafkaError):
            raise reply
        return reply


def _look(partition: Partition, state: Reply, newest: Reply, lowest: Reply) -> IndexLook | KafkaError:
    try:
        fields = log_replies.listed(partition.state, state)
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
