"""Frames: what Python gets of a request's size and header (core/proto/tests has the rules), and those of responses."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from korvet_core import request_header

from korvet.errors import ProtocolError
from korvet.protocol.frame import response_frame
from tests.protocol import fetch_frames

HEAD = struct.pack(">hhi", 18, 3, -7)
OF_THE_CORE = Path(__file__).parents[2] / "core/proto/tests/fetch_frames.txt"


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_a_header_is_read_from_any_buffer(buffer: type[bytes | bytearray | memoryview]) -> None:
    frame = buffer(HEAD + b"\x00\x01a\x01\x05\x02xybody")
    assert request_header(frame, {18: 3}) == (18, 3, -7, "a", 16)
    assert request_header(frame, {18: 4, 3: 3}) == (18, 3, -7, "a", 11)
    with pytest.raises(ProtocolError, match="a frame of 9 bytes ends within its request header"):
        request_header(frame[:9], {})


def test_a_client_id_may_be_null() -> None:
    assert request_header(HEAD + b"\xff\xff", {}) == (18, 3, -7, None, 10)


@given(st.binary(max_size=20))
def test_a_client_id_that_is_no_utf_8_is_read_as_python_reads_it(client_id: bytes) -> None:
    frame = HEAD + struct.pack(">h", len(client_id)) + client_id
    assert request_header(frame, {})[3] == client_id.decode(errors="replace")


def test_a_response_is_prefixed_with_size_and_correlation_id() -> None:
    frame = b"".join(response_frame(9, [b"ab", memoryview(b"c")], flexible_header=False))
    assert frame == struct.pack(">ii", 7, 9) + b"abc"


def test_a_flexible_response_header_has_an_empty_block_of_tagged_fields() -> None:
    frame = b"".join(response_frame(-1, [b"abc"], flexible_header=True))
    assert frame == struct.pack(">ii", 8, -1) + b"\x00abc"


def test_the_chunks_of_a_response_are_not_copied() -> None:
    chunk = bytearray(b"records")
    assert response_frame(1, [chunk], flexible_header=True)[1] is chunk


def test_the_frames_that_the_core_is_tested_with_are_those_of_the_declarations() -> None:
    made = fetch_frames.lines(Random(fetch_frames.SEED), fetch_frames.OF_EACH_VERSION)
    assert OF_THE_CORE.read_text(encoding="utf-8").splitlines() == list(made)
