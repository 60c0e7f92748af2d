"""The records of a log as Python has them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from korvet.lake.decoding import to_arrow
from korvet.protocol.records.record import StoredRecord
from tests.lake.rows import records_of as records_of_rows
from tests.support.appends import entry_of
from tests.support.log_replies import Entry, read

BITS = 10


def records_of(entries: list[Entry]) -> list[StoredRecord]:
    result = read(entries, BITS)
    assert result.damaged is None, "a value is damaged"
    return result.records()


def one_by_one(entries: list[Entry]) -> list[StoredRecord]:
    """Read each alone."""
    return [record for entry in entries for record in records_of([entry])]


def entry_at(offset: int, fields: list[bytes]) -> Entry:
    return b"%d-%d" % (offset >> BITS, offset & (1 << BITS) - 1), fields


STEPS = st.one_of(st.just(1), st.integers(1, 3), st.integers(1, 3 * 2**BITS), st.integers(1, 2**33))
CONTENTS = st.binary(max_size=9)
TIMESTAMPS = st.one_of(st.just(5), st.integers(-(2**63), 2**63 - 1))


@st.composite
def listings(draw: Any) -> tuple[list[Entry], list[StoredRecord]]:
    """Return entries of one layout, and the records that they are."""
    steps = draw(st.lists(STEPS, min_size=1, max_size=30))
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
def test_records_and_rows_hold_what_the_entries_hold(made: tuple[list[Entry], list[StoredRecord]]) -> None:
    entries, expected = made
    assert records_of(entries) == expected == one_by_one(entries)
    rows = to_arrow(0, read(entries, BITS))
    rows.validate(full=True)
    assert records_of_rows(rows) == expected
