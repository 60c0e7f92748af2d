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
from tests.support.fetching import FetchResult
from tests.support.proxy import until
from tests.support.redis_cluster import ClusterNode, RedisCluster
from tests.support.redis_cluster import redis_cluster as run_cluster

pytestmark = pytest.mark.slow

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
    return {cluster.node_of(KEYS.stream("orders", index)): index for index in range(PARTITIONS)}


def waiting(view: Domain, *partitions: int) -> gevent.Greenlet[..., list[FetchResult]]:
    """Fetch, and return when it waits, or is done."""
    return view.begin_fetch(*(view.wanted("orders", partition) for partition in partitions))


def outcomes(fetching: gevent.Greenlet[..., list[FetchResult]]) -> list[Outcome]:
    """Return what a fetch finds in the end."""
    return [(each.error, values(b"".join(each.chunks))) for each in fetching.get(timeout=60)]


def test_a_fetch_waits_for_partitions_of_all_nodes(redis_cluster: RedisCluster, view: Domain) -> None:
    partitions = list(partitions_of(redis_cluster).values())
    assert len(partitions) == 3
    for place, partition in enumerate(partitions):
        fetching = waiting(view, *partitions[place:])
        assert not fetching.dead
        view.append("orders", b"x", partition=partition)
        rest = len(partitions) - place - 1
        assert outcomes(fetching) == [(ErrorCode.NONE, [b"x"]), *[(ErrorCode.NONE, [])] * rest]


def test_a_dead_node_ends_the_waits_for_its_partitions_alone() -> None:
    with run_cluster(3) as cluster, view_of(cluster) as view:
        partitions = partitions_of(cluster)
        registry = cluster.node_of(KEYS.topics)
        [dead, living] = [partitions[node] for node in cluster.nodes if node is not registry]
        both, alone = waiting(view, living, dead), waiting(view, living)
        cluster.node_of(KEYS.stream("orders", dead)).kill()
        refused: list[Outcome] = [(ErrorCode.NONE, []), (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])]
        assert outcomes(both) == refused
        assert outcomes(waiting(view, living, dead)) == refused
        assert not alone.dead
        view.append("orders", b"x", partition=living)
        assert outcomes(alone) == [(ErrorCode.NONE, [b"x"])]


def test_a_node_that_takes_no_subscription_is_reported_as_away(
    redis_cluster: RedisCluster, view: Domain
) -> None:
    partitions = partitions_of(redis_cluster)
    refusing, *others = partitions
    refusing.call("ACL", "SETUSER", "default", "resetchannels")
    results = outcomes(waiting(view, *partitions.values()))
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, []), *[(ErrorCode.NONE, [])] * len(others)]
    refusing.call("ACL", "SETUSER", "default", "allchannels")
    fetches = []

    def waits() -> bool:
        fetches.append(waiting(view, *partitions.values()))
        return not fetches[-1].dead

    until(waits)
    view.append("orders", b"x", partition=partitions[others[0]])
    assert outcomes(fetches[-1])[1] == (ErrorCode.NONE, [b"x"])
