"""What a broker costs before and between the records: start, memory, many partitions and connections, idle CPU.

Each measurement is of a broker of its own on empty data, while no other peer runs.
"""

from __future__ import annotations

import time
from pathlib import Path

from loadtest.bench import frames, processes, produce_loop
from loadtest.bench.load import Load
from loadtest.bench.peers import Mock, Peer
from loadtest.bench.processes import NotAvailableError
from loadtest.bench.produce_loop import RECORD_BYTES, Requests
from loadtest.bench.redis_peer import Redis
from loadtest.bench.results import Figure, Results

SCALE, SINGLE = "Start, partitions, connections", "Single records, one request each"
TOPICS, PARTITIONS_EACH, CONNECTIONS = 10, 1000, 1000
SINGLE_CONNECTIONS = (64, 1000)
PARKED_MS = 500
_SINGLE_REDIS_RECORDS = 200_000
_SETTLE_SECONDS = 3.0
_TOPIC = "many"

START = Figure(SCALE, "start-up to the first metadata", "s")
MEMORY_AT_START = Figure(SCALE, "resident memory after the start", "MiB")
CREATE = Figure(SCALE, "creating 10,000 partitions", "s")
CONNECT = Figure(SCALE, "opening 1,000 connections, one request on each", "s")
_WITH_ALL = "1,000 connections and 10,000 partitions"
_PARKED = f"1,000 consumers waiting {PARKED_MS} ms each"
MEMORY = Figure(SCALE, f"resident memory, {_WITH_ALL}", "MiB")
WORKER_MEMORY = Figure(SCALE, f"largest process with connections, {_WITH_ALL}", "MiB")
IDLE = Figure(SCALE, f"idle CPU, {_WITH_ALL}", "% of a core")
PARKED = Figure(SCALE, f"CPU, {_PARKED}", "% of a core")
PARKED_MEMORY = Figure(SCALE, f"largest process with connections, {_PARKED}", "MiB")
FEWEST = Figure(SCALE, "connections of the process with the fewest", "of 1,000", compared=False)
MOST = Figure(SCALE, "connections of the process with the most", "of 1,000", compared=False)


def single_figures(connections: int) -> tuple[Figure, Figure, Figure]:
    """Return CPU of the broker, CPU of Redis and rate of requests of one record over some connections."""
    at = f"at {connections:,} connections"
    return (
        Figure(SINGLE, f"broker CPU {at}", "us a request"),
        Figure(SINGLE, f"Redis CPU {at}", "us a request"),
        Figure(SINGLE, f"requests {at}", "requests/s", more=True),
    )


class Scale:
    """Measures one stopped peer at a time, and stops it again."""

    def __init__(self, load: Load, results: Results, directory: Path, seconds: float) -> None:
        self._load = load
        self._results = results
        self._directory = directory
        self._seconds = seconds

    def run(self, peer: Peer | Redis, turn: int) -> None:
        """Start, measure, stop."""
        if isinstance(peer, Mock) or (isinstance(peer, Peer) and peer.tls):
            return  # its many connections speak no TLS
        peer.prepare()
        began = time.monotonic()
        try:
            peer.launch()
            self._results.add(START, peer.name, turn, time.monotonic() - began)
            time.sleep(1.0)
            self._results.add(MEMORY_AT_START, peer.name, turn, processes.resident_mib(peer.pid))
            for connections in SINGLE_CONNECTIONS:
                self._single(peer, turn, connections)
            if isinstance(peer, Peer):
                self._many(peer, turn)
        finally:
            self._load.do("close")
            peer.stop()

    def _single(self, peer: Peer | Redis, turn: int, connections: int) -> None:
        if isinstance(peer, Redis):
            before, began = processes.cpu(peer.pid), time.monotonic()
            count: float = peer.single(b"x" * RECORD_BYTES, _SINGLE_REDIS_RECORDS, connections)
            used, seconds = processes.cpu(peer.pid).since(before), time.monotonic() - began
        else:
            work = Requests(f"single-{connections}", 8, connections)
            # Long enough for a Java broker to compile what it runs.
            span = (self._seconds * 2, self._seconds)
            count, seconds, used, _ = produce_loop.run(self._load, peer, self._directory, work, span)
        broker_cpu, redis_cpu, rate = single_figures(connections)
        if used.broker:
            self._results.add(broker_cpu, peer.name, turn, used.broker / count * 1e6)
        if used.redis:
            self._results.add(redis_cpu, peer.name, turn, used.redis / count * 1e6)
        self._results.add(rate, peer.name, turn, count / seconds)

    def _many(self, peer: Peer, turn: int) -> None:
        seconds = peer.create(self._load, _TOPIC, PARTITIONS_EACH, TOPICS)
        self._results.add(CREATE, peer.name, turn, seconds)
        processes.settle(peer.pid)
        path = frames.write(self._directory / "frames", [frames.metadata()])
        answer = self._load.do("open", bootstrap=peer.bootstrap, connections=CONNECTIONS, frames=path)
        self._results.add(CONNECT, peer.name, turn, answer["seconds"])
        processes.settle(peer.pid)
        held = processes.connections(peer.pid, peer.port)
        self._results.add(FEWEST, peer.name, turn, min(held.values()))
        self._results.add(MOST, peer.name, turn, max(held.values()))
        before = processes.cpu(peer.pid)
        time.sleep(self._seconds * 2)
        used = processes.cpu(peer.pid).since(before)
        self._results.add(IDLE, peer.name, turn, used.total / (self._seconds * 2) * 100)
        self._results.add(MEMORY, peer.name, turn, processes.resident_mib(peer.pid))
        self._results.add(WORKER_MEMORY, peer.name, turn, max(map(processes.process_mib, held)))
        self._parked(peer, turn, list(held))

    def _parked(self, peer: Peer, turn: int, workers: list[int]) -> None:
        """Have every connection wait at a partition of its own, again and again."""
        names = [_TOPIC if n == 0 else f"{_TOPIC}-{n}" for n in range(TOPICS)]
        each = CONNECTIONS // TOPICS
        requests = [frames.fetch(name, partition, PARKED_MS) for name in names for partition in range(each)]
        path = frames.write(self._directory / "frames", requests)
        self._load.do("loop", frames=path, milliseconds=int(_SETTLE_SECONDS * 1000))
        before, began = processes.cpu(peer.pid), time.monotonic()
        answer = self._load.do("loop", frames=path, milliseconds=int(self._seconds * 2000))
        used, seconds = processes.cpu(peer.pid).since(before), time.monotonic() - began
        if answer["requests"] > CONNECTIONS * (1 + seconds * 1000 / PARKED_MS):
            raise NotAvailableError(
                f"fetches of {PARKED_MS} ms were answered sooner: {answer['requests']:.0f}"
            )
        self._results.add(PARKED, peer.name, turn, used.total / seconds * 100)
        self._results.add(PARKED_MEMORY, peer.name, turn, max(map(processes.process_mib, workers)))
