"""The header of a record batch (magic 2), what a producer's batch must satisfy, and its records.

Checks and records are korvet_core's. Views are memoryviews into the request frame: nothing is copied before the records
are decompressed. Source: the Kafka documentation, "Record Batch"; KIP-98 for the producer fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import korvet_core

from korvet.protocol.records.compression import refusals
from korvet.protocol.records.record import StoredRecord
from korvet.protocol.wire import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_FROM = 12
"""Where `batch_length` begins to count: after the base offset and the length itself."""

CRC_FROM = 21
"""Where the bytes that the CRC covers begin: after the CRC, at the attributes."""

MAGIC = 2
CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
NO_PRODUCER_ID = -1
SEQUENCES = 2**31
"""Sequences wrap from the largest int32 to 0 (KIP-98)."""


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

    @classmethod
    def read(cls, batch: Buffer, at: int = 0) -> BatchHeader:
        """Return the header of the batch that begins at a position; raises struct.error if it is cut off."""
        return cls._make(HEADER.unpack_from(batch, at))

    @property
    def codec(self) -> int:
        """The compression codec's number."""
        return self.attributes & CODEC_MASK

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return self.batch_length + LENGTH_FROM


def sealed(header: BatchHeader, payload: Buffer) -> bytes:
    """Return the batch with this header and a payload in its codec: length and CRC follow."""
    header = header._replace(batch_length=HEADER_BYTES - LENGTH_FROM + len(payload))
    crc = korvet_core.crc32c(payload, korvet_core.crc32c(HEADER.pack(*header)[CRC_FROM:]))
    return b"".join((HEADER.pack(*header._replace(crc=crc)), payload))


def with_producer(
    batch: Buffer, producer_id: int, epoch: int, base_sequence: int, *, transactional: bool = False
) -> bytes:
    """Return a batch as an idempotent producer sends it: the sequence is that of its first record (KIP-98)."""
    header = BatchHeader.read(batch)
    header = header._replace(
        attributes=header.attributes | (TRANSACTIONAL_BIT if transactional else 0),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
    )
    return sealed(header, memoryview(batch)[HEADER_BYTES:])


def each_record(
    batch: Buffer, base_offset: int, bytes_max: int, plain: Buffer | None = None
) -> Iterator[StoredRecord]:
    """Yield the records of a batch that begins at `base_offset`, `bytes_max` bytes of them uncompressed at the most.

    `plain` is what follows the header if those bytes in `batch` are compressed at rest. Raises KafkaError:
    MESSAGE_TOO_LARGE, CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION_TYPE.
    """
    with refusals():
        yield from korvet_core.Records(batch, base_offset, bytes_max, plain)


def check_batch(batch: Buffer, message_bytes_max: int, records_bytes_max: int | None = None) -> None:
    """Check a producer's data for one partition: exactly one batch of magic 2, as its header describes it.

    `message_bytes_max` is the topic's max.message.bytes. With `records_bytes_max`, which uncompressed they may take at
    the most, the records are checked too, as Kafka's LogValidator does. Raises KafkaError: MESSAGE_TOO_LARGE,
    CORRUPT_MESSAGE (an unknown magic, sizes, CRC), INVALID_PRODUCER_EPOCH, INVALID_RECORD (magic 0 and 1, no whole
    batch, counts, control batches, sequences, more batches than one, records that are not what the header says).
    """
    with refusals():
        korvet_core.check_header(batch, message_bytes_max)
        if records_bytes_max is not None:
            korvet_core.walk(batch, records_bytes_max, None, None)
