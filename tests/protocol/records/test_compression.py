"""Kafka's codecs: exact, bounded against any claim of the data, and damage is an error."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.compression import PIECES_MAX, Codec, check_size, compress, decompress
from tests.support import batches

COMPRESSED = [codec for codec in Codec if codec != Codec.none]
LIMIT = 100_000


def code_of(
    codec: int, data: bytes, limit: int = LIMIT, check: Callable[[int, bytes, int], object] = decompress
) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        check(codec, data, limit)
    return refused.value.code


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=3000))
def test_what_was_compressed_comes_back(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), LIMIT) == data
    assert decompress(codec, batches.compress(codec, data), LIMIT) == data


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [1, 1000, 300_000, 5_000_000])
def test_the_limit_is_exact(codec: Codec, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    packed = batches.compress(codec, data)
    assert decompress(codec, packed, size) == data
    check_size(codec, packed, size)
    for check in (decompress, check_size):
        assert code_of(codec, packed, size - 1, check) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", COMPRESSED)
def test_data_that_is_cut_off_is_corrupt(codec: Codec) -> None:
    packed = batches.compress(codec, bytes(range(256)) * 20)
    for length in (1, 5, len(packed) // 2, len(packed) - 1):
        assert code_of(codec, packed[:length]) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [Codec.snappy, Codec.zstd, Codec.lz4])
def test_no_data_is_corrupt(codec: Codec) -> None:
    assert code_of(codec, b"") == ErrorCode.CORRUPT_MESSAGE


def outcome(codec: int, data: bytes) -> ErrorCode:
    """Return how an attempt ends; any other exception fails the test."""
    try:
        assert len(decompress(codec, data, LIMIT)) <= LIMIT
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


ORDERLY = {ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE}


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
    members = b"".join(gzip.compress(part) for part in parts) + gzip.compress(b"") * 3000
    assert decompress(Codec.gzip, members, LIMIT) == b"".join(parts)
    assert code_of(Codec.gzip, members[:-1]) == ErrorCode.CORRUPT_MESSAGE


def zstd_blocks(block: bytes, count: int) -> bytes:
    """Return a frame of such blocks and an empty last one; its header says nothing but a window of 2 MiB."""
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (count - 1) + b"\x01\x00\x00"


EMPTY_BLOCK, BLOCK_OF_ONE = bytes(3), b"\x0a\x00\x00a"
PIECES: dict[str, tuple[Codec, Callable[[int], bytes]]] = {
    "gzip members": (Codec.gzip, lambda count: gzip.compress(b"") * count),
    "zstd frames": (Codec.zstd, lambda count: zstd_blocks(b"", 1) * count),
    "zstd frames of a large window": (
        Codec.zstd,
        lambda count: b"\x28\xb5\x2f\xfd\x00\x88\x01\x00\x00" * count,
    ),
    "zstd blocks": (Codec.zstd, lambda count: zstd_blocks(EMPTY_BLOCK, count)),
    "zstd blocks of a byte": (Codec.zstd, lambda count: zstd_blocks(BLOCK_OF_ONE, count)),
    "snappy blocks": (Codec.snappy, lambda count: batches.xerial(*[b""] * count)),
    "snappy blocks of a byte": (Codec.snappy, lambda count: batches.xerial(*[b"a"] * count)),
}


@pytest.mark.parametrize("name", PIECES)
def test_a_batch_has_a_bounded_number_of_pieces_that_may_be_empty(name: str) -> None:
    codec, make = PIECES[name]
    assert len(decompress(codec, make(PIECES_MAX), LIMIT)) in (0, PIECES_MAX - 1, PIECES_MAX)
    assert code_of(codec, make(PIECES_MAX + 1)) == ErrorCode.CORRUPT_MESSAGE


def test_what_follows_the_first_lz4_frame_is_left_alone() -> None:
    empty, skippable = lz4.frame.compress(b""), struct.pack("<II", 0x184D2A50, 0)
    data = lz4.frame.compress(b"a")
    assert decompress(Codec.lz4, data + empty * 50_000, LIMIT) == b"a"
    assert decompress(Codec.lz4, data + skippable * 50_000, LIMIT) == b"a"


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01"])
def test_a_snappy_block_that_claims_a_huge_size_is_refused(size: bytes) -> None:
    block = size + b"\x00a"
    framed = batches.xerial() + struct.pack(">I", len(block)) + block
    for data in (block, framed):
        assert code_of(Codec.snappy, data) in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE)


def test_an_lz4_frame_that_claims_a_huge_size_is_refused() -> None:
    # Magic, a descriptor that says 2^40 bytes of content with its checksum, a block of one byte, the end.
    claim = bytes.fromhex("04224d184840000000000001000022")
    assert code_of(Codec.lz4, claim + b"\x01\x00\x00\x80a" + bytes(4)) == ErrorCode.CORRUPT_MESSAGE


def test_zstd_frames_may_hide_their_size_and_follow_each_other() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    data = compressor.compress(b"a" * 1000) + compressor.compress(b"b" * 1000)
    assert decompress(Codec.zstd, data, 2000) == b"a" * 1000 + b"b" * 1000
    assert code_of(Codec.zstd, data, 1999) == ErrorCode.MESSAGE_TOO_LARGE


def test_a_zstd_frame_that_claims_a_huge_size_allocates_nothing_of_it() -> None:
    # Magic, a descriptor for 8 bytes of content size in a single segment, the size, and nothing more.
    claim = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40)
    assert code_of(Codec.zstd, claim) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


def test_lz4_blocks_of_every_size_and_without_checksums_are_read() -> None:
    data = bytes(range(256)) * 2000
    for size in (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB):
        packed = lz4.frame.compress(data, block_size=size, store_size=False, block_linked=False)
        assert decompress(Codec.lz4, packed, len(data)) == data


def test_snappy_comes_raw_or_in_the_blocks_of_java() -> None:
    blocks = [b"a" * 40_000, b"b" * 40_000]
    assert decompress(Codec.snappy, batches.xerial(*blocks), 80_000) == b"".join(blocks)
    assert code_of(Codec.snappy, batches.xerial(*blocks), 79_999) == ErrorCode.MESSAGE_TOO_LARGE
    assert decompress(Codec.snappy, bytes(cramjam.snappy.compress_raw(b"c")), 1) == b"c"


@pytest.mark.parametrize(
    "tail", [b"\0", b"\0\0\0\x10", b"\0\0\0\x10abc", b"\xff\xff\xff\xff", b"\0\0\0\x02\xff\xff"]
)
def test_a_block_of_java_that_lies_is_corrupt(tail: bytes) -> None:
    assert code_of(Codec.snappy, batches.xerial(b"good") + tail) == ErrorCode.CORRUPT_MESSAGE
