"""Batches that Korvet compressed: in the framing that each client reads, even Java's, the strictest."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kafka.record import MemoryRecords as KafkaPythonRecords

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.batch import HEADER_BYTES, sealed
from korvet.protocol.records.compression import Codec
from tests.support.batches import CODECS, Record, batch, read, xerial
from tests.support.produced_batches import produced_batch

LIMIT = 1 << 24
# Several blocks of every codec: lz4's are 64 KiB, snappy-java's 32 KiB.
RECORDS = [
    Record(b"%d " % n * 400, b"key %d" % n, 5 + n, (("n", b"%d" % n), ("null", None))) for n in range(300)
]


def payload(codec: int, *records: Record) -> bytes:
    changed = produced_batch(batch(*(records or RECORDS)), LIMIT).as_stored(LIMIT, codec=codec)[0]
    return bytes(changed.view[HEADER_BYTES:])


@pytest.mark.parametrize("before", CODECS)
@pytest.mark.parametrize("after", CODECS)
def test_both_python_clients_read_a_batch_in_its_new_codec(before: int, after: int) -> None:
    changed = produced_batch(batch(*RECORDS, codec=before), LIMIT).as_stored(LIMIT, codec=after)[0]
    expected = [record._replace(offset=n) for n, record in enumerate(RECORDS)]
    assert read(bytes(changed.view)) == expected
    batches: Any = KafkaPythonRecords(bytes(changed.view))
    result = batches.next_batch()
    assert result.validate_crc()
    assert result.compression_type == after
    assert [Record(r.value, r.key, r.timestamp, tuple(r.headers), r.offset) for r in result] == expected
    assert not batches.has_next()


def test_lz4_frames_have_independent_blocks_and_nothing_that_java_refuses() -> None:
    magic, flags = struct.unpack_from("<IB", payload(Codec.lz4))
    assert magic == 0x184D2204
    version, independent = flags >> 6, flags >> 5 & 1
    reserved, dictionary = flags >> 1 & 1, flags & 1
    assert (version, independent, reserved, dictionary) == (1, 1, 0, 0)


def test_snappy_lies_in_the_blocks_of_snappy_java() -> None:
    data = payload(Codec.snappy)
    assert data[:8] == b"\x82SNAPPY\x00"
    version, compatible = struct.unpack_from(">ii", data, 8)
    assert (version, compatible) == (1, 1)
    position = 16
    while position < len(data):
        position += 4 + int(struct.unpack_from(">I", data, position)[0])
    assert position == len(data)


def test_gzip_and_zstd_open_with_their_magic_numbers() -> None:
    assert payload(Codec.gzip)[:3] == b"\x1f\x8b\x08"
    assert payload(Codec.zstd)[:4] == b"\x28\xb5\x2f\xfd"


@pytest.mark.parametrize("blocks", [1, 5])
def test_a_batch_of_snappy_java_can_be_recompressed(blocks: int) -> None:
    plain = batch(*RECORDS)
    body = plain[HEADER_BYTES:]
    size = -(-len(body) // blocks)
    packed = xerial(*(body[at : at + size] for at in range(0, len(body), size)))
    produced = produced_batch(plain, LIMIT)
    sent = produced_batch(sealed(produced.header._replace(attributes=Codec.snappy), packed), LIMIT)
    assert bytes(sent.as_stored(LIMIT, codec=Codec.none)[0].view) == plain


@pytest.mark.parametrize("codec", CODECS[1:])
def test_only_so_much_is_decompressed_as_is_allowed(codec: int) -> None:
    plain = batch(*RECORDS)
    body = len(plain) - HEADER_BYTES
    sent = produced_batch(batch(*RECORDS, codec=codec), LIMIT)
    assert bytes(sent.as_stored(body, codec=Codec.none)[0].view) == plain
    with pytest.raises(KafkaError) as refused:
        sent.as_stored(body - 1, codec=Codec.none)[0]
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_batch_that_does_not_decompress_is_invalid(codec: int) -> None:
    produced = produced_batch(batch(b"x" * 5000), LIMIT)
    sent = produced_batch(sealed(produced.header._replace(attributes=codec), b"garbage"), LIMIT)
    with pytest.raises(KafkaError) as refused:
        sent.as_stored(LIMIT, codec=Codec.none)
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_all_of_the_header_but_length_codec_and_checksum_stays() -> None:
    sent = produced_batch(batch(*RECORDS, producer_id=2**40, epoch=7, sequence=2**31 - 5), LIMIT)
    changed = sent.as_stored(LIMIT, codec=Codec.zstd)[0].header
    kept = changed._replace(
        batch_length=sent.header.batch_length, crc=sent.header.crc, attributes=sent.header.attributes
    )
    assert kept == sent.header
    assert changed.codec == Codec.zstd
