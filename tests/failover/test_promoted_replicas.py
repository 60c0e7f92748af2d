"""Whole failovers of a real Redis Cluster: a master is dead or hangs for a second, and its replica is promoted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

from korvet.redis import scripts
from korvet.redis.blocking_driver import blocking_redis
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.pubsub import Subscriptions
from tests.redis.test_pubsub import Heard
from tests.redis.test_sharded_pubsub import channel_at, channels_of, publish
from tests.server.test_keeper_cluster import keeper_of, logs_of, spare, view_of, wait_for_a_turn
from tests.support.proxy import until
from tests.support.redis_cluster import ClusterNode, RedisCluster, redis_cluster

KEYS = Keys("korvet")
STREAMS = [KEYS.stream("orders", index) for index in range(12)]


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    with redis_cluster(3, 1, node_timeout_ms=1000) as running:
        yield running


def test_a_killed_master_is_replaced_and_joins_again() -> None:
    with redis_cluster(3, 1, node_timeout_ms=1000, append_only=True) as cluster:
        killed = cluster.node_of("orders")
        others = [node for node in cluster.masters() if node is not killed]
        [replica] = cluster.replicas_of(killed)
        killed.client.set("orders", "kept")
        killed.client.wait(1, 0)
        killed.kill()
        assert set(cluster.wait_promoted(killed)) == {replica, *others}
        assert replica.client.get("orders") == b"kept"
        killed.start()
        cluster.wait_ok()
        assert cluster.replicas_of(replica) == [killed]
        replica.freeze()
        assert cluster.wait_promoted(replica)
        assert cluster.node_of("orders") is killed
        replica.thaw()
        cluster.wait_ok()
        assert cluster.replicas_of(killed) == [replica]


@pytest.mark.parametrize("connect", [Redis, blocking_redis])
def test_requests_find_a_promoted_replica(cluster: RedisCluster, connect: Callable[..., Redis]) -> None:
    client = connect(cluster.url, timeout_ms=5000, connect_timeout_ms=2000)
    client.pipeline([("SET", key, "1") for key in STREAMS])
    gone = cluster.node_of(STREAMS[0])
    gone.call("WAIT", 1, 5000)
    gone.kill()
    cluster.wait_promoted(gone)
    until(lambda: client.pipeline([("GET", key) for key in STREAMS]) == [b"1"] * len(STREAMS))
    assert client.script(scripts.get("keeper/lease"), ("{x}:a", "{x}:b"), ("me", 10)) == [1, b"1"]
    client.close()


@pytest.mark.parametrize("end", [ClusterNode.kill, ClusterNode.freeze])
def test_a_promoted_replica_has_the_channels(
    cluster: RedisCluster, end: Callable[[ClusterNode], None]
) -> None:
    client = Redis(cluster.url, timeout_ms=1500, connect_timeout_ms=1500)
    subscriptions = Subscriptions(client, linger_ms=60_000, ping_interval_ms=500)
    with contextlib.closing(subscriptions):
        master = cluster.masters()[0]
        [replica] = cluster.replicas_of(master)
        lost, kept = channel_at(cluster, master), channel_at(cluster, cluster.masters()[1])
        parked, others = Heard(), Heard()
        subscriptions.listen_all([(lost, parked), (kept, others)])
        end(master)
        until(lambda: subscriptions.live(lost) and lost in channels_of(replica))
        cluster.wait_promoted(master)
        del parked[:]
        assert publish(cluster, lost, "x") == 1
        until(lambda: b"x" in parked)
        assert publish(cluster, kept, "y") == 1
        until(lambda: others == [b"y"])
    gevent.sleep(0)


def test_a_promoted_replica_has_turns_of_the_keeper_in_place_of_its_master(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    gone = spare(cluster)
    with view_of(cluster) as here:
        _, [moved, *_] = logs_of(here, cluster, gone)
    keeper = keeper_of(cluster, tmp_path, log_retention_check_interval_ms=50)
    stop = Event()
    running = gevent.spawn(keeper.run, stop)
    wait_for_a_turn(cluster, moved)
    gone.call("WAIT", 1, 5000)
    gone.kill()
    cluster.wait_promoted(gone)
    wait_for_a_turn(cluster, moved)
    stop.set()
    running.get()
