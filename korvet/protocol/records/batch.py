"""The header of a record batch (magic 2), what a producer's batch must satisfy, and its records.

The checks are those of Kafka's LogValidator. Views are memoryviews into the request frame: nothing is copied before the
records are decompressed. Source: the Kafka documentation, "Record Batch"; KIP-98 for the producer fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, cast

import google_crc32c
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import decode_varint_py

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.compression import Codec, compress, decompress
from korvet.protocol.records.record import NO_TIMESTAMP, BatchRecord, DecodedRecord, Record, text_of
from korvet.protocol.wire import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_FROM = 12
"""Where `batch_length` begins to count: after the base offset and the length itself."""

FRONT = struct.Struct(">qii")
"""Base offset, length and leader epoch: what a broker sets lies here."""

LOOK = struct.Struct(">8xi4xb6xi30xi")
"""What a reader needs that passes a batch on unread: length, magic, last offset delta, record count."""

MAGIC_AT = 16
CRC_FROM = 21
"""Where the bytes that the CRC covers begin: after the CRC, at the attributes."""

ATTRIBUTES_AT = 21
MAGIC = 2
CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
NO_PRODUCER_ID = -1
SEQUENCES = 2**31
"""Sequences wrap from the largest int32 to 0 (KIP-98)."""

_INT64_HALF = 2**63

RECORD_BYTES_MIN = 7
"""A record without key, value and headers: length, attributes, two deltas, two lengths and a count, a byte each."""


class BatchHeader(NamedTuple):
    """The header fields by their names in Kafka's documentation; timestamps in milliseconds since the epoch."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> int:
        """The compression codec's number."""
        return self.attributes & CODEC_MASK

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return self.batch_length + LENGTH_FROM


def patched_header(header: BatchHeader, base_offset: int, leader_epoch: int) -> bytes:
    """Return the header's bytes with the two fields that a broker sets; the CRC covers neither."""
    return HEADER.pack(base_offset, header.batch_length, leader_epoch, *header[3:])


def with_payload(header: BatchHeader, payload: bytes, codec: int) -> BatchHeader:
    """Return the header for another payload, compressed with `codec`: length, attributes and CRC follow."""
    length = HEADER_BYTES - LENGTH_FROM + len(payload)
    changed = header._replace(batch_length=length, attributes=header.attributes & ~CODEC_MASK | codec)
    covered = HEADER.pack(*changed)[CRC_FROM:]
    crc = google_crc32c.extend(google_crc32c.value(covered), payload)
    return changed._replace(crc=crc)


def with_producer(
    batch: Buffer, producer_id: int, epoch: int, base_sequence: int, *, transactional: bool = False
) -> bytes:
    """Return a batch as an idempotent producer sends it: the sequence is that of its first record (KIP-98)."""
    header = BatchHeader._make(HEADER.unpack_from(batch))
    header = header._replace(
        attributes=header.attributes | (TRANSACTIONAL_BIT if transactional else 0),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
    )
    payload = bytes(batch[HEADER_BYTES:])
    return HEADER.pack(*with_payload(header, payload, header.codec)) + payload


def each_record(header: BatchHeader, base_offset: int, payload: bytes) -> Iterator[BatchRecord]:
    """Yield the records in `payload`, which is uncompressed; raises KafkaError CORRUPT_MESSAGE.

    The name of a header may be no UTF-8 (record.text_of).
    """
    count = 0
    try:
        for record in _compiled_reader(header, base_offset, payload):
            count += 1
            yield record
    except UnicodeDecodeError:
        try:
            yield from islice(_any_names(header, base_offset, payload), count, None)
        except (IndexError, ValueError) as error:
            raise _unreadable(error) from error
    except CorruptRecordException as error:
        raise _unreadable(error) from error


def _compiled_reader(header: BatchHeader, base_offset: int, payload: bytes) -> DefaultRecordBatch:
    """Return a reader that raises UnicodeDecodeError if the name of a header is no UTF-8.

    The header says that nothing is compressed then: the reader would undo that itself, without a bound.
    """
    attributes = header.attributes & ~CODEC_MASK
    head = HEADER.pack(base_offset, header.batch_length, 0, header.magic, header.crc, attributes, *header[6:])
    return DefaultRecordBatch(head + payload)


