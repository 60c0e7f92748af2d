"""Kafka's codecs: exact, bounded against any claim of the data, and damage is an error."""

from __future__ import annotations

import gzip
import random
import struct
from typing import Any, cast

import cramjam
import korvet_core
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.compression import Codec, refusals
from tests.support import batches

COMPRESSED = [codec for codec in Codec if codec != Codec.none]
LIMIT = 100_000


def decompress(codec: int, data: bytes, limit: int) -> bytes:
    with refusals():
        return korvet_core.decompress(codec, data, limit)


def code_of(codec: int, data: bytes, limit: int = LIMIT) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        decompress(codec, data, limit)
    return refused.value.code


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=3000))
def test_what_was_compressed_comes_back(codec: Codec, data: bytes) -> None:
    assert decompress(codec, korvet_core.compress(codec, data), LIMIT) == data
    assert decompress(codec, batches.compress(codec, data), LIMIT) == data


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [1, 1000, 300_000, 5_000_000])
def test_the_limit_is_exact(codec: Codec, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    packed = batches.compress(codec, data)
    assert decompress(codec, packed, size) == data
    assert code_of(codec, packed, size - 1) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", COMPRESSED)
def test_data_that_is_cut_off_is_invalid(codec: Codec) -> None:
    packed = batches.compress(codec, bytes(range(256)) * 20)
    for length in (1, 5, len(packed) // 2, len(packed) - 1):
        assert code_of(codec, packed[:length]) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.snappy, Codec.zstd, Codec.lz4])
def test_no_data_is_invalid(codec: Codec) -> None:
    assert code_of(codec, b"") == ErrorCode.INVALID_RECORD


def outcome(codec: int, data: bytes) -> ErrorCode:
    """Return how an attempt ends; any other exception fails the test."""
    try:
        assert len(decompress(codec, data, LIMIT)) <= LIMIT
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


ORDERLY = {ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE}


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_data_or_refused(codec: Codec, data: bytes) -> None:
    assert outcome(codec, data) in ORDERLY


@pytest.mark.parametrize("codec", COMPRESSED)
@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_changed_byte_is_no_error_of_ours(codec: Codec, place: int, value: int) -> None:
    packed = bytearray(batches.compress(codec, b"some text that repeats, " * 50))
    packed[place % len(packed)] = value
    assert outcome(codec, bytes(packed)) in ORDERLY


@pytest.mark.parametrize("number", [5, 6, 7, -1])
def test_a_number_that_is_no_codec_is_unsupported(number: int) -> None:
    assert code_of(number, b"data") == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_gzip_may_have_several_members_and_the_limit_is_on_their_sum() -> None:
    members = gzip.compress(b"a" * 100) + gzip.compress(b"b" * 100)
    assert decompress(Codec.gzip, members, 200) == b"a" * 100 + b"b" * 100
    assert code_of(Codec.gzip, members, 199) == ErrorCode.MESSAGE_TOO_LARGE


def test_gzip_members_may_end_anywhere() -> None:
    parts = [
        random.Random(size).randbytes(size) for size in (0, 1, 900, 1000, 1001, 1024, 5000, 0, 0, 30_000, 7)
    ]
    members = b"".join(gzip.compress(part) for part in parts) + gzip.compress(b"") * 900
    assert decompress(Codec.gzip, members, LIMIT) == b"".join(parts)
    assert code_of(Codec.gzip, members[:-1]) == ErrorCode.INVALID_RECORD


PIECES_MAX = 1000
PIECES = {
    "gzip members": (Codec.gzip, gzip.compress(b"")),
    "zstd frames": (Codec.zstd, zstandard.compress(b"")),
    "zstd frames of a large window": (Codec.zstd, b"\x28\xb5\x2f\xfd\x00\x88\x01\x00\x00"),
}


@pytest.mark.parametrize("name", PIECES)
def test_a_batch_has_a_bounded_number_of_pieces_that_may_be_empty(name: str) -> None:
    codec, piece = PIECES[name]
    assert decompress(codec, piece * PIECES_MAX, LIMIT) == b""
    assert code_of(codec, piece * (PIECES_MAX + 1)) == ErrorCode.INVALID_RECORD


