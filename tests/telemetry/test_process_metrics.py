"""The broker's processes: their table, across a real fork, and what they use, from /proc of real ones."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from korvet.telemetry.process_metrics import ProcessCollector
from korvet.telemetry.process_table import (
    ARCHIVER_ROW,
    KEEPER_ROW,
    LAKE_ROW,
    OPS_ROW,
    ProcessState,
    ProcessTable,
)


def test_a_process_is_shown_with_its_start_memory_files_and_cpu(tmp_path: Path) -> None:
    def usage() -> dict[str, float]:
        families = ProcessCollector(ProcessTable(), os.getpid()).collect()
        return {sample.name: sample.value for family in families for sample in family.samples}

    before = usage()
    opened = [(tmp_path / str(number)).open("w") for number in range(50)]
    began, spent = time.process_time(), 0.0
    while spent < 0.1:
        spent = time.process_time() - began
    later = usage()
    for file in opened:
        file.close()
    grown = later["korvet_process_cpu_seconds_total"] - before["korvet_process_cpu_seconds_total"]
    assert grown >= 0.05  # it is counted in hundredths of a second
    assert later["korvet_process_open_files"] >= 50
    assert later["korvet_process_start_time_seconds"] == before["korvet_process_start_time_seconds"]
    assert later["korvet_process_resident_bytes"] > 1 << 20


@pytest.mark.slow
def test_a_process_that_has_ended_is_absent() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    families = ProcessCollector(ProcessTable(), ended.pid).collect()
    assert [
        family.name for family in families if family.name.startswith("korvet_process") and family.samples
    ] == []


def test_every_child_is_shown_while_it_lives() -> None:
    table = ProcessTable()
    for row in (OPS_ROW, KEEPER_ROW, LAKE_ROW, ARCHIVER_ROW, 3, 4):
        table.start(row)
        table.started(row, os.getpid())
    table.set(4, ProcessState.DEAD)
    families = {family.name: family for family in ProcessCollector(table, os.getpid()).collect()}
    named = [sample.labels["process"] for sample in families["korvet_process_resident_bytes"].samples]
    assert sorted(named) == ["archiver", "keeper", "lake", "ops", "supervisor", "worker-3"]


@pytest.mark.slow
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
