"""korvet/lake/decoding.py: numbers and the lengths of records, against the encoder of Python's aiokafka."""

from __future__ import annotations

import numpy as np
import pytest
from aiokafka.record.util import encode_varint
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.lake.decoding import read_varint, read_varints, record_spans

NUMBERS = st.integers(-(2**63), 2**63 - 1)


def encoded(numbers: list[int]) -> tuple[bytes, list[int]]:
    """Return the numbers' bytes after each other, and where each begins."""
    out = bytearray()
    at = []
    for number in numbers:
        at.append(len(out))
        encode_varint(number, out.append)
    return bytes(out), at


@settings(deadline=None)
@given(st.lists(NUMBERS | st.integers(-70, 70), min_size=1))
def test_many_numbers_are_read_at_once(numbers: list[int]) -> None:
    data, at = encoded(numbers)
    values, after = read_varints(np.frombuffer(data, dtype=np.uint8), np.array(at))
    assert values.tolist() == numbers
    assert after.tolist() == [*at[1:], len(data)]


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1))
def test_one_number_is_read_by_itself(numbers: list[int]) -> None:
    data, at = encoded(numbers)
    ends = [*at[1:], len(data)]
    assert [read_varint(data, start, len(data)) for start in at] == list(zip(numbers, ends, strict=True))


def test_a_number_longer_than_64_bits_is_refused() -> None:
    data = b"\xff" * 10 + b"\x01"
    with pytest.raises(ValueError, match="ten bytes"):
        read_varints(np.frombuffer(data, dtype=np.uint8), np.array([0]))
    with pytest.raises(ValueError, match="ten bytes"):
        read_varint(data, 0, len(data))


def test_a_number_cut_off_is_refused() -> None:
    with pytest.raises(IndexError):
        read_varints(np.frombuffer(b"\x80", dtype=np.uint8), np.array([0]))
    with pytest.raises(ValueError, match="cut off"):
        read_varint(b"\x80", 0, 1)
    with pytest.raises(ValueError, match="leaves its record"):
        read_varint(b"\x01", 1, 1)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 1, 62, 63, 64, 100, 8191, 8192, 20_000]), max_size=20))
def test_records_are_found_by_their_lengths(sizes: list[int]) -> None:
    out = bytearray()
    expected = []
    for size in sizes:
        encode_varint(size, out.append)
        expected.append((len(out), len(out) + size))
        out += bytes(size)
    starts, ends = record_spans(bytes(out), 0, len(out))
    assert list(zip(starts, ends, strict=True)) == expected


@pytest.mark.parametrize(
    "data", [b"\x04a", b"\x04abc\x02", b"\x01a", b"\x81\x01" + b"a" * 200, b"\xff" * 11, b"\x80"]
)
def test_lengths_that_do_not_fill_the_batch_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        record_spans(data, 0, len(data))
