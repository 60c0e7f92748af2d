"""What a warm broker does: throughput with the CPU that it takes, and end-to-end latency at a fixed rate.

The number of records is chosen from the rate of a first, unmeasured run so that a measured one takes about `seconds`.
Latency runs from when a record was due to when a consumer has it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from loadtest import harness
from loadtest.bench import librdkafka
from loadtest.bench.load import Load
from loadtest.bench.peers import Peer, Redis
from loadtest.bench.results import Figure, Results
from loadtest.harness import Cpu

PRODUCE, CONSUME, LATENCY = "Produce", "Consume", "End-to-end latency"
CPU_OF = {PRODUCE: "CPU of produce", CONSUME: "CPU of consume"}
_RATE_UNIT = "records/s"
_CPU_UNIT = "CPU s per million records, broker + Redis"
_PROBE_SECONDS = 0.7
_RECORDS_MAX = 4_000_000
# What a warm client reaches at least; the first probe has that number.
_PROBE_RECORDS = {100: 40_000, 1024: 10_000}
_SHARED_PARTITIONS = 16
# The same for all peers, and more than any of their caches of recent records would hold.
_BACKLOG_RECORDS_A_SECOND = {100: 400_000, 1024: 80_000}
_REDIS_BACKLOG = 20_000
LATENCY_RATE = 5000
# A client's own pause is part of what its user sees; without it the broker's part is.
LINGERS = {"": "client's default linger.ms", "0": "linger.ms=0"}
_PERCENTILES = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms"}
_LATENCY_BYTES, _LATENCY_WARM_SECONDS = 100, 2


class Shape(NamedTuple):
    """One way to produce; names as in the clients' configuration. An empty value is the client's default."""

    size: int
    acks: str = "1"
    compression: str = "none"
    producers: int = 1
    batch_bytes: str = ""
    transaction_ms: int = 0
    """After how long it commits; 0: no transactions."""

    @property
    def name(self) -> str:
        """How the table calls it."""
        several = "" if self.producers == 1 else "s"
        batch = f", batch.size={self.batch_bytes}" if self.batch_bytes else ""
        commits = f", a commit each {self.transaction_ms} ms" if self.transaction_ms else ""
        what = f"{_size(self.size)}, acks={self.acks}, {self.compression}"
        return f"{what}, {self.producers} producer{several}{batch}{commits}"

    @property
    def fits_redis(self) -> bool:
        """Whether plain XADDs are something to compare it with."""
        return (self.compression, self.acks, self.batch_bytes) == ("none", "1", "")

    def options(self) -> dict[str, object]:
        """Return it as the load generator takes it."""
        return {
            "acks": self.acks,
            "compression.type": self.compression,
            "producers": self.producers,
            "batch.size": self.batch_bytes,
            "transaction_ms": self.transaction_ms,
        }


class Work(NamedTuple):
    """What the load generator does for one figure."""

    verb: str
    topic: str
    shape: Shape
    records: int


LARGE_BATCH = "262144"
"""Batches as clients with larger defaults make them (librdkafka: up to 1 MB)."""

WARMING = (Shape(100), Shape(1024, "all", "lz4", 8))
"""What differs most, before anything is measured."""

TRANSACTIONS = [Shape(size, "all", transaction_ms=ms) for size in (100, 1024) for ms in (0, 100)]
"""The same with and without transactions."""


def shapes(*, quick: bool) -> list[Shape]:
    """Return the ways to produce, the plain ones only for a quick run."""
    if quick:
        return [Shape(100), Shape(1024), Shape(100, batch_bytes=LARGE_BATCH)]
    whole = [
        Shape(size, acks, compression, producers)
        for size in (100, 1024)
        for acks in ("1", "all")
        for compression in ("none", "lz4")
        for producers in (1, 8)
    ]
    return [*whole, Shape(100, batch_bytes=LARGE_BATCH), Shape(1024, batch_bytes=LARGE_BATCH)]


class Throughput:
    """Measures running peers, one after the other in each round."""

    def __init__(self, load: Load, results: Results, seconds: float) -> None:
        self._load = load
        self._results = results
        self._seconds = seconds
        self._rates: dict[tuple[str, Shape], float] = {}
        self._topics = 0

    def produce(self, shape: Shape, peer: Peer | Redis, turn: int) -> None:
        """Measure one way to produce."""
        figure = Figure(PRODUCE, shape.name, _RATE_UNIT, more=True)
        if isinstance(peer, Redis):
            if shape.fits_redis:
                act = partial(peer.produce, shape.size, clients=shape.producers)
                self._measure_redis(figure, peer, turn, shape.size, act)
            return
        topic = self._topic(peer, shape.producers)
        records = self._records(peer, shape, topic)
        self._measure(figure, peer, turn, Work("produce", topic, shape, records))
        peer.delete(self._load, topic)

    def from_the_start(self, size: int, peer: Peer | Redis, turn: int, partitions: int = 1) -> None:
        """Measure reading a log that nobody has read yet, by one consumer of all its partitions."""
        figure = Figure(CONSUME, f"{_size(size)}, from the start{_of(partitions)}", _RATE_UNIT, more=True)
        if isinstance(peer, Redis):
            peer.produce(size, _REDIS_BACKLOG, 1)
            self._measure_redis(figure, peer, turn, size, peer.consume)
            return
        self._read(figure, peer, turn, size, partitions, "consume")

    def share(self, size: int, consumers: int, peer: Peer, turn: int) -> None:
        """Measure reading a log from its start by the members of a share group."""
        by = f"share group of {consumers}{_of(_SHARED_PARTITIONS)}"
        figure = Figure(CONSUME, f"{_size(size)}, {by}", _RATE_UNIT, more=True)
        self._read(figure, peer, turn, size, _SHARED_PARTITIONS, "share", consumers=consumers)

    def _read(
        self, figure: Figure, peer: Peer, turn: int, size: int, partitions: int, verb: str, **options: object
    ) -> None:
        """Write a backlog, and measure how it is read."""
        topic = self._topic(peer, partitions)
        records = int(_BACKLOG_RECORDS_A_SECOND[size] * self._seconds)
        self._do(peer, Work("produce", topic, Shape(size), records))
        self._measure(figure, peer, turn, Work(verb, topic, Shape(size), records), **options)
        peer.delete(self._load, topic)

    def tailing(self, size: int, peer: Peer, turn: int, partitions: int = 1) -> None:
        """Measure reading the end of a log while one producer writes there as fast as it can."""
        figure = Figure(CONSUME, f"{_size(size)}, tailing a producer{_of(partitions)}", _RATE_UNIT, more=True)
        topic = self._topic(peer, partitions)
        records = self._records(peer, Shape(size), topic)
        self._measure(figure, peer, turn, Work("tail", topic, Shape(size), records))
        peer.delete(self._load, topic)

    def librdkafka(self, size: int, peer: Peer, turn: int) -> None:
        """Measure writing and reading by librdkafka with its defaults: acks=all, batches of up to 1 MB."""
        topic = self._topic(peer, 1)
        records = int(_BACKLOG_RECORDS_A_SECOND[size] * self._seconds)
        for verb, section in (("produce", PRODUCE), ("consume", CONSUME)):
            before = harness.cpu(peer.pid)
            count, seconds = librdkafka.run(verb, peer.address, topic, records, self._load.payloads[size])
            figure = Figure(section, f"{_size(size)}, librdkafka", _RATE_UNIT, more=True)
            self._note(figure, peer, turn, count, seconds, before)
        peer.delete(self._load, topic)

    def latency(self, linger_ms: str, seconds: int, peer: Peer, turn: int) -> None:
        """Measure the latency of an even rate, with one setting of the producer."""
        topic = self._topic(peer, 1)
        options = {"rate": LATENCY_RATE, "size": _LATENCY_BYTES, "seconds": seconds, "linger.ms": linger_ms}
        options |= {"warm_seconds": _LATENCY_WARM_SECONDS, "topic": topic}
        answer = self._load.do("latency", **peer.address, **options)
        for name, key in _PERCENTILES.items():
            what = f"{name} at {LATENCY_RATE:,} records/s, acks=all, {LINGERS[linger_ms]}"
            self._results.add(Figure(LATENCY, what, "ms"), peer.name, turn, answer[key])
        peer.delete(self._load, topic)

    def _measure(self, figure: Figure, peer: Peer, turn: int, work: Work, **options: object) -> None:
        before = harness.cpu(peer.pid)
        count, seconds = self._do(peer, work, **options)
        self._note(figure, peer, turn, count, seconds, before)

    def _measure_redis(
        self, figure: Figure, peer: Redis, turn: int, size: int, act: Callable[[int], tuple[int, float]]
    ) -> None:
        count, seconds = act(_PROBE_RECORDS[size])
        before = harness.cpu(peer.pid)
        count, seconds = act(int(count / seconds * self._seconds))
        self._note(figure, peer, turn, count, seconds, before)
        peer.clear()

    def _note(
        self, figure: Figure, peer: Peer | Redis, turn: int, count: float, seconds: float, before: Cpu
    ) -> None:
        """Keep a rate, and the CPU that was used since `before`."""
        used = harness.cpu(peer.pid).since(before)
        self._results.add(figure, peer.name, turn, count / seconds)
        section = CPU_OF[figure.section]
        self._results.add(Figure(section, figure.name, _CPU_UNIT), peer.name, turn, used.total / count * 1e6)
        if used.redis:
            part = Figure(section, f"{figure.name}: of it Redis", _CPU_UNIT)
            self._results.add(part, peer.name, turn, used.redis / count * 1e6)

    def _do(self, peer: Peer, work: Work, **options: object) -> tuple[float, float]:
        answer = self._load.do(
            work.verb,
            **peer.address,
            topic=work.topic,
            records=work.records,
            dense=int(peer.dense),
            milliseconds=int(self._seconds * 1000),
            payloads=self._load.payloads[work.shape.size],
            **work.shape.options(),
            **options,
        )
        return answer["records"], answer["seconds"]

    def _records(self, peer: Peer, shape: Shape, topic: str) -> int:
        """Return how many records to produce, from the rate of short unmeasured runs."""
        rate = self._rates.get((peer.name, shape), 0.0)
        probe = max(_PROBE_RECORDS[shape.size] * 2, int(rate * _PROBE_SECONDS))
        for _ in range(1 if rate else 2):
            count, seconds = self._do(peer, Work("produce", topic, shape, probe))
            rate = count / seconds
            probe = int(rate * _PROBE_SECONDS)
        self._rates[peer.name, shape] = rate
        return min(max(int(rate * self._seconds), _PROBE_RECORDS[shape.size]), _RECORDS_MAX)

    def _topic(self, peer: Peer, partitions: int) -> str:
        self._topics += 1
        topic = f"bench-{self._topics}"
        peer.create(self._load, topic, partitions)
        return topic


def _of(partitions: int) -> str:
    return "" if partitions == 1 else f", {partitions:,} partitions"


def _size(size: int) -> str:
    return "100 B" if size == 100 else "1 KiB"
