"""A look into logs: records of partitions from an offset on, for whoever wants to see some of them.

Reached as `AdminClient.records`. Knows Fetch and record batches. It is no consumer: it joins no group, commits nothing,
keeps no position, and reads a bounded piece at a time. Offsets may have gaps of any size.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from korvet.admin.errors import AdminError, AnswerTooLargeError, BadAnswerError, BrokerError
from korvet.admin.types import TIME_CODED_FROM, TopicPartition, bad_partition, by_topic, for_each, settled
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from korvet.protocol.records.batch import (
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    BatchHeader,
)
from korvet.protocol.records.record import Header
from korvet.protocol.records.stored import each_stored_record

if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.connection import Address, Deadline

_Buffer = bytes | bytearray | memoryview

# Later versions name topics by id.
_VERSIONS = (4, 12)

_DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""Largest batch that is decompressed, and what is held of all of them, unless said otherwise."""

_WAIT_MS = 500


class LogRecord(msgspec.Struct, frozen=True):
    """A record where it lies. `timestamp` is in ms since 1970, -1 for none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class Piece(msgspec.Struct, frozen=True):
    """A piece of a log: its records, by offset; none where nothing lies behind the offset asked for, or not yet.

    `next_offset` is where the next piece begins; `start` and `end` are those of the log, -1 where they are not told.
    """

    records: list[LogRecord]
    next_offset: int
    start: int
    end: int


class Records:
    """The questions about records."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def read(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        bytes_max: int = 1024 * 1024,
        decompressed_bytes_max: int = _DECOMPRESSED_BYTES_MAX,
        records_max: int = sys.maxsize,
        wait_ms: int = 0,
    ) -> dict[TopicPartition, Piece | AdminError]:
        """Return for each partition a piece from this offset on, or why there is none.

        OffsetOutOfRangeError for an offset outside of the log, UnknownTopicOrPartitionError for no log. All pieces that
        a broker gives have together `bytes_max`, as compressed, or are one batch that is larger; with nothing there it
        waits for `wait_ms`. A piece has `records_max` records at the most, and all pieces together end with the batch
        that brings their keys, values and headers to `decompressed_bytes_max`: a few bytes can stand for gigabytes.
        AnswerTooLargeError for a batch that decompressed has more than that limit.

            >>> place = TopicPartition("orders", 0)
            >>> [record.value for record in settled(admin.records.read({place: 48}))[place].records]
            [b'value', b'value']
        """

        def ask(
            address: Address, keys: Sequence[TopicPartition], deadline: Deadline
        ) -> dict[TopicPartition, Piece | AdminError]:
            topics = [
                FetchTopic(
                    topic=name,
                    partitions=[
                        FetchPartition(
                            partition=each.partition,
                            fetch_offset=offsets[each],
                            partition_max_bytes=max(bytes_max // len(keys), 1),
                        )
                        for each in some
                    ],
                )
                for name, some in by_topic(keys)
            ]
            request = FetchRequest(
                max_wait_ms=min(wait_ms, deadline.broker_ms()),
                min_bytes=1,
                max_bytes=bytes_max,
                topics=topics,
            )
            response = self._client.ask(address, request, FetchResponse, deadline, _VERSIONS)
            error = BrokerError.of(response.error_code)
            if error is not None:
                raise error
            found: dict[TopicPartition, Piece | AdminError] = {}
            room = _Room(decompressed_bytes_max, records_max)
            for topic in response.responses:
                for each in topic.partitions:
                    place = TopicPartition(topic.topic, each.partition_index)
                    if place in offsets:
                        found[place] = _piece(place, each, offsets[place], room)
            return for_each(address, keys, found)

        return self._client.settle(offsets, self._client.leaders, ask, refuse=bad_partition)

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
        the broker does not have at hand, such as archived ones; those that are still missing then are not counted.
        Raises AdminError.
        """
        until = time.monotonic() + wait_ms / 1000

        def offsets(first: int, last: int, count_max: int) -> list[int] | None:
            found: list[int] = []
            while first < last:
                left_ms = max(int((until - time.monotonic()) * 1000), 0)
                piece = settled(
                    self.read(
                        {partition: first},
                        decompressed_bytes_max=decompressed_bytes_max,
                        records_max=count_max + 1,
                        wait_ms=min(left_ms, _WAIT_MS),
                    )
                )[partition]
                found += [each.offset for each in piece.records if each.offset < last]
                if len(found) > count_max:
                    return None
                if piece.next_offset <= first and not left_ms:
                    break
                first = max(first, piece.next_offset)
            return found

        return offset_of_last(begin, end, count, offsets)


Offsets = Callable[[int, int, int], list[int] | None]
"""(begin, end, count_max) -> the offsets of the records with begin <= offset < end, or None for more than that."""

# A range with this many more records than wanted is cheaper to read than to split.
_SPARE = 500
_LONGER = 16
_SECOND = 2**20
"""Offsets that stand for about a second if they are made of times."""

_RANGES_MAX = 200
"""Enough to halve and to lengthen through all possible offsets, and a limit for a log that changes meanwhile."""


def offset_of_last(begin: int, end: int, count: int, offsets: Offsets) -> int:
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
        found = offsets(first, end, left + _SPARE)
        if found is None:
            # Never reached with length 1: one offset is one record.
            length, factor = max(1, (end - first) // 2), 2
        elif len(found) >= left:
            return found[-left]
        else:
            left -= len(found)
            end = first
            length *= factor
    return end


class _Room:
    """What the pieces of one answer may hold: `bytes_left` in all, each batch less than `batch_bytes`."""

    def __init__(self, bytes_max: int, records_max: int) -> None:
        self.batch_bytes = self.bytes_left = bytes_max
        self.records_max = records_max

    def take(self, record: LogRecord) -> None:
        """Count a record that is held."""
        parts = [record.key, record.value, *(value for _, value in record.headers)]
        names = sum(len(name) for name, _ in record.headers)
        self.bytes_left -= names + sum(len(part) for part in parts if part is not None)


def _piece(place: TopicPartition, data: PartitionData, offset: int, room: _Room) -> Piece | AdminError:
    error = BrokerError.of(data.error_code, f"partition {place}")
    if error is not None:
        return error
    records: list[LogRecord] = []
    next_offset = behind = offset
    try:
        for header, payload in _batches(_joined(data.records)):
            if room.bytes_left <= 0 or len(records) >= room.records_max:
                break
            behind = max(behind, header.base_offset + header.last_offset_delta + 1)
            _take(records, header, payload, offset, room)
            next_offset = behind if len(records) < room.records_max else records[-1].offset + 1
    except KafkaError as failed:
        if next_offset > offset:
            pass  # what lies before it is a piece, and the next one tells of it
        elif failed.code is ErrorCode.MESSAGE_TOO_LARGE:
            message = f"partition {place}, before offset {behind}: {failed.message}"
            return AnswerTooLargeError(message, behind)
        else:
            return BadAnswerError(f"partition {place}: {failed.message}")
    return Piece(records, next_offset, data.log_start_offset, data.high_watermark)


def _take(
    records: list[LogRecord], header: BatchHeader, payload: memoryview, offset: int, room: _Room
) -> None:
    """Add the records of a batch from `offset` on, as far as there is room; raises KafkaError with none of them."""
    if header.attributes & CONTROL_BIT:
        return
    appended_at = header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
    found: list[LogRecord] = []
    for each in each_stored_record(header, payload, header.base_offset, room.batch_bytes):
        # A broker gives the whole of the batch that the offset lies in.
        if each[0] >= offset:
            timestamp = each[1] if appended_at is None else appended_at
            found.append(LogRecord(each[0], timestamp, each[2], each[3], each[4]))
            room.take(found[-1])
            if len(records) + len(found) >= room.records_max:
                break
    records += found


def _joined(records: _Buffer | list[_Buffer] | None) -> bytes:
    return b"".join(records) if isinstance(records, list) else bytes(records or b"")


def _batches(data: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches; one that is cut off at the end is left to the next piece, as Kafka means it."""
    view, at = memoryview(data), 0
    while at + HEADER_BYTES <= len(view):
        header = BatchHeader._make(HEADER.unpack_from(view, at))
        if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
            message = f"a batch of magic {header.magic} and {header.size_bytes} bytes"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, message)
        if at + header.size_bytes > len(view):
            return
        yield header, view[at + HEADER_BYTES : at + header.size_bytes]
        at += header.size_bytes
