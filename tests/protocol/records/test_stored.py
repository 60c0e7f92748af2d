"""Stored batches: their records where they stand."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT, each_record
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
        (1000 + at, item.timestamp, item.key, item.value, list(item.headers))
        for at, item in enumerate(RECORDS)
    ]


def test_the_time_of_the_append_is_every_records_time() -> None:
    whole = batches.forged(batches.batch(*RECORDS), attributes=LOG_APPEND_TIME_BIT, max_timestamp=5_000)
    assert {record[1] for record in read(whole, 0)} == {5_000}


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
