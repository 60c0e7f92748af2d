"""The offset of the last N records of a log whose offsets have gaps of any size."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import example, given
from hypothesis import strategies as st

from korvet.admin.records import offset_of_last


class Log:
    """A log in memory that counts what is read of it."""

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets
        self.read = self.ranges = 0

    def between(self, begin: int, end: int, count_max: int) -> list[int] | None:
        assert begin < end
        found = self.offsets[bisect_left(self.offsets, begin) : bisect_left(self.offsets, end)]
        self.read += min(len(found), count_max + 1)
        self.ranges += 1
        return None if len(found) > count_max else found


# Bursts of records, each at a distance from the one before.
BURSTS = st.lists(st.tuples(st.integers(0, 2**58), st.integers(1, 50)), max_size=20)


@given(bursts=BURSTS, gap=st.integers(0, 2**20), count=st.integers(1, 200))
@example(bursts=[(0, 50)] * 20, gap=0, count=1)
@example(bursts=[], gap=0, count=1)
def test_the_last_records_begin_where_counting_says(
    bursts: list[tuple[int, int]], gap: int, count: int
) -> None:
    offsets: list[int] = []
    for distance, size in bursts:
        first = (offsets[-1] + 1 if offsets else 0) + distance
        offsets += range(first, first + size)
    begin, end = (offsets[0] if offsets else 0), (offsets[-1] + 1 if offsets else 0) + gap
    log = Log(offsets)
    found = offset_of_last(begin, end, count, log.between)
    if count <= len(offsets):
        assert found == offsets[-count]
    else:
        assert found == begin
    assert log.ranges <= 200


def test_dense_offsets_take_one_range() -> None:
    log = Log(list(range(1_000_000)))
    assert offset_of_last(0, 1_000_000, 50, log.between) == 999_950
    assert log.ranges == 1


def test_an_empty_log_begins_where_it_ends() -> None:
    assert offset_of_last(7, 7, 50, Log([]).between) == 7


def test_a_burst_is_not_read_as_a_whole() -> None:
    at = 1_795_000_000_000 << 10
    recent = Log([at + number for number in range(200_000)])
    assert offset_of_last(at, at + 200_000, 50, recent.between) == at + 199_950
    old = Log([*range(1_000_000), 2**50])
    assert offset_of_last(0, 2**50 + 1, 10, old.between) == 999_991
    assert recent.read + old.read < 60_000
    assert recent.ranges + old.ranges < 100
