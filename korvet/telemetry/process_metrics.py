"""What no process counts by itself: which of them run, since when, what they take of the machine, and the build.

Knows the table and /proc; nothing of what the processes do. Where a system has no /proc (it is Linux' own), what
is read there is left out.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

import korvet
from korvet.telemetry.process_table import NAMES, ProcessRow, ProcessState, ProcessTable

Family = CounterMetricFamily | GaugeMetricFamily

_PROC = Path("/proc")
# Fields of /proc/<pid>/stat behind the command's name, which may hold blanks (proc(5): utime is field 14).
_USER, _SYSTEM, _STARTED, _PAGES = 11, 12, 19, 21


class Usage(NamedTuple):
    """What a process takes: CPU and start (since the epoch) in seconds, resident bytes, open files."""

    cpu_seconds: float
    started_at: float
    resident_bytes: int
    open_files: int


class ProcessCollector(Collector):
    """Reads everything anew for each page. `supervisor` is its process id."""

    def __init__(self, table: ProcessTable, supervisor: int) -> None:
        self._table = table
        self._supervisor = supervisor

    def collect(self) -> Iterator[Family]:
        """Yield restarts, workers by state, the build, and what each process takes."""
        restarts = CounterMetricFamily(
            "korvet_child_restarts", "Processes started in the place of one that died."
        )
        restarts.add_metric([], self._table.restarts)
        yield restarts
        workers = GaugeMetricFamily("korvet_workers", "Worker slots by state.", labels=["state"])
        rows = self._table.workers()
        for state in (ProcessState.STARTING, ProcessState.ACCEPTING, ProcessState.DRAINING):
            workers.add_metric([state.name.lower()], sum(row.state is state for row in rows))
        yield workers
        build = GaugeMetricFamily(
            "korvet_build_info",
            "Always 1; the version of Korvet and of Python.",
            labels=["version", "python"],
        )
        build.add_metric([korvet.__version__, platform.python_version()], 1)
        yield build
        yield from self._usages(rows)

    def _usages(self, workers: list[ProcessRow]) -> Iterator[Family]:
        pids = {"supervisor": self._supervisor}
        pids |= {f"worker-{row.index}": row.pid for row in workers if row.state is not ProcessState.DEAD}
        for index, name in NAMES.items():
            row = self._table.row(index)
            if row.lives:
                pids[name] = row.pid
        found = {name: usage for name, pid in pids.items() if (usage := usage_of(pid)) is not None}
        started = GaugeMetricFamily(
            "korvet_start_time_seconds", "When this broker's supervisor started; the broker is up since then."
        )
        if "supervisor" in found:
            started.add_metric([], found["supervisor"].started_at)
        yield started
        labels = ["process"]
        each_started = GaugeMetricFamily(
            "korvet_process_start_time_seconds",
            "When each process of this broker started: supervisor, keeper, ops, lake, archiver, and workers by slot.",
            labels=labels,
        )
        cpu = CounterMetricFamily(
            "korvet_process_cpu_seconds",
            "CPU that each process has used, system calls included.",
            labels=labels,
        )
        resident = GaugeMetricFamily(
            "korvet_process_resident_bytes",
            "Memory of each process; what it shares with others counts for each.",
            labels=labels,
        )
        files = GaugeMetricFamily(
            "korvet_process_open_files", "Descriptors that each process holds open.", labels=labels
        )
        for name, usage in found.items():
            each_started.add_metric([name], usage.started_at)
            cpu.add_metric([name], usage.cpu_seconds)
            resident.add_metric([name], usage.resident_bytes)
            files.add_metric([name], usage.open_files)
        yield from (each_started, cpu, resident, files)


def usage_of(pid: int, proc: Path = _PROC) -> Usage | None:
    """Return what a process takes; None where there is none, it is another user's, or the system does not tell."""
    if pid <= 0:
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return Usage(
            cpu_seconds=(int(fields[_USER]) + int(fields[_SYSTEM])) / ticks,
            started_at=_booted_at(proc) + int(fields[_STARTED]) / ticks,
            resident_bytes=int(fields[_PAGES]) * os.sysconf("SC_PAGE_SIZE"),
            open_files=sum(1 for _ in (proc / str(pid) / "fd").iterdir()),
        )
    return None


def _booted_at(proc: Path) -> int:
    """Return when the system started, in seconds since the epoch."""
    lines = (proc / "stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("btime "))
