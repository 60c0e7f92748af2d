"""Produce requests over many plain connections, one under way on each: what a request costs the broker.

The requests are made beforehand, so that the client takes little of the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from loadtest.bench import frames, processes
from loadtest.bench.load import Load
from loadtest.bench.peers import Peer

RECORD_BYTES = 100


class Requests(NamedTuple):
    """Which requests: a batch of `records` of 100 bytes to one partition each.

    Each connection keeps its partition; with `walk` they go through all partitions together.
    """

    topic: str
    partitions: int
    connections: int
    records: int = 1
    walk: bool = False


class Outcome(NamedTuple):
    """Requests and CPU of the measured seconds, and how many records the broker was sent in all."""

    requests: float
    seconds: float
    used: processes.Cpu
    sent: int

    def broker_us(self, records: int = 1) -> float:
        """Return the CPU of a record in all processes but Redis, in microseconds."""
        return self.used.broker / self.requests / records * 1e6

    def redis_us(self, records: int = 1) -> float:
        """Return the CPU of a record in Redis, in microseconds."""
        return self.used.redis / self.requests / records * 1e6


def run(load: Load, peer: Peer, directory: Path, work: Requests, seconds: tuple[float, float]) -> Outcome:
    """Create the topic, open the connections, warm up for the first of `seconds`, measure for the second, and close.

    Raises LoadError or NotAvailableError where a request is refused.
    """
    peer.create(load, work.topic, work.partitions)
    value = b"x" * RECORD_BYTES
    requests = [frames.produce(work.topic, n, value, work.records) for n in range(work.partitions)]
    frames.check_produced(peer.bootstrap, requests)
    if work.walk:
        processes.settle(peer.pid)
    path = frames.write(directory / "frames", requests)
    options = {"frames": path, "walk": int(work.walk), "error_at": frames.produced_error_at(work.topic)}
    try:
        opened = load.do("open", bootstrap=peer.bootstrap, connections=work.connections, frames=path)
        warm = load.do("loop", milliseconds=int(seconds[0] * 1000), **options)
        before = processes.cpu(peer.pid)
        answer = load.do("loop", milliseconds=int(seconds[1] * 1000), **options)
        used = processes.cpu(peer.pid).since(before)
    finally:
        load.do("close")
    sent = (len(requests) + opened["connections"] + warm["requests"] + answer["requests"]) * work.records
    return Outcome(answer["requests"], answer["seconds"], used, int(sent))
