"""Stored batches and records for the tests of the lake, and rows as plain records again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from korvet.lake.schema import KEY, OFFSET, VALUE, milliseconds_of
from korvet.log.types import StoredBatch
from korvet.protocol.records.batch import BatchHeader
from korvet.protocol.records.record import StoredRecord

BYTES_MAX = 1 << 24


def stored(raw: bytes, base_offset: int) -> StoredBatch:
    """Return a batch as it lies in the log from `base_offset` on."""
    header = BatchHeader.read(raw)
    next_offset = base_offset + header.last_offset_delta + 1
    return StoredBatch(base_offset, next_offset, len(raw), header.record_count, raw)


def records_of(rows: pa.RecordBatch) -> list[StoredRecord]:
    """Return rows as the tuples in which the log is read."""
    headers = [
        [] if each is None else [(one["key"], one["value"]) for one in each]
        for each in rows.column("headers").to_pylist()
    ]
    columns: tuple[Any, ...] = (
        rows.column(OFFSET).to_pylist(),
        milliseconds_of(rows).tolist(),
        rows.column(KEY).to_pylist(),
        rows.column(VALUE).to_pylist(),
        headers,
    )
    return list(zip(*columns, strict=True))
