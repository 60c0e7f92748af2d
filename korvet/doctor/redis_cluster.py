"""The nodes of a Redis Cluster: whether all answer and agree, what replaces a master, and what can be moved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import redis
from redis.exceptions import NoPermissionError

from korvet.config.settings import Settings
from korvet.doctor.machine import CLOCK_WARNING_S
from korvet.redis.blocking import Masters, is_away, one_line
from korvet.redis.keys import Keys
from korvet.server.finding import Finding, error, mib, ok, warning
from korvet.server.supervisor import redis_check

REPLACE = "start it, or promote its replica (send CLUSTER FAILOVER FORCE to the replica)"
_LIMITS = ("proto-max-bulk-len", "client-query-buffer-limit")
"""What MIGRATE sends for one key must be smaller than each, at the node that the key moves to."""
_SCANNED_AT_ONCE = 1000
_KEYS_MAX = 100_000
"""Keys of a node that are looked at: a thousand cost Redis about 1 ms."""


class _Node(NamedTuple):
    """What one master said; `largest` is its largest stream, bytes and name, or the error that hides it."""

    info: Mapping[str, Any]
    cluster: Mapping[str, str]
    ahead_s: float
    """How far its clock is ahead of that of this machine."""
    configs: Mapping[str, str | None]
    largest: tuple[int, str] | redis.RedisError


def examine(masters: Masters, settings: Settings) -> Iterator[Finding]:
    """Yield what is true of the nodes; that each slot has a master was checked before."""
    namespace = Keys(settings.namespace).namespace
    result = masters.each(lambda client: _ask(client, namespace))
    for name, item in result.items():
        if isinstance(item, redis.RedisError):
            said = f"{name}: {one_line(item)}"
            if is_away(item):
                yield error("nodes", f"{said}: its topics and groups are not served", REPLACE)
            else:
                yield error("nodes", said, "correct this: brokers may be unable to use it")
    nodes = {name: item for name, item in result.items() if isinstance(item, _Node)}
    yield ok("nodes", f"{len(nodes)} of {len(result)} masters answer")
    awaited = settings.replicas_wanted
    limits = [(_size(node, limit), limit) for node in nodes.values() for limit in _LIMITS]
    smallest = min(filter(all, limits), default=None)
    for name, node in nodes.items():
        for finding in (*_state(node), *_replicas(node, awaited), *_largest(node, smallest)):
            yield finding.about(name)
    yield from _differences(nodes)


def _ask(client: redis.Redis, namespace: str) -> _Node:
    before = time.time()
    seconds, microseconds = client.time()
    ahead_s = seconds + microseconds / 1e6 - (before + time.time()) / 2
    configs = {name: redis_check.config_of(client, name) for name in _LIMITS}
    return _Node(
        client.info(),
        redis_check.cluster_info(client),
        ahead_s,
        configs,
        _largest_stream(client, namespace),
    )


def _largest_stream(client: redis.Redis, namespace: str) -> tuple[int, str] | redis.RedisError:
    """Return the memory of the largest stream among the first keys of a node, and its name; or why it is not known."""
    untyped: Any = client
    cursor, largest = 0, (0, "")
    try:
        for _ in range(_KEYS_MAX // _SCANNED_AT_ONCE):
            cursor, keys = untyped.scan(cursor, f"{namespace}:*", _SCANNED_AT_ONCE, "stream")
            with untyped.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.memory_usage(key)
                sizes = pipeline.execute(raise_on_error=False)
            refused = next((size for size in sizes if isinstance(size, NoPermissionError)), None)
            if refused:
                return refused
            # One that is being moved is refused: its size is that of no key.
            named = [
                (size, key.decode(errors="replace"))
                for size, key in zip(sizes, keys, strict=True)
                if isinstance(size, int)
            ]
            largest = max([largest, *named])
            if not cursor:
                break
    except redis.ResponseError as error:
        return error
    return largest


def _size(node: _Node, name: str) -> int:
    return int(node.configs[name] or 0)


def _state(node: _Node) -> Iterator[Finding]:
    if node.cluster.get("cluster_state", "ok") != "ok":
        advice = "the node refuses all commands: CLUSTER INFO and CLUSTER NODES say why"
        yield error("cluster_state", node.cluster["cluster_state"], advice)
    if failed := int(node.cluster.get("cluster_slots_fail", 0)):
        yield error("slots", f"it regards the master of {failed} slots as failed", "start that master again")


def _replicas(node: _Node, awaited: int) -> Iterator[Finding]:
    replicas = int(node.info.get("connected_slaves", 0))
    if not replicas:
        said = "has no replica: if this master is lost, its partitions are lost too"
        yield warning("failover", said, "add one (redis-cli --cluster add-node --cluster-slave)")
    elif replicas - 1 < awaited:
        said = f"acks=all waits for {awaited} replicas, and a failover leaves {replicas - 1}: such writes then fail"
        yield warning("failover", said, "add another replica")


def _largest(node: _Node, smallest: tuple[int, str] | None) -> Iterator[Finding]:
    if isinstance(node.largest, redis.RedisError):
        # Brokers do not need these permissions.
        yield ok("largest stream", f"not examined ({one_line(node.largest)}): needs +scan and +memory|usage")
        return
    size, stream = node.largest
    if smallest and size > smallest[0]:
        limit, name = smallest
        said = f"{stream} takes {mib(size)}, more than {name} ({mib(limit)}): MIGRATE cannot move it"
        advice = f"move its slot by CLUSTER MIGRATESLOTS (Valkey 9), or raise {' and '.join(_LIMITS)} on every node"
        yield warning("largest stream", said, advice)


def _differences(nodes: Mapping[str, _Node]) -> Iterator[Finding]:
    versions: dict[str, list[str]] = {}
    for name, node in nodes.items():
        facts = redis_check.judge(node.info)
        versions.setdefault(f"{facts.name} {facts.version}", []).append(name)
    if len(versions) > 1:
        said = "; ".join(f"{version} at {', '.join(names)}" for version, names in versions.items())
        yield warning("versions", said, "run one version on all nodes, except during an upgrade")
    clocks = sorted((node.ahead_s, name) for name, node in nodes.items())
    if clocks and (apart_s := clocks[-1][0] - clocks[0][0]) > CLOCK_WARNING_S:
        said = f"the clock of {clocks[-1][1]} is {apart_s:.3f} s ahead of the clock of {clocks[0][1]}"
        yield warning("clocks", said, "keep the clocks of all machines in step (chrony, systemd-timesyncd)")
