"""What a request costs a broker that is measured alone, on empty data, by the requests of `produce_loop`.

`measure` has what a record costs against batch size, connections and partitions: CPU of Redis, and of all else; what
was written to many partitions is then read by one consumer of them all. `measure_cores` has rate and CPU of a request
by the number of Korvet's workers on one core and on two: the broker runs on the first cores of the machine, as by
`taskset`, and the client on the others, or on all if there are no others.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from loadtest import harness
from loadtest.bench import produce_loop
from loadtest.bench.peers import Korvet, Peer
from loadtest.bench.produce_loop import Bench, Outcome, Requests
from loadtest.bench.results import Figure
from loadtest.harness import Cpu

BROKER, REDIS = "broker", "Redis"
_PARTITIONS, _CONNECTIONS = 8, 64
_RECORDS = 10
# Long enough for a Java broker to compile what it runs.
_FIRST_WARM_SECONDS = 10.0

WORKERS = (1, 2, 3, 4)
CORES = (1, 2)
_OF_WORKERS = {
    "requests of one record": Requests("single", 8, 64),
    "batches of 16 KiB": Requests("batches", 8, 16, 150),
}


class Sweep(NamedTuple):
    """One panel of the chart and one section of the table: the cost at several points."""

    title: str
    axis: str
    points: tuple[int, ...]

    def figure(self, point: int, part: str) -> Figure:
        """Return what is measured at a point, of the broker or of Redis."""
        return Figure(self.title, f"{point:,} {self.axis}: {part}", "us a record", compared=False)


BATCH = Sweep("CPU of produce against batch size", "records in a batch", (1, 10, 40, 150, 600, 2450))
"""150 records of 100 bytes are a batch of 16 KiB, 2,450 one of 256 KiB."""
CONNECTIONS = Sweep("CPU of produce against connections", "connections", (10, 100, 1000, 5000))
PARTITIONS = Sweep("CPU of produce against partitions", "partitions", (10, 100, 1000, 9999))
"""Kafka refuses to create a topic of 10,000 in one request."""
READ = Sweep("CPU of consume against partitions", "partitions of one consumer", PARTITIONS.points)
SWEEPS = (BATCH, CONNECTIONS, PARTITIONS, READ)


def measure(bench: Bench, peer: Peer, turn: int) -> None:
    """Start, measure, stop; a quick run has the first two points only."""
    points = slice(2) if bench.quick else slice(None)
    peer.start()
    try:
        _produce(bench, peer, Requests("warm", _PARTITIONS, _CONNECTIONS), _FIRST_WARM_SECONDS)
        for records in BATCH.points[points]:
            done = _produce(bench, peer, Requests(f"batch-{records}", _PARTITIONS, _PARTITIONS, records))
            _add(bench, BATCH, records, peer, turn, done.us(records))
        for connections in CONNECTIONS.points[points]:
            done = _produce(bench, peer, Requests(f"connections-{connections}", _PARTITIONS, connections))
            _add(bench, CONNECTIONS, connections, peer, turn, done.us())
        for partitions in PARTITIONS.points[points]:
            _wide(bench, peer, turn, partitions)
    finally:
        peer.stop()


def _produce(
    bench: Bench, peer: Peer, work: Requests, warm_seconds: float = 0.0, *, keep: bool = False
) -> Outcome:
    done = produce_loop.run(bench, peer, work, max(warm_seconds, bench.seconds / 2))
    if not keep:
        peer.delete(bench.load, work.topic)
        harness.settle(peer.pid)
    return done


def _wide(bench: Bench, peer: Peer, turn: int, partitions: int) -> None:
    """Write to many partitions, and have one consumer read them."""
    work = Requests(f"partitions-{partitions}", partitions, _CONNECTIONS, _RECORDS, walk=True)
    done = _produce(bench, peer, work, keep=True)
    _add(bench, PARTITIONS, partitions, peer, turn, done.us(_RECORDS))
    harness.settle(peer.pid)
    before = harness.cpu(peer.pid)
    options = {"topic": work.topic, "records": done.sent, "milliseconds": int(bench.seconds * 1000)}
    read = bench.load.do("consume", **peer.address, **options)["records"]
    _add(bench, READ, partitions, peer, turn, harness.cpu(peer.pid).since(before).us(read))
    peer.delete(bench.load, work.topic)
    harness.settle(peer.pid)


def _add(bench: Bench, sweep: Sweep, point: int, peer: Peer, turn: int, cost: Cpu) -> None:
    bench.results.add(sweep.figure(point, BROKER), peer.name, turn, cost.broker)
    if isinstance(peer, Korvet):
        bench.results.add(sweep.figure(point, REDIS), peer.name, turn, cost.redis)


def measure_cores(bench: Bench, peer: Peer, turn: int) -> None:
    """Start, measure and stop a Korvet with each number of cores and workers."""
    if not isinstance(peer, Korvet):
        return
    cpus = sorted(os.sched_getaffinity(0))
    workers = peer.workers
    try:
        for cores in CORES:
            harness.pin(bench.load.pid, cpus[cores:] or cpus)
            for count in WORKERS:
                peer.workers = count
                with harness.pinned(cpus[:cores]):
                    peer.start()
                _measure_workers(bench, peer, turn, cores)
                peer.stop()
    finally:
        peer.stop()
        peer.workers = workers
        harness.pin(bench.load.pid, cpus)


def _measure_workers(bench: Bench, peer: Korvet, turn: int, cores: int) -> None:
    several = "" if peer.workers == 1 else "s"
    for what, work in _OF_WORKERS.items():
        done = produce_loop.run(bench, peer, work, bench.seconds / 2)
        for part, unit, value in (
            ("rate", "requests/s", done.requests / done.seconds),
            ("CPU of the workers", "us a request", done.us().broker),
            ("CPU of Redis", "us a request", done.us().redis),
        ):
            section, name = f"{what} on {cores} of the cores", f"{peer.workers} worker{several}: {part}"
            figure = Figure(section, name, unit, more=part == "rate", compared=False)
            bench.results.add(figure, peer.name, turn, value)
