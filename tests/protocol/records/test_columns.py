"""Batches made of columns are the batches made of the same records one by one, at any limit."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from korvet_core import BatchesBuilder

from korvet.protocol.records.record import StoredRecord
from tests.support.batches import CODECS, headers_of, read

GAPS = st.one_of(st.just(1), st.integers(1, 5), st.integers(1, 2**33))
CONTENTS = st.binary(max_size=30)
OFFSET_DELTA_MAX = 2**31 - 1
LARGE_CONTENTS = st.builds(lambda part, size: part + bytes(size), CONTENTS, st.integers(750, 9000))

Columns = tuple[list[int], list[int], list[bytes] | None, list[bytes]]
"""Offsets, timestamps, keys and values."""


@st.composite
def some_columns(draw: Any, values: Any = CONTENTS) -> Columns:
    lengths = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    starts = [draw(st.integers(0, 2**50))]
    for length in lengths[:-1]:
        starts.append(starts[-1] + length + draw(GAPS))
    runs = [range(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    assert all(one.stop < other.start for one, other in pairwise(runs))
    count = sum(lengths)

    def column(item: Any) -> Any:
        return draw(st.lists(item, min_size=count, max_size=count))

    keys = draw(st.sampled_from([None, column(CONTENTS)]))
    return [*chain.from_iterable(runs)], column(st.integers(0, 2**50)), keys, column(values)


def records_of(columns: Columns) -> list[StoredRecord]:
    offsets, timestamps, keys, values = columns
    each_key = [None] * len(values) if keys is None else keys
    return [(*item, []) for item in zip(offsets, timestamps, each_key, values, strict=True)]


def builder(bytes_max: int, *, codec: int = 0, at_least_one: bool = False) -> BatchesBuilder:
    return BatchesBuilder(codec=codec, leader_epoch=3, bytes_max=bytes_max, at_least_one=at_least_one)


def test_what_fits_to_the_byte_is_taken_from_columns_and_from_records() -> None:
    columns: Columns = [0, 1, 2], [65, 0, 0], [b"", b"key", b"key"], [b"", b"value", b"more"]
    whole = builder(10_000)
    whole.add(records_of(columns))
    data = b"".join(whole.finish())
    for size, taken in ((len(data), 3), (len(data) - 1, 2)):
        one, other = builder(size), builder(size)
        one.add_columns(*columns)
        other.add(records_of(columns))
        assert (one.record_count, other.record_count) == (taken, taken)


def test_each_pause_of_a_log_begins_a_batch() -> None:
    count = 100
    offsets = [2**32 * number + at for number in range(count) for at in range(2)]
    one = builder(1_000_000)
    one.add_columns(offsets, [0] * 2 * count, None, [b"v"] * 2 * count)
    assert [header.record_count for header in headers_of(b"".join(one.finish()))] == [2] * count


def test_columns_and_records_share_a_batch() -> None:
    one = builder(1_000_000)
    one.add([(6, 5, None, b"before", [])])
    for start in (7, 2000):
        one.add_columns([start, start + 1], [-1, 1], None, [b"v"] * 2)
    one.add([(3000, 5, None, b"after", [])])
    data = b"".join(one.finish())
    assert [(batch.offset, batch.timestamp) for batch in read(data)] == [
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
    first = columns[0][0]
    outcomes = []
    for by_columns in (True, False):
        one = builder(bytes_max, codec=codec, at_least_one=at_least_one)
        if before and first:
            one.add([(first - 1, 5, None, b"before", [])])
            one.begin_epoch(4)  # which ends the batch
        if not one.full:
            if by_columns:
                one.add_columns(*columns)
            else:
                one.add(records_of(columns))
        left = one.plain_bytes_left
        outcomes.append((one.record_count, one.next_offset, one.full, left, b"".join(one.finish())))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(("gap", "batches"), [(OFFSET_DELTA_MAX, 1), (OFFSET_DELTA_MAX + 1, 2)])
def test_columns_are_parted_where_the_delta_leaves_its_32_bits(gap: int, batches: int) -> None:
    one = builder(10_000)
    one.add_columns([7, 7 + gap], [1, 1], None, [b"v", b"v"])
    assert (one.record_count, one.next_offset) == (2, 8 + gap)
    assert len(one.finish()) == batches
