"""How long after a change of the registry a worker has it in memory, without having been asked for it.

Run as `python -m loadtest.micro.registry` from the repository. Starts a private embedded server without persistence and
processes that follow the registry as workers do; another one creates, alters and deletes topics. The time runs from
when Redis had answered the change, when its client may know of it, to when a worker's registry shows it, on one clock;
the table shows the last worker of each change. What is not positive was seen before the answer came.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import quantiles

import gevent
from msgspec.structs import replace

from korvet.redis.keys import Keys
from korvet.server.registry_watcher import watch
from korvet.topics.registry import Topic, TopicSpec
from korvet.topics.types import TopicRow
from loadtest.harness import table
from tests.support import redis_servers
from tests.support.domain import domain

NAME = "orders"
_ANSWER_SECONDS_MAX = 60.0
_LOOKS_PER_SECOND = 10_000


def follow(url: str, parent: Connection) -> None:
    """Be a worker: tell for each of the parent's questions when the registry came to show what it asks for."""
    with domain(url) as here:
        gevent.spawn(watch, here.subscriptions, Keys("korvet").topics_channel, [here.topics.refresh])
        while not here.subscriptions.live(Keys("korvet").topics_channel):
            gevent.sleep(0.001)
        parent.send(None)
        seen: Topic | None = None
        while True:
            # Sleeps in the event loop, as a worker without requests does; the look costs some 100 us at most.
            gevent.sleep(1 / _LOOKS_PER_SECOND)
            if here.topics.get_cached(NAME) != seen:
                seen = here.topics.get_cached(NAME)
                parent.send(time.monotonic())


def main() -> None:
    """Print a table."""
    flags = argparse.ArgumentParser(description="Measure how soon workers see changes of the registry.")
    flags.add_argument("--workers", type=int, default=4, help="that follow, 4 by default")
    flags.add_argument("--rounds", type=int, default=200, help="of three changes each, 200 by default")
    given = flags.parse_args()
    with redis_servers.embedded_server() as url, domain(url) as here:
        context = multiprocessing.get_context("spawn")
        pipes = []
        for _ in range(given.workers):
            ours, theirs = context.Pipe()
            context.Process(target=follow, args=(url, theirs), daemon=True).start()
            pipes.append(ours)
        for pipe in pipes:
            _receive(pipe)

        def last_seen(change: Callable[[], object]) -> float:
            change()
            answered = time.monotonic()
            return max(_receive(pipe) for pipe in pipes) - answered

        def shorter(row: TopicRow) -> TopicRow:
            return replace(row, configs=row.configs | {"retention.ms": "1000"})

        changes: dict[str, Callable[[], object]] = {
            "create": lambda: here.topics.create(TopicSpec(name=NAME)),
            "alter": lambda: here.topics.alter(here.topics.get(NAME), shorter),
            "delete": lambda: here.topics.delete([here.topics.get(NAME)]),
        }
        taken: dict[str, list[float]] = {name: [] for name in changes}
        for _ in range(given.rounds):
            for name, change in changes.items():
                taken[name].append(last_seen(change))
    print(f"{given.workers} workers, {given.rounds} rounds")
    rows: list[list[str | float]] = []
    for name, seconds in taken.items():
        cuts = quantiles(seconds, n=100)
        rows.append([name, *(value * 1000 for value in (cuts[49], cuts[98], max(seconds)))])
    print(table(("change", "p50 ms", "p99 ms", "max ms"), rows))


def _receive(pipe: Connection) -> float:
    if not pipe.poll(_ANSWER_SECONDS_MAX):
        raise TimeoutError("a worker does not see a change")
    return float(pipe.recv() or 0.0)


if __name__ == "__main__":
    main()
