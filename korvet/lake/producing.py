"""Rows of the lake as record batches for a broker: how many make one batch, and its bytes.

Knows Arrow and the format of a batch; nothing of where batches go. They carry no producer and offsets from 0 on: who
sends them says whose they are (see korvet.admin.producer), and the broker where they begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from korvet.lake.partitioner import Partitions
from korvet.lake.schema import (
    HEADERS,
    KEY,
    NO_TIMESTAMP,
    OFFSET,
    SCHEMA,
    TIMESTAMP,
    TIMESTAMP_MS,
    VALUE,
    Ints,
    milliseconds_of,
)
from korvet.lake.serving import stored_records
from korvet.protocol.records.batch import HEADER_BYTES
from korvet.protocol.records.builder import BatchesBuilder

PRODUCED = pa.schema([SCHEMA.field(name) for name in (OFFSET, TIMESTAMP, KEY, VALUE, HEADERS, TIMESTAMP_MS)])
"""The columns of what is produced; the offset is where a row came from."""

BATCH_BYTES = 768 * 1024
"""What a batch may have, uncompressed: less than Kafka's limit (message.max.bytes, 1 MiB) by what it may be wrong."""

_HELD_BYTES = 4 * BATCH_BYTES
"""What is held, as Arrow, before batches are made of it."""

_RECORD_BYTES_MAX = 36
"""A record beside key, value and headers: five lengths and counts, two deltas and a byte, all of the longest."""

_HEADER_BYTES_MAX = 10


def batches_of(
    rows_of: Iterable[pa.RecordBatch], *, bytes_max: int = BATCH_BYTES, records_max: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, which have the columns of PRODUCED, so many together as make one batch; see `cuts`."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for rows in rows_of:
        held.append(rows)
        size_bytes += rows.nbytes
        if size_bytes < _HELD_BYTES:
            continue
        *whole, rest = _cut(joined(held), bytes_max, records_max)
        yield from whole
        # What comes next may have room beside it.
        held, size_bytes = [rest], rest.nbytes
    yield from _cut(joined(held), bytes_max, records_max)


def _cut(rows: pa.RecordBatch, bytes_max: int, records_max: int | None) -> list[pa.RecordBatch]:
    ends = cuts(rows, bytes_max=bytes_max, records_max=records_max)
    return [rows.slice(start, stop - start) for start, stop in pairwise([0, *ends])]


def joined(rows_of: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return rows, which have the columns of PRODUCED, one behind the other."""
    return pa.concat_batches(rows_of) if rows_of else pa.RecordBatch.from_pylist([], schema=PRODUCED)


def cuts(rows: pa.RecordBatch, *, bytes_max: int = BATCH_BYTES, records_max: int | None = None) -> list[int]:
    """Return where batches are to end, the last of them at the last row.

    Each has `bytes_max` bytes at the most, uncompressed, or one record. All its records have a time or none has: a
    batch has its first record's, and from there on differences.
    """
    if not rows.num_rows:
        return []
    ends = HEADER_BYTES + np.cumsum(sizes(rows))
    timeless = milliseconds_of(rows.column(TIMESTAMP), rows.column(TIMESTAMP_MS)) == NO_TIMESTAMP
    changes = [*(np.flatnonzero(timeless[1:] != timeless[:-1]) + 1).tolist(), rows.num_rows]
    found = []
    start = 0
    for change in changes:
        while start < change:
            before = int(ends[start - 1]) if start else HEADER_BYTES
            stop = int(np.searchsorted(ends, before - HEADER_BYTES + bytes_max, side="right"))
            stop = min(max(stop, start + 1), change)
            if records_max is not None:
                stop = min(stop, start + records_max)
            found.append(stop)
            start = stop
    return found


def sizes(rows: pa.RecordBatch) -> Ints:
    """Return how many bytes each row may take as a record: never less than it takes."""
    found: Ints = _RECORD_BYTES_MAX + _lengths(rows.column(KEY)) + _lengths(rows.column(VALUE))
    headers = rows.column(HEADERS)
    if headers.null_count < len(headers):
        each = headers.flatten()
        of_header = _HEADER_BYTES_MAX + _lengths(each.field(0)) + _lengths(each.field(1))
        upto = np.concatenate(([0], np.cumsum(of_header)))
        at = np.concatenate(([0], np.cumsum(headers.value_lengths().fill_null(0).to_numpy())))
        found = found + upto[at[1:]] - upto[at[:-1]]
    return found


def encoded(rows: pa.RecordBatch, codec: int) -> bytes:
    """Return rows, as many as `cuts` puts together, as one batch in a codec; none where that makes it no smaller."""
    builder = BatchesBuilder(
        codec=codec,
        leader_epoch=-1,
        bytes_max=HEADER_BYTES + int(sizes(rows).sum()),
        at_least_one=True,
    )
    at = rows.schema.get_field_index(OFFSET)
    renumbered = rows.set_column(at, PRODUCED.field(OFFSET), pa.array(np.arange(rows.num_rows)))
    builder.add(stored_records(renumbered))
    head, payload = builder.finish()
    return b"".join((head, payload))


def by_partition(rows: pa.RecordBatch, partitions: Partitions) -> dict[int, pa.RecordBatch]:
    """Return the rows of each partition, in their order."""
    order = np.argsort(partitions, kind="stable")
    sorted_rows = rows.take(pa.array(order))
    found, starts = np.unique(partitions[order], return_index=True)
    stops = [*starts[1:].tolist(), rows.num_rows]
    return {
        partition: sorted_rows.slice(start, stop - start)
        for partition, start, stop in zip(found.tolist(), starts.tolist(), stops, strict=True)
    }


def _lengths(column: pa.Array) -> Ints:
    """Return how many bytes each binary or text has, 0 where it is null."""
    if column.null_count == len(column):
        return np.zeros(len(column), dtype=np.int64)
    at = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset :][: len(column) + 1].astype(
        np.int64
    )
    lengths: Ints = at[1:] - at[:-1]
    return lengths
