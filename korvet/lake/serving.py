"""Archived rows as record batches for a consumer: the way back from Arrow.

Knows which rows may stand in one batch: those of one timestamp type, and of one producer where they are transactional
or control records. Batches are built anew, so their bounds are not those that a producer chose, and what is not
transactional carries no producer; offsets, times, keys, values and headers are the same.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from korvet.lake.schema import (
    ATTRIBUTES,
    HEADERS,
    KEY,
    OFFSET,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TIMESTAMP,
    TIMESTAMP_MS,
    TIMESTAMP_TYPE,
    VALUE,
    Ints,
    milliseconds_of,
)
from korvet.protocol.records.batch import HEADER, BatchHeader, patched_header, with_payload
from korvet.protocol.records.builder import BatchesBuilder, Buffer
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.record import Header, StoredRecord


class Served(NamedTuple):
    """Batches in pieces that follow each other, and how far they go: `full` says that a row did not fit any more."""

    pieces: list[Buffer]
    size_bytes: int
    record_count: int
    next_offset: int
    full: bool


def arrow_to_batches(
    rows: pa.RecordBatch, *, codec: int, leader_epoch: int, bytes_max: int, at_least_one: bool
) -> Served:
    """Return the rows, of one partition and in the order of their offsets, as record batches.

    They have `bytes_max` bytes uncompressed at the most, but for the first record with `at_least_one`. `codec` is the
    number of the codec of each batch, none for what it does not make smaller.
    """
    served = Served([], 0, 0, 0, full=False)
    for start, stop in pairwise(_bounds(rows)):
        part = rows.slice(start, stop - start)
        builder = BatchesBuilder(
            codec=codec,
            leader_epoch=leader_epoch,
            bytes_max=bytes_max - served.size_bytes,
            at_least_one=at_least_one and not served.record_count,
            log_append_time=bool(part.column(TIMESTAMP_TYPE)[0].as_py()),
        )
        builder.add(stored_records(part))
        pieces = builder.finish()
        if pieces and part.column(ATTRIBUTES)[0].is_valid:
            pieces = _marked(pieces, part)
        served = Served(
            served.pieces + pieces,
            served.size_bytes + sum(map(len, pieces)),
            served.record_count + builder.record_count,
            builder.next_offset or served.next_offset,
            builder.full,
        )
        if builder.full:
            break
    return served


def _bounds(rows: pa.RecordBatch) -> list[int]:
    """Return where a batch has to begin anew, and the number of rows."""
    count = rows.num_rows
    if not count:
        return []
    changes = np.zeros(count, dtype=bool)
    for name in (TIMESTAMP_TYPE, ATTRIBUTES, PRODUCER_ID, PRODUCER_EPOCH):
        column = rows.column(name)
        if column.null_count < count:
            values: Ints = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            changes[1:] |= values[1:] != values[:-1]
    return [0, *np.flatnonzero(changes).tolist(), count]


def stored_records(rows: pa.RecordBatch) -> list[StoredRecord] | Columns:
    """Return the rows as the builder takes them: by columns where all are of one layout."""
    timestamps: list[int] = milliseconds_of(rows.column(TIMESTAMP), rows.column(TIMESTAMP_MS)).tolist()
    keys, values, headers = rows.column(KEY), rows.column(VALUE), rows.column(HEADERS)
    offsets = rows.column(OFFSET).to_numpy()
    without_keys = keys.null_count == len(keys)
    if (without_keys or not keys.null_count) and not values.null_count and headers.null_count == len(headers):
        each_key = None if without_keys else keys.to_pylist()
        return Columns(_runs(offsets), timestamps, each_key, values.to_pylist())
    columns = (offsets.tolist(), timestamps, keys.to_pylist(), values.to_pylist(), _headers(headers))
    return list(zip(*columns, strict=True))


def _runs(offsets: Ints) -> list[range]:
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    firsts = [0, *breaks.tolist()]
    lasts = [*(breaks - 1).tolist(), len(offsets) - 1]
    return [
        range(int(offsets[first]), int(offsets[last]) + 1) for first, last in zip(firsts, lasts, strict=True)
    ]


def _headers(column: pa.Array) -> list[list[Header]]:
    if column.null_count == len(column):
        return [[] for _ in range(len(column))]
    return [
        [] if each is None else [(header["key"], header["value"]) for header in each]
        for each in column.to_pylist()
    ]


def _marked(pieces: list[Buffer], rows: pa.RecordBatch) -> list[Buffer]:
    """Give the batches the bits and the producer that their records' own batches had."""
    bits = rows.column(ATTRIBUTES)[0].as_py()
    marked: list[Buffer] = []
    for head, payload in zip(pieces[::2], pieces[1::2], strict=True):
        header = BatchHeader._make(HEADER.unpack_from(head))
        changed = header._replace(
            attributes=header.attributes | bits,
            producer_id=rows.column(PRODUCER_ID)[0].as_py(),
            producer_epoch=rows.column(PRODUCER_EPOCH)[0].as_py(),
        )
        changed = with_payload(changed, bytes(payload), header.codec)
        marked += (patched_header(changed, header.base_offset, header.partition_leader_epoch), payload)
    return marked
