"""Produce and consume throughput, and the CPU and memory that they take.

Each figure is of a warm broker and a warm load generator: the number of records is chosen from the rate of a first,
unmeasured run so that a measured one takes about `seconds`.
"""

from __future__ import annotations

from typing import NamedTuple

from loadtest.bench import librdkafka, processes
from loadtest.bench.load import Load
from loadtest.bench.peers import Mock, Peer
from loadtest.bench.redis_peer import Redis
from loadtest.bench.results import Figure, Results

PRODUCE, CONSUME = "Produce", "Consume"
PRODUCE_CPU, CONSUME_CPU = "CPU of produce", "CPU of consume"
_RATE_UNIT = "records/s"
_CPU_UNIT = "CPU s per million records, broker + Redis"
_PROBE_SECONDS = 0.7
_RECORDS_MAX = 4_000_000
# What a warm client reaches at least; the first probe has that number.
_PROBE_RECORDS = {100: 40_000, 1024: 10_000}
_SHARED_PARTITIONS = 16
# The same for all peers, and more than any of their caches of recent records would hold.
_BACKLOG_RECORDS_A_SECOND = {100: 400_000, 1024: 80_000}


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
        size = "100 B" if self.size == 100 else "1 KiB"
        several = "" if self.producers == 1 else "s"
        batch = f", batch.size={self.batch_bytes}" if self.batch_bytes else ""
        commits = f", a commit each {self.transaction_ms} ms" if self.transaction_ms else ""
        return f"{size}, acks={self.acks}, {self.compression}, {self.producers} producer{several}{batch}{commits}"

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


TRANSACTIONS = [Shape(size, "all", transaction_ms=ms) for size in (100, 1024) for ms in (0, 100)]
"""The same with and without transactions."""


