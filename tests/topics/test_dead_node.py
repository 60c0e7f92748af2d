"""Topics on a Redis Cluster of which a node does not answer: what clients find, and what is done when it is back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from korvet.errors import StorageUnavailableError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow
from tests.support.processes import wait_until
from tests.support.redis_cluster import ClusterNode, RedisCluster
from tests.topics.test_interrupted import end_claim

KEYS = Keys("korvet")
ORDERS = TopicRow(name="orders", id="id-1", partitions=20)
WIDER = replace(ORDERS, partitions=40)


@pytest.fixture
def node(redis_cluster: RedisCluster) -> ClusterNode:
    """Give a master that has some of the partitions, and not the registry."""
    registry = redis_cluster.node_of(KEYS.topics)
    return next(each for each in redis_cluster.masters() if each is not registry)


@pytest.fixture
def store(redis_cluster: RedisCluster) -> Iterator[TopicStore]:
    redis = Redis(redis_cluster.url, timeout_ms=1000, connect_timeout_ms=1000)
    yield TopicStore(redis, KEYS)
    redis.close()


def topics_of(cluster: RedisCluster, row: TopicRow) -> set[bytes | None]:
    """Return the topic ids in the states of all partitions."""
    states = [KEYS.state(row.name, index) for index in range(row.partitions)]
    return {cluster.node_of(state).call("HGET", state, "topic") for state in states}


def test_a_creation_is_completed_when_the_node_is_back(
    redis_cluster: RedisCluster, node: ClusterNode, store: TopicStore
) -> None:
    node.freeze()
    with pytest.raises(StorageUnavailableError):
        store.create(ORDERS)
    assert store.load().rows["orders"].state == "creating"
    node.thaw()
    redis_cluster.wait_ok()

    def finished() -> bool:
        """Do as the keeper does, time and again: the connection to the node may still be the one that was given up."""
        end_claim(redis_cluster.node_of(KEYS.topics))
        [creating] = store.load().rows.values()
        with contextlib.suppress(StorageUnavailableError):
            store.finish_creation(creating)
        return store.load().rows["orders"] == ORDERS

    wait_until(finished, "the topic is live")
    assert topics_of(redis_cluster, ORDERS) == {b"id-1"}


def test_a_growth_begins_again_when_the_node_is_back(
    redis_cluster: RedisCluster, node: ClusterNode, store: TopicStore
) -> None:
    store.create(ORDERS)
    node.freeze()
    with pytest.raises(StorageUnavailableError):
        store.add_partitions("orders", "id-1", lambda _row: WIDER)
    assert store.load().rows["orders"].partitions == 20
    node.thaw()
    redis_cluster.wait_ok()

    def grown() -> bool:
        end_claim(redis_cluster.node_of(KEYS.topics))
        with contextlib.suppress(StorageUnavailableError):
            store.add_partitions("orders", "id-1", lambda _row: WIDER)
        return store.load().rows["orders"] == WIDER

    wait_until(grown, "the topic has grown")
    assert topics_of(redis_cluster, WIDER) == {b"id-1"}


def test_a_deletion_goes_on_when_the_node_is_back(
    redis_cluster: RedisCluster, node: ClusterNode, store: TopicStore
) -> None:
    store.create(ORDERS)
    node.freeze()
    with pytest.raises(StorageUnavailableError):
        store.deletion.delete("orders", "id-1")
    marked = store.load().rows["orders"]
    assert marked == replace(ORDERS, state="deleting")
    node.thaw()
    redis_cluster.wait_ok()

    def gone() -> bool:
        with contextlib.suppress(StorageUnavailableError):
            list(store.deletion.steps(marked))
        return store.load().rows == {}

    wait_until(gone, "the topic is gone")
    assert topics_of(redis_cluster, ORDERS) == {None}