def lz4_frame(data: bytes, **options: Any) -> bytes:
    return cast("bytes", lz4.frame.compress(data, **options))


TEXT = b"some text that repeats, " * 10_000
LZ4_FRAMES = {
    "linked blocks": lz4_frame(TEXT, block_linked=True),
    "independent blocks": lz4_frame(TEXT, block_linked=False),
    "large blocks": lz4_frame(TEXT, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
    "checksums": lz4_frame(TEXT, content_checksum=True, block_checksum=True),
    "no size": lz4_frame(TEXT, store_size=False),
    "the best compression": lz4_frame(TEXT, compression_level=12),
    "no compression": lz4_frame(random.Random(1).randbytes(len(TEXT))),
}


@pytest.mark.parametrize("name", LZ4_FRAMES)
def test_an_lz4_frame_of_any_kind_is_read_to_its_end_and_no_further(name: str) -> None:
    frame = LZ4_FRAMES[name]
    assert decompress(Codec.lz4, frame, len(TEXT)) == lz4.frame.decompress(frame)
    assert code_of(Codec.lz4, frame, len(TEXT) - 1) == ErrorCode.MESSAGE_TOO_LARGE
    # librdkafka reads no batch with more after its frame, and Java none without the end of it.
    skippable = struct.pack("<II", 0x184D2A50, 0)
    for wrong in (frame + b"\0", frame + frame, skippable + frame, frame[:-1], frame[:-4]):
        assert code_of(Codec.lz4, wrong, len(TEXT)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("place", [4, 5, 14, 19, 30, -1])
def test_an_lz4_frame_with_checksums_of_which_a_byte_changed_is_invalid(place: int) -> None:
    frame = bytearray(LZ4_FRAMES["checksums"])
    frame[place] ^= 1
    assert code_of(Codec.lz4, bytes(frame), len(TEXT)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01"])
def test_a_snappy_block_that_claims_a_huge_size_is_refused(size: bytes) -> None:
    block = size + b"\x00a"
    framed = batches.xerial() + struct.pack(">I", len(block)) + block
    for data in (block, framed):
        assert code_of(Codec.snappy, data) in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD)


def test_an_lz4_frame_that_claims_a_huge_size_is_refused() -> None:
    # Magic, a descriptor that says 2^40 bytes of content with its checksum, a block of one byte, the end.
    claim = bytes.fromhex("04224d184840000000000001000022")
    assert code_of(Codec.lz4, claim + b"\x01\x00\x00\x80a" + bytes(4)) == ErrorCode.INVALID_RECORD


def test_zstd_frames_may_hide_their_size_and_follow_each_other() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    data = compressor.compress(b"a" * 1000) + compressor.compress(b"b" * 1000)
    assert decompress(Codec.zstd, data, 2000) == b"a" * 1000 + b"b" * 1000
    assert code_of(Codec.zstd, data, 1999) == ErrorCode.MESSAGE_TOO_LARGE


def test_a_zstd_frame_that_claims_a_huge_size_allocates_nothing_of_it() -> None:
    # Magic, a descriptor for 8 bytes of content size in a single segment, the size, and nothing more.
    claim = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40)
    assert code_of(Codec.zstd, claim) in (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)


def test_snappy_comes_raw_or_in_the_blocks_of_java() -> None:
    blocks = [b"a" * 40_000, b"b" * 40_000]
    assert decompress(Codec.snappy, batches.xerial(*blocks), 80_000) == b"".join(blocks)
    assert code_of(Codec.snappy, batches.xerial(*blocks), 79_999) == ErrorCode.MESSAGE_TOO_LARGE
    assert decompress(Codec.snappy, bytes(cramjam.snappy.compress_raw(b"c")), 1) == b"c"


@pytest.mark.parametrize(
    "tail", [b"\0", b"\0\0\0\x10", b"\0\0\0\x10abc", b"\xff\xff\xff\xff", b"\0\0\0\x02\xff\xff"]
)
def test_a_block_of_java_that_lies_is_invalid(tail: bytes) -> None:
    assert code_of(Codec.snappy, batches.xerial(b"good") + tail) == ErrorCode.INVALID_RECORD
