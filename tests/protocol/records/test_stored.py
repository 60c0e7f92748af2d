"""Stored batches: their records where they stand, and what a batch is when it has lost some of them."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT, BatchHeader, each_record, retained_batch
from korvet.protocol.records.record import StoredRecord
from tests.support import batches
from tests.support.batches import CODECS, TIMESTAMP, Record
from tests.support.refusals import refusal

BYTES_MAX = 1 << 20
RECORDS = [
    Record(b"one", b"a", TIMESTAMP),
    Record(b"two", b"b", TIMESTAMP + 500, (("name", b"x"), ("name", None))),
    Record(None, b"", TIMESTAMP - 7),
    Record(b"four", None, TIMESTAMP + 20),
]


def read(data: bytes, base_offset: int) -> list[StoredRecord]:
    return list(each_record(data, base_offset, BYTES_MAX))


@pytest.mark.parametrize("codec", CODECS)
def test_records_stand_at_their_offsets_with_all_that_they_have(codec: int) -> None:
    assert read(batches.batch(*RECORDS, codec=codec), 1000) == [
        (1000 + at, each.timestamp, each.key, each.value, list(each.headers))
        for at, each in enumerate(RECORDS)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_without_some_of_its_records_keeps_everything_else(codec: int) -> None:
    whole = batches.batch(*RECORDS, codec=codec, producer_id=7, epoch=2, sequence=90)
    left = [record for record in read(whole, 1000) if record[0] in {1001, 1002}]
    data = retained_batch(whole, 1000, left)
    assert read(data, 1000) == left
    before, after = BatchHeader.read(whole), BatchHeader.read(data)
    assert after == before._replace(
        batch_length=after.batch_length,
        crc=after.crc,
        record_count=2,
        base_timestamp=TIMESTAMP + 500,
        max_timestamp=TIMESTAMP + 500,
    )
    assert [(each.value, each.offset) for each in batches.read(data)] == [(b"two", 1), (None, 2)]


def test_records_whose_offsets_do_not_rise_are_not_written_again() -> None:
    data = batches.batch(*RECORDS)
    records = read(data, 50)[::-1]
    assert refusal(retained_batch, data, 50, records) is ErrorCode.CORRUPT_MESSAGE


def test_a_batch_may_lose_records_more_than_once() -> None:
    data, left = batches.batch(*RECORDS), read(batches.batch(*RECORDS), 50)
    while left:
        data = retained_batch(data, 50, left)
        assert read(data, 50) == left
        assert BatchHeader.read(data).last_offset_delta == 3
        del left[0]


def test_a_record_without_a_timestamp_may_be_the_first_that_is_left() -> None:
    records = [Record(b"v", b"k", timestamp) for timestamp in (TIMESTAMP, -1, TIMESTAMP + 5, 0)]
    left = read(batches.batch(*records), 0)[1:]
    assert [record[1] for record in left] == [-1, TIMESTAMP + 5, 0]
    data = retained_batch(batches.batch(*records), 0, left)
    assert read(data, 0) == left
    assert BatchHeader.read(data).max_timestamp == TIMESTAMP + 5


def test_timestamps_may_be_as_far_apart_as_int64_allows() -> None:
    data = batches.batch(*[Record(b"v", b"k", timestamp) for timestamp in (5, 2**63 - 1, 0)])
    data = batches.forged(data, base_timestamp=-(2**63))
    left = read(data, 0)
    data = retained_batch(data, 0, left)
    assert read(data, 0) == left


def test_the_time_of_the_append_is_every_records_time_whichever_are_left() -> None:
    whole = batches.forged(batches.batch(*RECORDS), attributes=LOG_APPEND_TIME_BIT, max_timestamp=5_000)
    records = read(whole, 0)
    assert {record[1] for record in records} == {5_000}
    data = retained_batch(whole, 0, records[1:2])
    assert BatchHeader.read(data).max_timestamp == 5_000
    assert BatchHeader.read(data).attributes == LOG_APPEND_TIME_BIT
    assert [record[1] for record in read(data, 0)] == [5_000]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (batches.raw(b"\xff" * 30), ErrorCode.CORRUPT_MESSAGE),
        (batches.MALFORMED["one offset twice"], ErrorCode.CORRUPT_MESSAGE),
        (batches.MALFORMED["an offset of another batch"], ErrorCode.CORRUPT_MESSAGE),
        (batches.raw(b"no frame", codec=batches.ZSTD), ErrorCode.CORRUPT_MESSAGE),
        (batches.batch(Record(b"x" * (BYTES_MAX + 1)), codec=batches.GZIP), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["no records", "one offset twice", "an offset of another batch", "no frame", "too large"],
)
def test_what_cannot_be_read_says_so(data: bytes, code: ErrorCode) -> None:
    assert refusal(read, data, 0) == code
