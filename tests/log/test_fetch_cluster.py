"""The fetcher over a real Redis Cluster: it waits for partitions of all nodes, and one that is away costs its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeAlias

import gevent
import pytest

from korvet.errors import ErrorCode
from korvet.redis.keys import Keys
from korvet.topics.registry import TopicSpec
from tests.support.batches import values
from tests.support.domain import Domain, domain
from tests.support.proxy import until
from tests.support.redis_cluster import ClusterNode, RedisCluster
from tests.support.redis_cluster import redis_cluster as run_cluster

pytestmark = pytest.mark.slow

LONG_MS = 60_000
KEYS = Keys("korvet")
PARTITIONS = 12

Outcome: TypeAlias = tuple[ErrorCode, list[bytes | None]]


@contextlib.contextmanager
def view_of(cluster: RedisCluster) -> Iterator[Domain]:
    """Give a worker's view of a cluster, with a topic that has partitions on every node."""
    with domain(cluster.url) as made:
        made.topics.create(TopicSpec(name="orders", partitions=PARTITIONS))
        yield made


@pytest.fixture
def view(redis_cluster: RedisCluster) -> Iterator[Domain]:
    with view_of(redis_cluster) as made:
        yield made


def partitions_of(cluster: RedisCluster) -> dict[ClusterNode, int]:
    """Return a partition of each node."""
    return {cluster.node_of(KEYS.stream("orders", index)): index for index in range(PARTITIONS)}


def waiting(view: Domain, *partitions: int) -> gevent.Greenlet[..., list[Outcome]]:
    """Fetch, and return when it waits, or is done."""

    def fetch() -> list[Outcome]:
        wanted = [view.wanted("orders", partition) for partition in partitions]
        results = view.fetch(*wanted, wait_ms=LONG_MS)
        return [(each.error, values(b"".join(each.chunks))) for each in results]

    fetching = gevent.spawn(fetch)
    until(lambda: fetching.dead or view.fetcher._parked)
    return fetching


def test_a_fetch_waits_for_partitions_of_all_nodes(redis_cluster: RedisCluster, view: Domain) -> None:
    partitions = list(partitions_of(redis_cluster).values())
    assert len(partitions) == 3
    for place, partition in enumerate(partitions):
        fetching = waiting(view, *partitions[place:])
        assert not fetching.dead
        view.append("orders", b"x", partition=partition)
        rest = len(partitions) - place - 1
        assert fetching.get(timeout=30) == [(ErrorCode.NONE, [b"x"]), *[(ErrorCode.NONE, [])] * rest]


def test_a_dead_node_ends_the_waits_for_its_partitions_alone() -> None:
    with run_cluster(3) as cluster, view_of(cluster) as view:
        partitions = partitions_of(cluster)
        registry = cluster.node_of(KEYS.topics)
        [dead, living] = [partitions[node] for node in cluster.nodes if node is not registry]
        both, alone = waiting(view, living, dead), waiting(view, living)
        until(lambda: len(view.fetcher._parked) == 2)
        cluster.node_of(KEYS.stream("orders", dead)).kill()
        refused: list[Outcome] = [(ErrorCode.NONE, []), (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])]
        assert both.get(timeout=30) == refused
        assert waiting(view, living, dead).get(timeout=30) == refused
        assert not alone.dead
        view.append("orders", b"x", partition=living)
        assert alone.get(timeout=30) == [(ErrorCode.NONE, [b"x"])]


def test_a_node_that_takes_no_subscription_is_reported_as_away(
    redis_cluster: RedisCluster, view: Domain
) -> None:
    partitions = partitions_of(redis_cluster)
    refusing, *others = partitions
    refusing.call("ACL", "SETUSER", "default", "resetchannels")
    results = waiting(view, *partitions.values()).get(timeout=30)
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, []), *[(ErrorCode.NONE, [])] * len(others)]
    refusing.call("ACL", "SETUSER", "default", "allchannels")
    while (fetching := waiting(view, *partitions.values())).dead:
        gevent.sleep(0.02)
    view.append("orders", b"x", partition=partitions[others[0]])
    assert fetching.get(timeout=30)[1] == (ErrorCode.NONE, [b"x"])
