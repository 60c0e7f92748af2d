"""Records from Redis as Arrow: batches, and records that lie one by one in a stream, as rows of `schema`.

The records of batches become columns in korvet_core: nothing here works record by record, for a step of Python for each
would cost more than all the rest of archiving a record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

import korvet_core
import numpy as np
import pyarrow as pa

from korvet.lake.schema import (
    HEADER_TYPE,
    HEADERS,
    KEY,
    SCHEMA,
    VALUE,
    Ints,
    timestamp_columns,
)
from korvet.log.record_format import DATA
from korvet.log.types import Fetched, StoredBatch
from korvet.protocol.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.compression import refusals
from korvet.protocol.records.record import Header, StoredRecord

PAYLOAD_BYTES_MAX = 256 * 1024 * 1024
"""Of all batches of one call, uncompressed, if it is more than one: a small batch may expand to many bytes."""


def visible(found: Fetched) -> Fetched:
    """Return what a committed read has found without what was aborted, and without markers.

    As consumers do it (read_committed): a transaction that was aborted goes from its first offset to its marker.
    """
    if not found.batches and not found.producers:
        return found
    starts = deque(sorted(found.aborted or (), key=lambda each: each.first_offset))
    aborting: set[int] = set()

    def is_visible(last_offset: int, producer_id: int, *, marker: bool) -> bool:
        while starts and starts[0].first_offset <= last_offset:
            aborting.add(starts.popleft().producer_id)
        if marker:
            aborting.discard(producer_id)
        return not marker and producer_id not in aborting

    if found.batches:
        batches = []
        for batch in found.batches:
            header = batch.header
            marker = bool(header.attributes & CONTROL_BIT)
            if not header.attributes & TRANSACTIONAL_BIT or is_visible(
                batch.next_offset - 1, header.producer_id, marker=marker
            ):
                batches.append(batch)
        return found._replace(batches=batches)
    every, records, at = list(found.records), [], 0
    for run in found.producers:
        records += every[at : run.start]
        records += [
            each
            for each in every[run.start : run.stop]
            if is_visible(each[0], run.producer_id, marker=run.control != DATA)
        ]
        at = run.stop
    return found._replace(records=records + every[at:], producers=())


_Binaries = tuple[bytes | None, bytes, memoryview]


def batches_to_arrow(
    partition: int,
    batches: Sequence[StoredBatch],
    bytes_max: int,
    columns: Collection[str] = (KEY, VALUE, HEADERS),
) -> pa.RecordBatch:
    """Return the records of the batches of one partition, in their order, as rows of SCHEMA.

    Keys, values and headers are null if they are not of `columns`.
    `bytes_max` is what one batch may have uncompressed (record.decompressed.max.bytes); all of them together
    PAYLOAD_BYTES_MAX. Raises KafkaError MESSAGE_TOO_LARGE, CORRUPT_MESSAGE or UNSUPPORTED_COMPRESSION_TYPE, which names
    the offset of the batch that cannot be read.
    """
    with refusals():
        count, offsets, timestamps, kinds, keys, values, headers, producers = korvet_core.arrow_columns(
            [(batch.base_offset, batch.stored, batch.plain) for batch in batches],
            bytes_max,
            PAYLOAD_BYTES_MAX,
            keys=KEY in columns,
            values=VALUE in columns,
            headers=HEADERS in columns,
        )
    own = [
        pa.nulls(count, pa.binary()) if column is None else _array(pa.binary(), count, *column)
        for column in (keys, values)
    ]
    own.append(_no_headers(count) if headers is None else _header_column(count, *headers))
    arrays = [
        pa.array(np.full(count, partition, dtype=np.int32)),
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


def records_to_arrow(
    partition: int, records: Sequence[StoredRecord], *, log_append_time: bool = False
) -> pa.RecordBatch:
    """Return records of one partition, in their order, as rows of SCHEMA.

    `log_append_time`: their timestamps are those of their appends.
    """
    count = len(records)
    if isinstance(records, Columns):
        runs = [np.arange(run.start, run.stop, dtype=np.int64) for run in records.runs]
        offsets = np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)
        timestamps: Sequence[int] = records.timestamps
        keys = pa.nulls(count, pa.binary()) if records.keys is None else pa.array(records.keys, pa.binary())
        values = pa.array(records.values, pa.binary())
        headers = _headers(records.each_headers()) if records.headers else _no_headers(count)
    else:
        offsets = np.array([each[0] for each in records], dtype=np.int64)
        timestamps = [each[1] for each in records]
        keys = pa.array([each[2] for each in records], pa.binary())
        values = pa.array([each[3] for each in records], pa.binary())
        some = any(each[4] for each in records)
        headers = _headers(each[4] for each in records) if some else _no_headers(count)
    kinds = pa.array(np.full(count, int(log_append_time), dtype=np.int32))
    columns = [
        pa.array(np.full(count, partition, dtype=np.int32)),
        pa.array(offsets),
        *_with_rest(np.array(timestamps, dtype=np.int64), kinds, keys, values, headers),
    ]
    columns += [pa.nulls(count, SCHEMA.field(at).type) for at in range(len(columns), len(SCHEMA))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _no_headers(count: int) -> pa.Array:
    return pa.nulls(count, SCHEMA.field(HEADERS).type)


def _headers(each: Iterable[list[Header]]) -> pa.Array:
    """Return the headers of each record; null if one has none."""
    lists = list(each)
    flat = list(chain.from_iterable(lists))
    names = pa.array([name for name, _ in flat], pa.string())
    contents = pa.array([content for _, content in flat], pa.binary())
    return _header_lists(np.array(list(map(len, lists)), dtype=np.int64), names, contents)


def _header_lists(counts: Ints, names: pa.Array, values: pa.Array) -> pa.Array:
    """Return a list of headers for each count; names and values are those of all lists, one after the other."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
    type_ = SCHEMA.field(HEADERS).type
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=type_, mask=pa.array(counts == 0))
