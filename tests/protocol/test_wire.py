"""Unsigned varints and tagged fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import ProtocolError
from korvet.protocol.wire import (
    TAGGED_FIELDS_MAX,
    decode_tag_count,
    decode_varint,
    encode_varint,
    skip_tagged_fields,
    unsigned_varint,
)
from tests.protocol import reference


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (0, b"\x00"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (16383, b"\xff\x7f"),
        (16384, b"\x80\x80\x01"),
        (2**32 - 1, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_a_varint_is_written_and_read(value: int, content: bytes) -> None:
    assert encode_varint(value) == unsigned_varint(value) == content
    assert decode_varint(b"x" + content + b"y", 1) == (value, 1 + len(content))


@given(st.integers(0, 2**32 - 1))
def test_any_varint_comes_back(value: int) -> None:
    content = encode_varint(value)
    assert content == reference.varint(value)
    for buffer in (content, bytearray(content), memoryview(content)):
        assert decode_varint(buffer, 0) == (value, len(content))


@pytest.mark.parametrize("content", [b"\xff\xff\xff\xff\x10", b"\xff\xff\xff\xff\x7f", b"\x80" * 5 + b"\x01"])
def test_a_varint_longer_than_32_bits_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError, match="longer than 32 bits"):
        decode_varint(content, 0)


def test_a_varint_that_ends_too_early_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        decode_varint(b"\x80\x80", 0)


def test_tagged_fields_are_skipped() -> None:
    block = b"\x02" + b"\x00\x03abc" + b"\xac\x02\x00"
    assert skip_tagged_fields(b"x" + block + b"y", 1) == 1 + len(block)
    assert skip_tagged_fields(b"\x00", 0) == 1


def test_a_tagged_field_behind_the_end_is_refused() -> None:
    assert skip_tagged_fields(b"\x01\x00\x03abc", 0) == 6
    with pytest.raises(ProtocolError, match="ends at byte 7 of a frame of 6 bytes"):
        skip_tagged_fields(b"\x01\x00\x04abc", 0)


def test_a_block_of_too_many_tagged_fields_is_refused() -> None:
    assert decode_tag_count(unsigned_varint(TAGGED_FIELDS_MAX), 0) == (TAGGED_FIELDS_MAX, 2)
    with pytest.raises(ProtocolError, match="tagged fields has length 1025"):
        skip_tagged_fields(unsigned_varint(TAGGED_FIELDS_MAX + 1) + bytes(4096), 0)
