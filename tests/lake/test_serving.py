"""korvet/lake/encoding.py: what a consumer gets of archived rows, read with its own reader."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.lake.decoding import records_to_arrow
from korvet.lake.encoding import EncodedBatches, arrow_to_batches
from korvet.lake.schema import SCHEMA
from korvet.protocol.records.batch import CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT
from korvet.protocol.records.record import StoredRecord
from tests.lake.test_entries import RECORDS
from tests.support.batches import CODECS, NONE, Record, headers_of, read


def served(
    rows: pa.RecordBatch, *, codec: int = NONE, bytes_max: int = 1 << 24, at_least_one: bool = True
) -> tuple[EncodedBatches, bytes]:
    found = arrow_to_batches(
        rows, codec=codec, leader_epoch=3, bytes_max=bytes_max, at_least_one=at_least_one
    )
    data = b"".join(bytes(each) for each in found.pieces)
    assert found.size_bytes == len(data)
    return found, data


def plain(records: list[StoredRecord]) -> list[Record]:
    return [Record(value, key, time, tuple(headers), at) for at, time, key, value, headers in records]


@settings(deadline=None)
@given(
    RECORDS.filter(lambda records: all(abs(each[0]) < 2**61 for each in records)),
    st.integers(1, 2**31),
    st.sampled_from(CODECS),
)
def test_a_consumer_reads_every_archived_record(
    contents: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    step: int,
    codec: int,
) -> None:
    records: list[StoredRecord] = [(at * step, *each) for at, each in enumerate(contents)]
    found, data = served(records_to_arrow(0, records), codec=codec)
    assert read(data) == plain(records)
    assert found.record_count == len(records)
    assert not found.full
    if records:
        assert found.next_offset == records[-1][0] + 1
        assert {header.partition_leader_epoch for header in headers_of(data)} == {3}


@pytest.mark.parametrize("bytes_max", [1, 100, 500, 2000])
def test_no_more_is_served_than_asked_for_but_one_record(bytes_max: int) -> None:
    records: list[StoredRecord] = [(at, 1000, b"k", b"v" * 50, []) for at in range(100)]
    found, data = served(records_to_arrow(0, records), bytes_max=bytes_max)
    assert found.full
    got = read(data)
    assert got == plain(records)[: len(got)]
    assert len(got) == found.record_count == found.next_offset
    assert len(data) <= bytes_max or len(got) == 1
    nothing, data = served(records_to_arrow(0, records), bytes_max=1, at_least_one=False)
    assert (data, nothing.record_count, nothing.full) == (b"", 0, True)


def test_rows_of_both_timestamp_types_stand_in_batches_of_their_own() -> None:
    before: list[StoredRecord] = [(0, 10, None, b"a", []), (1, 11, None, b"b", [])]
    after: list[StoredRecord] = [(2, 20, None, b"c", []), (3, 20, None, b"d", [])]
    rows = pa.Table.from_batches(
        [records_to_arrow(0, before), records_to_arrow(0, after, log_append_time=True)]
    )
    found, data = served(rows.combine_chunks().to_batches()[0])
    assert [header.attributes & LOG_APPEND_TIME_BIT for header in headers_of(data)] == [
        0,
        LOG_APPEND_TIME_BIT,
    ]
    assert read(data) == plain(before + after)
    assert found.record_count == 4


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
    assert [(each.attributes, each.producer_id, each.producer_epoch) for each in headers] == [
        (0, -1, -1),
        (TRANSACTIONAL_BIT, 8, 1),
        (TRANSACTIONAL_BIT | CONTROL_BIT, 8, 1),
    ]
    assert [record.offset for record in read(data)] == [0, 1, 2]
