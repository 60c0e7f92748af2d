"""korvet/lake/decoding.py: records of a stream as Arrow, in both shapes in which they are read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.lake.decoding import records_to_arrow
from korvet.lake.schema import SCHEMA
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.record import StoredRecord
from tests.lake.rows import records_of

CONTENTS = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), CONTENTS), max_size=3)
TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2**42)
RECORDS = st.lists(st.tuples(TIMES, CONTENTS, CONTENTS, HEADERS), max_size=20)


@settings(deadline=None)
@given(RECORDS, st.integers(0, 2**52), st.integers(1, 3))
def test_every_record_is_a_row(
    contents: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    first: int,
    step: int,
) -> None:
    records: list[StoredRecord] = [(first + at * step, *each) for at, each in enumerate(contents)]
    rows = records_to_arrow(2, records)
    rows.validate(full=True)
    assert rows.schema == SCHEMA
    assert records_of(rows) == records
    assert set(rows.column("partition").to_pylist()) <= {2}


@settings(deadline=None)
@given(
    contents=st.lists(
        st.tuples(st.binary(max_size=9), st.binary(max_size=20), st.integers(0, 2**42)), min_size=3
    ),
    keyed=st.booleans(),
    names=st.sampled_from([[], [("a", True)], [("a", True), ("b", False)]]),
)
def test_columns_are_the_same_rows_as_their_records(
    contents: list[tuple[bytes, bytes, int]], *, keyed: bool, names: list[tuple[str, bool]]
) -> None:
    keys = [each[0] for each in contents]
    values = [each[1] for each in contents]
    times = [each[2] for each in contents]
    headers = [(name, values if filled else None) for name, filled in names]
    runs = [range(10, 12), range(1 << 40, (1 << 40) + len(contents) - 2)]
    columns = Columns(runs, times, keys if keyed else None, values, headers)
    rows = records_to_arrow(0, columns)
    rows.validate(full=True)
    assert records_of(rows) == list(columns)
    assert rows.equals(records_to_arrow(0, list(columns)))


def test_the_time_of_the_append_is_told_from_the_producers() -> None:
    records: list[StoredRecord] = [(5, 1000, None, b"v", [])]
    assert records_to_arrow(0, records).column("timestamp_type").to_pylist() == [0]
    assert records_to_arrow(0, records, log_append_time=True).column("timestamp_type").to_pylist() == [1]
