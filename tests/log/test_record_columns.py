"""Entries read as columns are what they are when read one by one, or are left to that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.log.record_format import (
    ENTRIES_MIN,
    MARKER,
    Entry,
    compress,
    entry_args,
    read_columns,
    read_entries,
)
from korvet.protocol.records.columns import Columns
from korvet.topics.types import AtRest
from tests.support.batches import Record

BITS = 10
END = 2**53
LIMIT = 1 << 20
PLAIN = AtRest("none")


def no_damage(offset: int, encoding: str) -> None:
    raise AssertionError(f"offset {offset} is damaged: {encoding}")


def columns(entries: list[Entry], end: int = END) -> Columns | None:
    return read_columns(entries, BITS, end, LIMIT)


def one_by_one(entries: list[Entry]) -> list[Any]:
    return read_entries(entries, BITS, END, LIMIT, no_damage)


def fields_of(number: int, *names: bytes) -> list[bytes]:
    return [part for name in names for part in (name, b"%d" % number)]


def uniform(*names: bytes, count: int = ENTRIES_MIN) -> list[Entry]:
    return [(b"7-%d" % number, fields_of(number, *names)) for number in range(count)]


STEPS = st.one_of(st.just(1), st.integers(1, 3), st.integers(1, 3 * 2**BITS), st.integers(1, 2**33))
CONTENTS = st.binary(max_size=9)
TIMESTAMPS = st.one_of(st.just(5), st.integers(0, 10**18 - 1))


@st.composite
def listings(draw: Any) -> list[Entry]:
    steps = draw(st.lists(STEPS, min_size=ENTRIES_MIN, max_size=30))
    keyed, headers = (
        draw(st.booleans()),
        draw(st.lists(st.tuples(st.text(max_size=3), st.booleans()), max_size=3)),
    )
    at_rest = draw(st.sampled_from([PLAIN, AtRest("lz4", 0), AtRest("zstd", 0)]))
    repeated = b"x" * (0 if at_rest is PLAIN else 200)
    entries: list[Entry] = []
    offset = draw(st.integers(0, 2**50))
    for step in steps:
        offset += step
        record: Any = Record(
            repeated + draw(CONTENTS),
            draw(CONTENTS) if keyed else None,
            draw(TIMESTAMPS),
            tuple((name, None if null else draw(CONTENTS)) for name, null in headers),
        )
        args: Any = entry_args(record, at_rest)
        entries.append((b"%d-%d" % (offset >> BITS, offset & (1 << BITS) - 1), args))
    return entries


@settings(max_examples=100, deadline=None)
@given(entries=listings())
def test_columns_hold_what_the_entries_hold(entries: list[Entry]) -> None:
    found = columns(entries)
    assert found is not None
    assert list(found) == one_by_one(entries)
    assert len(found) == len(entries)
    assert found[3:5] == one_by_one(entries)[3:5]
    assert found[-1] == one_by_one(entries)[-1]


@pytest.mark.parametrize("first", [990, 9_999_990])
def test_a_millisecond_of_one_digit_more_is_no_obstacle(first: int) -> None:
    ids = [(first + n // 9, n % 9) for n in range(300)]
    entries = [(b"%d-%d" % pair, fields_of(1, b"value", b"timestamp")) for pair in ids]
    found = columns(entries)
    assert found is not None
    assert list(found) == one_by_one(entries)


@pytest.mark.parametrize("sequence", [9, 99, 999])
def test_a_sequence_of_one_digit_more_is_in_the_same_run(sequence: int) -> None:
    entries = [
        (b"7-%d" % n, fields_of(1, b"value", b"timestamp")) for n in range(sequence - 8, sequence + 10)
    ]
    found = columns(entries)
    assert found is not None
    assert found.runs == [range((7 << BITS) + sequence - 8, (7 << BITS) + sequence + 10)]


def test_ids_with_a_gap_and_one_too_many_are_not_taken_for_a_run() -> None:
    sequences = [*range(20), 21]
    entries = [(b"7-%d" % n, fields_of(1, b"value", b"timestamp")) for n in sequences]
    found = columns(entries)
    assert found is not None
    assert [record[0] - (7 << BITS) for record in found] == sequences


FEW = uniform(b"value", b"timestamp", count=ENTRIES_MIN - 1)
SAME = uniform(b"value", b"timestamp")
FRAME = compress(b"x" * 1000, "lz4")
assert FRAME is not None
LEFT_ALONE: dict[str, list[Entry]] = {
    "too few": FEW,
    "another name in one": [*FEW, (b"8-0", fields_of(1, b"value", b"header.timestamp"))],
    "more fields in one": [*FEW, (b"8-0", fields_of(1, b"value", b"timestamp", b"header.h"))],
    "as many fields in sum": [
        *FEW[:-2],
        (b"8-0", fields_of(1, b"value", b"timestamp", b"value")),
        (b"8-1", fields_of(1, b"timestamp")),
        *FEW[-1:],
    ],
    "no value": uniform(b"timestamp"),
    "no timestamp": uniform(b"key", b"value"),
    "only keys": uniform(b"key"),
    "a key that is not the first": uniform(b"value", b"key", b"timestamp"),
    "a field of others": uniform(b"value", b"timestamp", b"colour"),
    "a null header that is not empty": uniform(b"value", b"timestamp", b"nullheader.h"),
    "a negative timestamp": [*FEW, (b"8-0", [b"value", b"v", b"timestamp", b"-1"])],
    "a timestamp of 19 digits": [*FEW, (b"8-0", [b"value", b"v", b"timestamp", b"9" * 19])],
    "a timestamp of letters": [*FEW, (b"8-0", [b"value", b"v", b"timestamp", b"now"])],
    "a sequence without an offset": [*FEW, (b"8-1024", fields_of(1, b"value", b"timestamp"))],
    "a value that does not decompress": [
        *[(b"7-%d" % n, [b"value", FRAME, b"timestamp", b"1", MARKER, b"lz4"]) for n in range(15)],
        (b"8-0", [b"value", FRAME[:-5], b"timestamp", b"1", MARKER, b"lz4"]),
    ],
}


@pytest.mark.parametrize("entries", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_is_not_of_one_layout_is_left_to_be_looked_at_one_by_one(entries: list[Entry]) -> None:
    assert columns(entries) is None


def test_entries_at_or_past_the_end_are_left_too() -> None:
    last = (7 << BITS) + ENTRIES_MIN - 1
    assert columns(SAME, last + 1) is not None
    assert columns(SAME, last) is None


@pytest.mark.parametrize(
    "broken", [b"", (b"8-0", None), (b"8-0", 5), (b"x-1", SAME[0][1]), (b"8", SAME[0][1]), (8, SAME[0][1])]
)
def test_what_is_no_answer_to_xrange_raises(broken: Any) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, IndexError)):
        columns([*FEW, broken])
