"""What a log store takes and returns: batches, records and bounds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from korvet.log.epochs import Epochs
from korvet.log.record_format import ProducerRun
from korvet.protocol.records.batch import (
    FRONT,
    HEADER_BYTES,
    LENGTH_FROM,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    each_record,
)
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.record import StoredRecord
from korvet.topics.entry_ids import DENSE
from korvet.topics.types import Partition

CheckStep = Callable[[], None]
"""Called before every bounded step of work on logs; whatever it raises ends the work there."""


class StoredBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch of the log: where it lies, its size on the wire in bytes, and its bytes.

    `record_count` is below the number of its offsets if it was compacted. `stored` is what lies in Redis, with the
    header as the producer wrote it; `plain` holds the records if those in `stored` are compressed at rest.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    record_count: int
    stored: bytes
    plain: bytes | None = None

    @property
    def header(self) -> BatchHeader:
        """The whole header, as the producer wrote it."""
        return BatchHeader.read(self.stored)

    def records(self, bytes_max: int) -> Iterator[StoredRecord]:
        """Yield the records, `bytes_max` bytes of them uncompressed at the most; raises as `each_record`."""
        return each_record(self.stored, self.base_offset, bytes_max, self.plain)

    def chunks(self, leader_epoch: int) -> tuple[bytes | memoryview, ...]:
        """Return the batch for a consumer: only base offset and leader epoch differ, which no CRC covers."""
        front = FRONT.pack(self.base_offset, self.size_bytes - LENGTH_FROM, leader_epoch)
        if self.plain is None:
            return front, memoryview(self.stored)[FRONT.size :]
        return front + self.stored[FRONT.size : HEADER_BYTES], self.plain


class Appended(NamedTuple):
    """Where a batch lies: contiguously from `base_offset`.

    `log_start` is the one that responses report (Bounds.first_offset); `duplicate`: it was written there before.
    `row_bytes` is what ever came into the log in bytes as stored, if the append wrote a row of its index, about once in
    512 KiB; else 0. `history` is that of the `node` of Redis that has it (RedisNode.history). `timestamp` (ms) is the
    one that its records got instead of their own (LogAppendTime), -1 if they kept theirs; the caller knows it.
    `replicas` is that of the partition.
    """

    base_offset: int
    log_start: int
    duplicate: bool
    row_bytes: int = 0
    history: str = ""
    timestamp: int = -1
    replicas: int = 0
    node: str = ""


class LogPosition(NamedTuple):
    """An offset of a log; what -1 stands for, its start or its end, the taker says."""

    partition: Partition
    offset: int


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted in a partition: of which producer, and where it began there."""

    producer_id: int
    first_offset: int


class Read(NamedTuple):
    """A read of records from `offset` on, from at most `entries_max` entries (at least one).

    `committed`: only what lies below the last stable offset is read, and which of it was aborted (read_committed); no
    more is read than what `aborted_max` rows of aborted transactions say.

    Entries that begin at or above `end`, if given, are not read; it must lie between two entries. `bytes_expected` is
    about what they weigh; a reader that does not know takes the default of message.max.bytes.
    """

    partition: Partition
    offset: int
    entries_max: int
    end: int | None = None
    bytes_expected: int = 1024 * 1024
    committed: bool = False
    aborted_max: int = 1000


class RemoteRange(NamedTuple):
    """The part of a log that only the remote tier holds: from `start` up to `end`, where Redis begins.

    `archived` is the offset up to which the remote tier is known to hold the log; it may lie past `end`. `epochs` are
    those of the log.
    """

    start: int
    end: int
    archived: int
    epochs: Epochs = ()


