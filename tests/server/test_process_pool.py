"""Which workers hang."""

from __future__ import annotations

import pytest

from korvet.server.supervisor.process_pool import HANG_CHECK_SECONDS, HANG_CHECKS, Child, HangWatch
from korvet.telemetry.process_table import ProcessTable


class Watched:
    """Two workers in the rows 0 and 1 of a real table, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.table = ProcessTable()
        self.workers = [Child(100 + index, index, f"worker-{index}") for index in range(2)]
        for each in self.workers:
            self.table.start(each.row)
            self.table.beat(each.row)
        self.watch = HangWatch(self.table.beats, lambda: self.now)

    def check(self, *beating: int, after: float = HANG_CHECK_SECONDS) -> list[str]:
        """Let time pass, in which some rows beat; returns the names of those found then."""
        self.now += after
        for index in beating:
            self.table.beat(index)
        return [child.name for child in self.watch.hung(self.workers)]


@pytest.fixture
def watched() -> Watched:
    """Give two workers that have beaten once."""
    return Watched()


def test_a_hung_worker_is_found_once_and_the_other_never(watched: Watched) -> None:
    found = [watched.check(1) for _ in range(3 * HANG_CHECKS)]
    # The others are compared with the first check.
    assert found == [["worker-0"] if number == HANG_CHECKS else [] for number in range(3 * HANG_CHECKS)]


def test_one_that_beats_again_is_healthy_again(watched: Watched) -> None:
    for beating in ((1,), (1,), (1,), (0, 1), (1,), (1,)):
        assert watched.check(*beating) == []
    assert watched.check(1) == ["worker-0"]


def test_a_worker_without_a_beat_is_still_starting(watched: Watched) -> None:
    watched.table.start(0)
    assert [watched.check(1) for _ in range(2 * HANG_CHECKS)] == [[]] * 2 * HANG_CHECKS


def test_another_worker_in_the_row_is_not_taken_for_its_predecessor(watched: Watched) -> None:
    for _ in range(HANG_CHECKS):
        assert watched.check(1) == []
    watched.workers[0] = Child(300, 0, "worker-0")
    assert watched.check(1) == []


def test_none_is_found_if_the_supervisor_did_not_run_either(watched: Watched) -> None:
    for _ in range(HANG_CHECKS):
        assert watched.check() == []
    assert watched.check(after=3 * HANG_CHECK_SECONDS) == []
    assert watched.check(0, 1) == []


def test_none_is_found_before_a_check_is_due(watched: Watched) -> None:
    for _ in range(HANG_CHECKS):
        assert watched.check(1) == []
    assert watched.check(1, after=HANG_CHECK_SECONDS / 2) == []
    assert watched.check(1, after=HANG_CHECK_SECONDS / 2) == ["worker-0"]
