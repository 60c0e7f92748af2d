"""Control batches: the markers that end a transaction in a partition (KIP-98).

Source: the Kafka documentation, "Control Batches", and EndTransactionMarker.json of Apache Kafka. A marker is a batch
of one record. Its key says whether the transaction was committed or aborted; its value carries the epoch of the
coordinator, which Korvet does not have.
"""

from __future__ import annotations

import struct

import korvet_core

from korvet.protocol.records.batch import (
    CONTROL_BIT,
    HEADER,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    with_payload,
)
from korvet.protocol.records.compression import Codec
from korvet.protocol.records.record import Header

ABORT, COMMIT = 0, 1
"""The types of control records that end a transaction."""

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = _COORDINATOR_EPOCH = 0
_NO_SEQUENCE = -1


def control_record(
    commit: bool,  # noqa: FBT001 - what it is of
    timestamp_ms: int,
    offset: int = 0,
) -> tuple[int, int, bytes, bytes, list[Header]]:
    """Return the one record of a marker, a StoredRecord."""
    key = _KEY.pack(_VERSION, COMMIT if commit else ABORT)
    return offset, timestamp_ms, key, _VALUE.pack(_VERSION, _COORDINATOR_EPOCH), []


def control_batch(
    commit: bool,  # noqa: FBT001 - what it is of
    producer_id: int,
    epoch: int,
    timestamp_ms: int,
) -> bytes:
    """Return a marker as a batch at base offset 0."""
    encoder = korvet_core.RecordEncoder(0, 0, at_least_one=True)
    encoder.add([control_record(commit, timestamp_ms)], 0)
    payload = encoder.encoded()[0]
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=0,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=_NO_SEQUENCE,
        record_count=1,
    )
    return HEADER.pack(*with_payload(header, payload, Codec.none)) + payload