class Fetched(NamedTuple):
    """What a read found; it may be nothing, and begin after the offset read from if the log has a gap there.

    In format `record` these are `records`; in format `batch` they are `batches`, the first of which holds the offset,
    maybe in its middle.

    `log_start` is the lowest offset that may be asked for, `first_offset` what responses report as log start;
    `high_watermark` is exact when `records` reach it or are empty, else at least the last record's offset + 1.
    What is past it though it is in the log, whose end is `log_end` then, is not shown to consumers (high_watermark.py).
    `more`: reading on at once may find more. `remote`: only the remote tier holds the oldest records; a read of one of
    them finds nothing here. Below `compacted_end` compaction has removed records. `epochs` are those of the log.
    `producers` say which of the `records` are of transactions, or markers; batches say so themselves. Where the oldest
    open transaction begins is `open_offset`, None without one. `aborted` are the transactions of which a committed read
    may have found records, with markers from its offset on; None for a read of all.
    """

    log_start: int
    first_offset: int
    high_watermark: int
    records: Sequence[StoredRecord]
    more: bool
    batches: Sequence[StoredBatch] = ()
    remote: RemoteRange | None = None
    compacted_end: int = 0
    epochs: Epochs = ()
    log_end: int = -1
    producers: Sequence[ProducerRun] = ()
    open_offset: int | None = None
    aborted: Sequence[AbortedTransaction] | None = None

    @property
    def stable_offset(self) -> int:
        """The last stable offset: all transactions that have records below it have ended."""
        return _stable(self.open_offset, self.first_offset, self.high_watermark)

    @property
    def visible_end(self) -> int:
        """The end of what such a read may find."""
        return self.high_watermark if self.aborted is None else self.stable_offset

    @property
    def end_offset(self) -> int:
        """The end of the log; as in Kafka it is no error to ask for what lies between it and the high watermark."""
        return max(self.high_watermark, self.log_end)

    @property
    def holds_any(self) -> bool:
        """Whether anything was found."""
        return bool(self.records or self.batches)

    @property
    def next_offset(self) -> int:
        """The offset just past what was found, which must be something."""
        if self.batches:
            return self.batches[-1].next_offset
        return end_of(self.records)

    @property
    def first_timestamp(self) -> int | None:
        """The timestamp (ms) of the first record, None without one."""
        if self.batches:
            header = self.batches[0].header
            return header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else header.base_timestamp
        return self.records[0][1] if self.records else None

    def first_appended_ms(self, bits: int) -> int | None:
        """Return when the first record was appended, by Redis' clock or its broker's; None if the log does not keep it.

        `bits` are the partition's. An offset may be a time; a batch has it with LogAppendTime alone.
        """
        if self.batches:
            header = self.batches[0].header
            return header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
        return self.records[0][0] >> bits if self.records and bits > DENSE else None

    def until(self, end: int) -> Fetched:
        """Return what was found below an offset that lies between two entries, where reading on is of no use."""
        if not self.holds_any or self.next_offset <= end:
            return self._replace(more=self.more and self.holds_any and self.next_offset < end)
        records = [each for each in self.records if each[0] < end]
        count = len(records)
        return self._replace(
            records=records,
            batches=[each for each in self.batches if each.next_offset <= end],
            producers=[
                each._replace(stop=min(each.stop, count)) for each in self.producers if each.start < count
            ],
            more=False,
        )


class Bounds(NamedTuple):
    """The ends of a log, exact at the time of the answer; consumers may see less (LogStore.visible_bounds).

    `log_start` is the lowest offset that may be asked for: 0 until retention or DeleteRecords move it, whatever the
    first entry is. `first_offset` is the first entry's offset, the high watermark in an empty log (what ListOffsets
    calls earliest). `max_timestamp` (ms) is the largest of all records, at most 2^53, -1 without any; it may be that of
    a record that has left the log. The remote tier holds the log up to `archived`; `remote` is the part that only it
    holds. Below `compacted_end` compaction has removed records. `epochs` are those of the log. The oldest open
    transaction begins at `open_offset`, None without one.
    """

    log_start: int
    first_offset: int
    high_watermark: int
    max_timestamp: int
    archived: int = 0
    remote: RemoteRange | None = None
    compacted_end: int = 0
    epochs: Epochs = ()
    open_offset: int | None = None

    @property
    def stable_offset(self) -> int:
        """The last stable offset: all transactions that have records below it have ended; -1 if it is unknown."""
        return _stable(self.open_offset, self.first_offset, self.high_watermark)

    @property
    def local_start(self) -> int:
        """The first offset that Redis holds, as responses report it."""
        return self.remote.end if self.remote else self.first_offset

    @property
    def redis_start(self) -> int:
        """Where Redis begins to hold the log: below the first entry too, for what is missing there never was."""
        return self.remote.end if self.remote else self.log_start


def end_of(records: Sequence[StoredRecord]) -> int:
    """Return the offset just past records, of which there is at least one."""
    return records.runs[-1].stop if isinstance(records, Columns) else records[-1][0] + 1


def _stable(open_offset: int | None, first_offset: int, high_watermark: int) -> int:
    # Deletion may have removed the beginning of an open transaction.
    return high_watermark if open_offset is None else min(max(open_offset, first_offset), high_watermark)


class FetchMemory(Protocol):
    """The memory of the records of one response, from their reading until they are sent."""

    @property
    def room(self) -> int:
        """How much it may take."""

    def reserve(self, size: int) -> None:
        """Take `size` bytes more; negative: release them."""


class _Unlimited:
    room = sys.maxsize

    def reserve(self, size: int) -> None:
        """Count nothing."""


UNLIMITED: FetchMemory = _Unlimited()


class LogLimits(msgspec.Struct, frozen=True):
    """What the logs of one process may take.

    A batch has `decompressed_bytes_max` bytes at the most. No request of a client begins while what was made of others
    takes `held_bytes_max`. There are at most `fetch_sessions_max` fetch sessions. A fetch waits for `fetch_wait_max_s`
    at the most, if that is given.
    """

    decompressed_bytes_max: int = 64 * 1024 * 1024
    held_bytes_max: int = 64 * 1024 * 1024
    fetch_sessions_max: int = 0
    fetch_wait_max_s: float | None = None


class FetchLimits(msgspec.Struct, frozen=True):
    """The limits of a whole fetch. If `memory` has less room than `bytes_max`, that is its limit."""

    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    memory: FetchMemory = UNLIMITED
