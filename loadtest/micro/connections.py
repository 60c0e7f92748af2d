"""What connections cost a worker: requests of many, memory and CPU of those that are idle, and accepts.

Run as `python loadtest/micro/connections.py [CHECKOUT ...]` from the repository. Starts a broker of one worker from
each checkout (this one where none is named), in turn, round after round, and takes CPU times and memory from /proc.
Several checkouts are a comparison of their code.
"""

from __future__ import annotations

import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from loadtest.micro.requests import ROOT, Broker, Case, broker, cpu, driven, measured, metadata_of
from tests.support.wire_client import WireClient, request_frame

ROUNDS = 5
CONNECTIONS, REQUESTS = 64, 16_000
IDLE, IDLE_CPU, IDLE_CPU_S = 10_000, 1_000, 20.0
ACCEPTS = 5_000


def main() -> None:
    """Measure all on every checkout, alternating, and print medians."""
    checkouts = [Path(arg).resolve() for arg in sys.argv[1:]] or [ROOT]
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    values: dict[tuple[str, Path], list[float]] = {}
    for _ in range(ROUNDS):
        for checkout in checkouts:
            with broker(checkout, "storage.format=batch", f"max.connections={IDLE + 10}") as started:
                for name, measure in MEASURES.items():
                    values.setdefault((name, checkout), []).append(measure(started))
    for (name, checkout), rounds in values.items():
        print(f"{name:48} {checkout.name:24} {statistics.median(rounds):10.2f}")


def _metadata(started: Broker) -> float:
    with WireClient(started.address) as client:
        client.call(metadata_of("bench"), 9)
    frame = request_frame(metadata_of("bench"), 9)
    return sum(driven(started, [frame] * CONNECTIONS, 1, REQUESTS)[:2])


def _produce(started: Broker) -> float:
    return sum(measured(started, Case("one record", "batch", 1, 100, CONNECTIONS, 1, REQUESTS))[:2])


def _accepts(started: Broker) -> float:
    """Return the microseconds of CPU of a connection that comes and goes."""
    before = sum(cpu(started.workers))
    for _ in range(ACCEPTS):
        socket.create_connection(started.address).close()
    time.sleep(0.5)
    return (sum(cpu(started.workers)) - before) / ACCEPTS * 1e6


def _idle_cpu(started: Broker) -> float:
    """Return the percentage of a core that broker and Redis take while connections are idle."""
    connections = [socket.create_connection(started.address) for _ in range(IDLE_CPU)]
    time.sleep(2)
    before, began = _nanoseconds(started), time.monotonic_ns()
    time.sleep(IDLE_CPU_S)
    share = (_nanoseconds(started) - before) / (time.monotonic_ns() - began)
    for connection in connections:
        connection.close()
    return share * 100


def _nanoseconds(started: Broker) -> int:
    """Return the CPU that all processes have taken; their times in ticks are too coarse."""
    tasks = [task for pid in started.workers + started.redis for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def _memory(started: Broker) -> float:
    """Return the MiB that the largest process but Redis has resident with idle connections."""
    # From several addresses: one has too few ports.
    connections = [
        socket.create_connection(started.address, source_address=(f"127.0.0.{2 + number % 4}", 0))
        for number in range(IDLE)
    ]
    time.sleep(2)
    resident = max(_resident(pid) for pid in started.workers)
    for connection in connections:
        connection.close()
    return resident / 2**20


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


MEASURES: dict[str, Callable[[Broker], float]] = {
    f"us of CPU, Metadata, {CONNECTIONS} connections": _metadata,
    f"us of CPU, Produce of a record, {CONNECTIONS} connections": _produce,
    "us of CPU, a connection that comes and goes": _accepts,
    f"% of a core, {IDLE_CPU:,} idle connections": _idle_cpu,
    f"MiB resident, {IDLE:,} idle connections": _memory,
}

if __name__ == "__main__":
    main()
