"""Reads records of partitions, from an offset on, in bounded slices. Reached as `AdminClient.records`.

This is no consumer: it joins no group, commits nothing and keeps no position. Offsets may have gaps of any size.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from korvet.admin.errors import (
    AdminError,
    AnswerTooLargeError,
    BadAnswerError,
    BrokerError,
    UnreadableBatchError,
    error_in,
)
from korvet.admin.routing import Attempt, Requests, Route
from korvet.admin.types import (
    TIME_CODED_FROM,
    LogRecord,
    LogSlice,
    Outcomes,
    TopicPartition,
    partitions_in,
    topics_of,
)
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.messages import fetch
from korvet.protocol.records.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    each_record,
)
from korvet.protocol.types import IsolationLevel

# Later versions name topics by id.
_VERSIONS = (4, 12)

_DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of a batch, and of all slices together, by default."""

_WAIT_MS = 500
_SHARE_BYTES_MIN = 1024 * 1024


class FetchedBatch(NamedTuple):
    """A batch of a log: its header, and its bytes as they are stored."""

    header: BatchHeader
    batch: memoryview


class FetchedSlice(msgspec.Struct, frozen=True):
    """A slice of a log, without markers. The first batch may begin before the offset asked for.

    `next_offset` is where the next slice begins. `start` and `end` are those of the log; `stable_end` is the first
    offset of an open transaction, else the end.
    """

    batches: list[FetchedBatch]
    next_offset: int
    start: int
    end: int
    stable_end: int


