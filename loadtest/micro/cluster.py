"""CPU per request on one Redis and on Redis Clusters: the worker's, and that of all Redis servers together.

Run as `python loadtest/micro/cluster.py --help` from the repository. Starts a broker of one worker for one Redis, a
cluster of one master and one of three, all over TCP with an append-only file, and sends the same prepared requests to
each in turn, round after round. Ratios are those of a round, so that other work on the machine disturbs little. "Alone"
has one request under way at a time; the others have 60 (12 connections x 5), with --per-node 60 for each master.
loadtest/capacity.py has these costs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from loadtest.micro import group_requests, requests
from loadtest.micro.group_requests import Member
from loadtest.micro.requests import Broker
from tests.support import batches
from tests.support.batches import Record
from tests.support.processes import free_port
from tests.support.redis_cluster import redis_cluster
from tests.support.redis_servers import connected, embedded_server
from tests.support.wire_client import request_frame

PARTITIONS = 12
CONNECTIONS = 12
IN_FLIGHT = 5
SETTINGS = ("group.initial.rebalance.delay.ms=0", f"num.partitions={PARTITIONS}")


class Case(NamedTuple):
    """A kind of request, a format of storage, and how many requests a round sends."""

    name: str
    storage_format: str
    frames: Callable[[list[Member]], list[bytes]]
    requests: int
    alone: bool = False


def produce(records: int, size: int, partitions: int = 1) -> Callable[[list[Member]], list[bytes]]:
    """Return what makes produce requests, one for each connection, that go through the partitions in turn."""

    def frames(_: list[Member]) -> list[bytes]:
        now = int(time.time() * 1000)
        # As different as those of real load: what repeats itself would be compressed to nothing on its way to Redis.
        data = batches.batch(*[Record(os.urandom(size), None, now) for _ in range(records)])
        return [
            request_frame(
                ProduceRequest(
                    acks=1,
                    timeout_ms=30_000,
                    topic_data=[
                        TopicProduceData(
                            name="bench",
                            partition_data=[
                                PartitionProduceData(index=(first + n) % PARTITIONS, records=data)
                                for n in range(partitions)
                            ],
                        )
                    ],
                ),
                9,
            )
            for first in range(CONNECTIONS)
        ]

    return frames


def fetch(max_bytes: int, offset: int = 0, wait_ms: int = 0) -> Callable[[list[Member]], list[bytes]]:
    """Return what makes fetches of one partition each; an offset past the end waits."""
    return lambda _: [
        request_frame(
            FetchRequest(
                max_wait_ms=wait_ms,
                min_bytes=1,
                topics=[
                    FetchTopic(
                        topic="bench",
                        partitions=[
                            FetchPartition(partition=n, fetch_offset=offset, partition_max_bytes=max_bytes)
                        ],
                    )
                ],
            ),
            11,
        )
        for n in range(CONNECTIONS)
    ]


def group(name: str, partitions: int = 0) -> Callable[[list[Member]], list[bytes]]:
    """Return what makes requests of members, each the only one of its group."""
    case = group_requests.Case(name, partitions, 0)
    return lambda members: [group_requests.frame(case, each) for each in members[:CONNECTIONS]]


CASES = (
    Case("produce 1 record of 100 B", "batch", produce(1, 100), 3000),
    Case("produce 1 record, alone", "batch", produce(1, 100), 2000, alone=True),
    Case("produce 16 KiB", "batch", produce(16, 1024), 2000),
    Case("produce 16 KiB, alone", "batch", produce(16, 1024), 1500, alone=True),
    Case("produce 256 KiB", "batch", produce(256, 1024), 300),
    Case("produce 12 x 1 record", "batch", produce(1, 100, PARTITIONS), 600),
    Case("produce 12 x 16 KiB", "batch", produce(16, 1024, PARTITIONS), 300),
    Case("fetch 16 KiB", "batch", fetch(16_384), 3000),
    Case("fetch 256 KiB", "batch", fetch(262_144), 600),
    Case("fetch 16 KiB, alone", "batch", fetch(16_384), 2000, alone=True),
    Case("fetch that waits 2 ms", "batch", fetch(16_384, 1 << 40, 2), 1500),
    Case("produce 1 record of 100 B", "record", produce(1, 100), 3000),
    Case("produce 16 x 1 KiB", "record", produce(16, 1024), 1500),
    Case("produce 160 x 100 B", "record", produce(160, 100), 1000),
    Case("heartbeat", "batch", group("heartbeat"), 3000),
    Case("heartbeat, alone", "batch", group("heartbeat"), 2000, alone=True),
    Case("commit 1 partition", "batch", group("commit", 1), 2000),
    Case("commit 10 partitions", "batch", group("commit", 10), 1000),
    Case("join", "batch", group("join"), 1000),
)


@contextlib.contextmanager
def one_redis() -> Iterator[tuple[str, list[int]]]:
    """Run one server that takes connections over TCP; yields its URL and its process."""
    port = str(free_port())
    with (
        embedded_server("--port", port, "--bind", "127.0.0.1", "--appendonly", "yes") as url,
        connected(url) as client,
    ):
        yield f"redis://127.0.0.1:{port}", [client.info("server")["process_id"]]


@contextlib.contextmanager
def cluster(masters: int) -> Iterator[tuple[str, list[int]]]:
    """Run a cluster; yields its URL and its processes."""
    with redis_cluster(masters, append_only=True) as running:
        yield running.url, [node.pid for node in running.nodes]


# What a broker may be started on, by name.
SERVERS: dict[str, Callable[[], contextlib.AbstractContextManager[tuple[str, list[int]]]]] = {
    "one Redis": one_redis,
    "1 master": lambda: cluster(1),
    "2 masters": lambda: cluster(2),
    "3 masters": lambda: cluster(3),
}


@contextlib.contextmanager
def broker(name: str, *settings: str) -> Iterator[tuple[Broker, list[Member]]]:
    """Run a broker of one worker on servers of that name; yields it, and members of groups, with a topic to use."""
    with (
        SERVERS[name]() as (url, pids),
        requests.broker(requests.ROOT, f"redis.url={url}", *SETTINGS, *settings) as started,
    ):
        members = group_requests.join_all(started.address)
        measured = started._replace(redis=pids)
        requests.driven(measured, produce(16, 1024)(members), IN_FLIGHT, 600)  # what fetches read
        yield measured, members


def main() -> None:
    """Measure every case on every kind of server, alternating, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--servers", default="one Redis,1 master,3 masters", help="the first is that of the ratios"
    )
    parser.add_argument("--only", default="", help="cases whose names begin like one of these")
    parser.add_argument("--formats", default="batch,record")
    parser.add_argument(
        "--per-node", action="store_true", help="have as many requests under way for each master"
    )
    given = parser.parse_args()
    print(f"{'':26} {'format':7} {'servers':10} {'worker us':>10} {'ratio':>6} {'Redis us':>9} {'ratio':>6}")
    for storage_format in given.formats.split(","):
        wanted = tuple(given.only.split(","))
        cases = [
            each for each in CASES if each.storage_format == storage_format and each.name.startswith(wanted)
        ]
        with contextlib.ExitStack() as stack:
            setting = f"storage.format={storage_format}"
            names = given.servers.split(",")
            brokers = {name: stack.enter_context(broker(name, setting)) for name in names}
            for case in cases:
                _print(case, _measured(brokers, case, given.rounds, per_node=given.per_node))