def _any_names(header: BatchHeader, base_offset: int, payload: bytes) -> Iterator[DecodedRecord]:
    """Yield what the compiled reader does, but decode the names of headers by `text_of`.

    Raises IndexError or ValueError if the records cannot be read.
    """
    position = 0

    def field() -> bytes | None:
        nonlocal position
        size, position = decode_varint_py(payload, position)
        if size < 0:
            return None
        position += size
        return payload[position - size : position]

    def name() -> str:
        if (encoded := field()) is None:
            raise ValueError("a header without a name")
        return text_of(encoded)

    for _ in range(header.record_count):
        size, begin = decode_varint_py(payload, position)
        since, position = decode_varint_py(payload, begin + 1)
        delta, position = decode_varint_py(payload, position)
        key, value = field(), field()
        count, position = decode_varint_py(payload, position)
        headers = [(name(), field()) for _ in range(count)]
        if count < 0 or position - begin != size:
            raise ValueError(f"a record of {size} bytes and {count} headers takes {position - begin}")
        timestamp = (header.base_timestamp + since + _INT64_HALF) % (2 * _INT64_HALF) - _INT64_HALF
        if header.attributes & LOG_APPEND_TIME_BIT:
            timestamp = header.max_timestamp
        yield DecodedRecord(base_offset + delta, timestamp, key, value, headers)
    if position != len(payload):
        raise ValueError(f"{len(payload) - position} bytes follow the records")


def _unreadable(reason: object) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the records cannot be read: {reason}")


class ProducedBatch:
    """A producer's batch that passed the checks of its header, with its bytes."""

    __slots__ = ("header", "view")

    def __init__(self, header: BatchHeader, view: memoryview) -> None:
        self.header, self.view = header, view

    def records(self, bytes_max: int) -> list[Record]:
        """Decode the records, `bytes_max` bytes of them uncompressed at the most; errors as for `decode`."""
        return self.decode(bytes_max)[0]

    def decode(self, bytes_max: int) -> tuple[list[Record], int]:
        """Decode the records as `records` does; returns also how many bytes they have uncompressed.

        Raises KafkaError: MESSAGE_TOO_LARGE, CORRUPT_MESSAGE, INVALID_RECORD if an offset delta does not match
        its position.
        """
        header, view = self.header, self.view
        payload = decompress(header.codec, bytes(view[HEADER_BYTES:]), bytes_max)
        decoded = next(self._parts(payload, header.record_count))
        return decoded, len(payload)

    def parts(self, bytes_max: int, size: int) -> Iterator[list[Record]]:
        """Decode the records as `records` does, and yield `size` at a time: a batch may have millions."""
        payload = decompress(self.header.codec, bytes(self.view[HEADER_BYTES:]), bytes_max)
        yield from self._parts(payload, size)

    def _parts(self, payload: bytes, size: int) -> Iterator[list[Record]]:
        # Base offset 0 makes the reader's offsets the deltas. Through a generator the reader costs more.
        header = self.header
        in_one = size >= header.record_count
        left: Iterable[BatchRecord] = (_compiled_reader if in_one else each_record)(header, 0, payload)
        for start in range(0, header.record_count, size):
            stop = min(start + size, header.record_count)
            try:
                # The reader checks at its end that nothing is left.
                decoded = list(left if stop == header.record_count else islice(left, size))
            except UnicodeDecodeError:
                decoded = list(each_record(header, 0, payload))
            except CorruptRecordException as error:
                raise _unreadable(error) from error
            if [record.offset for record in decoded] != list(range(start, stop)):
                raise KafkaError(
                    ErrorCode.INVALID_RECORD, "the offset deltas of the records are not 0, 1, 2, ..."
                )
            yield cast("list[Record]", decoded)

    def recompressed(self, codec: int, bytes_max: int) -> ProducedBatch:
        """Return the same batch in another codec; `bytes_max` and errors as for `decode`."""
        header, view = self.header, self.view
        payload = compress(codec, decompress(header.codec, bytes(view[HEADER_BYTES:]), bytes_max))
        changed = with_payload(header, payload, codec)
        return ProducedBatch(changed, memoryview(HEADER.pack(*changed) + payload))

    def with_own_times(self, *, replaced: bool) -> ProducedBatch:
        """Return the same batch without the timestamp type LogAppendTime, which only a broker may set.

        As in Kafka it is cleared if the batch has a largest timestamp, and the broker's time does not replace those of
        the records (`replaced`). Raises KafkaError INVALID_TIMESTAMP.
        """
        header = self.header
        if not header.attributes & LOG_APPEND_TIME_BIT:
            return self
        if replaced or header.max_timestamp == NO_TIMESTAMP:
            message = "Producer should not set timestamp type to LogAppendTime."
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, message)
        payload = bytes(self.view[HEADER_BYTES:])
        cleared = header._replace(attributes=header.attributes & ~LOG_APPEND_TIME_BIT)
        changed = with_payload(cleared, payload, header.codec)
        return ProducedBatch(changed, memoryview(HEADER.pack(*changed) + payload))

    def timed(self, max_timestamp: int, *, log_append_time: bool = False) -> ProducedBatch:
        """Return the same batch with another largest timestamp (ms) in its header.

        With `log_append_time` that is the time of every record, instead of their own.
        """
        header = self.header._replace(max_timestamp=max_timestamp)
        if log_append_time:
            header = header._replace(attributes=header.attributes | LOG_APPEND_TIME_BIT)
        payload = bytes(self.view[HEADER_BYTES:])
        changed = with_payload(header, payload, header.codec)
        return ProducedBatch(changed, memoryview(HEADER.pack(*changed) + payload))


