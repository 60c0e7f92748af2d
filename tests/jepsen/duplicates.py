"""Idempotent producers of all libraries while replies to appends are lost: `make duplicates`.

A proxy cuts connections when a reply comes: those of Korvet's workers to Redis, so that a script was run and
its outcome is not known, and as the control those of clients to Korvet and to Apache Kafka. Each batch has one value.
Exits with 1 if one of Korvet's logs has a value twice, or not at all.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from loadtest.bench import peers, toolchain
from tests.jepsen import programs
from tests.jepsen.checker import check
from tests.jepsen.clients import PARTITIONS, read_log
from tests.jepsen.history import Acknowledged, Failed, History, now
from tests.jepsen.program_clients import ProgramProducer
from tests.jepsen.system import Node
from tests.support import reading
from tests.support.broker import korvet_broker
from tests.support.processes import free_port
from tests.support.proxy_process import Proxy

_SECONDS_MAX = 300.0
_BETWEEN_CUTS_SECONDS = (0.01, 0.2)


class Target(NamedTuple):
    """A broker, and the proxy that cuts connections of it."""

    bootstrap: str
    proxy: Proxy
    configs: dict[str, str]


@contextlib.contextmanager
def _redis_cut(directory: Path, storage_format: str) -> Iterator[Target]:
    with (
        Node(directory / "redis.log") as node,
        Proxy(node.port) as proxy,
        korvet_broker(directory, "--redis-url", f"redis://127.0.0.1:{proxy.port}") as broker,
    ):
        yield Target(broker.bootstrap, proxy, {"storage.format": storage_format})


@contextlib.contextmanager
def _client_cut(directory: Path) -> Iterator[Target]:
    port = free_port()
    with Proxy(port) as proxy:
        address = f"127.0.0.1:{proxy.port}"
        listen = ("--listen", f"127.0.0.1:{port}", "--advertised", address)
        with korvet_broker(directory, listen=listen):
            yield Target(address, proxy, {"storage.format": "batch"})


class _Kafka(peers.Kafka):
    """Apache Kafka behind a proxy."""

    def prepare(self) -> None:
        """Have it name the proxy to its clients."""
        super().prepare()
        self.proxy = Proxy(self.port).__enter__()
        with self._config.open("a") as file:
            file.write(f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.proxy.port}\n")


@contextlib.contextmanager
def _kafka_cut(directory: Path) -> Iterator[Target]:
    toolchain.prepare()
    kafka = _Kafka(directory)
    kafka.start()
    try:
        yield Target(f"127.0.0.1:{kafka.proxy.port}", kafka.proxy, {})
    finally:
        kafka.stop()
        kafka.proxy.__exit__()


TARGETS = {
    "korvet-record": lambda directory: _redis_cut(directory, "record"),
    "korvet-batch": lambda directory: _redis_cut(directory, "batch"),
    "korvet-clients": _client_cut,
    "kafka-clients": _kafka_cut,
}


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen.duplicates", description=__doc__)
    parser.add_argument("--batches", type=int, default=12_000, help="of each client")
    parser.add_argument("--seed", type=int, default=7, help="of the times between cuts")
    parser.add_argument("--clients", default=",".join(programs.PRODUCERS), help="their names, with commas")
    parser.add_argument("--targets", default=",".join(TARGETS), help="their names, with commas")
    asked = parser.parse_args()
    names = asked.clients.split(",")
    programs.prepare(names)
    failed = False
    print(
        f"{'connections cut':<16}{'client':<14}{'batches':>8}{'cuts':>6}{'doubled':>9}{'lost':>6}{'reordered':>11}"
        f"{'clients failed':>16}{'seconds':>9}"
    )
    for target in asked.targets.split(","):
        with (
            tempfile.TemporaryDirectory(prefix="korvet-duplicates-") as directory,
            TARGETS[target](Path(directory)) as running,
        ):
            for name in names:
                held = _try(target, running, name, asked.batches, random.Random(asked.seed))
                failed |= not held and target.startswith("korvet")
    return 1 if failed else 0


def _try(label: str, target: Target, name: str, batches: int, rng: random.Random) -> bool:
    """Have one client send its batches, print what became of them, and return whether all is right."""
    topic = f"by-{name}"
    _create(target, topic)
    history = History()
    began, cuts = now(), target.proxy.say("flow")
    client = ProgramProducer(name, target.bootstrap, history, topic=topic, count=batches)
    ending = threading.Event()
    cutter = threading.Thread(target=_cut, args=(target.proxy, ending, rng), daemon=True)
    cutter.start()
    done = client.wait(_SECONDS_MAX)
    ending.set()
    cutter.join()
    if not done:
        assert not client.end(), f"{name} does not end"
    seconds = now() - began
    cuts = target.proxy.say("flow") - cuts
    results = check(history.events, read_log(target.bootstrap, topic))
    kinds = Counter(result.kind for result in results)
    acknowledged = sum(isinstance(event, Acknowledged) for event in history.events)
    failures = [event for event in history.events if isinstance(event, Failed)]
    print(
        f"{label:<16}{name:<14}{acknowledged:>8}{cuts:>6}{kinds['doubled']:>9}{kinds['lost']:>6}"
        f"{kinds['reordered']:>11}{len(failures):>16}{seconds:>9.0f}",
        flush=True,
    )
    for failure in failures[:3]:
        print(f"  {failure.client} failed: {failure.error[:200]}")
    for violation in results[:5]:
        print(f"  {violation.kind}: {violation.text}", flush=True)
    return done and not results


def _create(target: Target, topic: str) -> None:
    """Create a topic, and wait until clients see it."""
    reading.create_topic(target.bootstrap, topic, PARTITIONS, target.configs)
    AdminClient({"bootstrap.servers": target.bootstrap}).list_topics(topic, 30.0)


def _cut(proxy: Proxy, ending: threading.Event, rng: random.Random) -> None:
    while not ending.wait(rng.uniform(*_BETWEEN_CUTS_SECONDS)):
        proxy.say("cut reply")


if __name__ == "__main__":
    sys.exit(main())
