"""The records of a log as Python has them: columns if all have the same fields, else one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.log.record_format import DATA, ProducerRun
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.record import StoredRecord
from tests.support.appends import entry_of
from tests.support.log_replies import LIMIT, Entry, read, records_in, runs_in

BITS = 10
COLUMNS_MIN = 16
"""As many records are columns, fewer are not."""


def records_of(entries: list[Entry]) -> Any:
    outcome = read(entries, BITS)
    assert outcome[4][5] is None, "a value is damaged"
    return records_in(outcome)


def one_by_one(entries: list[Entry]) -> list[StoredRecord]:
    """Read each alone, which is no column."""
    return [record for entry in entries for record in records_of([entry])]


def entry_at(offset: int, fields: list[bytes]) -> Entry:
    return b"%d-%d" % (offset >> BITS, offset & (1 << BITS) - 1), fields


def uniform(*names: bytes, count: int = COLUMNS_MIN) -> list[Entry]:
    return [
        entry_at((7 << BITS) + n, [part for name in names for part in (name, b"%d" % n)])
        for n in range(count)
    ]


STEPS = st.one_of(st.just(1), st.integers(1, 3), st.integers(1, 3 * 2**BITS), st.integers(1, 2**33))
CONTENTS = st.binary(max_size=9)
TIMESTAMPS = st.one_of(st.just(5), st.integers(-(2**63), 2**63 - 1))


@st.composite
def listings(draw: Any) -> tuple[list[Entry], list[StoredRecord]]:
    """Return entries of one layout, and the records that they are."""
    steps = draw(st.lists(STEPS, min_size=COLUMNS_MIN, max_size=30))
    keyed, headers = (
        draw(st.booleans()),
        draw(st.lists(st.tuples(st.text(max_size=3), st.booleans()), max_size=3)),
    )
    codec = draw(st.sampled_from(["none", "lz4", "zstd"]))
    producer = draw(st.sampled_from(["", "7:1"]))
    repeated = b"x" * (0 if codec == "none" else 200)
    entries: list[Entry] = []
    records: list[StoredRecord] = []
    offset = draw(st.integers(0, 2**50))
    for step in steps:
        offset += step
        key, timestamp = draw(CONTENTS) if keyed else None, draw(TIMESTAMPS)
        contents = [(name, None if null else draw(CONTENTS)) for name, null in headers]
        records.append((offset, timestamp, key, repeated + draw(CONTENTS), contents))
        entries.append(entry_at(offset, entry_of(records[-1], codec, producer)))
    return entries, records


@given(listings())
def test_columns_hold_what_the_entries_hold(made: tuple[list[Entry], list[StoredRecord]]) -> None:
    entries, expected = made
    columns = records_of(entries)
    assert isinstance(columns, Columns)
    assert list(columns) == expected == one_by_one(entries)


def test_a_run_goes_on_as_long_as_no_offset_is_missing() -> None:
    sequences = [*range(20), 21]
    columns = records_of([entry_at((7 << BITS) + n, [b"value", b"v", b"timestamp", b"5"]) for n in sequences])
    assert isinstance(columns, Columns)
    start = 7 << BITS
    assert columns.runs == [range(start, start + 20), range(start + 21, start + 22)]


FEW = uniform(b"value", b"timestamp", count=COLUMNS_MIN - 1)
OTHERS: dict[str, list[Entry]] = {
    "too few": FEW,
    "a key in one": [*FEW, (b"8-0", [b"key", b"k", b"value", b"v", b"timestamp", b"5"])],
    "a header in one": [*FEW, (b"8-0", [b"value", b"v", b"timestamp", b"5", b"header.h", b""])],
    "no value": uniform(b"timestamp"),
    "no value in one": [*FEW, (b"8-0", [b"timestamp", b"5"])],
    "another header in one": [
        *uniform(b"value", b"timestamp", b"header.h", count=COLUMNS_MIN - 1),
        (b"8-0", [b"value", b"v", b"timestamp", b"5", b"header.i", b""]),
    ],
    "a header that is null in one": [
        *uniform(b"value", b"timestamp", b"header.h", count=COLUMNS_MIN - 1),
        (b"8-0", [b"value", b"v", b"timestamp", b"5", b"nullheader.h", b""]),
    ],
    "a timestamp of letters": [*FEW, (b"8-0", [b"value", b"v", b"timestamp", b"now"])],
}


@pytest.mark.parametrize("entries", OTHERS.values(), ids=OTHERS)
def test_records_that_differ_in_their_fields_are_tuples(entries: list[Entry]) -> None:
    records = records_of(entries)
    assert isinstance(records, list)
    assert records == one_by_one(entries)


def test_runs_are_of_one_producer_and_each_marker_is_one() -> None:
    def of(count: int, producer: str) -> list[list[bytes]]:
        return [entry_of((0, 5, b"k", b"v", []), producer=producer)] * count

    marker = [b"korvet.marker", b"abort", b"korvet.producer", b"7:0", b"timestamp", b"5"]
    commit = [b"korvet.marker", b"commit", *marker[2:]]
    fields = [*of(2, "7:0"), *of(3, ""), *of(2, "7:0"), *of(1, "7:1"), *of(1, "8:1"), marker, marker, commit]
    outcome = read([entry_at(n, each) for n, each in enumerate(fields)], BITS)
    assert runs_in(outcome) == [
        ProducerRun(0, 2, 7, 0, DATA),
        ProducerRun(5, 7, 7, 0, DATA),
        ProducerRun(7, 8, 7, 1, DATA),
        ProducerRun(8, 9, 8, 1, DATA),
        ProducerRun(9, 10, 7, 0, 0),
        ProducerRun(10, 11, 7, 0, 0),
        ProducerRun(11, 12, 7, 0, 1),
    ]


def test_a_name_that_is_no_text_and_a_value_that_is_damaged_are_served() -> None:
    fields = [b"\xff", b"x", b"value", b"plain", b"korvet.encoding", b"lz4"]
    outcome = read([(b"7-1", fields)], BITS)
    offset = (7 << BITS) + 1
    headers = [("\\xff", b"x"), ("korvet.encoding", b"lz4")]
    assert records_in(outcome) == [(offset, 7, None, b"plain", headers)]
    assert outcome[4][5] == (offset, "lz4")
    large = entry_of((0, 5, None, bytes(LIMIT), []), "zstd")
    assert read([(b"7-1", large)], BITS)[4][5] is None
    assert read([(b"7-1", large)], BITS, limit=LIMIT - 1)[4][5] == (offset, "zstd")
