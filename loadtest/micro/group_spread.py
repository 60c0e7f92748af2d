"""How groups and their heartbeats spread over the masters of a Redis Cluster.

Run as `python loadtest/micro/group_spread.py [GROUPS [BEATS]]` from the repository. A broker of one worker on three
masters makes groups of one member each (100,000); then as many heartbeats come as it takes, each of another group, for
BEATS in all (300,000). Prints their rate, and the share of each master: keys, commands and CPU.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import sub
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from loadtest.micro import group_requests, requests
from loadtest.micro.group_requests import Case, Member
from tests.support.redis_cluster import ClusterNode, RedisCluster, redis_cluster
from tests.support.wire_client import WireClient

MASTERS, CONNECTIONS, UNDER_WAY = 3, 16, 10
BEAT = Case("heartbeat", 0, 0)


def main() -> None:
    """Make the groups, let their members beat, and print what each master had to do."""
    groups = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    beats = int(sys.argv[2]) if len(sys.argv) > 2 else 300_000
    with redis_cluster(MASTERS, append_only=True) as cluster:
        settings = (f"redis.url={cluster.url}", *group_requests.SETTINGS)
        with requests.broker(requests.ROOT, *settings) as broker:
            members: list[Member] = []
            measured(
                cluster,
                broker,
                "joins and syncs",
                2 * groups,
                lambda: members.extend(join(broker.address, groups)),
            )
            measured(cluster, broker, "heartbeats", beats, lambda: beat(broker.address, members, beats))


def join(address: tuple[str, int], groups: int) -> list[Member]:
    """Make groups, over some connections at a time; returns their members."""
    members: list[Member] = []
    numbers = iter(range(groups))
    lock = threading.Lock()

    def some(_: int) -> None:
        with WireClient(address) as client:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                group = f"group-{number}"
                joined = client.call(group_requests.join(group, ""), 3)
                member = Member(group, joined.member_id, joined.generation_id)
                group_requests.sync(client, member)
                members.append(member)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        assert [*pool.map(some, range(CONNECTIONS))]
    return members


def beat(address: tuple[str, int], members: list[Member], beats: int) -> None:
    """Send heartbeats of one group after the other, some at a time over each of some connections."""
    frames = [group_requests.frame(BEAT, each) for each in members]
    each_sends = beats // CONNECTIONS // UNDER_WAY

    def some(connection: int) -> None:
        own = itertools.cycle(frames[connection::CONNECTIONS])
        with WireClient(address) as client:
            for _ in range(each_sends):
                client.send_bytes(b"".join(itertools.islice(own, UNDER_WAY)))
                for _ in range(UNDER_WAY):
                    answer = client.receive_frame()
                    assert answer[-2:] == b"\0\0", f"a heartbeat was refused: {answer!r}"

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        assert [*pool.map(some, range(CONNECTIONS))]


def measured(
    cluster: RedisCluster, broker: requests.Broker, what: str, count: int, act: Callable[[], None]
) -> None:
    """Act, and print the rate, the cost of one request, and the share of each master."""
    nodes = cluster.masters()
    began, worker_before, before = time.monotonic(), sum(requests.cpu(broker.workers)), [*map(used, nodes)]
    act()
    seconds, worker = time.monotonic() - began, sum(requests.cpu(broker.workers)) - worker_before
    of_nodes = [Used(*map(sub, after, each)) for after, each in zip(map(used, nodes), before, strict=True)]
    cpu = sum(each.cpu_s for each in of_nodes)
    print(
        f"{what}: {count:,} in {seconds:.0f} s, {count / seconds:,.0f}/s; a request costs the worker"
        f" {worker / count * 1e6:.0f} us, Redis {cpu / count * 1e6:.0f} us"
    )
    for node, each in zip(nodes, of_nodes, strict=True):
        shares = [part / sum(whole) for part, whole in zip(each, zip(*of_nodes, strict=True), strict=True)]
        keys = f"{node.client.dbsize():,} keys"
        print(f"  {node.port}: {keys:>14}, {shares[0]:.1%} of commands, {shares[1]:.1%} of CPU", flush=True)


class Used(NamedTuple):
    """What a node has done: commands, and seconds of CPU."""

    commands: float
    cpu_s: float


def used(node: ClusterNode) -> Used:
    """Return what a node has done so far."""
    return Used(node.client.info("stats")["total_commands_processed"], sum(requests.cpu([node.pid])))


if __name__ == "__main__":
    main()
