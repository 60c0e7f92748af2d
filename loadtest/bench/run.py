"""One run: which peers, which measurements, in which order. Knows all parts; prints progress to stderr only.

Rounds alternate: within a round every measurement goes through all peers, and each round begins with another one, so
that what happens on the machine meanwhile meets all alike.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

import korvet
from loadtest.bench import latency, throughput, toolchain
from loadtest.bench.cores import Cores
from loadtest.bench.cost import Cost
from loadtest.bench.load import Load, LoadError
from loadtest.bench.peers import (
    Kafka,
    KafkaTls,
    Kfake,
    KorvetBatch,
    KorvetBatchTls,
    KorvetRecord,
    Mock,
    Peer,
    Tansu,
)
from loadtest.bench.processes import NotAvailableError
from loadtest.bench.redis_peer import Redis
from loadtest.bench.results import Results
from loadtest.bench.scale import Scale

PEERS: dict[str, Callable[[Path], Peer | Redis]] = {
    kind.name: kind
    for kind in (Kafka, KorvetRecord, KorvetBatch, Redis, Mock, KafkaTls, KorvetBatchTls, Kfake, Tansu)
}
DEFAULT_PEERS = ["kafka", "korvet-record", "korvet-batch", "redis", "mock"]
SCENARIOS = ("produce", "consume", "librdkafka", "latency", "scale", "cost", "cores", "transactions", "share")
DEFAULT_SCENARIOS = ["produce", "consume", "librdkafka", "latency", "scale"]
MANY_PARTITIONS = 1000


class Plan(NamedTuple):
    """What a run does. `seconds` is how long one measurement of throughput takes."""

    peers: Sequence[str]
    scenarios: Sequence[str]
    rounds: int
    seconds: float
    quick: bool


class Run:
    """A run in progress."""

    def __init__(self, plan: Plan, directory: Path, load: Load) -> None:
        self.results = Results(list(plan.peers))
        self.results.environment = _environment(plan)
        self._plan = plan
        self._directory = directory
        self._load = load
        self._peers = [PEERS[name](directory) for name in plan.peers]
        self._began = time.monotonic()

    def whole(self) -> None:
        """Measure everything that the plan names."""
        for peer in self._peers:
            self.results.notes[peer.name] = peer.note
        self._together()
        quick = self._plan.quick
        parts = (self._load, self.results, self._directory)
        alone = {
            "scale": Scale(*parts, 2.0 if quick else 5.0).run,
            "cost": Cost(*parts, self._plan.seconds, quick=quick).run,
            "cores": Cores(*parts, self._plan.seconds).run,
        }
        for turn in range(self._plan.rounds):
            for what, measure in alone.items():
                if what in self._plan.scenarios:
                    self._each(self._available(self._peers), turn, what, measure)

    def _together(self) -> None:
        """Start all peers, which finds out who can be had, and measure what a warm broker does."""
        with contextlib.ExitStack() as running:
            for peer in self._peers:
                self._say(f"starting {peer.name}")
                running.callback(peer.stop)
                try:
                    peer.start()
                    peer.check(self._load)
                except NotAvailableError as why:
                    self.results.absent[peer.name] = str(why)
                    self._say(f"{peer.name} cannot be had: {why}")
                    peer.stop()
            peers = self._available(self._peers)
            self._warm(peers)
            measure = throughput.Throughput(self._load, self.results, self._plan.seconds)
            for turn in range(self._plan.rounds):
                self._round(peers, turn, measure)

    def _warm(self, peers: list[Peer | Redis]) -> None:
        """Let client and brokers run once what they will be measured with, so that Java has compiled it."""
        if not {"produce", "consume", "transactions", "share"} & set(self._plan.scenarios):
            return
        unused = throughput.Throughput(self._load, Results([]), self._plan.seconds)
        for shape in throughput.WARMING:
            self._each(peers, 0, f"warming up, {shape.name}", partial(unused.produce, shape))
        self._each(peers, 0, "warming up, reading", partial(unused.tailing, 100))
        if "share" in self._plan.scenarios:
            self._share(peers, 0, unused)

    def _round(self, peers: list[Peer | Redis], turn: int, measure: throughput.Throughput) -> None:
        delay = latency.Latency(self._load, self.results, 3 if self._plan.quick else 6)
        shapes = {
            "produce": throughput.shapes(quick=self._plan.quick),
            "transactions": throughput.TRANSACTIONS,
        }
        for shape in chain.from_iterable(shapes[name] for name in shapes if name in self._plan.scenarios):
            self._each(peers, turn, shape.name, partial(measure.produce, shape))
        if "consume" in self._plan.scenarios:
            for size in (100, 1024):
                self._each(peers, turn, f"read {size} B", partial(measure.cold, size))
                self._each(peers, turn, f"tail {size} B", partial(measure.tailing, size))
            for measurement in (measure.cold, measure.tailing):
                many = partial(measurement, 100, partitions=MANY_PARTITIONS)
                self._each(peers, turn, f"{measurement.__name__}, {MANY_PARTITIONS} partitions", many)
        if "share" in self._plan.scenarios:
            self._share(peers, turn, measure)
        if "librdkafka" in self._plan.scenarios:
            for size in (100, 1024):
                self._each(peers, turn, f"librdkafka {size} B", partial(measure.librdkafka, size))
        if "latency" in self._plan.scenarios:
            for linger_ms in latency.LINGERS:
                self._each(peers, turn, "latency", partial(delay.run, linger_ms))

    def _share(self, peers: list[Peer | Redis], turn: int, measure: throughput.Throughput) -> None:
        for size, consumers in product((100, 1024), (1, 4)):
            what = f"share group of {consumers}, {size} B"
            self._each(peers, turn, what, partial(measure.share, size, consumers))

    def _each(
        self, peers: list[Peer | Redis], turn: int, what: str, measure: Callable[[Peer | Redis, int], None]
    ) -> None:
        """Measure all peers, each round beginning with another one; what fails is reported and left out."""
        first = turn % max(len(peers), 1)
        self._say(f"round {turn + 1} of {self._plan.rounds}: {what}")
        for peer in [*peers[first:], *peers[:first]]:
            try:
                measure(peer, turn)
            except (LoadError, NotAvailableError) as why:
                self.results.failures.append(f"{peer.name}, {what}, round {turn + 1}: {why}")
                self._say(self.results.failures[-1])

    def _available(self, peers: list[Peer | Redis]) -> list[Peer | Redis]:
        return [peer for peer in peers if peer.name not in self.results.absent]

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {text}", file=sys.stderr, flush=True)


def _environment(plan: Plan) -> dict[str, object]:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    return {
        "korvet": korvet.__version__,
        "kafka": toolchain.kafka_version(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processor": model,
        "cores": os.cpu_count(),
        "load_average_at_start": os.getloadavg()[0],
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "quick": plan.quick,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
