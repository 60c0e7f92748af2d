"""Batches made of columns are the batches made of the same records one by one, at any limit."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from korvet_core import BatchesBuilder

from korvet.protocol.records.columns import Columns
from tests.support.batches import CODECS, headers_of, read

GAPS = st.one_of(st.just(1), st.integers(1, 5), st.integers(1, 2**33))
CONTENTS = st.binary(max_size=30)
OFFSET_DELTA_MAX = 2**31 - 1
LARGE_CONTENTS = st.builds(lambda part, size: part + bytes(size), CONTENTS, st.integers(750, 9000))


@st.composite
def some_columns(draw: Any, values: Any = CONTENTS) -> Columns:
    lengths = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    starts = [draw(st.integers(0, 2**50))]
    for length in lengths[:-1]:
        starts.append(starts[-1] + length + draw(GAPS))
    runs = [range(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    assert all(one.stop < other.start for one, other in pairwise(runs))
    count = sum(lengths)

    def column(each: Any) -> Any:
        return draw(st.lists(each, min_size=count, max_size=count))

    names = draw(st.lists(st.text(max_size=3), max_size=2))
    return Columns(
        runs,
        column(st.integers(0, 2**50)),
        draw(st.sampled_from([None, column(CONTENTS)])),
        column(values),
        [(name, draw(st.sampled_from([None, column(CONTENTS)]))) for name in names],
    )


def test_what_fits_to_the_byte_is_taken_from_columns_and_from_records() -> None:
    columns = Columns([range(3)], [65, 0, 0], [b"", b"key", b"key"], [b"", b"value", b"more"])
    for records in (columns, list(columns)):
        whole = BatchesBuilder(codec=0, leader_epoch=3, bytes_max=10_000, at_least_one=False)
        whole.add(records)
        data = b"".join(whole.finish())
        for size, taken in ((len(data), 3), (len(data) - 1, 2)):
            one = BatchesBuilder(codec=0, leader_epoch=3, bytes_max=size, at_least_one=False)
            one.add(records)
            assert one.record_count == taken


def test_each_pause_of_a_log_begins_a_batch() -> None:
    count = 100
    runs = [range(2**32 * number, 2**32 * number + 2) for number in range(count)]
    one = BatchesBuilder(codec=0, leader_epoch=3, bytes_max=1_000_000, at_least_one=False)
    one.add(Columns(runs, [0] * 2 * count, None, [b"v"] * 2 * count))
    assert [header.record_count for header in headers_of(b"".join(one.finish()))] == [2] * count


def test_columns_and_records_share_a_batch() -> None:
    one = BatchesBuilder(codec=0, leader_epoch=3, bytes_max=1_000_000, at_least_one=False)
    one.add([(6, 5, None, b"before", [])])
    for start in (7, 2000):
        one.add(Columns([range(start, start + 2)], [-1, 1], None, [b"v"] * 2))
    one.add([(3000, 5, None, b"after", [])])
    data = b"".join(one.finish())
    assert [(each.offset, each.timestamp) for each in read(data)] == [
        *[(6, 5), (7, -1), (8, 1), (2000, -1), (2001, 1), (3000, 5)]
    ]
    assert [header.record_count for header in headers_of(data)] == [6]


@pytest.mark.parametrize(
    ("values", "most"), [(CONTENTS, 1500), (LARGE_CONTENTS, 100_000)], ids=["small", "large"]
)
@given(data=st.data(), codec=st.sampled_from(CODECS), flags=st.tuples(st.booleans(), st.booleans()))
def test_columns_make_the_same_batches_as_their_records(
    values: Any, most: int, data: st.DataObject, codec: int, flags: tuple[bool, bool]
) -> None:
    columns = data.draw(some_columns(values))
    bytes_max = data.draw(st.just(most * 10) | st.integers(0, most))
    at_least_one, before = flags
    outcomes = []
    for records in (columns, list(columns)):
        one = BatchesBuilder(codec=codec, leader_epoch=3, bytes_max=bytes_max, at_least_one=at_least_one)
        if before and columns.runs[0].start:
            one.add([(columns.runs[0].start - 1, 5, None, b"before", [])])
            one.begin_epoch(4)  # which ends the batch
        if not one.full:
            one.add(records)
        left = one.plain_bytes_left
        outcomes.append((one.record_count, one.next_offset, one.full, left, b"".join(one.finish())))
    assert outcomes[0] == outcomes[1]


def test_columns_are_records() -> None:
    columns = Columns(
        [range(7, 9), range(20, 21)], [1, 2, 3], [b"a", b"b", b"c"], [b"d", b"e", b""], [("h", None)]
    )
    assert list(columns) == [
        (7, 1, b"a", b"d", [("h", None)]),
        (8, 2, b"b", b"e", [("h", None)]),
        (20, 3, b"c", b"", [("h", None)]),
    ]
    assert (len(columns), columns[1], columns[-1]) == (3, list(columns)[1], list(columns)[2])


@pytest.mark.parametrize(("gap", "batches"), [(OFFSET_DELTA_MAX, 1), (OFFSET_DELTA_MAX + 1, 2)])
def test_columns_are_parted_where_the_delta_leaves_its_32_bits(gap: int, batches: int) -> None:
    runs = [range(7, 8), range(7 + gap, 8 + gap)]
    one = BatchesBuilder(codec=0, leader_epoch=0, bytes_max=10_000, at_least_one=False)
    one.add(Columns(runs, [1, 1], None, [b"v", b"v"]))
    assert (one.record_count, one.next_offset) == (2, 8 + gap)
    assert len(one.finish()) == batches
    assert list(chain.from_iterable(runs)) == [7, 7 + gap]


@given(columns=some_columns(), ends=st.tuples(st.integers(0, 50), st.integers(1, 50)))
def test_a_part_has_the_records_between_two_positions(columns: Columns, ends: tuple[int, int]) -> None:
    start = min(ends[0], len(columns) - 1)
    stop = min(start + ends[1], len(columns))
    part = columns.part(start, stop)
    assert list(part) == list(columns)[start:stop]
    assert len(part) == stop - start
    assert all(part.runs)
