"""The scoreboard, across a real fork, and the back-off of respawns."""

from __future__ import annotations

import os

from korvet.server.process import Backoff
from korvet.server.supervisor.slot import KEEPER_ROW, OPS_ROW, Scoreboard, State


def test_what_a_forked_child_writes_is_read_by_its_parent() -> None:
    board = Scoreboard()
    board.start(3)
    assert [(row.index, row.state, row.pid) for row in board.workers()] == [(3, State.STARTING, 0)]
    pid = os.fork()
    if pid == 0:
        board.started(3, os.getpid())
        board.set(3, State.ACCEPTING)
        os._exit(0)
    os.waitpid(pid, 0)
    assert [(row.index, row.state, row.pid) for row in board.workers()] == [(3, State.ACCEPTING, pid)]


def test_a_table_is_shared_by_its_file_unless_its_rows_are_other_ones() -> None:
    board = Scoreboard()
    board.start(3)
    same = Scoreboard.shared(os.dup(board.fileno()))
    assert same is not None
    assert same.row(3).state is State.STARTING
    other = os.dup(board.fileno())
    os.ftruncate(other, 4096)
    assert Scoreboard.shared(other) is None
    os.close(other)


def test_ops_and_keeper_are_no_workers() -> None:
    board = Scoreboard()
    for row in (OPS_ROW, KEEPER_ROW):
        board.start(row)
    assert board.workers() == []
    assert board.row(KEEPER_ROW).state is State.STARTING


def test_draining_and_restarts_are_the_supervisors_own() -> None:
    board = Scoreboard()
    board.start(0)
    assert (board.draining, board.restarts) == (False, 0)
    board.set_draining()
    board.count_restart()
    board.count_restart()
    assert (board.draining, board.restarts) == (True, 2)
    assert board.row(0).state is State.STARTING


def test_waits_double_up_to_a_limit() -> None:
    backoff = Backoff()
    assert [backoff.delay_s(0.0) for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    for _ in range(10_000):
        assert backoff.delay_s(0.0) == 10.0


def test_a_life_that_was_long_enough_starts_again_without_a_wait() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.delay_s(0.0)
    assert backoff.delay_s(60.0) == 0.0
    assert backoff.delay_s(0.0) == 0.1


def test_how_long_is_long_enough_depends_on_the_child() -> None:
    backoff = Backoff(lived_s=60.0)
    assert [backoff.delay_s(5.0) for _ in range(3)] == [0.1, 0.2, 0.4]
    assert backoff.delay_s(60.0) == 0.0
