"""The processes of this broker in /metrics: which run, since when, what they use, and the version that they run.

What they use is read from /proc. On a system without it, and for a process that has just ended, it is absent.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import prometheus_client
from prometheus_client.registry import Collector

import korvet
from korvet.telemetry.gauges import Family, Gauge, GaugeTable
from korvet.telemetry.process_table import NAMES, ProcessRow, ProcessState, ProcessTable


class _Process(NamedTuple):
    """A process and the standard metrics of processes, such as process_open_fds."""

    process: str
    samples: Mapping[str, float]


PROCESSES = GaugeTable[_Process](
    ("process",),
    (
        Gauge(
            "korvet_process_start_time_seconds",
            "Time when each process of this broker started: supervisor, keeper, ops, lake, archiver, worker-N.",
            lambda process: process.samples.get("process_start_time_seconds"),
        ),
        Gauge(
            "korvet_process_cpu_seconds",
            "CPU time that each process has used, including system calls.",
            lambda process: process.samples.get("process_cpu_seconds_total"),
            counts=True,
        ),
        Gauge(
            "korvet_process_resident_bytes",
            "Resident memory of each process; pages shared with others count for each.",
            lambda process: process.samples.get("process_resident_memory_bytes"),
        ),
        Gauge(
            "korvet_process_open_files",
            "Number of open file descriptors of each process.",
            lambda process: process.samples.get("process_open_fds"),
        ),
    ),
)
BROKER = GaugeTable[_Process](
    (),
    (
        Gauge(
            "korvet_start_time_seconds",
            "Time when the supervisor of this broker started.",
            lambda process: process.samples.get("process_start_time_seconds"),
        ),
    ),
)
RESTARTS = GaugeTable[ProcessTable](
    (),
    (
        Gauge(
            "korvet_child_restarts",
            "Number of processes started to replace one that died.",
            lambda table: table.restarts,
            counts=True,
        ),
    ),
)
WORKERS = GaugeTable[tuple[ProcessState, list[ProcessRow]]](
    ("state",),
    (
        Gauge(
            "korvet_workers",
            "Number of workers by state.",
            lambda state: sum(row.state is state[0] for row in state[1]),
        ),
    ),
    lambda state: [state[0].name.lower()],
)
BUILD = GaugeTable[tuple[str, str]](
    ("version", "python"),
    (Gauge("korvet_build_info", "Always 1; the versions of Korvet and Python.", lambda _: 1),),
    lambda versions: versions,
)


class ProcessCollector(Collector):
    """Reads everything for each page. `supervisor` is its process id."""

    def __init__(self, table: ProcessTable, supervisor: int) -> None:
        self._table = table
        self._supervisor = supervisor

    def collect(self) -> Iterator[Family]:
        """Yield restarts, workers by state, versions, and what each process uses."""
        workers = self._table.workers()
        states = (ProcessState.STARTING, ProcessState.ACCEPTING, ProcessState.DRAINING)
        supervisor = _process("supervisor", self._supervisor)
        named = {f"worker-{row.index}": row for row in workers}
        named |= {name: self._table.row(index) for index, name in NAMES.items()}
        others = [_process(name, row.pid) for name, row in named.items() if row.lives and row.pid > 0]
        yield from RESTARTS.families([self._table])
        yield from WORKERS.families((state, workers) for state in states)
        yield from BUILD.families([(korvet.__version__, platform.python_version())])
        yield from BROKER.families([supervisor])
        yield from PROCESSES.families([supervisor, *others])


def _process(name: str, pid: int) -> _Process:
    families = prometheus_client.ProcessCollector(pid=lambda: pid, registry=None).collect()
    return _Process(name, {sample.name: sample.value for family in families for sample in family.samples})