class Records(Requests):
    """The requests about records."""

    def read(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        bytes_max: int = 1024 * 1024,
        decompressed_bytes_max: int = _DECOMPRESSED_BYTES_MAX,
        records_max: int = sys.maxsize,
        wait_ms: int = 0,
    ) -> dict[TopicPartition, LogSlice | AdminError]:
        """Return for each partition a slice from this offset on, or an error.

        OffsetOutOfRangeError for an offset outside the log, UnknownTopicOrPartitionError for an unknown partition. All
        slices of a broker together have `bytes_max` at most, as compressed, or are one larger batch. A broker without
        any records waits for `wait_ms`. A slice has `records_max` records at most. All slices together end with the
        batch that brings their keys, values and headers to `decompressed_bytes_max`: a few bytes can decompress to
        gigabytes. AnswerTooLargeError for one batch that exceeds this limit by itself, UnreadableBatchError for one
        that does not decode: both have the offset after it.

            >>> key = TopicPartition("orders", 0)
            >>> [record.value for record in settled(admin.records.read({key: 48}))[key].records]
            [b'value', b'value']
        """
        room = _Room(decompressed_bytes_max, records_max)
        fetched = self._fetch(offsets, IsolationLevel.READ_UNCOMMITTED, bytes_max, wait_ms)
        return {
            key: outcome if isinstance(outcome, AdminError) else _decoded(key, outcome, offsets[key], room)
            for key, outcome in fetched.items()
        }

    def read_committed(
        self, offsets: Mapping[TopicPartition, int], *, bytes_max: int, wait_ms: int = 0
    ) -> Outcomes[TopicPartition, FetchedSlice]:
        """Return for each partition the committed batches from this offset on, as they are stored, or an error.

        `bytes_max` and errors as for `read`. No batch is looked at beyond its header.
        """
        return self._fetch(offsets, IsolationLevel.READ_COMMITTED, bytes_max, wait_ms)

    def _fetch(
        self, offsets: Mapping[TopicPartition, int], isolation: IsolationLevel, bytes_max: int, wait_ms: int
    ) -> Outcomes[TopicPartition, FetchedSlice]:
        # Shares of thousands of partitions would be less than their batches.
        share_min = 1 if isolation is IsolationLevel.READ_UNCOMMITTED else min(bytes_max, _SHARE_BYTES_MIN)

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> Outcomes[TopicPartition, FetchedSlice]:
            share = max(bytes_max // len(keys), share_min)
            parts = {
                key: fetch.FetchPartition(
                    partition=key.partition, fetch_offset=offsets[key], partition_max_bytes=share
                )
                for key in keys
            }
            request = fetch.FetchRequest(
                max_wait_ms=min(wait_ms, attempt.timeout_ms),
                min_bytes=1,
                max_bytes=bytes_max,
                isolation_level=isolation,
                topics=topics_of(fetch.FetchTopic, keys, parts),
            )
            response = attempt.send(request, fetch.FetchResponse, _VERSIONS)
            return {
                key: _fetched(key, data, offsets[key])
                for key, data in partitions_in(response.responses)
                if key in offsets
            }

        return self._client.for_each(offsets, Route.LEADER, ask)

    def offset_of_last(
        self,
        partition: TopicPartition,
        begin: int,
        end: int,
        count: int,
        *,
        decompressed_bytes_max: int = _DECOMPRESSED_BYTES_MAX,
        wait_ms: int = 0,
    ) -> int:
        """Return the offset of the first of the last `count` records before `end`; `begin` if there are fewer.

        It reads no more than it must, whatever gaps the offsets have. It waits for `wait_ms` in all for records that
        the broker does not have at hand, such as archived ones; those that are still missing then are not counted, nor
        are those of batches that cannot be read. Raises AdminError.
        """
        until = time.monotonic() + wait_ms / 1000

        def offsets(first: int, last: int, count_max: int) -> list[int] | None:
            counted: list[int] = []
            while first < last:
                left_ms = max(int((until - time.monotonic()) * 1000), 0)
                slice_ = self.read(
                    {partition: first},
                    decompressed_bytes_max=decompressed_bytes_max,
                    records_max=count_max + 1,
                    wait_ms=min(left_ms, _WAIT_MS),
                )[partition]
                if isinstance(slice_, AdminError):
                    if isinstance(slice_, BrokerError) and slice_.code is ErrorCode.CORRUPT_MESSAGE:
                        # Nothing says where the batch ends.
                        break
                    if slice_.next_offset is None:
                        raise slice_
                    first = slice_.next_offset
                    continue
                counted += [record.offset for record in slice_.records if record.offset < last]
                if len(counted) > count_max:
                    return None
                if slice_.next_offset <= first and not left_ms:
                    break
                first = max(first, slice_.next_offset)
            return counted

        return offset_of_last(begin, end, count, offsets)


OffsetsBetween = Callable[[int, int, int], list[int] | None]
"""(begin, end, count_max) -> the offsets of the records with begin <= offset < end, or None for more than that."""

# A range with this many more records than wanted is cheaper to read than to split.
_SPARE = 500
_LONGER = 16
_SECOND = 2**20
"""Offsets that stand for about a second if they are made of times."""

_RANGES_MAX = 200
"""Enough to halve and to lengthen through all possible offsets, and a limit for a log that changes meanwhile."""


def offset_of_last(begin: int, end: int, count: int, offsets: OffsetsBetween) -> int:
    """Return the offset of the first of the last `count` records, or `begin` if there are fewer.

    Ranges are read backwards from the end: longer ones while they hold too few records, shorter ones if they hold too
    many. If offsets are dense, the first range is the answer.
    """
    left = count
    length, factor = (max(count, _SECOND) if end >= TIME_CODED_FROM else count), _LONGER
    for _ in range(_RANGES_MAX):
        if end <= begin:
            return begin
        first = max(begin, end - length)
        between = offsets(first, end, left + _SPARE)
        if between is None:
            # Never reached with length 1: one offset is one record.
            length, factor = max(1, (end - first) // 2), 2
        elif len(between) >= left:
            return between[-left]
        else:
            left -= len(between)
            end = first
            length *= factor
    return end


class _Room:
    """What the slices of one call may hold: `bytes_left` in all, each batch less than `batch_bytes`."""

    def __init__(self, bytes_max: int, records_max: int) -> None:
        self.batch_bytes = self.bytes_left = bytes_max
        self.records_max = records_max

    def take(self, record: LogRecord) -> None:
        """Count a record."""
        parts = [record.key, record.value, *(value for _, value in record.headers)]
        names = sum(len(name) for name, _ in record.headers)
        self.bytes_left -= names + sum(len(part) for part in parts if part is not None)


def _decoded(key: TopicPartition, fetched: FetchedSlice, offset: int, room: _Room) -> LogSlice | AdminError:
    records: list[LogRecord] = []
    next_offset = offset
    for header, batch in fetched.batches:
        if room.bytes_left <= 0 or len(records) >= room.records_max:
            break
        batch_end = max(next_offset, header.base_offset + header.last_offset_delta + 1)
        try:
            records += _records_of(header, batch, offset, room, room.records_max - len(records))
        except KafkaError as failed:
            if next_offset > offset:
                break  # the records before the error are a slice, and the next slice has the error
            kind = AnswerTooLargeError if failed.code is ErrorCode.MESSAGE_TOO_LARGE else UnreadableBatchError
            span = f"offsets {header.base_offset} to {batch_end - 1}"
            return kind(f"partition {key}, {span}: {failed.message}", batch_end)
        next_offset = batch_end if len(records) < room.records_max else records[-1].offset + 1
    else:
        if len(records) < room.records_max:
            next_offset = fetched.next_offset
    return LogSlice(records, next_offset, fetched.start, fetched.end)


def _records_of(
    header: BatchHeader, batch: memoryview, offset: int, room: _Room, records_max: int
) -> list[LogRecord]:
    """Return the records of a batch from `offset` on, `records_max` at most. Raises KafkaError."""
    records: list[LogRecord] = []
    for record in each_record(batch, header.base_offset, room.batch_bytes):
        # A broker returns the whole batch that contains the offset.
        if record[0] >= offset:
            records.append(LogRecord(*record))
            room.take(records[-1])
            if len(records) >= records_max:
                break
    return records


def _fetched(key: TopicPartition, data: fetch.PartitionData, offset: int) -> FetchedSlice | AdminError:
    """Return the batches of a response, without markers, without those of aborted transactions that it names."""
    error = error_in(data.error_code, subject=f"partition {key}")
    if error is not None:
        return error
    begun = sorted(data.aborted_transactions or (), key=lambda aborted: aborted.first_offset, reverse=True)
    aborted: set[int] = set()  # producers with an aborted transaction that the marker has not ended yet
    batches = []
    next_offset = offset
    joined = b"".join(data.records) if isinstance(data.records, list) else bytes(data.records or b"")
    try:
        for header, batch in _batches(joined):
            next_offset = max(next_offset, header.base_offset + header.last_offset_delta + 1)
            while begun and begun[-1].first_offset < next_offset:
                aborted.add(begun.pop().producer_id)
            if header.attributes & CONTROL_BIT:
                aborted.discard(header.producer_id)
            elif not (header.attributes & TRANSACTIONAL_BIT and header.producer_id in aborted):
                batches.append(FetchedBatch(header, batch))
    except KafkaError as failed:
        if next_offset == offset:
            return BadAnswerError(f"partition {key}: {failed.message}")
        # What precedes the error is a slice, and the next slice has the error.
    return FetchedSlice(
        batches, next_offset, data.log_start_offset, data.high_watermark, data.last_stable_offset
    )


def _batches(data: bytes) -> Iterator[FetchedBatch]:
    """Yield the batches, without a last one that is cut off: the next slice has it."""
    view, position = memoryview(data), 0
    while position + HEADER_BYTES <= len(view):
        header = BatchHeader.read(view, position)
        if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
            message = f"a batch of magic {header.magic} and {header.size_bytes} bytes"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, message)
        if position + header.size_bytes > len(view):
            return
        yield FetchedBatch(header, view[position : position + header.size_bytes])
        position += header.size_bytes
