"""Batches for a consumer: every record once, at its offset, within the limits of request and format."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords as KafkaRecords
from korvet_core import BatchesBuilder

from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT
from korvet.protocol.records.control import control_record
from korvet.protocol.records.record import StoredRecord
from tests.support.batches import CODECS, GZIP, Record, headers_of, read

PLENTY = 10_000_000
OFFSET_DELTA_MAX = 2**31 - 1


def stored(offset: int, value: bytes | None = b"v", timestamp: int = 5) -> StoredRecord:
    return offset, timestamp, None, value, []


def builder(bytes_max: int = PLENTY, *, codec: int = 0, at_least_one: bool = False) -> BatchesBuilder:
    return BatchesBuilder(codec=codec, leader_epoch=3, bytes_max=bytes_max, at_least_one=at_least_one)


def built(one: BatchesBuilder) -> bytes:
    return b"".join(one.finish())


def offsets(data: bytes) -> list[int]:
    return [batch.offset for batch in read(data)]


HEADERS: Any = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
GAPS = st.one_of(st.integers(1, 3), st.integers(1, 2**33))


@given(
    gaps=st.lists(GAPS, min_size=1, max_size=30),
    fields=st.tuples(
        st.integers(0, 2**50), st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=80), HEADERS
    ),
    codec=st.sampled_from(CODECS),
    pieces=st.integers(1, 5),
)
def test_every_record_comes_out_once_at_its_offset(
    gaps: list[int], fields: Any, codec: int, pieces: int
) -> None:
    timestamp, key, value, headers = fields
    records: list[StoredRecord] = []
    offset = 0
    for gap in gaps:
        offset += gap
        records.append((offset, timestamp, key, value, headers))
    one = builder(codec=codec)
    for start in range(0, len(records), pieces):
        one.add(records[start : start + pieces])
    data = built(one)
    assert read(data) == [Record(value, key, timestamp, tuple(headers), record[0]) for record in records]
    assert one.record_count == len(records)
    assert not one.full
    for header in headers_of(data):
        assert (header.partition_leader_epoch, header.producer_id, header.base_sequence) == (3, -1, -1)
        assert 0 <= header.last_offset_delta <= OFFSET_DELTA_MAX


@pytest.mark.parametrize(("gap", "batches"), [(OFFSET_DELTA_MAX, 1), (OFFSET_DELTA_MAX + 1, 2)])
def test_a_batch_ends_where_the_delta_leaves_its_32_bits(gap: int, batches: int) -> None:
    for pieces in ([[stored(7), stored(7 + gap)]], [[stored(7)], [stored(7 + gap)]]):
        one = builder()
        for piece in pieces:
            one.add(piece)
        data = built(one)
        assert len(headers_of(data)) == batches
        assert offsets(data) == [7, 7 + gap]


@pytest.mark.parametrize("pieces", [1, 2, 9])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("times", [(-1, 0), (-1, -1, 5, -1, 7), (5, -1, 7), (-1, -1), (-1, 9, -1)])
def test_a_record_without_a_timestamp_gets_none(
    times: tuple[int, ...], pieces: int, *, columns: bool
) -> None:
    one = builder()
    for start in range(0, len(times), pieces):
        part = times[start : start + pieces]
        offsets = range(start, start + len(part))
        if columns:
            one.add_columns([*offsets], [*part], None, [b"v"] * len(part))
        else:
            one.add([stored(offset, timestamp=time) for offset, time in zip(offsets, part, strict=True)])
    assert [(item.offset, item.timestamp) for item in read(built(one))] == list(enumerate(times))
    assert one.record_count == len(times)


def test_what_does_not_fit_is_left_out_and_nothing_behind_it_is_taken() -> None:
    one = builder(1000)
    one.add([stored(0, b"x" * 400), stored(1, b"x" * 400), stored(2, b"x" * 400), stored(3, b"")])
    assert one.full
    data = built(one)
    assert offsets(data) == [0, 1]
    assert len(data) <= 1000


def test_with_at_least_one_the_first_record_is_taken_at_any_size() -> None:
    wanted, unwanted = builder(10, at_least_one=True), builder(10)
    for one in (wanted, unwanted):
        one.add([stored(0, b"x" * 1000), stored(1)])
        assert one.full
    assert offsets(built(wanted)) == [0]
    assert built(unwanted) == b""


@pytest.mark.parametrize("bytes_max", [0, -1, -(2**31)])
def test_no_room_at_all_is_no_error(bytes_max: int) -> None:
    one = builder(bytes_max, at_least_one=True)
    one.add([stored(0), stored(1)])
    assert offsets(built(one)) == [0]


@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=40), bytes_max=st.integers(0, 3000))
def test_the_limit_holds_over_several_batches_and_is_reported(sizes: list[int], bytes_max: int) -> None:
    one = builder(bytes_max)
    one.add([stored(n * (OFFSET_DELTA_MAX // 3), b"x" * size) for n, size in enumerate(sizes)])
    left = one.plain_bytes_left
    data = built(one)
    assert len(data) == bytes_max - left
    assert len(data) <= bytes_max
    assert one.full == (one.record_count < len(sizes))


def test_a_limit_that_shrinks_on_the_way_holds() -> None:
    one = builder()
    one.add([stored(0, b"x" * 100)])
    taken = PLENTY - one.plain_bytes_left
    one.limit(300)
    one.add([stored(n, b"x" * 100) for n in range(1, 10)])
    assert one.full
    data = built(one)
    assert offsets(data) == [0, 1, 2]
    assert len(data) <= taken + 300


def test_a_limit_above_what_is_left_changes_nothing() -> None:
    one = builder(500)
    one.limit(PLENTY)
    one.add([stored(0, b"x" * 600)])
    assert one.full


def test_compression_that_does_not_help_is_left_out() -> None:
    one = builder(codec=GZIP)
    one.add([stored(0, b"x")])
    [header] = headers_of(built(one))
    assert header.codec == 0


def test_nothing_makes_no_batch() -> None:
    one = builder(at_least_one=True)
    one.add([])
    assert one.finish() == []
    assert one.plain_bytes_left == PLENTY


@pytest.mark.parametrize("codec", CODECS)
def test_each_time_of_an_append_begins_a_batch_that_says_so(codec: int) -> None:
    stamps = [7, 7, 7, 8, 8, 9, 7]
    records = [stored(offset, b"v" * 100, stamp) for offset, stamp in enumerate(stamps)]
    one = BatchesBuilder(
        codec=codec, leader_epoch=3, bytes_max=PLENTY, at_least_one=False, log_append_time=True
    )
    for part in (records[:2], records[2:4], records[4:]):
        one.add(part)
    data = built(one)
    assert [(batch.offset, batch.timestamp) for batch in read(data)] == list(enumerate(stamps))
    result = [(header.base_offset, header.record_count, header.max_timestamp) for header in headers_of(data)]
    assert result == [(0, 3, 7), (3, 2, 8), (5, 1, 9), (6, 1, 7)]
    assert all(header.attributes & LOG_APPEND_TIME_BIT for header in headers_of(data))


def test_batches_of_one_time_each_keep_the_limit_of_bytes() -> None:
    records = [stored(offset, b"v" * 100, offset) for offset in range(10)]
    one = BatchesBuilder(codec=0, leader_epoch=3, bytes_max=500, at_least_one=False, log_append_time=True)
    one.add(records)
    data = built(one)
    assert one.full
    assert one.record_count == len(read(data)) == len(headers_of(data)) == 2
    assert len(data) <= 500


def records_of(data: bytes) -> list[tuple[Any, list[Any]]]:
    """Return batches and their records as kafka-python reads them."""
    result = []
    batches = KafkaRecords(data)
    while (item := batches.next_batch()) is not None:
        assert item.validate_crc()
        result.append((item, list(item)))
    return result


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_what_a_transaction_has_written_is_a_batch_of_its_own(
    codec: int, size: int, *, columns: bool
) -> None:
    one = builder(codec=codec)

    def add(offset: int) -> None:
        value = b"v" * size
        if columns:
            one.add_columns([offset, offset + 1], [5, 6], None, [value] * 2)
        else:
            one.add([stored(offset, value, 5), stored(offset + 1, value, 6)])

    add(0)
    one.begin_producer(2**40, 9)
    add(2)
    one.begin_producer(2**40, 9)  # another transaction of the same producer, maybe
    add(4)
    one.begin_producer(8, 0)
    add(6)
    one.begin_producer()
    add(8)
    result = records_of(built(one))
    assert [
        (
            item.is_transactional,
            item.is_control_batch,
            item.producer_id,
            item.producer_epoch,
            item.base_sequence,
        )
        for item, _ in result
    ] == [
        (False, False, -1, -1, -1),
        *[(True, False, 2**40, 9, -1)] * 2,
        (True, False, 8, 0, -1),
        (False, False, -1, -1, -1),
    ]
    assert [record.offset for _, records in result for record in records] == list(range(10))
    assert {(record.timestamp, record.value) for _, records in result for record in records} == {
        (5, b"v" * size),
        (6, b"v" * size),
    }


@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_is_a_control_batch(*, commit: bool) -> None:
    one = builder(codec=GZIP)
    one.add([stored(3)])
    one.begin_producer(7, 2)
    one.add_control(control_record(commit, 1234, 2**40))
    one.add([stored(2**40 + 1)])
    assert (one.record_count, one.next_offset, one.full) == (3, 2**40 + 2, False)
    _, (batch, [marker]), (last, _) = records_of(built(one))
    assert (batch.is_control_batch, batch.is_transactional, last.is_control_batch) == (True, True, False)
    assert (batch.base_offset, batch.last_offset_delta, batch.leader_epoch) == (2**40, 0, 3)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, -1)
    assert (marker.offset, marker.timestamp) == (2**40, 1234)
    assert (marker.version, marker.type, marker.commit, marker.abort) == (0, int(commit), commit, not commit)


def test_a_marker_counts_as_a_record_does() -> None:
    alone = builder()
    alone.add_control(control_record(commit=True, timestamp_ms=5, offset=5))
    size = len(built(alone))
    one, other = builder(size - 1), builder(size - 1, at_least_one=True)
    for item in (one, other):
        item.begin_producer(7, 0)
        item.add_control(control_record(commit=True, timestamp_ms=5, offset=5))
    assert (one.full, built(one)) == (True, b"")
    fits = [other.full]
    other.add_control(control_record(commit=True, timestamp_ms=5, offset=6))
    assert [*fits, other.full] == [False, True]
    assert [header.base_offset for header in headers_of(built(other))] == [5]
    exact = builder(size * 2)
    for offset in range(3):
        exact.add_control(control_record(commit=True, timestamp_ms=5, offset=offset))
    assert (exact.full, exact.plain_bytes_left, len(built(exact))) == (True, 0, size * 2)


class Again:
    """An offset whose own code calls the builder again."""

    def __init__(self, one: BatchesBuilder) -> None:
        self.one = one

    def __index__(self) -> int:
        self.one.add([stored(1)])
        return 1


def test_a_record_whose_code_calls_the_builder_is_refused_and_those_before_it_are_taken() -> None:
    one = builder()
    again: Any = Again(one)
    with pytest.raises(RuntimeError, match="Already borrowed"):
        one.add([stored(0), (again, 5, None, b"v", []), stored(2)])
    one.add([stored(3)])
    assert offsets(built(one)) == [0, 3]
