"""What N brokers and M masters of a Redis Cluster carry, and what limits them first: a model, fed with measured costs.

    python -m loadtest.capacity --brokers 10 --nodes 20 --mib-s 200 --topics 500

It adds up the CPU, bytes and memory that a load takes of each kind of process, and takes the busiest of a kind: the
nodes by the slots of real key names, the workers and brokers as equal. docs/capacity.md says what the costs are, how
the model was checked, and what it leaves out.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, NamedTuple, get_type_hints

from korvet.redis.keys import Keys
from korvet.redis.slots import SLOTS, slot_of

GIB = 1 << 30
KIB = 1 << 10
_NAMESPACE = "korvet"
_KEYS = Keys(_NAMESPACE)
_STEPS = 30


@dataclass(frozen=True)
class Site:
    """The machines."""

    brokers: Annotated[int, "brokers"] = 1
    workers: Annotated[int, "workers of each broker"] = 2
    nodes: Annotated[int, "masters of Redis, each on a core of its own"] = 1
    replicas: Annotated[int, "replicas of each master"] = 0
    tls: Annotated[bool, "clients use TLS"] = False
    speed: Annotated[float, "of a core, against the one that the costs were measured on"] = 1.0
    node_gib: Annotated[float, "memory of a node's machine, GiB"] = 64.0
    broker_gib: Annotated[float, "memory of a broker's machine, GiB"] = 32
    network_gbit: Annotated[float, "of each broker and node, each way, Gbit/s"] = 10


@dataclass(frozen=True)
class Load:
    """What clients do, in all."""

    topics: Annotated[int, "topics"] = 100
    partitions: Annotated[int, "partitions of each topic"] = 10
    mib_s: Annotated[float, "MiB produced a second, evenly to all partitions"] = 20.0
    batch_kib: Annotated[float, "size of a batch, KiB"] = 16.0
    record_bytes: Annotated[int, "size of a record, bytes"] = 1024
    record_format: Annotated[bool, "topics have storage.format=record"] = False
    appends: Annotated[float, "batches in a produce request, each for a partition of its own"] = 1.0
    acks_all: Annotated[float, "share of produce requests that wait for replicas, if there are any"] = 1.0
    at_rest: Annotated[float, "size of stored bytes against produced ones"] = 0.5
    retention_s: Annotated[float, "seconds that records stay in Redis"] = 3600.0
    fanout: Annotated[float, "how often each record is read"] = 1.0
    fetch_kib: Annotated[float, "records in the answer to a fetch, KiB"] = 64.0
    waits: Annotated[float, "share of fetches that wait for records"] = 0.5
    connections: Annotated[int, "connections of clients"] = 1000
    groups: Annotated[int, "groups"] = 50
    members: Annotated[int, "members of each group"] = 10
    commit_partitions: Annotated[int, "partitions in a commit"] = 1
    commit_s: Annotated[float, "seconds between commits of a member"] = 5.0
    heartbeat_s: Annotated[float, "seconds between heartbeats of a member"] = 3.0
    topic_changes_s: Annotated[float, "topics created, changed or deleted a second"] = 0.1


class Cost(NamedTuple):
    """CPU in us of a request: `worker` and `redis` when many are under way, and more for each KiB."""

    worker: float
    redis: float
    worker_kib: float = 0.0
    redis_kib: float = 0.0


# Medians of loadtest/micro/requests.py with 60 requests under way, less the writes and reads of sockets (below).
PRODUCE = Cost(worker=56, redis=0)
APPEND = Cost(worker=43, redis=32, worker_kib=2.7, redis_kib=3.3)
APPEND_RECORD = Cost(worker=43, redis=32, worker_kib=2.7, redis_kib=5.0)
A_RECORD = Cost(worker=4.0, redis=6.7)  # of format `record`
FETCH = Cost(worker=240, redis=10, worker_kib=2.8, redis_kib=2.3)
FETCH_WAITS = Cost(worker=260, redis=16)  # subscribes, is woken, and reads once more
HEARTBEAT = Cost(worker=71, redis=21)
COMMIT = Cost(worker=230, redis=58)
COMMIT_PARTITION = Cost(worker=11, redis=4.5)
JOIN = Cost(worker=325, redis=190)  # and the sync that follows
ROW = Cost(worker=60, redis=10)  # a worker reads a changed row of the registry
KEEPER = Cost(
    worker=128, redis=105
)  # a partition, in each round of four of the keeper's tasks; measured once
KEEPER_S = 300.0

# A request that is alone pays for its own system calls; under load, up to TURN_MAX requests of a worker share them.
CLIENT_IO, REDIS_IO, NODE_IO = 46.0, 80.0, 68.0
TURN_MAX = 8.0
# A process that slept finds its caches cold: its work then costs that much more. It does at most WARM of the time.
COLD, WARM = 1.5, 7 / 8
MESSAGE_US = 0.3  # of a node, for each subscriber
REPLICA = Cost(worker=0, redis=20, redis_kib=0.7)  # each replica, each append
WAIT = Cost(worker=60, redis=40)  # a round of waiting for replicas; a turn's requests share it
TLS = Cost(worker=11.4, redis=0, worker_kib=0.74)  # docs/decisions/023-where-the-time-goes.md

PARTITION_BYTES = 5_000
GROUP_BYTES, MEMBER_BYTES, OFFSET_BYTES = 700, 3_000, 100
ROW_BYTES = 135
WORKER_BYTES, CONNECTION_BYTES = 50 << 20, 10 * KIB
ROUND_TRIP_MS = 0.2
CLIENTS_MAX = 10_000  # maxclients of Redis by default
REDIS_CONNECTIONS = 5  # of a worker to each node: commands, reads, subscriptions, replicas of two kinds


class Resource(NamedTuple):
    """A resource and what the load uses of the busiest one of its kind."""

    name: str
    used: float
    available: float
    unit: str

    @property
    def share(self) -> float:
        """How full it is."""
        return self.used / self.available


class Prediction(NamedTuple):
    """What a load takes."""

    worker_s: float
    """CPU seconds a second of all workers, and below of all nodes and of each."""
    node_s: list[float]
    resources: list[Resource]
    produce_ms: tuple[float, float]
    """Mean and 99th percentile."""
    appends_s: float

    @property
    def limit(self) -> Resource:
        """What is full first."""
        return max(self.resources, key=lambda resource: resource.share)


@lru_cache(maxsize=8)
def shares(pattern: str, first: int, second: int, nodes: int) -> list[float]:
    """Return the share of keys that each node has, the slots being spread evenly; `pattern` takes the two numbers."""
    result = Counter(
        slot_of(pattern.format(n, m)) * nodes // SLOTS for n in range(first) for m in range(second)
    )
    return [result[node] / max(1, first * second) for node in range(nodes)]


def predict(site: Site, load: Load, topic: str = "topic-{0}") -> Prediction:
    """Return what a load takes of the machines; above 100 % it is more than they have.

    `topic` is the form of the topics' names, which decide where their partitions lie.
    """
    workers = site.brokers * site.workers
    partitions = load.topics * load.partitions
    by_stream = shares(f"{_NAMESPACE}:{topic}:{{1}}", load.topics, load.partitions, site.nodes)
    by_group = shares(f"{_NAMESPACE}:group:group-{{0}}:offsets", load.groups, 1, site.nodes)
    of_streams = of_groups = 0.0
    # What is saved under load depends on the load, so the two are approached.
    turn, worker_s = 1.0, 0.0
    for _ in range(_STEPS):
        raw_s, of_streams, of_groups = _cpu(site, load, turn)
        worker_s = workers * _with_cold(raw_s / workers)
        turn = (turn + min(TURN_MAX, 1 / (1 - min(worker_s / workers, 0.98)))) / 2
    node_s = [a * of_streams + b * of_groups for a, b in zip(by_stream, by_group, strict=True)]
    at_registry = slot_of(_KEYS.topics) * site.nodes // SLOTS
    registry_s = load.topic_changes_s * workers * (ROW.redis + MESSAGE_US) / site.speed * 1e-6
    node_s[at_registry] += registry_s
    node_s = [_with_cold(item) for item in node_s]
    keeper_s = partitions * KEEPER.worker / site.speed * 1e-6
    stored = load.mib_s * (1 << 20) * load.at_rest
    inward = load.mib_s * (1 << 20) * (1 + load.at_rest * load.fanout)
    outward = load.mib_s * (1 << 20) * (load.at_rest + load.fanout)
    busiest = max(by_stream)
    line = site.network_gbit * 1e9 / 8
    kept = stored * load.retention_s + partitions * PARTITION_BYTES
    members = load.groups * load.members
    group_bytes = load.groups * GROUP_BYTES + members * (MEMBER_BYTES + load.commit_partitions * OFFSET_BYTES)
    # Two thirds of a machine's memory: a rewrite of the file copies what changes meanwhile (docs/redis.md).
    node_bytes = kept * busiest + group_bytes * max(by_group)
    broker_bytes = site.workers * WORKER_BYTES + load.connections / site.brokers * (
        CONNECTION_BYTES + max(64, load.batch_kib) * KIB
    )
    broker_bytes += site.workers * (load.topics * ROW_BYTES * 4)
    resources = [
        Resource("workers' CPU", worker_s / workers, 1.0, "cores of each"),
        Resource("busiest node's CPU", max(node_s), 1.0, "of a core"),
        Resource("registry's node, for the registry", registry_s, 1.0, "of a core"),
        Resource("keeper's CPU", keeper_s, KEEPER_S, "s each 300 s"),
        Resource("a broker's network", max(inward, outward) / site.brokers / 1e6, line / 1e6, "MB/s"),
        Resource(
            "busiest node's network",
            stored * busiest * max(1.0, load.fanout + site.replicas) / 1e6,
            line / 1e6,
            "MB/s",
        ),
        Resource("busiest node's memory", node_bytes / GIB, site.node_gib * 2 / 3, "GiB"),
        Resource("a broker's memory", broker_bytes / GIB, site.broker_gib, "GiB"),
        Resource("connections to a node", workers * REDIS_CONNECTIONS, CLIENTS_MAX, "connections"),
    ]
    latency = _produce_ms(site, load, turn, (worker_s / workers, max(node_s)))
    return Prediction(worker_s, node_s, resources, latency, load.mib_s * KIB / load.batch_kib)


def most_mib_s(site: Site, load: Load) -> float:
    """Return how much can be produced, MiB/s, all else being as it is; 0.0 if that alone is too much."""
    least, most = 0.0, 1.0
    while predict(site, replace(load, mib_s=most)).limit.share < 1:
        least, most = most, most * 2
    for _ in range(20):
        middle = (least + most) / 2
        if predict(site, replace(load, mib_s=middle)).limit.share < 1:
            least = middle
        else:
            most = middle
    return least


def _cpu(site: Site, load: Load, turn: float) -> tuple[float, float, float]:
    """Return the CPU seconds a second of all workers, and of logs and groups on nodes; `turn` requests share I/O."""
    kib_s = load.mib_s * KIB
    appends = kib_s / load.batch_kib
    requests = appends / load.appends
    fetches = kib_s * load.fanout / load.fetch_kib
    members = load.groups * load.members
    beats, commits = members / load.heartbeat_s, members / load.commit_s
    append = APPEND_RECORD if load.record_format else APPEND
    records = kib_s * KIB / load.record_bytes if load.record_format else 0.0
    # Each of a turn's requests that goes to a node shares one write and one read with the others that go there.
    per_node = max(1.0, turn / site.nodes)
    io = CLIENT_IO / turn + REDIS_IO / per_node
    visited = _nodes_visited(site.nodes, load.appends)
    worker = requests * (PRODUCE.worker + CLIENT_IO / turn + REDIS_IO * visited / per_node)
    worker += appends * append.worker + kib_s * append.worker_kib + records * A_RECORD.worker
    worker += fetches * (FETCH.worker + load.waits * FETCH_WAITS.worker + io)
    worker += kib_s * load.fanout * FETCH.worker_kib
    worker += beats * (HEARTBEAT.worker + io)
    worker += commits * (COMMIT.worker + load.commit_partitions * COMMIT_PARTITION.worker + io)
    worker += load.topic_changes_s * site.brokers * site.workers * ROW.worker
    if site.replicas:
        worker += requests * load.acks_all * WAIT.worker * visited / turn
    if site.tls:
        worker += (requests + fetches + beats + commits) * TLS.worker
        worker += kib_s * (1 + load.fanout) * TLS.worker_kib
    node_io = NODE_IO / per_node
    logs = appends * append.redis + requests * visited * node_io + kib_s * load.at_rest * append.redis_kib
    logs += records * A_RECORD.redis + appends * min(load.fanout, site.brokers * site.workers) * MESSAGE_US
    logs += fetches * (FETCH.redis + load.waits * FETCH_WAITS.redis + node_io)
    logs += kib_s * load.at_rest * load.fanout * FETCH.redis_kib
    logs += load.topics * load.partitions * KEEPER.redis / KEEPER_S
    logs += site.replicas * (appends * REPLICA.redis + kib_s * load.at_rest * REPLICA.redis_kib)
    if site.replicas:
        logs += requests * load.acks_all * WAIT.redis * visited / turn
    groups = beats * (HEARTBEAT.redis + node_io)
    groups += commits * (COMMIT.redis + load.commit_partitions * COMMIT_PARTITION.redis + node_io)
    scale = 1e-6 / site.speed
    return worker * scale, logs * scale, groups * scale


def _with_cold(busy: float) -> float:
    """Return the share of its time that a process works, given what it would be if its caches were always warm.

    That solves share = busy * (1 + COLD * (WARM - share)).
    """
    return busy if busy > WARM else busy * (1 + COLD * WARM) / (1 + COLD * busy)


def _nodes_visited(nodes: int, appends: float) -> float:
    """Return how many nodes the partitions of a request lie on, in the mean."""
    return nodes * (1 - (1 - 1 / nodes) ** appends) if nodes > 1 else 1.0


def _produce_ms(site: Site, load: Load, turn: float, rho: tuple[float, float]) -> tuple[float, float]:
    """Return mean and 99th percentile of a produce request: two queues M/G/1, worker and node, one after the other.

    A queue's services are taken as exponential (the squares of their times have twice the square of the mean), and the
    largest waits as those of an exponential distribution. At a share of one and more it has no end.
    """
    if max(rho) >= 1:
        return math.inf, math.inf
    kib = load.batch_kib
    append = APPEND_RECORD if load.record_format else APPEND
    records = kib * KIB / load.record_bytes if load.record_format else 0.0
    own = PRODUCE.worker + (CLIENT_IO + REDIS_IO) / turn
    own += load.appends * (append.worker + kib * append.worker_kib + records * A_RECORD.worker)
    at_node = append.redis + NODE_IO + kib * load.at_rest * append.redis_kib + records * A_RECORD.redis
    at_node *= max(1.0, load.appends / site.nodes)
    services = [
        item / site.speed / 1000 * (1 + COLD * max(0.0, WARM - busy))
        for item, busy in zip((own, at_node), rho, strict=True)
    ]
    trips = ROUND_TRIP_MS * (3 if site.replicas and load.acks_all else 2)
    waits = [service * busy / (1 - busy) for service, busy in zip(services, rho, strict=True)]
    mean = trips + sum(services) + sum(waits)
    # Of those that wait (a share of rho), the mean wait is wait / rho.
    tails = [
        wait / busy * max(0.0, math.log(busy * 100)) if busy else 0.0
        for wait, busy in zip(waits, rho, strict=True)
    ]
    return mean, trips + sum(services) + max(tails[0] + waits[1], tails[1] + waits[0])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for kind in (Site, Load):
        for name, hint in get_type_hints(kind, include_extras=True).items():
            flag, default = f"--{name.replace('_', '-')}", getattr(kind, name)
            what = f"{hint.__metadata__[0]} ({default})"
            if isinstance(default, bool):
                parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=what)
            else:
                parser.add_argument(flag, type=hint.__origin__, default=default, help=what)
    given = vars(parser.parse_args())
    site = Site(**{name: given[name] for name in get_type_hints(Site)})
    load = Load(**{name: given[name] for name in get_type_hints(Load)})
    result, most = predict(site, load), most_mib_s(site, load)
    first = predict(site, replace(load, mib_s=most)).limit.name
    partitions = load.topics * load.partitions
    machines = f"{site.brokers} brokers x {site.workers} workers, {site.nodes} nodes"
    rate = f"{load.mib_s:,.0f} MiB/s in {result.appends_s:,.0f} batches/s, read {load.fanout:g} x"
    print(f"{machines}; {partitions:,} partitions, {rate}\n")
    print(f"{'':34} {'used':>10} {'of':>9} {'':16} {'share':>7}")
    for resource in sorted(result.resources, key=lambda resource: -resource.share):
        used = f"{resource.used:10,.3f} {resource.available:9,.1f}"
        print(f"{resource.name:34} {used} {resource.unit:16} {resource.share:7.1%}")
    mean, tail = result.produce_ms
    print(f"\nproduce: {mean:.2f} ms, 99 % within {tail:.2f} ms")
    skew = max(result.node_s) / (sum(result.node_s) / site.nodes)
    print(f"the busiest node does {skew:.2f} times the mean")
    print(f"breaks first: {first}, at {most:,.0f} MiB/s")


if __name__ == "__main__":
    main()
