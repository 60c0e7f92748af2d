"""The compacted part of logs in Redis: what a pass of compaction reads and writes, step by step.

Knows the scripts under lua/compaction, the clean streams and where a log's entries lie before and behind the end of
the compacted part; nothing of which records are to stay. A pass is known by its token: once another pass of the same
log was begun no step of it does anything any more. Nor where Redis has lost a step that it had confirmed, for the token
changes with every write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError
from korvet.storage import log_replies, scripts
from korvet.storage.entry import ENTRY_ARGS_MAX, Arg, Entry
from korvet.storage.log_types import Partition
from korvet.storage.replies import Reply, RespError
from korvet.storage.resp import Redis
from korvet.storage.scripts import Script

_LOOK = scripts.get("compaction/look")
_BEGIN = scripts.get("compaction/begin")
_WRITE = scripts.get("compaction/write")
_SWITCH = scripts.get("compaction/switch")
_GIVE_UP = scripts.get("compaction/give_up")
_FREE = scripts.get("compaction/free")

_FREE_ENTRIES_MAX = 100
"""Entries that one XTRIM takes where they are small: as many as a node of a stream has by default."""

_FREE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that it takes where they are large: a few milliseconds of Redis."""

_LOOK_ANSWERS = 14
_ROW = re.compile(rb"(\d{1,19}):(\d{1,19}):(-?\d{1,19}):(-?\d{1,19})")
_PERIOD = re.compile(rb"(\d{1,19})@(\d{1,19})")

Written = tuple[bytes, Sequence[Arg]]
"""An entry to be written: its id, its fields and values."""


class PassOverError(Exception):
    """Another pass of the same log was begun, this one given up, or a write of it lost: it must not go on."""


class Row(NamedTuple):
    """A row of the index: what ever came below `offset`, and the largest timestamp (ms) since the row before it."""

    offset: int
    records: int
    bytes: int
    interval: int


class Period(NamedTuple):
    """What lies below `end`, and not below an earlier period's, was compacted for the first time at `ms`."""

    end: int
    ms: int


class CleanLook(NamedTuple):
    """A log as its state tells of it, at `now_ms` by Redis' clock.

    The log lies between `start` and `end`; `bytes` ever came, `start_bytes` of them below the start. Below `clean_end`
    it is compacted, and lies in the stream number `clean`; `clean_bytes` ever came below. `newest` is the last row of
    the index, `interval` (ms) the largest timestamp behind it. `history` names the parts of the compacted log that hold
    tombstones. `token`: a pass is under way, or one was and has left something behind.
    """

    now_ms: int
    end: int
    start: int
    bytes: int
    interval: int
    start_bytes: int
    clean_end: int
    clean: int | None
    history: tuple[Period, ...]
    token: str
    clean_bytes: int
    newest: Row | None


class Pass(NamedTuple):
    """A pass of compaction under way, up to the offset `clean_end`, which is a row of the index.

    It reads the clean stream `source` below `dirty_start`, the log itself from there on, and writes the stream
    `target`.
    """

    partition: Partition
    token: str
    source: int | None
    target: int
    start: int
    dirty_start: int
    clean_end: int
    end: int


class KeptRow(NamedTuple):
    """A row at `offset` of what a pass has kept: what of it lies behind, and the largest timestamps (ms) below.

    `largest` is of all below the row, `interval` of what lies between the row before and this one; -1: none.
    """

    offset: int
    records_behind: int
    bytes_behind: int
    largest: int
    interval: int


class Kept(NamedTuple):
    """What a pass has kept. `interval` is the largest timestamp (ms) behind the last of `rows`, -1: none.

    `history` is the one before without what is over; `tombstones`: some were compacted for the first time.
    """

    records: int
    bytes: int
    interval: int
    rows: Sequence[KeptRow]
    history: Sequence[Period]
    tombstones: bool


