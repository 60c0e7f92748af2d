"""Check loadtest/capacity.py: predicted and measured CPU of a worker and of each node, on 1, 2 and 3 masters.

Run as `python loadtest/micro/capacity.py [SECONDS [RATE]]` from the repository. One broker of one worker for each
cluster; each gets batches of 16 KiB and fetches of as much at a fixed rate, in turn for a third of the time, three
times. The rate that counts is the one that the machine came to. What a broker takes without a load is measured first,
and taken off.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import statistics
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from loadtest.capacity import KIB, Load, Site, predict
from loadtest.micro import cluster, requests
from loadtest.micro.requests import Broker

FETCHES = 3
"""Every third request is a fetch."""
ROUNDS = 3


def main() -> None:
    """Print a table of medians."""
    part_s = (float(sys.argv[1]) if len(sys.argv) > 1 else 15.0) / ROUNDS
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else 450.0
    found: dict[int, list[list[float]]] = {}
    with contextlib.ExitStack() as stack:
        clusters = {
            masters: stack.enter_context(cluster.broker(f"{masters} master{'s' * (masters > 1)}"))
            for masters in (1, 2, 3)
        }
        frames = [*cluster.produce(16, 1024)([])], [*cluster.fetch(16_384)([])]
        mixed = [
            frame for n in range(cluster.CONNECTIONS) for frame in (frames[0][n], frames[0][-n], frames[1][n])
        ]
        for _, (masters, (started, _)) in itertools.product(range(ROUNDS), clusters.items()):
            at_rest = _cpu(started)
            time.sleep(part_s)
            before, begun = _cpu(started), time.monotonic()
            count = _pace(started, mixed, rate, part_s)
            after, seconds = _cpu(started), time.monotonic() - begun
            costs = [
                (end - start) / seconds - (start - first) / part_s
                for first, start, end in zip(at_rest, before, after, strict=True)
            ]
            found.setdefault(masters, []).append([count / seconds, *costs])
    print(f"{'masters':8} {'requests/s':>10} {'process':>10} {'predicted':>10} {'measured':>10} {'error':>7}")
    for masters, rounds in found.items():
        rate, *measured = (statistics.median(column) for column in zip(*rounds, strict=True))
        load = Load(
            topics=1,
            partitions=cluster.PARTITIONS,
            mib_s=rate * (1 - 1 / FETCHES) * 16 / KIB,
            at_rest=1.0,
            fanout=1 / (FETCHES - 1),
            fetch_kib=16.0,
            waits=0.0,
            groups=0,
            topic_changes_s=0.0,
        )
        predicted = predict(Site(workers=1, nodes=masters), load, "bench")
        expected = [predicted.worker_s, *predicted.node_s]
        for at, (one, other) in enumerate(zip(expected, measured, strict=True)):
            name = f"node {at}" if at else "worker"
            print(f"{masters:<8} {rate:10.0f} {name:>10} {one:10.3f} {other:10.3f} {one / other - 1:+7.0%}")


def _cpu(started: Broker) -> list[float]:
    """Return the CPU seconds of the broker and of each node so far."""
    return [sum(requests.cpu(pids)) for pids in (started.workers, *([pid] for pid in started.redis))]


def _pace(started: Broker, frames: list[bytes], rate: float, seconds: float) -> int:
    """Send the requests in turn at a rate, over a connection each, never two at once; returns how many."""
    connections = [socket.create_connection(started.address) for _ in frames]
    poller = select.poll()
    for each in connections:
        poller.register(each, select.POLLIN)
    at = {each.fileno(): n for n, each in enumerate(connections)}
    received = [bytearray() for _ in connections]
    free, sent = list(range(len(connections))), 0
    begun = time.monotonic()
    while (now := time.monotonic() - begun) < seconds or len(free) < len(connections):
        while now < seconds and free and sent < now * rate:
            number = free.pop(0)
            connections[number].sendall(frames[number])
            sent += 1
        for descriptor, _ in poller.poll(1):
            number = at[descriptor]
            received[number] += connections[number].recv(1 << 20)
            data = received[number]
            if len(data) >= 4 and len(data) >= 4 + struct.unpack_from(">i", data)[0]:
                data.clear()
                free.append(number)
    for each in connections:
        each.close()
    return sent


if __name__ == "__main__":
    main()
