"""CPU per fetch of 1,000 partitions of a whole broker, its worker and its Redis: with all named, and in a session.

Run as `python loadtest/micro/fetch_sessions.py [CHECKOUT ...]` from the repository. Starts a broker of one worker from
each checkout (this one where none is named), and measures both kinds of fetches on each in turn, round after round, by
the kernel's counts of CPU time. An idle fetch waits in vain for FETCH_WAIT_MS; what producers append comes between two
fetches, and is not counted.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from loadtest.micro.requests import ROOT, Broker, broker
from tests.support.fetch_session import Consumer
from tests.support.topic_client import Client

PARTITIONS = 1000
FETCHES = 10
ROUNDS = 7
FETCH_WAIT_MS = 200
VERSION = 12


class Case(NamedTuple):
    """How many partitions get a record before each fetch, and whether it waits."""

    name: str
    busy: int
    wait_ms: int


CASES = (
    Case("idle, waits in vain", 0, FETCH_WAIT_MS),
    Case("1 of them has a record", 1, 500),
    Case("10 of them have a record", 10, 500),
)


class Used(NamedTuple):
    """CPU per fetch, in us."""

    worker: float
    redis: float


def main() -> None:
    """Measure every case on every checkout, alternating, and print medians."""
    checkouts = [Path(arg).resolve() for arg in sys.argv[1:]] or [ROOT]
    print(f"{'case':26} {'kind':10} {'checkout':24} {'worker us':>10} {'Redis us':>9}")
    for case in CASES:
        figures: dict[tuple[str, Path], list[Used]] = {}
        with ExitStack() as stack:
            fetches: list[tuple[str, Path, Broker, Callable[[int], None]]] = []
            for checkout in checkouts:
                started = stack.enter_context(broker(checkout, "storage.format=batch"))
                client = stack.enter_context(Client(started.address))
                client.create("bench", PARTITIONS)
                kinds = {"full": full(client), "session": session(client)}
                fetches += [(kind, checkout, started, fetch) for kind, fetch in kinds.items()]
            for number in range(ROUNDS):
                turn = number % len(fetches)
                for kind, checkout, started, fetch in fetches[turn:] + fetches[:turn]:
                    figures.setdefault((kind, checkout), []).append(measured(started, case, fetch))
        for (kind, checkout), rounds in sorted(figures.items()):
            used = [statistics.median(column) for column in zip(*rounds, strict=True)]
            print(f"{case.name:26} {kind:10} {checkout.name:24} {used[0]:10.0f} {used[1]:9.0f}", flush=True)


def full(client: Client) -> Callable[[int], None]:
    """Return fetches that name all partitions."""
    consumer = _consumer(client)

    def fetch(wait_ms: int) -> None:
        request = consumer.request(wait_ms)
        request.session_epoch = -1
        consumer.take(client.call(request, VERSION))

    return fetch


def session(client: Client) -> Callable[[int], None]:
    """Return fetches in a session, where the broker has them."""
    consumer = _consumer(client)

    def fetch(wait_ms: int) -> None:
        consumer.fetch(wait_ms)

    return fetch


def _consumer(client: Client) -> Consumer:
    consumer = Consumer(client, VERSION)
    for partition in range(PARTITIONS):
        consumer.seek("bench", partition)
    return consumer


def measured(started: Broker, case: Case, fetch: Callable[[int], None]) -> Used:
    """Return what a fetch costs."""
    worker = redis = 0.0
    with Client(started.address) as producer:
        for n in range(FETCHES + 3):
            for partition in range(case.busy):
                producer.append("bench", b"x" * 100, partition=(n * case.busy + partition) % PARTITIONS)
            time.sleep(0.01)  # until the worker has heard of them
            before = used_us(started.workers), used_us(started.redis)
            fetch(case.wait_ms)
            if n >= 3:
                worker += used_us(started.workers) - before[0]
                redis += used_us(started.redis) - before[1]
    return Used(worker / FETCHES, redis / FETCHES)


def used_us(pids: list[int]) -> float:
    """Return the CPU that processes have used; /proc/PID/stat counts in ticks, which are longer than a fetch."""
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000


if __name__ == "__main__":
    main()
