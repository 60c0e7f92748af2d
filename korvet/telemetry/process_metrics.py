"""The processes of this broker in /metrics: state, start, resources and version.

What they use is read from /proc. On a system without it, and for a process that has just ended, it is absent.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator

import prometheus_client
from prometheus_client.registry import Collector

import korvet
from korvet.telemetry.gauges import Family, MetricTable, counter, gauge
from korvet.telemetry.process_table import NAMES, ProcessState, ProcessTable

_STARTED = "process_start_time_seconds"
PROCESSES = MetricTable(
    ("process",),
    gauge("korvet_process_start_time_seconds", _STARTED),
    counter("korvet_process_cpu_seconds", "process_cpu_seconds_total"),
    gauge("korvet_process_resident_bytes", "process_resident_memory_bytes"),
    gauge("korvet_process_open_files", "process_open_fds"),
)
BROKER = MetricTable((), gauge("korvet_start_time_seconds", _STARTED))
RESTARTS = MetricTable((), counter("korvet_child_restarts"))
WORKERS = MetricTable(("state",), gauge("korvet_workers"))
BUILD = MetricTable(("version", "format", "python"), gauge("korvet_build_info"))


class ProcessCollector(Collector):
    """Reads everything for each page. `supervisor` is its process id."""

    def __init__(self, table: ProcessTable, supervisor: int) -> None:
        self._table = table
        self._supervisor = supervisor

    def collect(self) -> Iterator[Family]:
        workers = self._table.workers()
        count = Counter(row.state for row in workers)
        states = (ProcessState.STARTING, ProcessState.ACCEPTING, ProcessState.DRAINING)
        supervisor = _samples(self._supervisor)
        named = {f"worker-{row.index}": row for row in workers}
        named |= {name: self._table.row(index) for index, name in NAMES.items()}
        others = [(name, _samples(row.pid)) for name, row in named.items() if row.lives and row.pid > 0]
        yield from RESTARTS.families([(self._table.restarts,)])
        yield from WORKERS.families((state.name.lower(), count[state]) for state in states)
        yield from BUILD.families([(korvet.__version__, str(korvet.FORMAT), platform.python_version(), 1)])
        yield from BROKER.families([(supervisor,)])
        yield from PROCESSES.families([("supervisor", supervisor), *others])


def _samples(pid: int) -> dict[str, float]:
    """Return the standard metrics of a process by name, such as process_open_fds."""
    families = prometheus_client.ProcessCollector(pid=lambda: pid, registry=None).collect()
    return {sample.name: sample.value for family in families for sample in family.samples}
