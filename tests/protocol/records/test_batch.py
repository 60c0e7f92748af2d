"""The checks of a produced batch, without a broker: what passes, what is refused, and that nothing else happens."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import korvet_core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.batch import HEADER_BYTES, produced_batch
from korvet.protocol.records.compression import Codec
from tests.support.batches import CODECS, Record, batch, forged, old_message, raw, sealed
from tests.support.refusals import refusal

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
    records, walk = passed.decode(LIMIT)
    assert records == [
        (offset, record.timestamp, record.key, record.value, list(record.headers))
        for offset, record in enumerate(sent)
    ]
    times = [record.timestamp for record in sent]
    null_keys = sum(record.key is None for record in sent)
    assert walk == passed.as_stored(LIMIT)[1] == (walk.plain_bytes, min(times), max(times), null_keys)


@given(sent=st.lists(RECORDS, max_size=9))
def test_the_name_of_a_header_may_be_no_utf_8(sent: list[Record]) -> None:
    good = batch(*sent, Record(headers=(("name", b"x"),)))
    name_at = good.rindex(b"name")
    other = sealed(good[:name_at] + b"\xffa\xe2\x82" + good[name_at + 4 :])
    records, walk = produced_batch(other, LIMIT).decode(LIMIT)
    before, walk_before = produced_batch(good, LIMIT).decode(LIMIT)
    assert ([record[:4] for record in records], walk) == ([record[:4] for record in before], walk_before)
    assert records[-1][4] == [("\\xffa\\xe2\\x82", b"x")]


@given(data=st.binary(max_size=150))
def test_any_bytes_are_refused_with_a_code(data: bytes) -> None:
    with pytest.raises(KafkaError):
        produced_batch(data, LIMIT)


GOOD = batch(b"one", b"two")
CONTROL, TRANSACTIONAL = 0x20, 0x10
CORRUPT, INVALID = ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH
REFUSED: list[tuple[str, bytes, ErrorCode]] = [
    ("magic 0", old_message(b"v", 0), INVALID),
    ("magic 1", old_message(b"v", 1), INVALID),
    ("magic 3", forged(GOOD, magic=3), CORRUPT),
    ("magic -1", forged(GOOD, magic=-1), CORRUPT),
    ("no bytes", b"", INVALID),
    ("a header cut off", GOOD[:40], INVALID),
    ("records cut off", GOOD[:-1], INVALID),
    ("another CRC", forged(GOOD, crc=1), CORRUPT),
    ("a flipped bit", GOOD[:-2] + bytes([GOOD[-2] ^ 1]) + GOOD[-1:], CORRUPT),
    ("a length below the header's", forged(GOOD, batch_length=48), CORRUPT),
    ("a negative length", forged(GOOD, batch_length=-1), CORRUPT),
    ("a length beyond the bytes", forged(GOOD, batch_length=10**6), INVALID),
    ("two batches", GOOD + GOOD, INVALID),
    ("bytes after the batch", GOOD + b"\0", INVALID),
    ("no records", raw(b"", count=0), INVALID),
    ("a negative count", forged(GOOD, record_count=-1, last_offset_delta=-2), INVALID),
    ("a count below the records", forged(GOOD, record_count=1), INVALID),
    ("a count above the records", forged(GOOD, record_count=3, last_offset_delta=2), INVALID),
    ("the largest count", forged(GOOD, record_count=2**31 - 1, last_offset_delta=2**31 - 2), INVALID),
    ("another last delta", forged(GOOD, last_offset_delta=5), INVALID),
    ("control records", forged(GOOD, attributes=CONTROL), INVALID),
    ("a transaction without a producer", forged(GOOD, attributes=TRANSACTIONAL), INVALID),
    ("an unknown codec", forged(GOOD, attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ("a producer without sequence", forged(GOOD, producer_id=1, producer_epoch=0), INVALID),
    ("a producer without epoch", forged(GOOD, producer_id=1, base_sequence=0), FENCED),
    ("a negative producer", forged(GOOD, producer_id=-2), INVALID),
]
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


@pytest.mark.parametrize(("name", "records", "code"), REFUSED)
def test_a_batch_that_its_header_refutes_is_refused(name: str, records: bytes, code: ErrorCode) -> None:
    with pytest.raises(KafkaError, match=f"^{code.name} .") as refused:
        produced_batch(records, LIMIT)
    assert refused.value.code == code, name


@pytest.mark.parametrize(("name", "records"), UNREADABLE)
def test_records_that_cannot_be_read_are_refused(name: str, records: bytes) -> None:
    passed = produced_batch(records, LIMIT)
    for read_all in (passed.as_stored, passed.decode):
        with pytest.raises(KafkaError, match=r"^INVALID_RECORD .") as refused:
            read_all(LIMIT)
        assert refused.value.code == ErrorCode.INVALID_RECORD, name


FIELDS = {
    "base_offset": st.integers(-(2**63), 2**63 - 1),
    "batch_length": st.integers(-(2**31), 2**31 - 1),
    "magic": st.integers(-128, 127),
    "attributes": st.integers(-(2**15), 2**15 - 1),
    "last_offset_delta": st.integers(-(2**31), 2**31 - 1),
    "base_timestamp": st.integers(-(2**63), 2**63 - 1),
    "max_timestamp": st.integers(-(2**63), 2**63 - 1),
    "producer_id": st.integers(-(2**63), 2**63 - 1),
    "producer_epoch": st.integers(-(2**15), 2**15 - 1),
    "base_sequence": st.integers(-(2**31), 2**31 - 1),
    "record_count": st.integers(-(2**31), 2**31 - 1),
}


@given(data=st.data())
def test_a_header_that_lies_is_refused_with_a_code_or_the_records_are_right(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3, unique=True))
    lie = {name: data.draw(FIELDS[name]) for name in names}
    try:
        records, _ = produced_batch(forged(batch(b"one", b"two"), **lie), LIMIT).decode(LIMIT)
    except KafkaError:
        return
    assert [value for _, _, _, value, _ in records] == [b"one", b"two"]


@given(payload=st.binary(max_size=60), count=st.integers(1, 5))
def test_records_that_lie_are_refused_with_a_code(payload: bytes, count: int) -> None:
    code = ErrorCode.NONE
    try:
        assert len(produced_batch(raw(payload, count=count), LIMIT).decode(LIMIT)[0]) == count
    except KafkaError as error:
        code = error.code
    assert code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD)


def test_a_count_is_refused_by_the_header_alone_where_so_many_records_have_no_room() -> None:
    smallest = b"\x0c\0\0\0\x01\x01\0"
    assert produced_batch(raw(smallest), LIMIT).as_stored(LIMIT)[1].plain_bytes == len(smallest)
    assert refusal(produced_batch, raw(smallest, count=2), LIMIT) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_may_come_in_any_kind_of_buffer(kind: type) -> None:
    assert len(produced_batch(kind(batch(b"one", b"two")), LIMIT).decode(LIMIT)[0]) == 2


@pytest.mark.parametrize("codec", CODECS)
def test_the_limits_are_on_the_batch_as_sent_and_on_its_records_uncompressed(codec: int) -> None:
    sent = batch(b"x" * 5000, codec=codec)
    assert refusal(produced_batch, sent, len(sent) - 1) == ErrorCode.MESSAGE_TOO_LARGE
    passed = produced_batch(sent, len(sent))
    size = passed.as_stored(6000)[1].plain_bytes
    for read_all in (passed.as_stored, passed.decode):
        assert refusal(read_all, size - 1) == ErrorCode.MESSAGE_TOO_LARGE
    [record] = passed.decode(size)[0]
    assert record[3] == b"x" * 5000


@pytest.mark.parametrize("codec", Codec)
def test_batches_of_javas_producer_are_read_and_their_records_written_as_java_does(codec: Codec) -> None:
    """`batches.json` has what the console producer of Kafka 4.2 sent for 40 lines, with each codec, in Base64."""
    golden = json.loads((DATA / "java-4.2" / "batches.json").read_text(encoding="ascii"))
    sent = produced_batch(base64.b64decode(golden[codec.name]), LIMIT)
    assert sent.header.codec == codec
    records, walk = sent.decode(LIMIT)
    assert sent.as_stored(LIMIT)[1] == walk
    assert [(record[0], *record[2:]) for record in records] == [
        (number - 1, b"key-%d" % (number % 7), text, [("h", b"%d" % number), ("empty", b"")])
        for number in range(1, 41)
        for text in [b"value %d of a record that repeats, repeats, repeats" % number]
    ]
    one = korvet_core.BatchesBuilder(codec=0, leader_epoch=0, bytes_max=LIMIT, at_least_one=True)
    one.add(records)
    [built] = one.finish()
    assert built[HEADER_BYTES:] == korvet_core.decompress(codec, sent.view[HEADER_BYTES:], LIMIT)
