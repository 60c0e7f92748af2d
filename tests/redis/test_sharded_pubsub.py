"""Subscriptions on a real Redis Cluster: channels follow their slots, and a node that is away holds up no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from korvet.errors import NodeAwayError
from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions, Watch
from korvet.redis.slots import slot_of
from tests.redis.test_pubsub import Heard
from tests.support.proxy import turn, until
from tests.support.redis_cluster import ClusterNode, RedisCluster, redis_cluster

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


def test_channels_are_subscribed_at_the_node_of_their_slot_alone(
    redis_cluster: RedisCluster, subscribe: Connect
) -> None:
    subscriptions = subscribe(redis_cluster)
    channels = {channel_at(redis_cluster, node): node for node in redis_cluster.nodes}
    heard = {channel: Heard() for channel in channels}
    assert subscriptions.listen_all(list(heard.items())) == {}
    for channel, node in channels.items():
        assert channels_of(node) == {channel}
        assert publish(redis_cluster, channel, channel) == 1
    until(lambda: all(heard.values()))
    assert heard == {channel: [channel.encode()] for channel in channels}
    for node in redis_cluster.nodes:
        crossed = {name: count for name, count in node.info().items() if "messages_publish" in name}
        assert set(crossed.values()) <= {"0"}


def test_thousands_of_channels_are_subscribed_in_one_go(
    redis_cluster: RedisCluster, subscribe: Connect
) -> None:
    subscriptions = subscribe(redis_cluster)
    heard = Heard()
    channels = [f"korvet:topic:{number}" for number in range(3000)]
    assert subscriptions.listen_all([(channel, heard) for channel in channels]) == {}
    assert set().union(*map(channels_of, redis_cluster.nodes)) == set(channels)
    for channel in channels:
        subscriptions.forget(channel, heard)
    assert subscriptions.listeners == 0


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


def test_a_wrong_map_is_corrected_by_the_node_that_it_names(
    redis_cluster: RedisCluster, subscribe: Connect
) -> None:
    subscriptions = subscribe(redis_cluster)
    node = redis_cluster.nodes[0]
    channel, heard = channel_at(redis_cluster, node), Heard()
    subscriptions.listen(channel, heard)
    wrong = another(redis_cluster, node)
    core = subscriptions._driver.core
    core.moved(slot_of(channel), "127.0.0.1", wrong.port)
    assert core.name(core.node_at(slot_of(channel)) or 0) == wrong.address
    until(lambda: heard == [None])
    assert subscriptions.live(channel)
    assert publish(redis_cluster, channel, "x") == 1
    until(lambda: heard == [None, b"x"])


def test_a_dead_node_holds_up_no_other(subscribe: Connect) -> None:
    with redis_cluster(3) as cluster:
        subscriptions = subscribe(cluster)
        dead, living = cluster.nodes[0], cluster.nodes[1]
        lost, second = channel_at(cluster, dead), channel_at(cluster, dead, but=channel_at(cluster, dead))
        kept = channel_at(cluster, living)
        parked, others = Heard(), Heard()
        subscriptions.listen_all([(lost, parked), (kept, others)])
        with Watch(subscriptions, [kept, lost, second]) as watch:
            watch.listen()
            dead.kill()
            # Who listens reads again, which finds out.
            until(lambda: parked == [None])
            woken: set[int] = set()
            while woken != {1, 2}:
                woken |= watch.wait(TIMEOUT_MS)
        with pytest.raises(NodeAwayError, match="cannot be reached"):
            subscriptions.listen(second, Heard())
        with Watch(subscriptions, [kept, lost, second]) as watch:
            assert watch.listen().keys() == {1, 2}
            assert publish(cluster, kept, "x") == 1
            assert watch.wait(TIMEOUT_MS) == {0}
        assert others == [b"x"]
        assert subscriptions.live(kept)
        dead.start()
        cluster.wait_ok()
        until(lambda: subscriptions.live(lost))
        until(lambda: parked == [None, None])
        assert publish(cluster, lost, "y") == 1
        until(lambda: parked == [None, None, b"y"])
        assert others == [b"x"]
