"""What a broker costs before and between the records: start, memory, many partitions and connections, idle CPU.

Each measurement is of a broker of its own on empty data, while no other peer runs.
"""

from __future__ import annotations

import time

from loadtest import harness
from loadtest.bench import frames, produce_loop
from loadtest.bench.peers import Peer, Redis
from loadtest.bench.produce_loop import RECORD_BYTES, Bench, Requests
from loadtest.bench.results import Figure
from loadtest.harness import NotAvailableError

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


def measure(bench: Bench, peer: Peer | Redis, turn: int) -> None:
    """Start, measure, stop."""
    peer.prepare()
    began = time.monotonic()
    try:
        peer.launch()
        bench.results.add(START, peer.name, turn, time.monotonic() - began)
        time.sleep(1.0)
        bench.results.add(MEMORY_AT_START, peer.name, turn, harness.resident_mib(peer.pid))
        for connections in SINGLE_CONNECTIONS:
            _single(bench, peer, turn, connections)
        if isinstance(peer, Peer):
            _many(bench, peer, turn)
    finally:
        bench.load.do("close")
        peer.stop()


def _single(bench: Bench, peer: Peer | Redis, turn: int, connections: int) -> None:
    """Have requests of one record, one under way on each connection."""
    count: float
    if isinstance(peer, Redis):
        before = harness.cpu(peer.pid)
        count, seconds = peer.single(RECORD_BYTES, _SINGLE_REDIS_RECORDS, connections)
        used = harness.cpu(peer.pid).since(before)
    else:
        work = Requests(f"single-{connections}", 8, connections)
        # Long enough for a Java broker to compile what it runs.
        count, seconds, used, _ = produce_loop.run(bench, peer, work, bench.seconds * 2)
    at = f"at {connections:,} connections"
    if used.broker:
        figure = Figure(SINGLE, f"broker CPU {at}", "us a request")
        bench.results.add(figure, peer.name, turn, used.us(count).broker)
    if used.redis:
        figure = Figure(SINGLE, f"Redis CPU {at}", "us a request")
        bench.results.add(figure, peer.name, turn, used.us(count).redis)
    rate = Figure(SINGLE, f"requests {at}", "requests/s", more=True)
    bench.results.add(rate, peer.name, turn, count / seconds)


def _many(bench: Bench, peer: Peer, turn: int) -> None:
    """Have many partitions, and many connections that sent one request and are idle then."""
    seconds = peer.create(bench.load, _TOPIC, PARTITIONS_EACH, TOPICS)
    bench.results.add(CREATE, peer.name, turn, seconds)
    harness.settle(peer.pid)
    path = frames.write(bench.directory / "frames", [frames.metadata()])
    answer = bench.load.do("open", bootstrap=peer.bootstrap, connections=CONNECTIONS, frames=path)
    bench.results.add(CONNECT, peer.name, turn, answer["seconds"])
    harness.settle(peer.pid)
    held = harness.connections(peer.pid, peer.port)
    bench.results.add(FEWEST, peer.name, turn, min(held.values()))
    bench.results.add(MOST, peer.name, turn, max(held.values()))
    before = harness.cpu(peer.pid)
    time.sleep(bench.seconds * 2)
    used = harness.cpu(peer.pid).since(before)
    bench.results.add(IDLE, peer.name, turn, used.total / (bench.seconds * 2) * 100)
    bench.results.add(MEMORY, peer.name, turn, harness.resident_mib(peer.pid))
    bench.results.add(WORKER_MEMORY, peer.name, turn, max(map(harness.process_mib, held)))
    _parked(bench, peer, turn, list(held))


def _parked(bench: Bench, peer: Peer, turn: int, workers: list[int]) -> None:
    """Have every connection wait at a partition of its own, again and again."""
    names = [_TOPIC if n == 0 else f"{_TOPIC}-{n}" for n in range(TOPICS)]
    partitions = range(CONNECTIONS // TOPICS)
    requests = [frames.fetch(name, partition, PARKED_MS) for name in names for partition in partitions]
    path = frames.write(bench.directory / "frames", requests)
    bench.load.do("loop", frames=path, milliseconds=int(_SETTLE_SECONDS * 1000))
    before, began = harness.cpu(peer.pid), time.monotonic()
    answer = bench.load.do("loop", frames=path, milliseconds=int(bench.seconds * 2000))
    used, seconds = harness.cpu(peer.pid).since(before), time.monotonic() - began
    if answer["requests"] > CONNECTIONS * (1 + seconds * 1000 / PARKED_MS):
        raise NotAvailableError(f"fetches of {PARKED_MS} ms were answered sooner: {answer['requests']:.0f}")
    bench.results.add(PARKED, peer.name, turn, used.total / seconds * 100)
    bench.results.add(PARKED_MEMORY, peer.name, turn, max(map(harness.process_mib, workers)))