class CleanStore:
    """Every method raises StorageUnavailableError where Redis is away, KafkaError where it answers with an error."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def look(self, partitions: Sequence[Partition]) -> list[CleanLook | KafkaError]:
        """Look at every log, all in one round trip.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.
        """
        calls = [(_LOOK, (one.state, one.index_key), (one.topic_id,)) for one in partitions]
        replies = self._redis.scripts(calls)
        return [_look(partition, reply) for partition, reply in zip(partitions, replies, strict=True)]

    def rows(self, partition: Partition, after: int, last: int, rows_max: int) -> list[Row]:
        """Return the first rows of the index behind the offset `after`, up to `last`."""
        flat = cast(
            "list[bytes]",
            self._list(
                *("ZRANGEBYSCORE", partition.index_key, f"({after}", last, "WITHSCORES", "LIMIT", 0, rows_max)
            ),
        )
        return [_row(partition, *pair) for pair in zip(flat[::2], flat[1::2], strict=True)]

    def entry_count(self, partition: Partition) -> int:
        """Return how many entries the log itself has, those included that were compacted and are still to go."""
        [reply] = self._redis.pipeline([("XLEN", partition.stream)])
        if isinstance(reply, int):
            return reply
        raise _error(partition.stream, reply, "the answer to XLEN")

    def begin(self, partition: Partition, token: str, look: CleanLook, clean_end: int) -> Pass | None:
        """Begin a pass up to `clean_end`, a row of the index or the end of the log, where a row is written then.

        Nobody who began one before goes on. Returns None, having done nothing, where the log has changed since `look`.
        """
        keys = (partition.state, partition.index_key, *partition.clean)
        dense = "dense" if partition.format == "batch" else ""
        reply = self._run(_BEGIN, keys, (partition.topic_id, token, look.clean_end, clean_end, dense))
        match reply:
            case [b"CHANGED", *_]:
                return None
            case [b"BEGUN", (0 | 1) as target, bytes() as start, bytes() as end, bytes()] if start.isdigit():
                # Nothing else makes a part compacted, so what was compacted when we looked is so still.
                dirty_start = max(look.clean_end, int(start))
                return Pass(
                    partition, token, look.clean, target, int(start), dirty_start, clean_end, int(end)
                )
        raise _error(partition.state, reply, "the answer of compaction/begin")

    def read(self, under_way: Pass, offset: int, count: int) -> list[Entry]:
        """Return the first entries of a pass from `offset` on: compacted ones below `dirty_start`, then the log's."""
        partition = under_way.partition
        entries: list[Entry] = []
        if offset < under_way.dirty_start and under_way.source is not None:
            stream, last = partition.clean[under_way.source], _last_id(partition, under_way.dirty_start)
            entries = self._range(stream, log_replies.range_start(partition, offset), last, count)
        if not entries:
            begin = log_replies.range_start(partition, max(offset, under_way.dirty_start))
            last = _last_id(partition, under_way.clean_end)
            entries = self._range(partition.stream, begin, last, count)
        return entries

    def _range(self, stream: str, begin: str, last: str, count: int) -> list[Entry]:
        return cast("list[Entry]", self._list("XRANGE", stream, begin, last, "COUNT", count))

    def _list(self, name: str, key: str, *args: Arg) -> list[Reply]:
        [reply] = self._redis.pipeline([(name, key, *args)])
        return log_replies.listed(key, reply)

    def _run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        [reply] = self._redis.scripts([(script, keys, args)])
        return reply

    def write(self, under_way: Pass, entries: Sequence[Written]) -> Pass:
        """Write survivors behind those written before; returns the pass as it goes on. Raises PassOverError."""
        partition = under_way.partition
        pass_id, _, writes = under_way.token.partition(":")
        token = f"{pass_id}:{int(writes or 0) + 1}"
        args: list[Arg] = [partition.topic_id, under_way.token, token]
        for entry_id, fields in entries:
            if len(fields) > ENTRY_ARGS_MAX:
                message = (
                    f"{partition.stream}: entry {entry_id.decode()} has {len(fields) // 2} fields, too many to "
                    "compact it; remove it with XDEL"
                )
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
            args += (entry_id, len(fields), *fields)
        keys = (partition.state, partition.clean[under_way.target])
        _check(partition, self._run(_WRITE, keys, args), "compaction/write")
        return under_way._replace(token=token)

    def switch(self, under_way: Pass, kept: Kept) -> None:
        """Make what was written the compacted part of the log, and end the pass. Raises PassOverError."""
        partition = under_way.partition
        history = " ".join(f"{period.end}@{period.ms}" for period in kept.history)
        args: list[Arg] = [partition.topic_id, under_way.token, under_way.target, under_way.clean_end]
        args += (kept.records, kept.bytes, kept.interval, history, "tombstones" if kept.tombstones else "")
        for row in kept.rows:
            args += row
        keys = (partition.state, partition.index_key, *partition.clean)
        _check(partition, self._run(_SWITCH, keys, args), "compaction/switch")

    def give_up(self, partition: Partition, token: str) -> bool:
        """End the pass of that present token and remove what it has written; returns whether it was under way."""
        reply = self._run(_GIVE_UP, (partition.state, *partition.clean), (partition.topic_id, token))
        if reply in (0, 1):
            return reply == 1
        raise _error(partition.state, reply, "the answer of compaction/give_up")

    def free(self, partition: Partition) -> bool:
        """Give back some of what was compacted and still lies in the log itself; returns whether there may be more."""
        bits = -1 if partition.format == "batch" else partition.bits
        args = (partition.topic_id, bits, _FREE_ENTRIES_MAX, _FREE_BYTES_MAX)
        reply = self._run(_FREE, (partition.stream, partition.state), args)
        match reply:
            case [int(), int() as more]:
                return more == 1
        raise _error(partition.stream, reply, "the answer of compaction/free")


