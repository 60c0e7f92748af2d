"""Unsigned varints and tagged fields, as the core reads them (korvet_core.skip_tagged_fields)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from korvet_core import skip_tagged_fields

from korvet.errors import ProtocolError
from tests.protocol.reference import varint


@given(st.integers(0, 2**32 - 1), st.binary(max_size=9))
def test_tagged_fields_are_skipped(tag: int, content: bytes) -> None:
    block = b"\x02" + varint(tag) + varint(len(content)) + content + b"\xac\x02\x00"
    for buffer in (bytes, bytearray, memoryview):
        assert skip_tagged_fields(buffer(b"x" + block + b"y"), 1) == 1 + len(block)
    for end in range(len(block)):
        with pytest.raises(ProtocolError, match="ends at byte"):
            skip_tagged_fields(block[:end], 0)


@pytest.mark.parametrize("content", [b"\xff\xff\xff\xff\x10", b"\xff\xff\xff\xff\x7f", b"\x80" * 5 + b"\x01"])
def test_a_varint_longer_than_32_bits_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError, match="longer than 32 bits"):
        skip_tagged_fields(content, 0)


def test_a_tagged_field_that_ends_past_the_frame_is_refused() -> None:
    assert skip_tagged_fields(b"\x01\x00\x03abc", 0) == 6
    with pytest.raises(ProtocolError, match="ends at byte 7 of a frame of 6 bytes"):
        skip_tagged_fields(b"\x01\x00\x04abc", 0)


def test_a_block_of_too_many_tagged_fields_is_refused() -> None:
    assert skip_tagged_fields(varint(1024) + bytes(2048), 0) == 2 + 2048
    with pytest.raises(ProtocolError, match="tagged fields has length 1025"):
        skip_tagged_fields(varint(1025) + bytes(4096), 0)
