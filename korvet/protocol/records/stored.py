"""Batches that lie in the log: their records where they stand, and the same batch with fewer of them.

A stored batch may have lost records to compaction, so neither its count of records nor their offset deltas follow from
its last offset delta. Its base offset, last offset delta, producer and codec stay
(KIP-98, "Compacted Topics"; Kafka's RecordBatch, `lastOffset`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from korvet.protocol.records.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    BatchHeader,
    each_record,
    patched_header,
    with_payload,
)
from korvet.protocol.records.compression import Codec, compress, decompress
from korvet.protocol.records.record import StoredRecord

_BUILDER_BYTES_MAX = 2**31 - 1  # the builder is to refuse nothing: what it is given came out of a batch
_INT64_HALF = 2**63


def stored_records(
    header: BatchHeader, payload: bytes | memoryview, base_offset: int, bytes_max: int
) -> list[StoredRecord]:
    """Return the records of a batch that begins at `base_offset`, `bytes_max` bytes of them uncompressed at the most.

    Raises KafkaError: MESSAGE_TOO_LARGE, CORRUPT_MESSAGE.
    """
    return list(each_stored_record(header, payload, base_offset, bytes_max))


def each_stored_record(
    header: BatchHeader, payload: bytes | memoryview, base_offset: int, bytes_max: int
) -> Iterator[StoredRecord]:
    """Yield what `stored_records` returns, for a reader that may need only some of millions; raises as it does."""
    plain = decompress(header.codec, bytes(payload), bytes_max)
    for record in each_record(header, base_offset, plain):
        yield record.offset, record.timestamp, record.key, record.value, list(record.headers)


def retained_batch(header: BatchHeader, base_offset: int, records: Sequence[StoredRecord]) -> bytes:
    """Return the batch `header`, which begins at `base_offset`, with only some of its records, at least one."""
    builder = DefaultRecordBatchBuilder(
        magic=MAGIC,
        compression_type=Codec.none,
        is_transactional=0,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        batch_size=_BUILDER_BYTES_MAX,
    )
    base_timestamp = records[0][1]
    for offset, timestamp, key, value, headers in records:
        # From 0 on: a first record without a timestamp (-1) would get that of the next from the builder. Timestamps may
        # be any int64, so a delta wraps, as it does when it is read.
        delta = (timestamp - base_timestamp + _INT64_HALF) % (2 * _INT64_HALF) - _INT64_HALF
        builder.append(offset - base_offset, delta, key, value, headers)
    payload = compress(header.codec, bytes(memoryview(builder.build())[HEADER_BYTES:]))
    appended_at = header.attributes & LOG_APPEND_TIME_BIT
    changed = header._replace(
        # The timestamps in the records are deltas to the first of those that are left.
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if appended_at else max(record[1] for record in records),
        record_count=len(records),
    )
    changed = with_payload(changed, payload, header.codec)
    return patched_header(changed, header.base_offset, header.partition_leader_epoch) + payload