def _last_id(partition: Partition, end: int) -> str:
    """Return the id of the last entry that can lie below the offset `end`, which is above 0."""
    if partition.format == "batch":
        return f"{end}-0"
    last = end - 1
    return f"{last >> partition.bits}-{last & (1 << partition.bits) - 1}"


def _check(partition: Partition, reply: Reply, script: str) -> None:
    if reply == 0:
        raise PassOverError
    if reply != 1:
        raise _error(partition.state, reply, f"the answer of {script}")


def _error(key: str, reply: Reply, what: str) -> KafkaError:
    if isinstance(reply, KafkaError):
        return reply
    return (
        log_replies.refused(key, reply) if isinstance(reply, RespError) else log_replies.malformed(key, what)
    )


def _look(partition: Partition, reply: Reply) -> CleanLook | KafkaError:
    if not isinstance(reply, list) or len(reply) != _LOOK_ANSWERS:
        return _error(partition.state, reply, "the answer of compaction/look")
    texts = cast("list[bytes]", reply)
    try:
        return CleanLook(
            now_ms=int(texts[0]),
            end=int(texts[1]),
            start=int(texts[2]),
            bytes=int(texts[3]),
            # Without the field nothing is known of the records behind the last row.
            interval=int(texts[5] or -1),
            start_bytes=int(texts[6] or 0),
            clean_end=int(texts[7] or 0),
            clean=(b"0", b"1").index(texts[8]) if texts[8] else None,
            history=_history(texts[9]),
            token=texts[10].decode("ascii", "backslashreplace"),
            clean_bytes=int(texts[11] or 0),
            newest=_row(partition, texts[13], texts[12]) if texts[13] else None,
        )
    except KafkaError as error:
        return error
    except (ValueError, TypeError):
        return log_replies.malformed(partition.state, "a field")


def _history(text: bytes) -> tuple[Period, ...]:
    found = [_PERIOD.fullmatch(word) for word in text.split()]
    if None in found:
        msg = f"{text!r} is no history"
        raise ValueError(msg)
    return tuple(Period(int(each[1]), int(each[2])) for each in found if each)


def _row(partition: Partition, member: bytes, score: bytes) -> Row:
    found = _ROW.fullmatch(member)
    if found is None:
        raise log_replies.malformed(partition.index_key, "a row")
    return Row(int(float(score)), int(found[1]), int(found[2]), int(found[4]))
