"""korvet/lake/decoding.py: record batches and records as rows."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.lake.decoding import to_arrow
from korvet.lake.schema import HEADERS, KEY, SCHEMA, VALUE
from korvet.protocol.records.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
)
from tests.lake.rows import records_of
from tests.support.appends import entry_of
from tests.support.batches import CODECS, Record, batch
from tests.support.log_replies import read, read_batches

CONTENTS = st.none() | st.binary(max_size=40) | st.sampled_from([b"", b"x" * 12, b"y" * 13, b"z" * 300])
HEADER_LISTS = st.lists(st.tuples(st.text(max_size=5), CONTENTS), max_size=3) | st.just([("h", b"v")] * 40)
TIMES = st.integers(-(2**63) // 4, 2**63 // 4) | st.integers(-2, 2**42) | st.just(-1)
RECORDS = st.lists(
    st.builds(Record, value=CONTENTS, key=CONTENTS, timestamp=TIMES, headers=HEADER_LISTS),
    min_size=1,
    max_size=8,
)


BYTES_MAX = 1 << 24
ATTRIBUTES_AT = 21

Stored = tuple[int, bytes]
"""The base offset of a batch, and the batch."""


def stored(raw: bytes, base_offset: int) -> Stored:
    return base_offset, raw


def rows_of(batches: list[Stored], partition: int = 0) -> pa.RecordBatch:
    return to_arrow(partition, read_batches(batches, BYTES_MAX))


@settings(deadline=None)
@given(st.lists(st.tuples(RECORDS, st.sampled_from(CODECS), st.integers(0, 50)), min_size=1, max_size=4))
def test_every_record_is_the_row_that_the_log_would_serve(
    contents: list[tuple[list[Record], int, int]],
) -> None:
    batches: list[Stored] = []
    at = 0
    for records, codec, gap in contents:
        batches.append(stored(batch(*records, codec=codec), at + gap))
        at += gap + len(records)
    rows = rows_of(batches, 7)
    rows.validate(full=True)
    assert rows.schema == SCHEMA
    assert records_of(rows) == read_batches(batches, BYTES_MAX).records()
    assert set(rows.column("partition").to_pylist()) == {7}
    assert set(rows.column("timestamp_type").to_pylist()) == {0}
    assert rows.column("attributes").null_count == rows.num_rows


def with_attributes(raw: bytes, bits: int) -> bytes:
    """Return the batch with these bits in its header; its CRC no longer counts once it is stored."""
    (attributes,) = struct.unpack_from(">h", raw, ATTRIBUTES_AT)
    return raw[:ATTRIBUTES_AT] + struct.pack(">h", attributes | bits) + raw[ATTRIBUTES_AT + 2 :]


def test_a_batch_with_the_time_of_its_append_has_that_time_for_all_records() -> None:
    first = stored(batch(Record(timestamp=5), Record(timestamp=9)), 0)
    second = stored(with_attributes(batch(Record(timestamp=5), Record(timestamp=9)), LOG_APPEND_TIME_BIT), 2)
    rows = rows_of([first, second])
    assert [record[1] for record in records_of(rows)] == [5, 9, 9, 9]
    assert rows.column("timestamp_type").to_pylist() == [0, 0, 1, 1]


def test_transactional_and_control_batches_keep_what_a_reader_needs_of_them() -> None:
    plain = stored(batch(Record(), producer_id=3, epoch=1, sequence=0), 0)
    data = stored(with_attributes(batch(Record(), producer_id=4, epoch=2, sequence=0), TRANSACTIONAL_BIT), 1)
    marker = batch(Record(key=b"\x00\x00\x00\x01", value=b"\x00" * 6), producer_id=4, epoch=2)
    control = stored(with_attributes(marker, TRANSACTIONAL_BIT | CONTROL_BIT), 2)
    rows = rows_of([plain, data, control])
    assert rows.column("attributes").to_pylist() == [None, TRANSACTIONAL_BIT, TRANSACTIONAL_BIT | CONTROL_BIT]
    assert rows.column("producer_id").to_pylist() == [None, 4, 4]
    assert rows.column("producer_epoch").to_pylist() == [None, 2, 2]
    assert rows.column("key")[2].as_py() == b"\x00\x00\x00\x01"


def test_times_that_no_calendar_has_stay_what_they_are() -> None:
    times = [0, -1, -2, 253_402_300_799_999, 253_402_300_800_000, -(2**62), 2**62]
    rows = rows_of([stored(batch(*(Record(timestamp=time) for time in times)), 0)])
    assert [record[1] for record in records_of(rows)] == times
    assert rows.column("timestamp").is_valid().to_pylist() == [True, False, True, True, False, False, False]
    assert rows.column("timestamp_ms").to_pylist() == [
        None,
        None,
        None,
        None,
        253_402_300_800_000,
        -(2**62),
        2**62,
    ]


def test_a_header_name_that_is_no_utf8_stands_as_escapes() -> None:
    raw = batch(Record(headers=[("NAME", b"v")])).replace(b"NAME", b"\xff\xfea ")
    rows = rows_of([stored(raw, 0)])
    assert rows.column("headers").to_pylist() == [[{"key": "\\xff\\xfea ", "value": b"v"}]]


@settings(deadline=None)
@given(st.data())
def test_damage_is_an_error_that_names_its_batch_or_other_records(data: st.DataObject) -> None:
    good = batch(Record(b"value" * 3, b"key", headers=[("h", b"v"), ("n", None)]), Record(None))
    at = data.draw(st.integers(HEADER_BYTES, len(good) - 1))
    raw = bytearray(good)
    raw[at] = data.draw(st.integers(0, 255))
    damaged = stored(bytes(raw), 100)
    for batches in ([damaged], [stored(good, 0), damaged]):
        caught: KafkaError | None = None
        try:
            rows_of(batches).validate(full=True)
        except KafkaError as error:
            caught = error
        if caught is not None:
            assert caught.code is ErrorCode.CORRUPT_MESSAGE
            assert "offset 100" in caught.message


def test_many_batches_may_not_hold_more_together_than_one_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.lake.decoding.PAYLOAD_BYTES_MAX", 1000)
    large = [stored(batch(bytes(800), codec=codec), at) for at, codec in enumerate(CODECS)]
    assert rows_of(large[:1]).num_rows == 1
    with pytest.raises(KafkaError, match="up to offset 1 hold more than 1000 bytes") as raised:
        rows_of(large)
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_append_time_and_create_time_are_distinguished() -> None:
    result = read([(b"0-6", entry_of((5, 1000, None, b"v", [])))], 0)
    assert to_arrow(0, result).column("timestamp_type").to_pylist() == [0]
    assert to_arrow(0, result, log_append_time=True).column("timestamp_type").to_pylist() == [1]


def test_columns_that_are_not_wanted_are_null() -> None:
    result = read([(b"0-6", entry_of((5, 1000, b"k", b"v", [("h", b"x")])))], 0)
    whole, rows = to_arrow(0, result), to_arrow(0, result, [VALUE])
    assert [rows.column(name).null_count for name in (KEY, VALUE, HEADERS)] == [1, 0, 1]
    assert [whole.column(name).null_count for name in (KEY, VALUE, HEADERS)] == [0, 0, 0]
