"""Somebody else at Redis: PINGs from a process of their own, one at a time, a millisecond after the last answer.

A PING costs Redis nothing, so what it waits is what others kept Redis busy with, at that time.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import redis

from loadtest.log.report import Latencies

_INTERVAL_SECONDS = 0.001
_END_SECONDS_MAX = 60.0


@contextmanager
def pinging(socket: Path) -> Iterator[Callable[[], Latencies]]:
    """Send PINGs; what it gives ends them and returns what they took."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_ping, args=(str(socket), theirs), daemon=True
    )
    process.start()
    theirs.close()
    ours.recv()

    def end() -> Latencies:
        ours.send(None)
        if not ours.poll(_END_SECONDS_MAX):
            raise TimeoutError("the process that sends PINGs does not end")
        return Latencies.of(ours.recv())

    try:
        yield end
    finally:
        process.kill()
        process.join()


def _ping(socket: str, parent: Connection) -> None:
    client = redis.Redis(unix_socket_path=socket)
    client.ping()
    parent.send(None)
    taken: list[float] = []
    while not parent.poll():
        time.sleep(_INTERVAL_SECONDS)
        began = time.monotonic()
        client.ping()
        taken.append(time.monotonic() - began)
    parent.send(taken)
