"""Records as rows of the lake, and rows as records again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from korvet.lake.schema import (
    HEADERS,
    KEY,
    OFFSET,
    SCHEMA,
    TIMESTAMP,
    TIMESTAMP_MS,
    VALUE,
    milliseconds_of,
    timestamp_columns,
)
from korvet.protocol.records.record import StoredRecord


def records_to_arrow(
    partition: int, records: Sequence[StoredRecord], *, log_append_time: bool = False
) -> pa.RecordBatch:
    """Return records of one partition, in their order, as rows of the lake."""
    times, rest = timestamp_columns(np.array([record[1] for record in records], dtype=np.int64))
    columns: dict[str, Any] = {
        OFFSET: [record[0] for record in records],
        KEY: [record[2] for record in records],
        VALUE: [record[3] for record in records],
        HEADERS: [[{"key": name, "value": value} for name, value in record[4]] or None for record in records],
        "partition": [partition] * len(records),
        "timestamp_type": [int(log_append_time)] * len(records),
        TIMESTAMP: times.to_pylist(),
        TIMESTAMP_MS: rest.to_pylist(),
    }
    nulls = [None] * len(records)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, nulls), field.type) for field in SCHEMA], schema=SCHEMA
    )


def records_of(rows: pa.RecordBatch) -> list[StoredRecord]:
    """Return rows as the tuples in which the log is read."""
    headers = [
        [] if item is None else [(one["key"], one["value"]) for one in item]
        for item in rows.column("headers").to_pylist()
    ]
    columns: tuple[Any, ...] = (
        rows.column(OFFSET).to_pylist(),
        milliseconds_of(rows).tolist(),
        rows.column(KEY).to_pylist(),
        rows.column(VALUE).to_pylist(),
        headers,
    )
    return list(zip(*columns, strict=True))
