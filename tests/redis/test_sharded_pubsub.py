"""Subscriptions on a real Redis Cluster: channels follow their slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions
from korvet.redis.slots import slot_of
from tests.redis.test_pubsub import Heard
from tests.support.proxy import turn, until
from tests.support.redis_cluster import ClusterNode, RedisCluster

pytestmark = pytest.mark.slow

Connect = Callable[..., Subscriptions]

TIMEOUT_MS = 5000


@pytest.fixture
def subscribe() -> Iterator[Connect]:
    made: list[Subscriptions] = []

    def subscribed(cluster: RedisCluster, timeout_ms: int = TIMEOUT_MS) -> Subscriptions:
        client = Redis(cluster.url, timeout_ms=timeout_ms, connect_timeout_ms=timeout_ms)
        one = Subscriptions(client, linger_ms=60_000, ping_interval_ms=500)
        made.append(one)
        return one

    yield subscribed
    for one in made:
        one.close()
    turn()


def channel_at(cluster: RedisCluster, node: ClusterNode, but: str = "") -> str:
    """Return the channel of a partition that a node serves."""
    names = (f"korvet:topic:{number}" for number in range(10_000))
    return next(name for name in names if name != but and cluster.node_of(name) is node)


def channels_of(node: ClusterNode) -> set[str]:
    return {name.decode() for name in node.call("PUBSUB", "SHARDCHANNELS")}


def publish(cluster: RedisCluster, channel: str, message: str) -> int:
    """Publish; returns how many heard it."""
    return int(cluster.node_of(channel).call("SPUBLISH", channel, message))


def another(cluster: RedisCluster, node: ClusterNode) -> ClusterNode:
    return next(other for other in cluster.masters() if other is not node)


def test_a_channel_follows_its_slot(redis_cluster: RedisCluster, subscribe: Connect) -> None:
    subscriptions = subscribe(redis_cluster)
    source = redis_cluster.nodes[0]
    moving, staying = Heard(), Heard()
    channel = channel_at(redis_cluster, source)
    stays = channel_at(redis_cluster, source, but=channel)
    subscriptions.listen_all([(channel, moving), (stays, staying)])
    to = another(redis_cluster, source)
    slot = slot_of(channel)
    redis_cluster.move_slot(slot, to)
    try:
        # None comes after the confirmation of the new node: what is published from here on arrives.
        until(lambda: moving == [None])
        assert channel in channels_of(to)
        assert channels_of(source) == {stays}
        assert publish(redis_cluster, channel, "x") == 1
        until(lambda: moving == [None, b"x"])
        assert publish(redis_cluster, stays, "y") == 1
        until(lambda: staying == [b"y"])
    finally:
        redis_cluster.move_slot(slot, source)
    until(lambda: moving == [None, b"x", None])
    assert channel in channels_of(source)


def test_a_channel_whose_slot_moves_or_has_moved_is_found(
    redis_cluster: RedisCluster, subscribe: Connect
) -> None:
    early, late = subscribe(redis_cluster), subscribe(redis_cluster)
    source = redis_cluster.nodes[0]
    channel = channel_at(redis_cluster, source)
    late.listen(channel_at(redis_cluster, source, but=channel), Heard())
    slot, to = slot_of(channel), another(redis_cluster, source)
    redis_cluster.begin_move(slot, to)
    first, second = Heard(), Heard()
    try:
        # Until the move is done, it is the source that has the channels.
        early.listen(channel, first)
        assert channel in channels_of(source)
        redis_cluster.end_move(slot, source, to)
        late.listen(channel, second)
        until(lambda: first == [None])
        assert publish(redis_cluster, channel, "x") == 2
        until(lambda: first == [None, b"x"])
        assert second == [b"x"]
    finally:
        redis_cluster.move_slot(slot, source)
