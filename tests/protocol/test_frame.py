"""The size prefix and both kinds of header."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import ProtocolError
from korvet.protocol.frame import (
    REQUEST_HEADER_MIN,
    check_frame_size,
    peek_api,
    read_request_header,
    read_size,
    response_frame,
)
from korvet.protocol.schema import RequestHeader


def plain(_key: int, _version: int) -> bool:
    return False


def flexible(_key: int, _version: int) -> bool:
    return True


def unknown(_key: int, _version: int) -> None:
    return None


HEAD = struct.pack(">hhi", 18, 3, -7)


def test_a_plain_header_ends_behind_the_client_id() -> None:
    frame = HEAD + struct.pack(">h", 6) + "caf\N{LATIN SMALL LETTER E WITH ACUTE}s".encode() + b"body"
    header = read_request_header(frame, plain)
    assert header == RequestHeader(18, 3, -7, "caf\N{LATIN SMALL LETTER E WITH ACUTE}s", 16)
    assert frame[header.body :] == b"body"


def test_a_flexible_header_has_a_plain_client_id_and_tagged_fields_to_skip() -> None:
    frame = HEAD + struct.pack(">h", 3) + b"abc" + b"\x01\x05\x02xy" + b"body"
    header = read_request_header(frame, flexible)
    assert header.client_id == "abc"
    assert frame[header.body :] == b"body"


def test_a_null_client_id_is_none_and_an_empty_one_is_empty() -> None:
    assert read_request_header(HEAD + b"\xff\xff", plain) == RequestHeader(18, 3, -7, None, 10)
    assert read_request_header(HEAD + b"\x00\x00\x00", flexible) == RequestHeader(18, 3, -7, "", 11)


def test_key_and_version_decide_what_header_it_is() -> None:
    asked = []

    def ask(key: int, version: int) -> bool:
        asked.append((key, version))
        return False

    read_request_header(HEAD + b"\xff\xff", ask)
    assert asked == [(18, 3)]


def test_the_header_of_an_unknown_version_is_read_up_to_the_client_id() -> None:
    frame = struct.pack(">hhi", 18, 99, 1) + struct.pack(">h", 3) + b"abc"
    assert read_request_header(frame, unknown) == RequestHeader(18, 99, 1, "abc", 13)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_a_header_is_read_from_any_buffer(buffer: type[bytes | bytearray | memoryview]) -> None:
    assert read_request_header(buffer(HEAD + b"\x00\x01a\x00"), flexible).client_id == "a"


def test_a_header_cut_short_anywhere_is_refused() -> None:
    whole = HEAD + b"\x00\x03abc" + b"\x01\x05\x02xy"
    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            read_request_header(whole[:length], flexible)
    assert read_request_header(whole, flexible).body == len(whole)


@pytest.mark.parametrize("length", [b"\xff\xfe", b"\x80\x00"])
def test_a_client_id_of_negative_length_is_null(length: bytes) -> None:
    assert read_request_header(HEAD + length + bytes(100), plain).client_id is None


def test_a_client_id_that_is_no_utf_8_has_replacement_characters_and_a_long_one_is_refused() -> None:
    assert read_request_header(HEAD + b"\0\3a\xff\xfe", plain).client_id == "a\ufffd\ufffd"
    with pytest.raises(ProtocolError, match="not UTF-8") as caught:
        read_request_header(HEAD + struct.pack(">h", 20_000) + b"\xff" * 20_000, plain)
    assert len(str(caught.value)) < 100


@given(st.binary(max_size=100), st.booleans())
def test_random_bytes_are_a_header_or_refused(frame: bytes, is_flexible: bool) -> None:  # noqa: FBT001 - drawn
    try:
        header = read_request_header(frame, flexible if is_flexible else plain)
    except ProtocolError:
        return
    assert REQUEST_HEADER_MIN < header.body <= len(frame)


def test_the_api_is_known_before_the_rest_of_the_frame() -> None:
    assert peek_api(b"size" + HEAD, 4) == (18, 3)
    with pytest.raises(ProtocolError):
        peek_api(HEAD, 1)


def test_a_size_within_the_limit_passes() -> None:
    check_frame_size(REQUEST_HEADER_MIN, 100)
    check_frame_size(100, 100)


@pytest.mark.parametrize("size", [-(2**31), -1, 0, REQUEST_HEADER_MIN - 1, 101, 2**31 - 1])
def test_any_other_size_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes"):
        check_frame_size(size, 100)


def test_the_size_is_an_int32() -> None:
    assert read_size(b"x\xff\xff\xff\xff", 1) == -1
    assert read_size(struct.pack(">i", 104857600)) == 104857600


def test_a_response_is_prefixed_with_size_and_correlation_id() -> None:
    frame = b"".join(response_frame(9, [b"ab", memoryview(b"c")], flexible_header=False))
    assert frame == struct.pack(">ii", 7, 9) + b"abc"


def test_a_flexible_response_header_has_an_empty_block_of_tagged_fields() -> None:
    frame = b"".join(response_frame(-1, [b"abc"], flexible_header=True))
    assert frame == struct.pack(">ii", 8, -1) + b"\x00abc"


def test_the_chunks_of_a_response_are_not_copied() -> None:
    chunk = bytearray(b"records")
    assert response_frame(1, [chunk], flexible_header=True)[1] is chunk