class Throughput:
    """Produce and consume of all running peers, one after the other in each round."""

    def __init__(self, load: Load, results: Results, seconds: float) -> None:
        self._load = load
        self._results = results
        self._seconds = seconds
        self._rates: dict[tuple[str, Shape], float] = {}
        self._topics = 0

    def produce(self, shape: Shape, peer: Peer | Redis, turn: int) -> None:
        """Measure one way to produce."""
        if isinstance(peer, Redis):
            self._produce_redis(peer, shape, turn)
            return
        if isinstance(peer, Mock) and shape.transaction_ms:
            return
        topic = self._topic(peer, shape.producers)
        records = self._records(peer, shape, topic)
        self._measured(
            Figure(PRODUCE, shape.name, _RATE_UNIT, more=True),
            peer,
            turn,
            Work("produce", topic, shape, records),
        )
        peer.delete(self._load, topic)

    def cold(self, size: int, peer: Peer | Redis, turn: int, partitions: int = 1) -> None:
        """Measure reading a log from its start that nobody has read yet, by one consumer of all its partitions."""
        figure = Figure(CONSUME, f"{_size(size)}, from the start{_of(partitions)}", _RATE_UNIT, more=True)
        if isinstance(peer, Redis):
            if partitions == 1:
                self._consume_redis(peer, size, figure, turn)
            return
        if isinstance(peer, Mock):
            return
        shape = Shape(size)
        topic = self._topic(peer, partitions)
        records = int(_BACKLOG_RECORDS_A_SECOND[size] * self._seconds)
        self._do(peer, Work("produce", topic, shape, records))
        self._measured(figure, peer, turn, Work("consume", topic, shape, records))
        peer.delete(self._load, topic)

    def tailing(self, size: int, peer: Peer | Redis, turn: int, partitions: int = 1) -> None:
        """Measure reading the end of a log while one producer writes there as fast as it can."""
        if isinstance(peer, Redis | Mock):
            return
        figure = Figure(CONSUME, f"{_size(size)}, tailing a producer{_of(partitions)}", _RATE_UNIT, more=True)
        shape = Shape(size)
        topic = self._topic(peer, partitions)
        records = self._records(peer, shape, topic)
        self._measured(figure, peer, turn, Work("tail", topic, shape, records))
        peer.delete(self._load, topic)

    def share(self, size: int, consumers: int, peer: Peer | Redis, turn: int) -> None:
        """Measure reading a log from its start by the members of a share group."""
        if isinstance(peer, Redis | Mock):
            return
        by = f"share group of {consumers}{_of(_SHARED_PARTITIONS)}"
        shape = Shape(size)
        topic = self._topic(peer, _SHARED_PARTITIONS)
        records = int(_BACKLOG_RECORDS_A_SECOND[size] * self._seconds)
        self._do(peer, Work("produce", topic, shape, records))
        work = Work("share", topic, shape, records)
        self._measured(
            Figure(CONSUME, f"{_size(size)}, {by}", _RATE_UNIT, more=True),
            peer,
            turn,
            work,
            consumers=consumers,
        )
        peer.delete(self._load, topic)

    def librdkafka(self, size: int, peer: Peer | Redis, turn: int) -> None:
        """Measure writing and reading by librdkafka with its defaults: acks=all, batches of up to 1 MB."""
        if isinstance(peer, Redis | Mock):
            return
        topic = self._topic(peer, 1)
        records = int(_BACKLOG_RECORDS_A_SECOND[size] * self._seconds)
        for verb, section in (("produce", PRODUCE), ("consume", CONSUME)):
            before = processes.cpu(peer.pid)
            count, seconds = librdkafka.run(verb, peer.address, topic, records, self._load.payloads[size])
            used = processes.cpu(peer.pid).since(before)
            figure = Figure(section, f"{_size(size)}, librdkafka", _RATE_UNIT, more=True)
            self._note(figure, peer.name, turn, count, seconds, used)
        peer.delete(self._load, topic)

    def _measured(self, figure: Figure, peer: Peer, turn: int, work: Work, **options: object) -> None:
        before = processes.cpu(peer.pid)
        count, seconds = self._do(peer, work, **options)
        used = processes.cpu(peer.pid).since(before)
        self._note(figure, peer.name, turn, count, seconds, used)

    def _note(
        self, figure: Figure, peer: str, turn: int, count: float, seconds: float, used: processes.Cpu
    ) -> None:
        self._results.add(figure, peer, turn, count / seconds)
        section = PRODUCE_CPU if figure.section == PRODUCE else CONSUME_CPU
        self._results.add(Figure(section, figure.name, _CPU_UNIT), peer, turn, used.total / count * 1e6)
        part = Figure(section, f"{figure.name}: of it Redis", _CPU_UNIT)
        if used.redis:
            self._results.add(part, peer, turn, used.redis / count * 1e6)

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

    def _produce_redis(self, peer: Redis, shape: Shape, turn: int) -> None:
        if shape.compression != "none" or shape.acks != "1" or shape.batch_bytes:
            return
        value = b"x" * shape.size
        count, seconds = peer.produce(value, _PROBE_RECORDS[shape.size], shape.producers)
        records = int(count / seconds * self._seconds)
        before = processes.cpu(peer.pid)
        count, seconds = peer.produce(value, records, shape.producers)
        used = processes.cpu(peer.pid).since(before)
        self._note(Figure(PRODUCE, shape.name, _RATE_UNIT, more=True), peer.name, turn, count, seconds, used)
        peer.clear()

    def _consume_redis(self, peer: Redis, size: int, figure: Figure, turn: int) -> None:
        peer.produce(b"x" * size, 20_000, 1)
        count, seconds = peer.consume(_PROBE_RECORDS[size])
        before = processes.cpu(peer.pid)
        count, seconds = peer.consume(int(count / seconds * self._seconds))
        used = processes.cpu(peer.pid).since(before)
        self._note(figure, peer.name, turn, count, seconds, used)
        peer.clear()


def _of(partitions: int) -> str:
    return "" if partitions == 1 else f", {partitions:,} partitions"


def _size(size: int) -> str:
    return "100 B" if size == 100 else "1 KiB"
