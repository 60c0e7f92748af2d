"""korvet/lake/encoding.py: rows as batches that any consumer reads, none of them larger than is wished."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from korvet.lake.decoding import records_to_arrow
from korvet.lake.encoding import (
    BATCH_BYTES,
    PRODUCED,
    batch_ends,
    batches_of,
    by_partition,
    encode_batch,
    record_sizes,
)
from korvet.lake.scan import select_columns
from korvet.protocol.records.batch import HEADER_BYTES
from korvet.protocol.records.record import StoredRecord
from tests.support.batches import CODECS, headers_of, read

TIME = 1_700_000_000_000


def rows_of(records: Sequence[StoredRecord]) -> pa.RecordBatch:
    return select_columns(records_to_arrow(0, records), 0, PRODUCED)


def kinds(count: int) -> list[StoredRecord]:
    """Return records of every shape."""
    return [
        (
            at * 3,
            TIME + at,
            b"key %d" % at if at % 3 else None,
            b"v" * (at % 50) if at % 7 else None,
            [("a", None), ("\u00e4", b"x" * at), ("a", b"")] if at % 5 == 0 else [],
        )
        for at in range(count)
    ]


def bare(records: Sequence[StoredRecord]) -> list[tuple[object, ...]]:
    return [(value, key, at, tuple(headers)) for _, at, key, value, headers in records]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("first", "stop"), [(0, 100), (13, 57)])
def test_batches_have_the_rows_and_no_more_bytes_than_wished(codec: int, first: int, stop: int) -> None:
    records = kinds(100)
    rows = rows_of(records).slice(first, stop - first)
    found = []
    for start, end in pairwise([0, *batch_ends(rows, bytes_max=700)]):
        data = encode_batch(rows.slice(start, end - start), codec)
        [header] = headers_of(data)
        assert (header.base_offset, header.producer_id, header.record_count) == (0, -1, end - start)
        assert len(data) <= 700 or end - start == 1
        found += [each[:4] for each in read(data)]
    assert found == bare(records[first:stop])


def test_a_row_takes_no_more_bytes_than_is_counted() -> None:
    far: list[StoredRecord] = [
        (0, -(2**62), b"", b"", []),
        (2**31 - 2, 2**62, b"k" * 300, b"v" * 70_000, [("h" * 200, b"x" * 9000)]),
    ]
    for records in (kinds(60), far):
        rows = rows_of(records)
        assert len(encode_batch(rows, 0)) <= HEADER_BYTES + int(record_sizes(rows).sum())


def test_records_without_a_time_are_in_batches_of_their_own() -> None:
    times = [-1, -1, TIME, TIME + 1, -1, TIME]
    rows = rows_of([(at, time, None, b"%d" % at, []) for at, time in enumerate(times)])
    assert batch_ends(rows) == [2, 4, 5, 6]
    found = [
        record.timestamp
        for start, end in pairwise([0, *batch_ends(rows)])
        for record in read(encode_batch(rows.slice(start, end - start), 0))
    ]
    assert found == times


def test_batches_end_where_so_many_records_are_enough() -> None:
    rows = rows_of(kinds(10))
    assert batch_ends(rows, records_max=4) == [4, 8, 10]
    assert batch_ends(rows.slice(0, 0)) == []


def test_small_pieces_make_full_batches() -> None:
    records: list[StoredRecord] = [(at, TIME, None, b"%04d" % at * 100, []) for at in range(12_000)]
    rows = rows_of(records)
    pieces = [rows.slice(first, 50) for first in range(0, 12_000, 50)]
    found = list(batches_of(pieces))
    assert [value for each in found for value in each.column("value").to_pylist()] == [
        each[3] for each in records
    ]
    counted = [int(record_sizes(each).sum()) for each in found]
    assert all(BATCH_BYTES * 0.95 < each <= BATCH_BYTES for each in counted[:-1])
    assert list(batches_of([])) == []


def test_rows_are_shared_out_in_their_order() -> None:
    rows = rows_of(kinds(7))
    found = by_partition(rows, np.array([2, 0, 2, 5, 0, 2, 0]))
    assert {partition: each.column("offset").to_pylist() for partition, each in found.items()} == {
        0: [3, 12, 18],
        2: [0, 6, 15],
        5: [9],
    }
