"""Records from Redis as Arrow, as rows of `schema`.

They become columns in korvet_core: nothing here works record by record, for a step of Python for each would cost more
than all the rest of archiving a record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
from korvet_core import Fetched

from korvet.lake.schema import HEADER_TYPE, HEADERS, KEY, SCHEMA, VALUE, Ints, ints, timestamp_columns
from korvet.protocol.records.compression import refusals

PAYLOAD_BYTES_MAX = 256 * 1024 * 1024
"""Of all batches of one call, uncompressed, if it is more than one: a small batch may expand to many bytes."""


_Binaries = tuple[bytes | None, bytes, memoryview]


def to_arrow(
    partition: int,
    fetched: Fetched,
    columns: Collection[str] = (KEY, VALUE, HEADERS),
    *,
    log_append_time: bool = False,
) -> pa.RecordBatch:
    """Return the records that were found of one partition, in their order, as rows of SCHEMA.

    Keys, values and headers are null if they are not of `columns`. `log_append_time`: the timestamps of records in
    format `record` are those of their appends. Several batches hold PAYLOAD_BYTES_MAX uncompressed at the most. Raises
    KafkaError MESSAGE_TOO_LARGE, CORRUPT_MESSAGE or UNSUPPORTED_COMPRESSION_TYPE, which names the offset of the batch
    that cannot be read.
    """
    with refusals():
        count, offsets, timestamps, kinds, keys, values, headers, producers = fetched.arrow_columns(
            PAYLOAD_BYTES_MAX,
            keys=KEY in columns,
            values=VALUE in columns,
            headers=HEADERS in columns,
            log_append_time=log_append_time,
        )
    own = [
        pa.nulls(count, pa.binary()) if column is None else _array(pa.binary(), count, *column)
        for column in (keys, values)
    ]
    own.append(_no_headers(count) if headers is None else _header_column(count, *headers))
    arrays = [
        ints(np.full(count, partition, dtype=np.int32)),
        _array(pa.int64(), count, None, offsets),
        *_with_rest(np.frombuffer(timestamps, dtype=np.int64), _array(pa.int32(), count, None, kinds), *own),
    ]
    validity, *numbers = producers or [None] * (1 + len(SCHEMA) - len(arrays))
    for type_, buffer in zip(SCHEMA.types[len(arrays) :], numbers, strict=True):
        arrays.append(pa.nulls(count, type_) if buffer is None else _array(type_, count, validity, buffer))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _array(
    type_: pa.DataType, count: int, *buffers: bytes | memoryview | None, children: Sequence[pa.Array] = ()
) -> pa.Array:
    wrapped = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(type_, count, wrapped, children=list(children))


def _header_column(
    count: int,
    validity: bytes | None,
    positions: bytes,
    header_count: int,
    names: _Binaries,
    values: _Binaries,
) -> pa.Array:
    parts = [_array(pa.string(), header_count, *names), _array(pa.binary(), header_count, *values)]
    pairs = _array(HEADER_TYPE, header_count, None, children=parts)
    return _array(SCHEMA.field(HEADERS).type, count, validity, positions, children=[pairs])


def _with_rest(timestamps: Ints, *others: pa.Array) -> list[pa.Array]:
    """Return the columns from TIMESTAMP to TIMESTAMP_MS."""
    first, rest = timestamp_columns(timestamps)
    return [first, *others, rest]


def _no_headers(count: int) -> pa.Array:
    return pa.nulls(count, SCHEMA.field(HEADERS).type)
