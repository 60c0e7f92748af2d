"""Markers as batches: read by aiokafka's reader of batches, and byte for byte."""

from __future__ import annotations

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch

from korvet.protocol.records.batch import HEADER_BYTES
from korvet.protocol.records.control import control_batch
from tests.support.batches import headers_of

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(("commit", "expected"), [(True, COMMIT_MARKER), (False, ABORT_MARKER)])
def test_a_marker_is_read_as_one(commit: bool, expected: ControlRecord) -> None:  # noqa: FBT001 - a parameter
    data = control_batch(commit, 2**40, 7, NOW_MS)
    [header] = headers_of(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 7, -1)
    batch = DefaultRecordBatch(bytearray(data))
    assert batch.validate_crc()
    assert batch.is_control_batch
    assert batch.is_transactional
    [record] = batch
    assert ControlRecord.parse(record.key) == expected
    assert (record.offset, record.timestamp, record.headers) == (0, NOW_MS, [])


def test_the_record_of_a_marker_is_that_of_kafka() -> None:
    # The length; attributes and deltas; a key of 4 bytes, version 0 and type 1; a value of 6, version 0 and epoch 0; no
    # headers.
    record = control_batch(commit=True, producer_id=1, epoch=0, timestamp_ms=NOW_MS)[HEADER_BYTES:]
    assert record.hex(" ") == "20 00 00 00 08 00 00 00 01 0c 00 00 00 00 00 00 00"
