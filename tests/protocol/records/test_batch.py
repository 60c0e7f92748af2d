"""A produced batch as Python has it; core/proto/tests has what is refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import korvet_core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.batch import HEADER_BYTES, each_record
from korvet.protocol.records.compression import Codec
from tests.support.batches import CODECS, Record, batch, forged, raw, sealed
from tests.support.produced_batches import produced_batch

LIMIT = 1_000_000
DATA = Path(__file__).parents[2] / "data"
RECORDS = st.builds(
    Record,
    value=st.none() | st.binary(max_size=100),
    key=st.none() | st.binary(max_size=20),
    timestamp=st.integers(0, 2**62),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(
        tuple
    ),
)


@given(sent=st.lists(RECORDS, min_size=1, max_size=20), codec=st.sampled_from(CODECS))
def test_every_batch_of_a_producer_passes_and_keeps_its_records(sent: list[Record], codec: int) -> None:
    passed = produced_batch(batch(*sent, codec=codec), LIMIT)
    assert passed.header.record_count == len(sent)
    assert list(each_record(passed.view, 0, LIMIT)) == [
        (offset, record.timestamp, record.key, record.value, list(record.headers))
        for offset, record in enumerate(sent)
    ]
    times = [record.timestamp for record in sent]
    null_keys = sum(record.key is None for record in sent)
    stored, walk = passed.as_stored(LIMIT)
    assert stored is passed
    assert walk == (walk.plain_bytes, min(times), max(times), null_keys)


@given(sent=st.lists(RECORDS, max_size=9))
def test_the_name_of_a_header_may_be_no_utf_8(sent: list[Record]) -> None:
    good = batch(*sent, Record(headers=(("name", b"x"),)))
    name_at = good.rindex(b"name")
    other = sealed(good[:name_at] + b"\xffa\xe2\x82" + good[name_at + 4 :])
    walks = [produced_batch(item, LIMIT).as_stored(LIMIT)[1] for item in (good, other)]
    before, records = (list(each_record(item, 0, LIMIT)) for item in (good, other))
    assert ([record[:4] for record in records], walks[1]) == ([record[:4] for record in before], walks[0])
    assert records[-1][4] == [("\\xffa\\xe2\\x82", b"x")]


GOOD = batch(b"one", b"two")
# What only the records show.
UNREADABLE: list[tuple[str, bytes]] = [
    ("a count below the records, with its delta", forged(GOOD, record_count=1, last_offset_delta=0)),
    ("no compressed data", raw(b"", codec=1)),
    ("plain records called gzip", forged(GOOD, attributes=1)),
    ("plain records called snappy", forged(GOOD, attributes=2)),
    ("plain records called lz4", forged(GOOD, attributes=3)),
    ("plain records called zstd", forged(GOOD, attributes=4)),
    ("a size that lies beside a name in no UTF-8", raw(b"\x1a\0\0\0\x01\x02v\x02\x02\xff\x02v")),
    ("a record of a negative size", raw(b"\x01\0\0\0\x01\x02v\0")),
    ("a value longer than its record", raw(b"\x0e\0\0\0\x01\x7fv\0")),
    ("an endless varint", raw(b"\xff" * 50)),
    ("an offset delta that is not 0", raw(b"\x0e\0\0\x02\x01\x02v\0")),
    ("a count of headers that lies", raw(b"\x16\0\0\0\x01\x02v\xfe\xff\xff\x0f")),
]


@pytest.mark.parametrize(("name", "records"), UNREADABLE)
def test_records_that_cannot_be_read_are_refused(name: str, records: bytes) -> None:
    passed = produced_batch(records, LIMIT)
    with pytest.raises(KafkaError, match=r"^INVALID_RECORD .") as refused:
        passed.as_stored(LIMIT)
    assert refused.value.code == ErrorCode.INVALID_RECORD, name


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_may_come_in_any_kind_of_buffer(kind: type) -> None:
    passed = produced_batch(kind(batch(b"one", b"two")), LIMIT)
    assert passed.as_stored(LIMIT)[0] is passed
    assert len(list(each_record(passed.view, 0, LIMIT))) == 2


@pytest.mark.parametrize("codec", Codec)
def test_batches_of_javas_producer_are_read_and_their_records_written_as_java_does(codec: Codec) -> None:
    """`batches.json` has what the console producer of Kafka 4.2 sent for 40 lines, with each codec, in Base64."""
    golden = json.loads((DATA / "java-4.2" / "batches.json").read_text(encoding="ascii"))
    sent = produced_batch(base64.b64decode(golden[codec.name]), LIMIT)
    assert sent.header.codec == codec
    records = list(each_record(sent.view, 0, LIMIT))
    assert [(record[0], *record[2:]) for record in records] == [
        (number - 1, b"key-%d" % (number % 7), text, [("h", b"%d" % number), ("empty", b"")])
        for number in range(1, 41)
        for text in [b"value %d of a record that repeats, repeats, repeats" % number]
    ]
    one = korvet_core.BatchesBuilder(codec=0, leader_epoch=0, bytes_max=LIMIT, at_least_one=True)
    one.add(records)
    [built] = one.finish()
    assert built[HEADER_BYTES:] == korvet_core.decompress(codec, sent.view[HEADER_BYTES:], LIMIT)
