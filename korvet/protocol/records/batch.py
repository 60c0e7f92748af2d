"""The header of a record batch (magic 2), what a producer's batch must satisfy, and its records.

Checks and records are korvet_core's. Views are memoryviews into the request frame: nothing is copied before the records
are decompressed. Source: the Kafka documentation, "Record Batch"; KIP-98 for the producer fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import korvet_core

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.compression import compress, decompress, refusals
from korvet.protocol.records.record import NO_TIMESTAMP, StoredRecord
from korvet.protocol.wire import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_FROM = 12
"""Where `batch_length` begins to count: after the base offset and the length itself."""

FRONT = struct.Struct(">qii")
"""Base offset, length and leader epoch: what a broker sets lies here."""

LOOK = struct.Struct(">8xi4xb6xi30xi")
"""What a reader needs that passes a batch on unread: length, magic, last offset delta, record count."""

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


def with_payload(header: BatchHeader, payload: Buffer, codec: int) -> BatchHeader:
    """Return the header for another payload, compressed with `codec`: length, attributes and CRC follow."""
    length = HEADER_BYTES - LENGTH_FROM + len(payload)
    changed = header._replace(batch_length=length, attributes=header.attributes & ~CODEC_MASK | codec)
    covered = HEADER.pack(*changed)[CRC_FROM:]
    crc = korvet_core.crc32c(payload, korvet_core.crc32c(covered))
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


def each_record(
    header: BatchHeader, payload: Buffer, base_offset: int, bytes_max: int
) -> Iterator[StoredRecord]:
    """Yield the records of a batch that begins at `base_offset`, `bytes_max` bytes of them uncompressed at the most.

    Raises KafkaError: MESSAGE_TOO_LARGE, CORRUPT_MESSAGE.
    """
    append_timestamp = header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
    try:
        yield from korvet_core.Records(
            payload,
            header.codec,
            bytes_max,
            header.record_count,
            header.last_offset_delta,
            base_offset,
            header.base_timestamp,
            append_timestamp,
        )
    except korvet_core.RefusedError as refused:
        code, message = refused.args
        # They were right when they were stored.
        code = ErrorCode.CORRUPT_MESSAGE if code == ErrorCode.INVALID_RECORD else ErrorCode(code)
        raise KafkaError(code, message) from None


class Walk(NamedTuple):
    """What the walk over the records of a produced batch saw; timestamps in milliseconds, NO_TIMESTAMP among them."""

    plain_bytes: int
    min_timestamp: int
    max_timestamp: int
    null_keys: int


class ProducedBatch:
    """A producer's batch that passed the checks of its header, with its bytes."""

    __slots__ = ("header", "view")

    def __init__(self, header: BatchHeader, view: memoryview) -> None:
        self.header, self.view = header, view

    def walk(self, bytes_max: int) -> Walk:
        """Check the records as Kafka's LogValidator does, `bytes_max` bytes of them uncompressed at the most.

        Raises KafkaError: MESSAGE_TOO_LARGE, INVALID_RECORD if they are not what the header says.
        """
        with refusals():
            return Walk._make(korvet_core.walk(self.view, bytes_max))

    def decode(self, bytes_max: int) -> tuple[list[StoredRecord], Walk]:
        """Return the records, with offsets from 0, and what a walk over them sees; checks and raises as `walk`."""
        with refusals():
            records, walk = korvet_core.decode(self.view, bytes_max)
        return records, Walk._make(walk)

    def recompressed(self, codec: int, bytes_max: int) -> ProducedBatch:
        """Return the same batch in another codec; `bytes_max` and errors as for `decode`."""
        header, view = self.header, self.view
        payload = compress(codec, decompress(header.codec, view[HEADER_BYTES:], bytes_max))
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
    if records is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the partition has no record batch")
    with refusals():
        korvet_core.check_header(records, message_bytes_max)
    return ProducedBatch(BatchHeader._make(HEADER.unpack_from(records)), memoryview(records))
