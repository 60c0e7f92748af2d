"""How workers and Redis share one core and two: rate and CPU of a request by the number of workers.

The broker runs on the first cores of the machine, as by `taskset`, and the client on the others, or on all if there
are no others.
"""

from __future__ import annotations

import os
from pathlib import Path

from loadtest.bench import processes, produce_loop
from loadtest.bench.load import Load
from loadtest.bench.peers import Korvet, Peer
from loadtest.bench.produce_loop import Requests
from loadtest.bench.redis_peer import Redis
from loadtest.bench.results import Figure, Results

WORKERS = (1, 2, 3, 4)
CORES = (1, 2)
_WORK = {
    "requests of one record": Requests("single", 8, 64),
    "batches of 16 KiB": Requests("batches", 8, 16, 150),
}


def figure(cores: int, workers: int, what: str, part: str, unit: str) -> Figure:
    """Return what is measured with this many cores and workers."""
    several = "" if workers == 1 else "s"
    return Figure(
        f"{what} on {cores} of the cores",
        f"{workers} worker{several}: {part}",
        unit,
        part == "rate",
        compared=False,
    )


class Cores:
    """Measures one stopped Korvet at a time, and stops it again."""

    def __init__(self, load: Load, results: Results, directory: Path, seconds: float) -> None:
        self._load = load
        self._results = results
        self._directory = directory
        self._seconds = seconds

    def run(self, peer: Peer | Redis, turn: int) -> None:
        """Start, measure and stop it with each number of cores and workers."""
        if not isinstance(peer, Korvet) or peer.tls:
            return
        cpus = sorted(os.sched_getaffinity(0))
        workers = peer.workers
        try:
            for cores in CORES:
                processes.pin(self._load.pid, cpus[cores:] or cpus)
                for count in WORKERS:
                    peer.workers = count
                    with processes.pinned(cpus[:cores]):
                        peer.start()
                    self._measure(peer, turn, cores)
                    peer.stop()
        finally:
            peer.stop()
            peer.workers = workers
            processes.pin(self._load.pid, cpus)

    def _measure(self, peer: Korvet, turn: int, cores: int) -> None:
        for what, work in _WORK.items():
            seconds = (self._seconds / 2, self._seconds)
            done = produce_loop.run(self._load, peer, self._directory, work, seconds)
            for part, unit, value in (
                ("rate", "requests/s", done.requests / done.seconds),
                ("CPU of the workers", "us a request", done.broker_us()),
                ("CPU of Redis", "us a request", done.redis_us()),
            ):
                self._results.add(figure(cores, peer.workers, what, part, unit), peer.name, turn, value)
