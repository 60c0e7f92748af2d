"""Records that lie one by one in a stream as Arrow: what reading entries of format `record` yields, as rows.

Knows the two shapes in which they are read, columns and tuples; nothing of Redis or of tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from korvet.lake.schema import HEADER_TYPE, HEADERS, SCHEMA, Ints, timestamp_columns
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.record import Header, StoredRecord


def records_to_arrow(
    partition: int, records: Sequence[StoredRecord], *, log_append_time: bool = False
) -> pa.RecordBatch:
    """Return records of one partition, in their order, as rows of SCHEMA.

    `log_append_time` says that their timestamps are those of their appends.
    """
    if isinstance(records, Columns):
        runs = [np.arange(run.start, run.stop, dtype=np.int64) for run in records.runs]
        offsets = np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)
        count = len(records)
        timestamps = np.array(records.timestamps, dtype=np.int64)
        keys = pa.nulls(count, pa.binary()) if records.keys is None else pa.array(records.keys, pa.binary())
        values = pa.array(records.values, pa.binary())
        headers = _headers(records.each_headers(), count) if records.headers else _no_headers(count)
    else:
        count = len(records)
        offsets = np.array([each[0] for each in records], dtype=np.int64)
        timestamps = np.array([each[1] for each in records], dtype=np.int64)
        keys = pa.array([each[2] for each in records], pa.binary())
        values = pa.array([each[3] for each in records], pa.binary())
        some = any(each[4] for each in records)
        headers = _headers((each[4] for each in records), count) if some else _no_headers(count)
    return _rows(partition, offsets, timestamps, [keys, values, headers], int(log_append_time))


def _rows(
    partition: int, offsets: Ints, timestamps: Ints, contents: list[pa.Array], timestamp_type: int
) -> pa.RecordBatch:
    count = len(offsets)
    first, rest = timestamp_columns(timestamps)
    columns = [
        pa.array(np.full(count, partition, dtype=np.int32)),
        pa.array(offsets),
        first,
        pa.array(np.full(count, timestamp_type, dtype=np.int32)),
        *contents,
        rest,
    ]
    columns += [pa.nulls(count, SCHEMA.field(at).type) for at in range(len(columns), len(SCHEMA))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _no_headers(count: int) -> pa.Array:
    return pa.nulls(count, SCHEMA.field(HEADERS).type)


def _headers(each: Iterable[list[Header]], count: int) -> pa.Array:
    """Return the headers of `count` records; null where one has none."""
    lists = list(each)
    counts = np.fromiter(map(len, lists), dtype=np.int64, count=count)
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    flat = list(chain.from_iterable(lists))
    pairs = pa.StructArray.from_arrays(
        [
            pa.array([name for name, _ in flat], pa.string()),
            pa.array([content for _, content in flat], pa.binary()),
        ],
        fields=list(HEADER_TYPE),
    )
    type_ = SCHEMA.field(HEADERS).type
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=type_, mask=pa.array(counts == 0))
