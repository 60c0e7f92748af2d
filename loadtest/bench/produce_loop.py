"""Produce requests over many plain connections, one under way on each: what a request costs the broker.

The requests are made beforehand, so that the client takes little of the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from loadtest import harness
from loadtest.bench import frames
from loadtest.bench.load import Load
from loadtest.bench.peers import Peer
from loadtest.bench.results import Results
from loadtest.harness import Cpu

RECORD_BYTES = 100


class Bench(NamedTuple):
    """What a measurement of fresh brokers works with; `seconds` is how long one figure is measured."""

    load: Load
    results: Results
    directory: Path
    seconds: float
    quick: bool = False


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
    used: Cpu
    sent: int

    def us(self, records: int = 1) -> Cpu:
        """Return the CPU of a record in microseconds; a request has `records` of them."""
        return self.used.us(self.requests * records)


def run(bench: Bench, peer: Peer, work: Requests, warm_seconds: float) -> Outcome:
    """Create the topic, open the connections, warm up, measure, and close.

    Raises LoadError or NotAvailableError where a request is refused.
    """
    load = bench.load
    peer.create(load, work.topic, work.partitions)
    value = b"x" * RECORD_BYTES
    requests = [frames.produce(work.topic, n, value, work.records) for n in range(work.partitions)]
    frames.check_produced(("127.0.0.1", peer.port), requests)
    if work.walk:
        harness.settle(peer.pid)
    path = frames.write(bench.directory / "frames", requests)
    options = {"frames": path, "walk": int(work.walk), "error_at": frames.produced_error_at(work.topic)}
    try:
        opened = load.do("open", bootstrap=peer.bootstrap, connections=work.connections, frames=path)
        warm = load.do("loop", milliseconds=int(warm_seconds * 1000), **options)
        before = harness.cpu(peer.pid)
        answer = load.do("loop", milliseconds=int(bench.seconds * 1000), **options)
        used = harness.cpu(peer.pid).since(before)
    finally:
        load.do("close")
    sent = (len(requests) + opened["connections"] + warm["requests"] + answer["requests"]) * work.records
    return Outcome(answer["requests"], answer["seconds"], used, int(sent))
