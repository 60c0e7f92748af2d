"""The fetcher over a real Redis Cluster: it waits for partitions of all nodes."""

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
from tests.support.redis_cluster import ClusterNode, RedisCluster

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
    return [(item.error, values(b"".join(item.chunks))) for item in fetching.get(timeout=60)]


def test_a_fetch_waits_for_partitions_of_all_nodes(redis_cluster: RedisCluster, view: Domain) -> None:
    partitions = list(partitions_of(redis_cluster).values())
    assert len(partitions) == 3
    for place, partition in enumerate(partitions):
        fetching = waiting(view, *partitions[place:])
        assert not fetching.dead
        view.append("orders", b"x", partition=partition)
        rest = len(partitions) - place - 1
        assert outcomes(fetching) == [(ErrorCode.NONE, [b"x"]), *[(ErrorCode.NONE, [])] * rest]
