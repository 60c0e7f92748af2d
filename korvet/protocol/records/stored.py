"""Batches that lie in the log: their records where they stand, and the same batch with fewer of them.

A stored batch may have lost records to compaction, so neither its count of records nor their offset deltas follow from
its last offset delta. Its base offset, last offset delta, producer and codec stay
(KIP-98, "Compacted Topics"; Kafka's RecordBatch, `lastOffset`).
"""

from __future__ import annotations

from collections.abc import Sequence

import korvet_core

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.batch import (
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    each_record,
    patched_header,
    with_payload,
)
from korvet.protocol.records.compression import compress
from korvet.protocol.records.record import StoredRecord

_BYTES_MAX = 2**31 - 1  # refuses nothing: the records came out of a batch


def stored_records(
    header: BatchHeader, payload: bytes | memoryview, base_offset: int, bytes_max: int
) -> list[StoredRecord]:
    """Return the records of a batch that begins at `base_offset`, `bytes_max` bytes of them uncompressed at the most.

    Raises KafkaError: MESSAGE_TOO_LARGE, CORRUPT_MESSAGE.
    """
    return list(each_record(header, payload, base_offset, bytes_max))


def retained_batch(header: BatchHeader, base_offset: int, records: Sequence[StoredRecord]) -> bytes:
    """Return the batch `header`, which begins at `base_offset`, with only some of its records, at least one.

    Raises KafkaError CORRUPT_MESSAGE if their offsets do not rise: no batch holds such records any more.
    """
    encoder = korvet_core.RecordEncoder(base_offset, _BYTES_MAX, at_least_one=True)
    if encoder.add(records, 0) < len(records):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the offsets of its records do not rise")
    payload = compress(header.codec, encoder.encoded()[0])
    appended_at = header.attributes & LOG_APPEND_TIME_BIT
    changed = header._replace(
        # The timestamps in the records are deltas to the first of those that are left.
        base_timestamp=records[0][1],
        max_timestamp=header.max_timestamp if appended_at else max(record[1] for record in records),
        record_count=len(records),
    )
    changed = with_payload(changed, payload, header.codec)
    return patched_header(changed, header.base_offset, header.partition_leader_epoch) + payload
