"""What a record costs the broker against batch size, connections and partitions: CPU of Redis, and of all else.

Each peer is measured alone, on empty data. Requests and their connections are those of `produce_loop`; what it wrote to
many partitions is then read by one consumer of them all.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from loadtest.bench import processes, produce_loop
from loadtest.bench.load import Load
from loadtest.bench.peers import Korvet, Mock, Peer
from loadtest.bench.produce_loop import Outcome, Requests
from loadtest.bench.redis_peer import Redis
from loadtest.bench.results import Figure, Results

BROKER, REDIS = "broker", "Redis"
_UNIT = "us a record"
_PARTITIONS, _CONNECTIONS = 8, 64
_RECORDS = 10
# Long enough for a Java broker to compile what it runs.
_FIRST_WARM_SECONDS = 10.0


class Sweep(NamedTuple):
    """One panel of the chart and one section of the table: the cost at several points."""

    title: str
    axis: str
    points: tuple[int, ...]

    def figure(self, point: int, part: str) -> Figure:
        """Return what is measured at a point, of the broker or of Redis."""
        return Figure(self.title, f"{point:,} {self.axis}: {part}", _UNIT, compared=False)


BATCH = Sweep("CPU of produce against batch size", "records in a batch", (1, 10, 40, 150, 600, 2450))
"""150 records of 100 bytes are a batch of 16 KiB, 2,450 one of 256 KiB."""
CONNECTIONS = Sweep("CPU of produce against connections", "connections", (10, 100, 1000, 5000))
PARTITIONS = Sweep("CPU of produce against partitions", "partitions", (10, 100, 1000, 9999))
"""Kafka refuses to create a topic of 10,000 in one request."""
READ = Sweep("CPU of consume against partitions", "partitions of one consumer", PARTITIONS.points)
SWEEPS = (BATCH, CONNECTIONS, PARTITIONS, READ)


class Cost:
    """Measures one stopped peer at a time, and stops it again; a quick run has the first two points only."""

    def __init__(self, load: Load, results: Results, directory: Path, seconds: float, *, quick: bool) -> None:
        self._load = load
        self._results = results
        self._directory = directory
        self._seconds = seconds
        self._points = slice(2) if quick else slice(None)

    def run(self, peer: Peer | Redis, turn: int) -> None:
        """Start, measure, stop."""
        if isinstance(peer, Mock | Redis) or peer.tls:
            return
        peer.start()
        try:
            self._produce(peer, Requests("warm", _PARTITIONS, _CONNECTIONS), _FIRST_WARM_SECONDS)
            for records in BATCH.points[self._points]:
                done = self._produce(peer, Requests(f"batch-{records}", _PARTITIONS, _PARTITIONS, records))
                self._add(BATCH, records, peer, turn, done.broker_us(records), done.redis_us(records))
            for connections in CONNECTIONS.points[self._points]:
                done = self._produce(peer, Requests(f"connections-{connections}", _PARTITIONS, connections))
                self._add(CONNECTIONS, connections, peer, turn, done.broker_us(), done.redis_us())
            for partitions in PARTITIONS.points[self._points]:
                self._wide(peer, turn, partitions)
        finally:
            peer.stop()

    def _produce(self, peer: Peer, work: Requests, warm: float = 0.0, *, keep: bool = False) -> Outcome:
        warm = max(warm, self._seconds / 2)
        done = produce_loop.run(self._load, peer, self._directory, work, (warm, self._seconds))
        if not keep:
            peer.delete(self._load, work.topic)
            processes.settle(peer.pid)
        return done

    def _wide(self, peer: Peer, turn: int, partitions: int) -> None:
        work = Requests(f"partitions-{partitions}", partitions, _CONNECTIONS, _RECORDS, walk=True)
        done = self._produce(peer, work, keep=True)
        self._add(PARTITIONS, partitions, peer, turn, done.broker_us(_RECORDS), done.redis_us(_RECORDS))
        processes.settle(peer.pid)
        before = processes.cpu(peer.pid)
        read = self._load.do(
            "consume",
            **peer.address,
            topic=work.topic,
            records=done.sent,
            milliseconds=int(self._seconds * 1000),
        )["records"]
        used = processes.cpu(peer.pid).since(before)
        self._add(READ, partitions, peer, turn, used.broker / read * 1e6, used.redis / read * 1e6)
        peer.delete(self._load, work.topic)
        processes.settle(peer.pid)

    def _add(self, sweep: Sweep, point: int, peer: Peer, turn: int, broker: float, redis: float) -> None:
        self._results.add(sweep.figure(point, BROKER), peer.name, turn, broker)
        if isinstance(peer, Korvet):
            self._results.add(sweep.figure(point, REDIS), peer.name, turn, redis)
