"""Which workers hang, and which rows of the table children have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from korvet.config.settings import Settings
from korvet.server.supervisor.child import READY_NOTE
from korvet.server.supervisor.process_pool import (
    HANG_CHECK_SECONDS,
    HANG_CHECKS,
    Child,
    HangWatch,
    ProcessPool,
    Slot,
)
from korvet.server.supervisor.rollout import Rollout
from korvet.telemetry.process_table import ProcessState, ProcessTable


class Watched:
    """Two workers in the rows 0 and 1 of a real table, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.table = ProcessTable()
        self.workers = [Child(100 + index, index, f"worker-{index}") for index in range(2)]
        for worker in self.workers:
            self.table.start(worker.row)
            self.table.beat(worker.row)
        self.watch = HangWatch(self.table, self.now)

    def check(self, *beating: int, after: float = HANG_CHECK_SECONDS) -> list[str]:
        """Let time pass, in which some rows beat; returns the names of those found then."""
        self.now += after
        for index in beating:
            self.table.beat(index)
        return [child.name for child in self.watch.hung(self.workers, self.now)]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_hung_worker_is_found_once_and_the_other_never(watched: Watched) -> None:
    result = [watched.check(1) for _ in range(3 * HANG_CHECKS)]
    # The others are compared with the first check.
    assert result == [["worker-0"] if number == HANG_CHECKS else [] for number in range(3 * HANG_CHECKS)]


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


def test_none_is_found_before_a_check_is_due_or_if_the_supervisor_did_not_run_either(
    watched: Watched,
) -> None:
    for _ in range(HANG_CHECKS):
        assert watched.check() == []
    assert watched.check(after=3 * HANG_CHECK_SECONDS) == []
    for beating in ((0, 1), *((1,),) * (HANG_CHECKS - 1)):
        assert watched.check(*beating) == []
    assert watched.check(1, after=HANG_CHECK_SECONDS / 2) == []
    assert watched.check(1, after=HANG_CHECK_SECONDS / 2) == ["worker-0"]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ProcessPool]:
    """Give a pool of two workers, whose processes exist by their ids only."""
    pids = count(2**30)
    monkeypatch.setattr(os, "fork", lambda: next(pids))
    monkeypatch.setattr(os, "kill", lambda _pid, _signal: None)
    slots = [Slot(lambda _settings, _link: None) for _ in range(2)]
    pool = ProcessPool(slots, Settings(), tmp_path)
    pool.fill()
    yield pool
    pool.close()


def die(pool: ProcessPool, slot: Slot) -> None:
    assert slot.child is not None
    child = pool.living.pop(slot.child.pid)
    pool.table.set(child.row, ProcessState.EMPTY)
    pool.on_exit(child, "signal SIGKILL")


def rows_of(pool: ProcessPool) -> dict[int, str]:
    return {row.index: row.state.name for row in pool.table.workers()}


def test_a_dead_worker_is_replaced_in_its_own_row(pool: ProcessPool) -> None:
    first, second = pool.slots
    die(pool, first)
    die(pool, second)
    assert rows_of(pool) == {0: "DEAD", 1: "DEAD"}
    for slot in (second, first):
        slot.respawn_at = 0.0
        pool.act_on_deadlines()
    assert rows_of(pool) == {0: "STARTING", 1: "STARTING"}
    assert [slot.child.row for slot in pool.slots if slot.child] == [0, 1]


def test_a_child_is_running_as_soon_as_it_reports_and_not_again_once_it_drains(pool: ProcessPool) -> None:
    first, second = pool.living.values()
    pool.table.set(second.row, ProcessState.DRAINING)
    for child in (first, second):
        os.write(pool._note_fd, READY_NOTE.pack(child.pid))
    assert pool.newly_ready() == [first, second]
    assert rows_of(pool) == {0: "ACCEPTING", 1: "DRAINING"}


def test_a_worker_that_dies_before_its_successor_is_ready_leaves_no_row(pool: ProcessPool) -> None:
    first = pool.slots[0]
    rollout = Rollout(pool, [first])
    rollout.start()
    die(pool, first)
    successor = pool.living[max(pool.living)]
    rollout.on_ready(successor)
    assert first.child is successor
    assert rows_of(pool) == {1: "STARTING", 2: "STARTING"}


def test_a_successor_in_the_row_of_the_dead_is_not_removed_with_it(pool: ProcessPool) -> None:
    first = pool.slots[0]
    die(pool, first)
    rollout = Rollout(pool, [first])
    rollout.start()
    first.respawn_at = 0.0
    pool.act_on_deadlines()
    assert rows_of(pool) == {0: "STARTING", 1: "STARTING", 2: "STARTING"}
