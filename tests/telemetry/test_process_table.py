"""The table, across a real fork, and the back-off of respawns."""

from __future__ import annotations

import os

from korvet.telemetry.process_table import KEEPER_ROW, OPS_ROW, ProcessState, ProcessTable


def test_what_a_forked_child_writes_is_read_by_its_parent() -> None:
    table = ProcessTable()
    table.start(3)
    assert [(row.index, row.state, row.pid) for row in table.workers()] == [(3, ProcessState.STARTING, 0)]
    pid = os.fork()
    if pid == 0:
        table.started(3, os.getpid())
        table.set(3, ProcessState.ACCEPTING)
        os._exit(0)
    os.waitpid(pid, 0)
    assert [(row.index, row.state, row.pid) for row in table.workers()] == [(3, ProcessState.ACCEPTING, pid)]


def test_ops_and_keeper_are_no_workers() -> None:
    table = ProcessTable()
    for row in (OPS_ROW, KEEPER_ROW):
        table.start(row)
    assert table.workers() == []
    assert table.row(KEEPER_ROW).state is ProcessState.STARTING


def test_draining_and_restarts_are_the_supervisors_own() -> None:
    table = ProcessTable()
    table.start(0)
    assert (table.draining, table.restarts) == (False, 0)
    table.set_draining()
    table.count_restart()
    table.count_restart()
    assert (table.draining, table.restarts) == (True, 2)
    assert table.row(0).state is ProcessState.STARTING
