"""Arrow rows as record batches: for consumers of archived records, and for brokers that records are produced to.

A batch for a consumer has rows of one timestamp type, and of one producer if they are transactional or control records.
Batches are rebuilt: their bounds differ from the producer's, and batches outside transactions carry no
producer; offsets, timestamps, keys, values and headers are the same.

A batch for a broker carries no producer and offsets from 0 on: its sender adds the producer (korvet.admin.producer),
and the broker the base offset. The partition of a key follows the rule that Kafka's clients have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from korvet_core import BatchesBuilder

from korvet.lake.schema import (
    ATTRIBUTES,
    HEADERS,
    KEY,
    NO_TIMESTAMP,
    OFFSET,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SCHEMA,
    TIMESTAMP,
    TIMESTAMP_MS,
    TIMESTAMP_TYPE,
    VALUE,
    Ints,
    milliseconds_of,
)
from korvet.log.epochs import Epochs, epoch_at
from korvet.protocol.records.batch import HEADER_BYTES, BatchHeader, sealed
from korvet.protocol.records.record import Header
from korvet.protocol.wire import Buffer


class EncodedBatches(NamedTuple):
    """Batches in pieces that follow each other, and the offset after them; `full`: a row did not fit any more."""

    pieces: list[Buffer]
    size_bytes: int
    record_count: int
    next_offset: int
    full: bool


def arrow_to_batches(
    rows: pa.RecordBatch, *, codec: int, epochs: Epochs = (), bytes_max: int, at_least_one: bool
) -> EncodedBatches:
    """Return the rows, of one partition and in the order of their offsets, as record batches.

    They have `bytes_max` bytes uncompressed at the most, but for the first record with `at_least_one`. `codec` is the
    number of the codec of each batch, none for a batch that it does not make smaller. `epochs` are those of the log.
    """
    served = EncodedBatches([], 0, 0, 0, full=False)
    for start, stop in pairwise(_bounds(rows, epochs)):
        part = rows.slice(start, stop - start)
        builder = BatchesBuilder(
            codec=codec,
            leader_epoch=epoch_at(epochs, part.column(OFFSET)[0].as_py()),
            bytes_max=bytes_max - served.size_bytes,
            at_least_one=at_least_one and not served.record_count,
            log_append_time=bool(part.column(TIMESTAMP_TYPE)[0].as_py()),
        )
        _add(builder, part)
        pieces = builder.finish()
        if pieces and part.column(ATTRIBUTES)[0].is_valid:
            pieces = [_marked(piece, part) for piece in pieces]
        served = EncodedBatches(
            served.pieces + pieces,
            served.size_bytes + sum(map(len, pieces)),
            served.record_count + builder.record_count,
            builder.next_offset or served.next_offset,
            builder.full,
        )
        if builder.full:
            break
    return served


def _bounds(rows: pa.RecordBatch, epochs: Epochs) -> list[int]:
    """Return where batches have to begin, and the number of rows."""
    count = rows.num_rows
    if not count:
        return []
    changes = np.zeros(count, dtype=bool)
    for name in (TIMESTAMP_TYPE, ATTRIBUTES, PRODUCER_ID, PRODUCER_EPOCH):
        column = rows.column(name)
        if column.null_count < count:
            values: Ints = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            changes[1:] |= values[1:] != values[:-1]
    begun = np.searchsorted(rows.column(OFFSET).to_numpy(), [epoch.start for epoch in epochs])
    changes[begun[(begun > 0) & (begun < count)]] = True
    return [0, *np.flatnonzero(changes).tolist(), count]


def _add(builder: BatchesBuilder, rows: pa.RecordBatch) -> None:
    """Have the rows taken, by columns if all are of one layout."""
    offsets: list[int] = rows.column(OFFSET).to_numpy().tolist()
    timestamps: list[int] = milliseconds_of(rows).tolist()
    keys, values, headers = rows.column(KEY), rows.column(VALUE), rows.column(HEADERS)
    without_keys = keys.null_count == len(keys)
    if (without_keys or not keys.null_count) and not values.null_count and headers.null_count == len(headers):
        each_key = None if without_keys else keys.to_pylist()
        builder.add_columns(offsets, timestamps, each_key, values.to_pylist())
    else:
        columns = (offsets, timestamps, keys.to_pylist(), values.to_pylist(), _headers(headers))
        builder.add(list(zip(*columns, strict=True)))


def _headers(column: pa.Array) -> list[list[Header]]:
    if column.null_count == len(column):
        return [[] for _ in range(len(column))]
    return [
        [] if cell is None else [(header["key"], header["value"]) for header in cell]
        for cell in column.to_pylist()
    ]


def _marked(batch: Buffer, rows: pa.RecordBatch) -> bytes:
    """Set the bits and the producer that the records' own batches had."""
    header = BatchHeader.read(batch)
    changed = header._replace(
        attributes=header.attributes | rows.column(ATTRIBUTES)[0].as_py(),
        producer_id=rows.column(PRODUCER_ID)[0].as_py(),
        producer_epoch=rows.column(PRODUCER_EPOCH)[0].as_py(),
    )
    return sealed(changed, memoryview(batch)[HEADER_BYTES:])