def produced_batch(records: Buffer | None, message_bytes_max: int) -> ProducedBatch:
    """Check what a producer sent for one partition: exactly one batch of magic 2 that is what its header says.

    `message_bytes_max` is the topic's max.message.bytes. Raises KafkaError: MESSAGE_TOO_LARGE, CORRUPT_MESSAGE (an
    unknown magic, sizes, CRC), INVALID_PRODUCER_EPOCH, INVALID_RECORD (magic 0 and 1, no whole batch, counts, control
    batches, sequences, more batches than one; KIP-98 allows a produce request from version 3 on just one).
    """
    if records is None or len(records) <= MAGIC_AT:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the partition has no record batch")
    magic = records[MAGIC_AT]
    if magic != MAGIC:
        is_known = magic < MAGIC
        code = ErrorCode.INVALID_RECORD if is_known else ErrorCode.CORRUPT_MESSAGE
        raise KafkaError(code, f"message format {magic} is {'too old' if is_known else 'unknown'}")
    if len(records) < HEADER_BYTES:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(records)} bytes are not a record batch")
    header = BatchHeader._make(HEADER.unpack_from(records))
    size_bytes = header.size_bytes
    if size_bytes < HEADER_BYTES or size_bytes > len(records):
        # As in Kafka, to which what is cut off is no batch.
        code = ErrorCode.CORRUPT_MESSAGE if size_bytes < HEADER_BYTES else ErrorCode.INVALID_RECORD
        raise KafkaError(code, f"a batch of length {header.batch_length} in {len(records)} bytes")
    if size_bytes > message_bytes_max:
        message = f"a batch of {size_bytes} bytes exceeds max.message.bytes = {message_bytes_max}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
    if size_bytes < len(records):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a partition may carry just one record batch")
    if google_crc32c.value(bytes(records[CRC_FROM:])) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the CRC does not match the batch")
    _check_fields(header, size_bytes - HEADER_BYTES)
    return ProducedBatch(header, memoryview(records))


def _check_fields(header: BatchHeader, payload_bytes: int) -> None:
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        message = f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        raise KafkaError(ErrorCode.INVALID_RECORD, message)
    codec = header.codec
    if codec == Codec.none and header.record_count * RECORD_BYTES_MIN > payload_bytes:
        # A batch that is stored as it came is not decoded elsewhere, so its count would use up offsets unnoticed.
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{header.record_count} records in {payload_bytes} bytes")
    if header.attributes & CONTROL_BIT:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a client may not write control records")
    if header.attributes & TRANSACTIONAL_BIT and header.producer_id == NO_PRODUCER_ID:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a batch of a transaction has no producer id")
    if header.producer_id != NO_PRODUCER_ID and (header.base_sequence < 0 or header.producer_epoch < 0):
        message = f"producer {header.producer_id} with epoch {header.producer_epoch}, sequence {header.base_sequence}"
        has_sequence = header.base_sequence >= 0
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH if has_sequence else ErrorCode.INVALID_RECORD, message
        )
    if codec not in Codec._value2member_map_:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec} is unknown")
