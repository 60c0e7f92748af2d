"""Records from Redis as Arrow, as rows of `schema`.

They become columns in korvet_core: nothing here works record by record, for a step of Python for each would cost more
than all the rest of archiving a record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
from korvet_core import Fetched

from korvet.lake.schema import HEADER_TYPE, HEADERS, KEY, SCHEMA, VALUE, ints, timestamp_columns
from korvet.protocol.records.compression import refusals

PAYLOAD_BYTES_MAX = 256 * 1024 * 1024
"""Of all batches of one call, uncompressed, if it is more than one: a small batch may expand to many bytes."""

_HEADERS_TYPE = SCHEMA.field(HEADERS).type
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
    times, times_ms = timestamp_columns(np.frombuffer(timestamps, dtype=np.int64))
    arrays = [
        ints(np.full(count, partition, dtype=np.int32)),
        _array(pa.int64(), count, None, offsets),
        times,
        _array(pa.int32(), count, None, kinds),
        *(
            pa.nulls(count, pa.binary()) if column is None else _array(pa.binary(), count, *column)
            for column in (keys, values)
        ),
        pa.nulls(count, _HEADERS_TYPE) if headers is None else _header_column(count, *headers),
        times_ms,
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
    return _array(_HEADERS_TYPE, count, validity, positions, children=[pairs])
