"""The store over a real Redis Cluster: partitions of all nodes in one call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from korvet.log.types import Fetched, Read
from korvet.share.store import SharePartitions
from korvet.share.types import (
    ACCEPT,
    Acknowledged,
    Acknowledgement,
    AckRange,
    Acquire,
    Acquired,
    Begin,
    ShareOffsets,
)
from korvet.topics.registry import TopicSpec
from tests.share.support import GROUP, POLICY, readable_of
from tests.support.domain import Domain, domain
from tests.support.redis_cluster import RedisCluster

pytestmark = pytest.mark.slow

PARTITIONS = 9


@pytest.fixture
def view(redis_cluster: RedisCluster) -> Iterator[Domain]:
    with domain(redis_cluster.url) as made:
        made.topics.create(TopicSpec(name="orders", partitions=PARTITIONS))
        yield made


@pytest.mark.parametrize("redis_group", [True, False])
def test_partitions_of_all_nodes_are_worked_off(
    redis_cluster: RedisCluster, view: Domain, *, redis_group: bool
) -> None:
    store = SharePartitions(view.redis)
    partitions = [view.topics.get("orders").partition(index) for index in range(PARTITIONS)]
    assert len({redis_cluster.node_of(each.stream) for each in partitions}) == 3
    offsets = [view.append("orders", b"v", partition=each.index) for each in partitions]
    begun = store.begin([Begin(each, GROUP, 0, redis_group, POLICY) for each in partitions])
    assert begun == [Acquired([], at) for at in offsets]
    asks = []
    for partition in partitions:
        [fetched] = view.log.read([Read(partition, 0, 10)])
        assert isinstance(fetched, Fetched)
        asks.append(Acquire(partition, GROUP, "m1", readable_of(fetched, 0), 10, exact=True, policy=POLICY))
    got = store.acquire(asks)
    assert [each.ranges[0][:2] for each in got if isinstance(each, Acquired)] == [(at, at) for at in offsets]
    done = store.acknowledge(
        [
            Acknowledgement(each, GROUP, "m1", [AckRange(at, at, [ACCEPT])], POLICY)
            for each, at in zip(partitions, offsets, strict=True)
        ]
    )
    assert done == [Acknowledged(released=False)] * PARTITIONS
    where = store.offsets(GROUP, partitions)
    assert [each[:3] for each in where if isinstance(each, ShareOffsets)] == [
        (at + 1, at + 1, 0) for at in offsets
    ]
