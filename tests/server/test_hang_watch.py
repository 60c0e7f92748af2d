"""Workers that show no life are found, and no others."""

from __future__ import annotations

import pytest

from korvet.server.supervisor.children import Child
from korvet.server.supervisor.process_pool import LOOK_SECONDS, LOOKS, HangWatch
from korvet.telemetry.process_table import ProcessTable


class Watched:
    """Two workers in the rows 0 and 1 of a real table, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.table = ProcessTable()
        self.workers = [Child(100 + index, index, f"worker-{index}") for index in range(2)]
        for each in self.workers:
            self.table.start(each.index)
            self.table.beat(each.index)
        self.watch = HangWatch(self.table.beats, lambda: self.now)

    def look(self, *beating: int, after: float = LOOK_SECONDS) -> list[str]:
        """Let time pass, in which some rows beat; returns the names of those found then."""
        self.now += after
        for index in beating:
            self.table.beat(index)
        return [child.name for child in self.watch.hung(self.workers)]


@pytest.fixture
def watched() -> Watched:
    """Give two workers that have beaten once."""
    return Watched()


def test_one_that_shows_no_life_is_found_once_and_the_other_never(watched: Watched) -> None:
    found = [watched.look(1) for _ in range(3 * LOOKS)]
    # The first look is the one that the others are compared with.
    assert found == [["worker-0"] if number == LOOKS else [] for number in range(3 * LOOKS)]


def test_one_that_beats_again_begins_anew(watched: Watched) -> None:
    for beating in ((1,), (1,), (1,), (0, 1), (1,), (1,)):
        assert watched.look(*beating) == []
    assert watched.look(1) == ["worker-0"]


def test_one_that_never_showed_life_is_still_starting(watched: Watched) -> None:
    watched.table.start(0)
    assert [watched.look(1) for _ in range(2 * LOOKS)] == [[]] * 2 * LOOKS


def test_another_worker_in_the_row_is_not_taken_for_the_one_before(watched: Watched) -> None:
    for _ in range(LOOKS):
        assert watched.look(1) == []
    watched.workers[0] = Child(300, 0, "worker-0")
    assert watched.look(1) == []


def test_where_the_supervisor_stood_still_too_nobody_is_found(watched: Watched) -> None:
    for _ in range(LOOKS):
        assert watched.look() == []
    assert watched.look(after=3 * LOOK_SECONDS) == []
    assert watched.look(0, 1) == []


def test_nobody_looks_before_it_is_time(watched: Watched) -> None:
    for _ in range(LOOKS):
        assert watched.look(1) == []
    assert watched.look(1, after=LOOK_SECONDS / 2) == []
    assert watched.look(1, after=LOOK_SECONDS / 2) == ["worker-0"]