NO_KEY = -1
"""The partition of a null key: any."""

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)
_R = 24
_WORD = 4

Hashes = npt.NDArray[np.uint32]
Partitions = npt.NDArray[np.int64]


def partitions_of(keys: pa.BinaryArray, count: int) -> Partitions:
    """Return for each key its partition of `count`, NO_KEY if it is null: by murmur2 of its bytes, as Kafka's clients.

    The hash is read as a number that is not negative (org.apache.kafka.common.utils.Utils, BuiltInPartitioner).
    """
    positive = murmur2(keys).astype(np.int64) & 0x7FFFFFFF
    partitions: Partitions = positive % count
    if keys.null_count:
        partitions[np.asarray(keys.is_null())] = NO_KEY
    return partitions


def murmur2(keys: pa.BinaryArray) -> Hashes:
    """Return MurmurHash2 of 32 bits, with Kafka's seed, of each key; any number for a null one."""
    _, offsets_buffer, data_buffer = keys.buffers()
    at = np.frombuffer(offsets_buffer, dtype=np.int32)[keys.offset :][: len(keys) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    lengths = np.diff(at)
    hashes: Hashes = np.zeros(len(keys), dtype=np.uint32)
    # Keys of one length take the same steps.
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _murmur2(data[at[rows][:, None] + np.arange(length)], length)
    return hashes


def _murmur2(keys: npt.NDArray[np.uint8], length: int) -> Hashes:
    """Return the hashes of keys that are the rows of a matrix."""
    hashes: Hashes = np.full(len(keys), _SEED ^ length, dtype=np.uint32)
    whole = length - length % _WORD
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4")
    for place in range(words.shape[1]):
        word = words[:, place] * _M
        word ^= word >> _R
        hashes = hashes * _M ^ word * _M
    if whole < length:
        for place in range(whole, length):
            hashes ^= keys[:, place].astype(np.uint32) << np.uint32(8 * (place - whole))
        hashes *= _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


PRODUCED = pa.schema([SCHEMA.field(name) for name in (OFFSET, TIMESTAMP, KEY, VALUE, HEADERS, TIMESTAMP_MS)])
"""The columns of what is produced; the offset is where a row came from."""

BATCH_BYTES = 768 * 1024
"""Of a batch, uncompressed: less than Kafka's limit (message.max.bytes, 1 MiB), for sizes are estimates."""

_HELD_BYTES = 4 * BATCH_BYTES
"""Of rows, as Arrow, that are collected before they become batches."""

_RECORD_BYTES_MAX = 36
"""A record beside key, value and headers: five lengths and counts, two deltas and a byte, all of the longest."""

_HEADER_BYTES_MAX = 10


def batches_of(
    rows_of: Iterable[pa.RecordBatch], *, bytes_max: int = BATCH_BYTES, records_max: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, which have the columns of PRODUCED, as slices that are one batch each; see `batch_ends`."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for rows in rows_of:
        held.append(rows)
        size_bytes += rows.nbytes
        if size_bytes < _HELD_BYTES:
            continue
        *whole, rest = _slices(concat_rows(held), bytes_max, records_max)
        yield from whole
        # The next rows may fit beside it.
        held, size_bytes = [rest], rest.nbytes
    yield from _slices(concat_rows(held), bytes_max, records_max)


def _slices(rows: pa.RecordBatch, bytes_max: int, records_max: int | None) -> list[pa.RecordBatch]:
    ends = batch_ends(rows, bytes_max=bytes_max, records_max=records_max)
    return [rows.slice(start, stop - start) for start, stop in pairwise([0, *ends])]


def concat_rows(rows_of: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return rows, which have the columns of PRODUCED, one after the other."""
    return pa.concat_batches(rows_of) if rows_of else pa.RecordBatch.from_pylist([], schema=PRODUCED)


def batch_ends(
    rows: pa.RecordBatch, *, bytes_max: int = BATCH_BYTES, records_max: int | None = None
) -> list[int]:
    """Return where batches end, the last of them at the last row.

    Each has `bytes_max` bytes at the most, uncompressed, or one record. All its records have a timestamp or none has: a
    batch has its first record's, and the others as differences.
    """
    if not rows.num_rows:
        return []
    ends = HEADER_BYTES + np.cumsum(record_sizes(rows))
    timeless = milliseconds_of(rows) == NO_TIMESTAMP
    changes = [*(np.flatnonzero(timeless[1:] != timeless[:-1]) + 1).tolist(), rows.num_rows]
    batch_end_rows = []
    start = 0
    for change in changes:
        while start < change:
            before = int(ends[start - 1]) if start else HEADER_BYTES
            stop = int(np.searchsorted(ends, before - HEADER_BYTES + bytes_max, side="right"))
            stop = min(max(stop, start + 1), change)
            if records_max is not None:
                stop = min(stop, start + records_max)
            batch_end_rows.append(stop)
            start = stop
    return batch_end_rows


def record_sizes(rows: pa.RecordBatch) -> Ints:
    """Return how many bytes each row takes as a record, or more."""
    sizes: Ints = _RECORD_BYTES_MAX + _lengths(rows.column(KEY)) + _lengths(rows.column(VALUE))
    headers = rows.column(HEADERS)
    if headers.null_count < len(headers):
        header = headers.flatten()
        of_header = _HEADER_BYTES_MAX + _lengths(header.field(0)) + _lengths(header.field(1))
        upto = np.concatenate(([0], np.cumsum(of_header)))
        at = np.concatenate(([0], np.cumsum(headers.value_lengths().fill_null(0).to_numpy())))
        sizes = sizes + upto[at[1:]] - upto[at[:-1]]
    return sizes


def encode_batch(rows: pa.RecordBatch, codec: int) -> bytes:
    """Return a slice of rows as one batch, compressed by a codec unless that makes it no smaller."""
    builder = BatchesBuilder(
        codec=codec,
        leader_epoch=-1,
        bytes_max=HEADER_BYTES + int(record_sizes(rows).sum()),
        at_least_one=True,
    )
    at = rows.schema.get_field_index(OFFSET)
    renumbered = rows.set_column(at, PRODUCED.field(OFFSET), pa.array(np.arange(rows.num_rows)))
    _add(builder, renumbered)
    [batch] = builder.finish()
    return bytes(batch)


def by_partition(rows: pa.RecordBatch, partitions: Partitions) -> dict[int, pa.RecordBatch]:
    order = np.argsort(partitions, kind="stable")
    sorted_rows = rows.take(pa.array(order))
    indexes, starts = np.unique(partitions[order], return_index=True)
    stops = [*starts[1:].tolist(), rows.num_rows]
    return {
        partition: sorted_rows.slice(start, stop - start)
        for partition, start, stop in zip(indexes.tolist(), starts.tolist(), stops, strict=True)
    }


def _lengths(column: pa.Array) -> Ints:
    """Return how many bytes each binary or text has, 0 if it is null."""
    lengths: Ints = pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
    return lengths
