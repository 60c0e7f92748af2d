"""The state of a log in Redis: where it starts and ends, and which stream holds which of its offsets.

Whatever Redis answers is checked like any other input: a key of the wrong type or a malformed field is a KafkaError
KAFKA_STORAGE_ERROR that names the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from korvet.errors import ErrorCode, KafkaError
from korvet.log.epochs import Epochs, parse_epochs
from korvet.log.packed import LOG_FIELD, PackedLog
from korvet.log.types import Bounds, RemoteRange
from korvet.redis.replies import Reply, listed, malformed
from korvet.topics.entry_ids import end_of_id, id_of_end
from korvet.topics.types import Partition

_STATE_FIELDS = ("topic", LOG_FIELD, "clean", "clean_end", "archived", "epochs", "open", "aborted")

SEGMENTS = (b"0", b"1")
"""The numbers of the two streams that compaction writes to in turn, as the state names them."""


class LogState(NamedTuple):
    """The state hash: the log's end, its start in Redis, the first offset reported, the largest timestamp (ms).

    Expiry in the remote tier may move the log's start past that of Redis: then that is `start`, and what is below is
    no longer part of the log, though Redis still holds it. `first` is None before the first entry; `moving`: external
    entries are on their way to new offsets. Offsets below `compacted_end` lie in the compacted segment number
    `segment`, None without one. The remote tier holds what lies below `archived`, and in it the log starts at
    `remote_start`, None before anything was archived. `epochs` are the leader epochs in which it was written.
    `open_offset` is where the oldest open transaction begins, None without one.
    """

    next_offset: int
    start: int
    first: int | None
    max_timestamp: int
    moving: bool
    segment: int | None
    compacted_end: int
    remote_start: int | None = None
    archived: int = 0
    epochs: Epochs = ()
    open_offset: int | None = None

    @property
    def remote(self) -> RemoteRange | None:
        """What only the remote tier holds."""
        if self.remote_start is None or self.remote_start >= self.start:
            return None
        return RemoteRange(self.remote_start, self.start, self.archived, self.epochs)


def range_start(partition: Partition, offset: int) -> str:
    """Return where an XRANGE from `offset` on begins.

    It is exclusive of the entry before: between two milliseconds lie ids without an offset, and a read from behind
    these ids would miss entries still to come into the log.
    """
    return f"({id_of_end(offset, partition.bits)}"


def range_end(partition: Partition, end: int | None) -> str:
    """Return where an XRANGE up to the offset `end` (exclusive), which lies between two entries, ends."""
    return "+" if end is None else id_of_end(end, partition.bits)


def state_command(partition: Partition) -> tuple[str, ...]:
    """Return the command whose answer `read_state` takes."""
    return ("HMGET", partition.state, *_STATE_FIELDS)


def read_state(partition: Partition, reply: Reply) -> LogState:
    """Return the state; raises KafkaError UNKNOWN_TOPIC_OR_PARTITION if the topic id is another or none."""
    fields: Any = listed(partition.state, reply)
    if not fields or fields[0] != partition.topic_id.encode():
        raise stale_topic(partition)
    try:
        _, packed, segment, compacted_end, archived, epochs, open_offset, _ = fields
        log = PackedLog.unpack(packed)
        return LogState(
            next_offset=log.next_offset,
            start=max(log.start, log.lake_start),
            first=log.first if log.first >= 0 else None,
            max_timestamp=log.largest,
            moving=bool(log.moving),
            segment=SEGMENTS.index(segment) if segment else None,
            compacted_end=int(compacted_end or 0),
            remote_start=log.lake_start if log.lake_start >= 0 else None,
            archived=int(archived or 0),
            epochs=parse_epochs(epochs),
            open_offset=int(open_offset) if open_offset else None,
        )
    except (ValueError, TypeError) as error:
        raise malformed(partition.state, "a field") from error


def read_batch_bounds(partition: Partition, reply: Reply) -> Bounds | KafkaError:
    """Return the bounds from the state alone: in format `batch` no external entry moves them."""
    try:
        state = read_state(partition, reply)
    except KafkaError as error:
        return error.without_frames()
    end = state.next_offset
    earliest = end if state.first is None else max(state.first, state.start)
    return _bounds(state, min(earliest, end))


def read_record_bounds(partition: Partition, reply: Reply) -> Bounds | KafkaError | None:
    """Return the bounds from {state, first entry, last entry}; None if the last one is not in the log yet."""
    try:
        state_reply, first_reply, last_reply = executed(partition, reply, 3)
        state = read_state(partition, state_reply)
        first = [_offset(partition, entry_id) for entry_id, _ in entries(partition, first_reply)]
        last = [_offset(partition, entry_id) for entry_id, _ in entries(partition, last_reply)]
    except KafkaError as error:
        return error.without_frames()
    except (ValueError, TypeError):
        return malformed(partition.stream, "an entry")
    end = state.next_offset
    if state.moving or any(offset is None or offset >= end for offset in last):
        return None
    if state.start < state.compacted_end:
        # Compaction moves no start, and the first entry of the stream lies past the compacted part.
        earliest = max(state.start, state.first or 0)
    else:
        # Entries below the log's start are deleted, even if trimming has not reached them yet.
        earliest = max(first[0] or 0, state.start, state.first or 0) if first else end
    return _bounds(state, min(earliest, end))


def _bounds(state: LogState, first_offset: int) -> Bounds:
    remote = state.remote
    return Bounds(
        log_start=remote.start if remote else state.start,
        first_offset=remote.start if remote else first_offset,
        high_watermark=state.next_offset,
        max_timestamp=state.max_timestamp,
        archived=state.archived,
        remote=remote,
        compacted_end=state.compacted_end,
        epochs=state.epochs,
        open_offset=state.open_offset,
    )


def entries(partition: Partition, reply: Reply) -> Sequence[Any]:
    """Return the answer to XRANGE; the entries (record_format.Entry) are checked by what reads them."""
    return listed(partition.stream, reply)


def executed(partition: Partition, reply: Reply, *counts: int) -> list[Reply]:
    """Return the answers of a transaction, as many as one of `counts`, from the answer to its EXEC."""
    replies = listed(partition.stream, reply)
    if len(replies) not in counts:
        raise malformed(partition.stream, "the answer to EXEC")
    return replies


def stale_topic(partition: Partition) -> KafkaError:
    """Return the error for a state with another topic id, or none."""
    message = f"{partition.stream} does not belong to topic id {partition.topic_id}"
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _offset(partition: Partition, entry_id: bytes) -> int | None:
    try:
        end = end_of_id(entry_id, partition.bits)
    except (ValueError, TypeError, AttributeError) as error:
        raise malformed(partition.stream, "an entry's id") from error
    return None if end is None else end - 1
