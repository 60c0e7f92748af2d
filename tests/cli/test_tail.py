"""The last records of a log whose offsets have gaps, found in logs made up of any gaps."""

from __future__ import annotations

import asyncio
from bisect import bisect_left

from hypothesis import example, given
from hypothesis import strategies as st

from korvet.cli.consume import Span, last_records

STRETCHES_MAX = 200


class Log:
    """A log in memory that counts what is read of it."""

    def __init__(self, offsets: list[int]) -> None:
        self.all = offsets
        self.read = self.stretches = 0

    async def offsets(self, begin: int, end: int, count_max: int) -> list[int] | None:
        found = self.all[bisect_left(self.all, begin) : bisect_left(self.all, end)]
        self.read += min(len(found), count_max + 1)
        self.stretches += 1
        return None if len(found) > count_max else found


def last(log: Log, span: Span, count: int) -> int:
    return asyncio.run(last_records(log, span, count))


# Bursts of records, each so far behind the one before.
BURSTS = st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 50)), max_size=20)


@given(bursts=BURSTS, behind=st.integers(0, 2**20), count=st.integers(1, 200))
@example(bursts=[(0, 50)] * 20, behind=0, count=1)
@example(bursts=[], behind=0, count=1)
def test_the_last_records_begin_where_counting_says(
    bursts: list[tuple[int, int]], behind: int, count: int
) -> None:
    offsets: list[int] = []
    for gap, size in bursts:
        first = (offsets[-1] + 1 if offsets else 0) + gap
        offsets += range(first, first + size)
    end = (offsets[-1] + 1 if offsets else 0) + behind
    span = Span(offsets[0] if offsets else 0, end)
    log = Log(offsets)
    found = last(log, span, count)
    assert found == (offsets[-count] if count <= len(offsets) else span.begin)
    assert log.stretches <= STRETCHES_MAX


def test_a_burst_long_ago_is_not_read_as_a_whole() -> None:
    offsets = [*range(1_000_000), 2**50]
    log = Log(offsets)
    assert last(log, Span(0, 2**50 + 1), 10) == 999_991
    assert log.read < 60_000
    assert log.stretches <= STRETCHES_MAX
