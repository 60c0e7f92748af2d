"""What Redis answers about a log, as values: the outcome of scripts, the state hash, entry ids.

Pure. Knows the state hash's fields and how offsets lie in ids. Everything Redis says is input like any other: a key
of the wrong type or a malformed field is a KafkaError KAFKA_STORAGE_ERROR that names the key.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError
from korvet.log.record_format import OFFSETS_END, Entry
from korvet.log.types import Appended, Bounds, RemoteRange, Renumbered
from korvet.redis.replies import Reply, RespError, listed, malformed, refused
from korvet.topics.types import Partition


class State(NamedTuple):
    """The state hash: the log's end, its start in Redis, the first offset reported, the largest timestamp (ms).

    Where the log's start in the lake lies behind that of Redis, as expiry there may move it, it is `start` too: what is
    below is no part of the log any more, though Redis still holds it.

    `first` is None before the first entry; `moving`: foreign entries are on their way to new offsets. Offsets below
    `clean_end` live in the compacted stream number `clean`, which is None where there is no such stream. The lake holds
    what lies below `archived`, and in it the log starts at `lake_start`, which is None where nothing was archived yet.
    """

    next_offset: int
    start: int
    first: int | None
    max_timestamp: int
    moving: bool
    clean: int | None
    clean_end: int
    lake_start: int | None = None
    archived: int = 0

    @property
    def remote(self) -> RemoteRange | None:
        """What is in the lake only."""
        if self.lake_start is None or self.lake_start >= self.start:
            return None
        return RemoteRange(self.lake_start, self.start, self.archived)


# An answer of an append that tells of removed entries is by one longer than others.
_EXPELLED_FIELDS = 6

_STATE_FIELDS = (
    *("topic", "next", "start", "first", "max_timestamp", "moving", "clean", "clean_end"),
    *("lake_start", "archived"),
)


def range_start(partition: Partition, offset: int) -> str:
    """Return where an XRANGE for `offset` and all behind it begins.

    In format `batch` that is the first id behind the offset, since an id is where its batch ends. In format `record`
    it is exclusive of the offset before: between two milliseconds lie ids that no offset names, and a read that began
    behind them would pass over entries that still have to come into the log.
    """
    if partition.format == "batch":
        return f"{max(offset, 0) + 1}-0"
    before, bits = offset - 1, partition.bits
    return "-" if before < 0 else f"({before >> bits}-{before & (1 << bits) - 1}"


def range_end(partition: Partition, behind: int | None) -> str:
    """Return where an XRANGE for all before the offset `behind`, which lies between two entries, ends."""
    if behind is None:
        return "+"
    if partition.format == "batch":
        return f"{behind}-0"
    last, bits = behind - 1, partition.bits
    return f"{last >> bits}-{last & (1 << bits) - 1}"


def state_command(partition: Partition) -> tuple[str, ...]:
    """Return the command whose answer `read_state` takes."""
    return ("HMGET", partition.state, *_STATE_FIELDS)


def read_state(partition: Partition, reply: Reply) -> State:
    """Return the state; raises KafkaError UNKNOWN_TOPIC_OR_PARTITION where the topic id is another or none."""
    fields = listed(partition.state, reply)
    if not fields or fields[0] != partition.topic_id.encode():
        raise another_topic(partition)
    try:
        _, end, start, first, largest, moving, clean, clean_end, lake_start, archived = cast(
            "list[bytes]", fields
        )
        state = State(
            next_offset=int(end),
            start=max(int(start), int(lake_start) if lake_start else 0),
            first=int(first) if first else None,
            max_timestamp=int(largest),
            moving=bool(moving),
            clean=(b"0", b"1").index(clean) if clean else None,
            clean_end=int(clean_end) if clean_end else 0,
            lake_start=int(lake_start) if lake_start else None,
            archived=int(archived) if archived else 0,
        )
    except (ValueError, TypeError) as error:
        raise malformed(partition.state, "a field") from error
    if not 0 <= state.next_offset <= OFFSETS_END:
        raise malformed(partition.state, "the field next")
    return state


def read_appended(partition: Partition, reply: Reply) -> Appended | KafkaError | None:
    """Return the answer of an append script; None where something must be done about foreign entries first."""
    if isinstance(reply, KafkaError):
        return reply
    if isinstance(reply, RespError):
        return refused(partition.stream, reply)
    try:
        outcome, base_offset, log_start, now_ms, row_bytes, *_ = cast(
            "tuple[bytes, bytes, bytes, int, bytes]", reply
        )
        if outcome in (b"RENUMBER", b"EXPEL"):
            return None
        return Appended(
            base_offset=int(base_offset),
            log_start=int(log_start),
            now_ms=now_ms,
            duplicate=outcome == b"DUPLICATE",
            row_bytes=int(row_bytes),
        )
    except (ValueError, TypeError):
        return malformed(partition.stream, "the answer of an append script")


def expelled(reply: Reply) -> int:
    """Return how many entries of others an append in format `batch` removed to make room for its own."""
    count = reply[-1] if isinstance(reply, list) and len(reply) == _EXPELLED_FIELDS else 0
    return count if isinstance(count, int) else 0


def read_renumbered(partition: Partition, reply: Reply) -> Renumbered | KafkaError:
    """Return the answer of lua/log/renumber.lua or lua/log/expel.lua."""
    if isinstance(reply, KafkaError):
        return reply
    if isinstance(reply, RespError):
        return refused(partition.stream, reply)
    try:
        moved, more, high_watermark = cast("tuple[int, int, bytes]", reply)
        return Renumbered(moved, int(high_watermark), more == 1)
    except (ValueError, TypeError):
        return malformed(partition.stream, "the answer of a script against foreign entries")


def read_batch_bounds(partition: Partition, reply: Reply) -> Bounds | KafkaError:
    """Return the bounds from the state alone: in format `batch` no entry of others moves them."""
    try:
        state = read_state(partition, reply)
    except KafkaError as error:
        return error
    end = state.next_offset
    earliest = end if state.first is None else max(state.first, state.start)
    return _bounds(state, min(earliest, end))


def read_bounds(partition: Partition, reply: Reply) -> Bounds | KafkaError | None:
    """Return the bounds from {state, first entry, last entry}; None where the last one is not in the log yet."""
    try:
        state_reply, first_reply, last_reply = executed(partition, reply, 3)
        state = read_state(partition, state_reply)
        first = [_offset(partition, entry_id) for entry_id, _ in entries(partition, first_reply)]
        last = [_offset(partition, entry_id) for entry_id, _ in entries(partition, last_reply)]
    except KafkaError as error:
        return error
    except (ValueError, TypeError):
        return malformed(partition.stream, "an entry")
    end = state.next_offset
    if state.moving or any(offset is None or offset >= end for offset in last):
        return None
    if state.start < state.clean_end:
        # Compaction moves no start, and the first entry that was asked for lies behind the compacted part.
        earliest = max(state.start, state.first or 0)
    else:
        # Entries below the log's start are deleted, even where trimming has not come to them yet.
        earliest = max(first[0] or 0, state.start, state.first or 0) if first else end
    return _bounds(state, min(earliest, end))


def _bounds(state: State, first_offset: int) -> Bounds:
    remote = state.remote
    return Bounds(
        log_start=remote.start if remote else state.start,
        first_offset=remote.start if remote else first_offset,
        high_watermark=state.next_offset,
        max_timestamp=state.max_timestamp,
        archived=state.archived,
        remote=remote,
        compacted_end=state.clean_end,
    )


def entries(partition: Partition, reply: Reply) -> list[Entry]:
    """Return the answer to XRANGE; what is in its entries is checked by who reads them."""
    return cast("list[Entry]", listed(partition.stream, reply))


def executed(partition: Partition, reply: Reply, count: int) -> list[Reply]:
    """Return the `count` answers of a transaction from the answer to its EXEC."""
    replies = listed(partition.stream, reply)
    if len(replies) != count:
        raise malformed(partition.stream, "the answer to EXEC")
    return replies


def another_topic(partition: Partition) -> KafkaError:
    """Return the error for a state with another topic id, or none."""
    message = f"{partition.stream} does not belong to topic id {partition.topic_id}"
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _offset(partition: Partition, entry_id: bytes) -> int | None:
    try:
        ms, sequence = entry_id.split(b"-")
        low = int(sequence)
        offset = (int(ms) << partition.bits) + low
    except (ValueError, TypeError, AttributeError) as error:
        raise malformed(partition.stream, "an entry's id") from error
    return offset if low >> partition.bits == 0 and offset < OFFSETS_END else None
