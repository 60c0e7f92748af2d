"""korvet/lake/encoding.py: rows as batches for consumers and for brokers, and the partitions of keys."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as of_aiokafka
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.lake.encoding import (
    BATCH_BYTES,
    NO_KEY,
    PRODUCED,
    EncodedBatches,
    arrow_to_batches,
    batch_ends,
    batches_of,
    by_partition,
    encode_batch,
    murmur2,
    partitions_of,
    record_sizes,
)
from korvet.lake.scan import select_columns
from korvet.lake.schema import SCHEMA
from korvet.log.epochs import EpochStart, epoch_at, next_epoch_start
from korvet.protocol.records.batch import CONTROL_BIT, HEADER_BYTES, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT
from korvet.protocol.records.record import StoredRecord
from tests.lake.rows import records_to_arrow
from tests.support.batches import CODECS, NONE, Record, headers_of, read

EPOCHS = (EpochStart(3, 0), EpochStart(5, 2), EpochStart(8, 7), EpochStart(9, 2**40))

ENTRY_CONTENTS = st.none() | st.binary(max_size=40)
ENTRY_HEADERS = st.lists(st.tuples(st.text(max_size=5), ENTRY_CONTENTS), max_size=3)
ENTRY_TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2**42)
ENTRY_RECORDS = st.lists(st.tuples(ENTRY_TIMES, ENTRY_CONTENTS, ENTRY_CONTENTS, ENTRY_HEADERS), max_size=20)


def served(
    rows: pa.RecordBatch, *, codec: int = NONE, bytes_max: int = 1 << 24, at_least_one: bool = True
) -> tuple[EncodedBatches, bytes]:
    result = arrow_to_batches(
        rows, codec=codec, epochs=EPOCHS, bytes_max=bytes_max, at_least_one=at_least_one
    )
    data = b"".join(bytes(piece) for piece in result.pieces)
    assert result.size_bytes == len(data)
    return result, data


def plain(records: list[StoredRecord]) -> list[Record]:
    return [Record(value, key, time, tuple(headers), at) for at, time, key, value, headers in records]


@settings(deadline=None)
@given(
    ENTRY_RECORDS.filter(lambda records: all(abs(record[0]) < 2**61 for record in records)),
    st.integers(1, 2**31),
    st.sampled_from(CODECS),
)
def test_a_consumer_reads_every_archived_record(
    contents: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    step: int,
    codec: int,
) -> None:
    records: list[StoredRecord] = [(at * step, *item) for at, item in enumerate(contents)]
    result, data = served(records_to_arrow(0, records), codec=codec)
    assert read(data) == plain(records)
    assert result.record_count == len(records)
    assert not result.full
    if records:
        assert result.next_offset == records[-1][0] + 1
        headers = headers_of(data)
        assert [header.partition_leader_epoch for header in headers] == [
            epoch_at(EPOCHS, header.base_offset) for header in headers
        ]
        # No batch has records of two epochs.
        assert all(
            next_epoch_start(EPOCHS, header.base_offset) > header.base_offset + header.last_offset_delta
            for header in headers
        )


@pytest.mark.parametrize("bytes_max", [1, 100, 500, 2000])
def test_no_more_is_served_than_asked_for_but_one_record(bytes_max: int) -> None:
    records: list[StoredRecord] = [(at, 1000, b"k", b"v" * 50, []) for at in range(100)]
    result, data = served(records_to_arrow(0, records), bytes_max=bytes_max)
    assert result.full
    got = read(data)
    assert got == plain(records)[: len(got)]
    assert len(got) == result.record_count == result.next_offset
    assert len(data) <= bytes_max or len(got) == 1
    nothing, data = served(records_to_arrow(0, records), bytes_max=1, at_least_one=False)
    assert (data, nothing.record_count, nothing.full) == (b"", 0, True)


def test_rows_of_both_timestamp_types_stand_in_batches_of_their_own() -> None:
    before: list[StoredRecord] = [(0, 10, None, b"a", []), (1, 11, None, b"b", [])]
    after: list[StoredRecord] = [(2, 20, None, b"c", []), (3, 20, None, b"d", [])]
    rows = pa.Table.from_batches(
        [records_to_arrow(0, before), records_to_arrow(0, after, log_append_time=True)]
    )
    result, data = served(rows.combine_chunks().to_batches()[0])
    assert [header.attributes & LOG_APPEND_TIME_BIT for header in headers_of(data)] == [
        0,
        LOG_APPEND_TIME_BIT,
    ]
    assert read(data) == plain(before + after)
    assert result.record_count == 4


def test_control_records_reach_a_consumer_as_such() -> None:
    records: list[StoredRecord] = [(at, 10, struct.pack(">hh", 0, 1), b"\0" * 6, []) for at in range(3)]
    rows = records_to_arrow(0, records)
    marks = {
        "attributes": pa.array([None, TRANSACTIONAL_BIT, TRANSACTIONAL_BIT | CONTROL_BIT], pa.int16()),
        "producer_id": pa.array([None, 8, 8], pa.int64()),
        "producer_epoch": pa.array([None, 1, 1], pa.int16()),
    }
    columns = [marks.get(field.name, column) for field, column in zip(SCHEMA, rows.columns, strict=True)]
    _, data = served(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    headers = headers_of(data)
    assert [(header.attributes, header.producer_id, header.producer_epoch) for header in headers] == [
        (0, -1, -1),
        (TRANSACTIONAL_BIT, 8, 1),
        (TRANSACTIONAL_BIT | CONTROL_BIT, 8, 1),
    ]
    assert [record.offset for record in read(data)] == [0, 1, 2]


TIME = 1_700_000_000_000


def rows_of(records: Sequence[StoredRecord]) -> pa.RecordBatch:
    return select_columns(records_to_arrow(0, records), PRODUCED)


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
def test_batches_have_the_rows_and_no_more_bytes_than_requested(codec: int, first: int, stop: int) -> None:
    records = kinds(100)
    rows = rows_of(records).slice(first, stop - first)
    result = []
    for start, end in pairwise([0, *batch_ends(rows, bytes_max=700)]):
        data = encode_batch(rows.slice(start, end - start), codec)
        [header] = headers_of(data)
        assert (header.base_offset, header.producer_id, header.record_count) == (0, -1, end - start)
        assert len(data) <= 700 or end - start == 1
        result += [batch[:4] for batch in read(data)]
    assert result == bare(records[first:stop])


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
    result = [
        record.timestamp
        for start, end in pairwise([0, *batch_ends(rows)])
        for record in read(encode_batch(rows.slice(start, end - start), 0))
    ]
    assert result == times


def test_batches_end_where_so_many_records_are_enough() -> None:
    rows = rows_of(kinds(10))
    assert batch_ends(rows, records_max=4) == [4, 8, 10]
    assert batch_ends(rows.slice(0, 0)) == []


def test_small_pieces_make_full_batches() -> None:
    records: list[StoredRecord] = [(at, TIME, None, b"%04d" % at * 100, []) for at in range(12_000)]
    rows = rows_of(records)
    pieces = [rows.slice(first, 50) for first in range(0, 12_000, 50)]
    results = list(batches_of(pieces))
    assert [value for result in results for value in result.column("value").to_pylist()] == [
        record[3] for record in records
    ]
    counted = [int(record_sizes(result).sum()) for result in results]
    assert all(BATCH_BYTES * 0.95 < item <= BATCH_BYTES for item in counted[:-1])
    assert list(batches_of([])) == []


def test_rows_are_shared_out_in_their_order() -> None:
    rows = rows_of(kinds(7))
    result = by_partition(rows, np.array([2, 0, 2, 5, 0, 2, 0]))
    assert {partition: item.column("offset").to_pylist() for partition, item in result.items()} == {
        0: [3, 12, 18],
        2: [0, 6, 15],
        5: [9],
    }


# What Kafka's own tests hold of org.apache.kafka.common.utils.Utils.murmur2.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_hashes_are_kafkas() -> None:
    result = murmur2(pa.array(list(KNOWN), pa.binary()))
    assert result.view("int32").tolist() == list(KNOWN.values())


@pytest.mark.parametrize("first", [0, 7])
def test_keys_of_any_length_go_where_another_client_sends_them(first: int) -> None:
    keys = [bytes((at * 7 + place) % 256 for place in range(at % 37)) for at in range(300)]
    column = pa.array([*keys, None, b""], pa.binary()).slice(first)
    expected = [(of_aiokafka(key) & 0x7FFFFFFF) % 11 for key in [*keys, b""][first:]]
    expected.insert(-1, NO_KEY)
    assert partitions_of(column, 11).tolist() == expected


def test_no_keys_have_no_partition() -> None:
    assert partitions_of(pa.nulls(2, pa.binary()), 3).tolist() == [NO_KEY, NO_KEY]
    assert partitions_of(pa.array([], pa.binary()), 3).tolist() == []
