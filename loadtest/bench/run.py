"""One run: its peers, its measurements, and their order. Knows all parts; prints progress to stderr only.

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
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeVar

import korvet
from loadtest.bench import cost, peers, scale, throughput, toolchain
from loadtest.bench.load import Load, LoadError
from loadtest.bench.peers import Peer, Redis
from loadtest.bench.produce_loop import Bench
from loadtest.bench.results import Results
from loadtest.bench.throughput import Throughput
from loadtest.harness import NotAvailableError

DEFAULT_PEERS = ["kafka", "korvet-record", "korvet-batch", "redis"]
PEERS: dict[str, Callable[[Path], Peer | Redis]] = {
    "kafka": peers.Kafka,
    "korvet-record": peers.KorvetRecord,
    "korvet-batch": peers.KorvetBatch,
    "redis": peers.Redis,
    "kafka-tls": peers.KafkaTls,
    "korvet-batch-tls": peers.KorvetBatchTls,
    "kfake": peers.Kfake,
    "tansu": peers.Tansu,
}
DEFAULT_SCENARIOS = ["produce", "consume", "librdkafka", "latency", "scale"]
SCENARIOS = (*DEFAULT_SCENARIOS, "cost", "cores", "transactions", "share")
SIZES = (100, 1024)
MANY_PARTITIONS = 1000
AnyPeer = TypeVar("AnyPeer", bound=Peer | Redis)


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
        bench = Bench(self._load, self.results, self._directory, self._plan.seconds, quick)
        # Their many connections speak no TLS.
        everyone = [peer for peer in self._available() if isinstance(peer, Redis) or not peer.tls]
        brokers = [peer for peer in everyone if isinstance(peer, Peer)]
        for turn in range(self._plan.rounds):
            if "scale" in self._plan.scenarios:
                longer = bench._replace(seconds=2.0 if quick else 5.0)
                self._each(everyone, turn, "scale", partial(scale.measure, longer))
            if "cost" in self._plan.scenarios:
                self._each(brokers, turn, "cost", partial(cost.measure, bench))
            if "cores" in self._plan.scenarios:
                self._each(brokers, turn, "cores", partial(cost.measure_cores, bench))

    def _together(self) -> None:
        """Start all peers, which finds out who can be had, and measure what a warm broker does."""
        with contextlib.ExitStack() as running:
            for peer in self._peers:
                self._say(f"starting {peer.name}")
                running.callback(peer.stop)
                try:
                    peer.start()
                except NotAvailableError as why:
                    self.results.absent[peer.name] = str(why)
                    self._say(f"{peer.name} cannot be had: {why}")
                    peer.stop()
            self._warm()
            measure = Throughput(self._load, self.results, self._plan.seconds)
            for turn in range(self._plan.rounds):
                self._round(turn, measure)

    def _warm(self) -> None:
        """Let client and brokers run once what they will be measured with, so that Java has compiled it."""
        if not {"produce", "consume", "transactions", "share"} & set(self._plan.scenarios):
            return
        unused = Throughput(self._load, Results([]), self._plan.seconds)
        for shape in throughput.WARMING:
            self._each(self._available(), 0, f"warming up, {shape.name}", partial(unused.produce, shape))
        self._each(self._brokers(), 0, "warming up, reading", partial(unused.tailing, 100))
        if "share" in self._plan.scenarios:
            self._share(0, unused)

    def _round(self, turn: int, measure: Throughput) -> None:
        everyone, brokers, wanted = self._available(), self._brokers(), self._plan.scenarios
        shapes = throughput.shapes(quick=self._plan.quick) if "produce" in wanted else []
        shapes += throughput.TRANSACTIONS if "transactions" in wanted else []
        for shape in shapes:
            self._each(everyone, turn, shape.name, partial(measure.produce, shape))
        if "consume" in wanted:
            for size in SIZES:
                self._each(everyone, turn, f"read {size} B", partial(measure.from_the_start, size))
                self._each(brokers, turn, f"tail {size} B", partial(measure.tailing, size))
            for reading in (measure.from_the_start, measure.tailing):
                many = partial(reading, 100, partitions=MANY_PARTITIONS)
                self._each(brokers, turn, f"{reading.__name__}, {MANY_PARTITIONS} partitions", many)
        if "share" in wanted:
            self._share(turn, measure)
        if "librdkafka" in wanted:
            for size in SIZES:
                self._each(brokers, turn, f"librdkafka {size} B", partial(measure.librdkafka, size))
        if "latency" in wanted:
            seconds = 3 if self._plan.quick else 6
            for linger_ms in throughput.LINGERS:
                self._each(brokers, turn, "latency", partial(measure.latency, linger_ms, seconds))

    def _share(self, turn: int, measure: Throughput) -> None:
        for size, consumers in product(SIZES, (1, 4)):
            what = f"share group of {consumers}, {size} B"
            self._each(self._brokers(), turn, what, partial(measure.share, size, consumers))

    def _each(
        self, measured: list[AnyPeer], turn: int, what: str, measure: Callable[[AnyPeer, int], None]
    ) -> None:
        """Measure all of them, each round beginning with another one; what fails is reported and left out."""
        first = turn % max(len(measured), 1)
        self._say(f"round {turn + 1} of {self._plan.rounds}: {what}")
        for peer in [*measured[first:], *measured[:first]]:
            try:
                measure(peer, turn)
            except (LoadError, NotAvailableError) as why:
                self.results.failures.append(f"{peer.name}, {what}, round {turn + 1}: {why}")
                self._say(self.results.failures[-1])

    def _available(self) -> list[Peer | Redis]:
        return [peer for peer in self._peers if peer.name not in self.results.absent]

    def _brokers(self) -> list[Peer]:
        return [peer for peer in self._available() if isinstance(peer, Peer)]

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {text}", file=sys.stderr, flush=True)


def _environment(plan: Plan) -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "korvet": korvet.__version__,
        "kafka": toolchain.kafka_version(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processor": models[-1] if models else "unknown",
        "cores": os.cpu_count(),
        "load_average_at_start": os.getloadavg()[0],
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "quick": plan.quick,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