def _measured(
    brokers: dict[str, tuple[Broker, list[Member]]], case: Case, rounds: int, *, per_node: bool
) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in brokers}
    frames = {name: case.frames(members) for name, (_, members) in brokers.items()}
    for _ in range(rounds):
        for name, (started, _) in brokers.items():
            some = frames[name][:1] if case.alone else frames[name]
            in_flight = IN_FLIGHT * (int(name[0]) if per_node and name.endswith("masters") else 1)
            cost = requests.driven(started, some, 1 if case.alone else in_flight, case.requests)
            found[name].append((cost[0] + cost[1], cost[2]))
    return found


def _print(case: Case, found: dict[str, list[tuple[float, float]]]) -> None:
    one = next(iter(found.values()))
    for name, costs in found.items():
        cells = []
        for at in (0, 1):
            ratio = statistics.median(each[at] / base[at] for each, base in zip(costs, one, strict=True))
            cells.append((statistics.median(each[at] for each in costs), ratio))
        (worker, by_worker), (redis, by_redis) = cells
        line = (
            f"{case.name:26} {case.storage_format:7} {name:10} {worker:10.1f} {by_worker:6.2f} {redis:9.1f}"
        )
        print(f"{line} {by_redis:6.2f}", flush=True)


if __name__ == "__main__":
    main()
