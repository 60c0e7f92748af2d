"""The newest records of a log, wherever its offsets have gaps."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from korvet.console.records import newest

OFFSETS = st.sets(st.one_of(st.integers(0, 3000), st.integers(0, 2**62)), max_size=300)


class Log:
    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets
        self.looks = 0

    def between(self, begin: int, end: int, most: int) -> list[int] | None:
        assert begin < end
        self.looks += 1
        found = self.offsets[bisect_left(self.offsets, begin) : bisect_left(self.offsets, end)]
        return None if len(found) > most else found


@given(offsets=OFFSETS, count=st.integers(1, 200), behind=st.integers(1, 2**20))
def test_it_begins_at_the_first_of_the_last_records(offsets: set[int], count: int, behind: int) -> None:
    log = Log(sorted(offsets))
    start, end = (min(offsets), max(offsets) + behind) if offsets else (5, 5 + behind)
    begin = newest(start, end, count, log.between)
    assert log.offsets[bisect_left(log.offsets, begin) :] == log.offsets[-count:]
    assert log.looks <= 100


def test_dense_offsets_take_one_look() -> None:
    log = Log(list(range(1_000_000)))
    assert newest(0, 1_000_000, 50, log.between) == 999_950
    assert log.looks == 1


def test_an_empty_log_begins_where_it_ends() -> None:
    assert newest(7, 7, 50, Log([]).between) == 7


def test_a_burst_of_records_is_not_read_whole() -> None:
    at = 1_795_000_000_000 << 10
    log = Log([at + number for number in range(200_000)])
    assert newest(at, at + 200_000, 50, log.between) == at + 199_950
    assert log.looks < 20
