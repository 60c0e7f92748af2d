"""The checks of a produced batch, without a broker: what passes, what is refused, and that nothing else happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.batch import HEADER, HEADER_BYTES, BatchHeader, patched_header, produced_batch
from tests.support.batches import CODECS, Record, batch, forged, raw, read

LIMIT = 1_000_000
RECORDS = st.builds(
    Record,
    value=st.none() | st.binary(max_size=100),
    key=st.none() | st.binary(max_size=20),
    timestamp=st.integers(0, 2**62),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(
        tuple
    ),
)


@settings(max_examples=150, deadline=None)
@given(sent=st.lists(RECORDS, min_size=1, max_size=20), codec=st.sampled_from(CODECS))
def test_every_batch_of_a_producer_passes_and_keeps_its_records(sent: list[Record], codec: int) -> None:
    passed = produced_batch(batch(*sent, codec=codec), LIMIT)
    assert passed.header.record_count == len(sent)
    got = [
        Record(each.value, each.key, each.timestamp, tuple(each.headers)) for each in passed.records(LIMIT)
    ]
    assert got == [each._replace(offset=-1) for each in sent]


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=150))
def test_any_bytes_are_refused_with_a_code(data: bytes) -> None:
    with pytest.raises(KafkaError):
        produced_batch(data, LIMIT)


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


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_header_that_lies_is_refused_with_a_code_or_the_records_are_right(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3, unique=True))
    lie = {name: data.draw(FIELDS[name]) for name in names}
    try:
        records = produced_batch(forged(batch(b"one", b"two"), **lie), LIMIT).records(LIMIT)
    except KafkaError:
        return
    assert [each.value for each in records] == [b"one", b"two"]


@settings(max_examples=400, deadline=None)
@given(payload=st.binary(max_size=60), count=st.integers(1, 5))
def test_records_that_lie_are_refused_with_a_code(payload: bytes, count: int) -> None:
    code = ErrorCode.NONE
    try:
        assert len(produced_batch(raw(payload, count=count), LIMIT).records(LIMIT)) == count
    except KafkaError as error:
        code = error.code
    assert code in (ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def test_a_count_is_refused_by_the_header_alone_where_so_many_records_have_no_room() -> None:
    smallest = b"\x0c\0\0\0\x01\x01\0"
    assert len(produced_batch(raw(smallest), LIMIT).records(LIMIT)) == 1
    with pytest.raises(KafkaError) as refused:
        produced_batch(raw(smallest, count=2), LIMIT)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_may_come_in_any_kind_of_buffer(kind: type) -> None:
    assert len(produced_batch(kind(batch(b"one", b"two")), LIMIT).records(LIMIT)) == 2


@pytest.mark.parametrize("codec", CODECS)
def test_the_limits_are_on_the_batch_as_sent_and_on_its_records_uncompressed(codec: int) -> None:
    sent = batch(b"x" * 5000, codec=codec)
    with pytest.raises(KafkaError) as refused:
        produced_batch(sent, len(sent) - 1)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    passed = produced_batch(sent, len(sent))
    with pytest.raises(KafkaError) as refused:
        passed.records(4999)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert [each.value for each in passed.records(6000)] == [b"x" * 5000]


@pytest.mark.parametrize("before", CODECS)
@pytest.mark.parametrize("after", CODECS)
def test_a_batch_in_another_codec_is_the_same_batch(before: int, after: int) -> None:
    sent = [Record(b"x" * 3000, b"k", 5), Record(None, b"", 6, (("h", None),))]
    passed = produced_batch(batch(*sent, codec=before, producer_id=3, epoch=1, sequence=9), LIMIT)
    changed = passed.recompressed(after, LIMIT)
    again = produced_batch(bytes(changed.view), LIMIT)
    assert again.header == changed.header
    assert (again.header.codec, again.header.producer_id, again.header.base_sequence) == (after, 3, 9)
    assert read(bytes(changed.view)) == [each._replace(offset=n) for n, each in enumerate(sent)]


def test_the_brokers_fields_are_patched_and_the_checksum_holds() -> None:
    original = batch(b"one", b"two")
    header = BatchHeader._make(HEADER.unpack_from(original))
    patched = patched_header(header, 2**52, 7) + original[HEADER_BYTES:]
    changed = BatchHeader._make(HEADER.unpack_from(patched))
    assert changed == header._replace(base_offset=2**52, partition_leader_epoch=7)
    assert [each.offset for each in read(patched)] == [2**52, 2**52 + 1]
