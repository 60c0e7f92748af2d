"""korvet/lake/tasks.py: where archiving goes on, in which ranges, and what of them may be committed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.lake.tasks import (
    RANGE_BYTES_MAX,
    RANGE_BYTES_MIN,
    ArchiveTask,
    OffsetGap,
    OffsetRange,
    PlanError,
    ResumePoint,
    SplitPoint,
    TaskOutcome,
    advance,
    bins,
    range_bytes,
    resume_point,
    split,
)
from korvet.log.types import Bounds, RemoteRange
from korvet.topics.types import Partition

MIB = 1024 * 1024
PARTITION = Partition("t", 0, "id", 10, "batch", "", "", "", "", ("", ""), "", "", "", "")


def resumed(
    next_offset: int | None, local_start: int, end: int, archived: int = 0, *, deleted: bool = False
) -> ResumePoint:
    """Return where archiving resumes; Redis has the log from `local_start` on."""
    remote = None if deleted else RemoteRange(0, local_start, archived)
    return resume_point(Bounds(local_start if deleted else 0, 0, end, -1, archived, remote), next_offset)


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        # A log of which nothing is archived is taken from its start.
        (resumed(None, 7, 20), (7, 7, None)),
        # Archiving goes on where the table ends.
        (resumed(12, 7, 20, archived=10), (12, 12, None)),
        (resumed(20, 20, 20, archived=20), (20, 20, None)),
        # What was deleted is passed over, and what left Redis too soon is reported too.
        (resumed(12, 15, 20, archived=12, deleted=True), (12, 15, None)),
        (resumed(12, 15, 20, archived=12), (12, 15, OffsetGap(12, 15))),
    ],
)
def test_archiving_resumes_where_no_record_is_lost_or_repeated(
    point: ResumePoint, expected: ResumePoint
) -> None:
    assert point == expected


@pytest.mark.parametrize(("next_offset", "holds"), [(None, "nothing"), (9, "it up to 9")])
def test_a_lake_that_holds_less_than_redis_knows_is_another_one(next_offset: int | None, holds: str) -> None:
    with pytest.raises(PlanError, match=f"up to 10 as Redis knows, but this lake holds {holds}"):
        resumed(next_offset, 7, 20, archived=10)


CUTS = [SplitPoint(10 * at, at * MIB) for at in range(1, 10)]


@pytest.mark.parametrize(
    ("first", "end", "cuts", "target", "expected"),
    [
        # Few records are one small range, and none are none.
        (5, SplitPoint(9, 1000), [], RANGE_BYTES_MIN, [OffsetRange(5, 9, 0)]),
        (9, SplitPoint(9, 1000), [], RANGE_BYTES_MIN, []),
        # A backlog is cut where the index knows sizes.
        (
            3,
            SplitPoint(95, 9 * MIB + 5),
            CUTS,
            3 * MIB,
            [OffsetRange(3, 40, 3 * MIB), OffsetRange(40, 70, 3 * MIB), OffsetRange(70, 95, 2 * MIB + 5)],
        ),
    ],
)
def test_a_log_is_cut_into_ranges(
    first: int, end: SplitPoint, cuts: list[SplitPoint], target: int, expected: list[OffsetRange]
) -> None:
    assert split(first, end, cuts, target, 9) == expected


def test_a_round_takes_no_more_ranges_than_it_may_and_none_far_after_the_last_known_cut() -> None:
    result = split(3, SplitPoint(95, 9 * MIB + 5), CUTS, MIB, 2)
    assert result == [OffsetRange(3, 20, MIB), OffsetRange(20, 30, MIB)]
    assert split(3, SplitPoint(1000, 100 * MIB), CUTS, 2 * MIB, 100)[-1].end == 90


@given(
    st.integers(0, 50),
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 2 * MIB)), max_size=30),
    st.integers(1, 5 * MIB),
    st.integers(1, 9),
)
def test_ranges_follow_each_other_without_holes(
    first: int, steps: list[tuple[int, int]], target: int, count_max: int
) -> None:
    cuts, offset, size = [], 0, 0
    for length, more in steps:
        offset, size = offset + length, size + more
        cuts.append(SplitPoint(offset, size))
    end = SplitPoint(offset + 1, size)
    results = split(first, end, cuts, target, count_max)
    assert bool(results) == (first < end.offset)
    assert len(results) <= count_max
    assert [result.first for result in results] == [first, *(result.end for result in results)][
        : len(results)
    ]
    assert all(result.first < result.end <= end.offset for result in results)


def test_the_size_of_ranges_goes_by_the_backlog() -> None:
    assert range_bytes(0, 2) == RANGE_BYTES_MIN
    assert range_bytes(100 * MIB, 2) == 50 * MIB
    assert range_bytes(10_000 * MIB, 2) == RANGE_BYTES_MAX


def outcome(first: int, end: int, next_offset: int) -> TaskOutcome:
    task = ArchiveTask(partition=PARTITION, first=first, end=end, bytes=0, last=False, log_append_time=False)
    return TaskOutcome(task=task, next_offset=next_offset)


@pytest.mark.parametrize(
    ("done", "at", "taken"),
    [
        ([(5, 10, 10), (10, 20, 20)], 20, 2),
        # Only what follows without a hole may be committed.
        ([(5, 10, 8), (10, 20, 20)], 8, 1),
        ([(5, 10, 5), (10, 20, 20)], 5, 0),
        ([], 5, 0),
        # What is passed over is committed with the range after it.
        ([(8, 10, 10)], 10, 1),
    ],
)
def test_what_may_be_committed(done: list[tuple[int, int, int]], at: int, taken: int) -> None:
    outcomes = [outcome(*item) for item in done]
    assert advance(5, outcomes) == (at, outcomes[:taken])


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 8))
def test_every_work_lies_in_one_bin(sizes: list[int], count_max: int) -> None:
    results = bins(sizes, count_max)
    assert sorted(place for result in results for place in result) == list(range(len(sizes)))
    assert len(results) == min(count_max, len(sizes))
    assert all(results)


def test_bins_are_about_equally_full() -> None:
    result = bins([80, 10, 10, 10, 10, 40], 2)
    assert result == [[0], [5, 1, 2, 3, 4]]
