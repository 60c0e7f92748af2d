"""The clusters of the tests: what the tests of failover and of moving slots are built on."""

from __future__ import annotations

import pytest

from tests.support.redis_cluster import SLOTS, RedisCluster, redis_cluster

pytestmark = pytest.mark.slow


def test_a_slot_moves_with_its_keys(redis_cluster: RedisCluster) -> None:
    slot = redis_cluster.nodes[0].call("CLUSTER", "KEYSLOT", "{orders}:0")
    source = redis_cluster.owner(slot)
    to = next(node for node in redis_cluster.nodes if node is not source)
    for number in range(25):
        source.client.set(f"{{orders}}:{number}", number)
    redis_cluster.move_slot(slot, to)
    redis_cluster.wait_ok()
    assert redis_cluster.node_of("{orders}:0") is to
    assert [to.client.get(f"{{orders}}:{number}") for number in range(25)] == [b"%d" % n for n in range(25)]
    redis_cluster.move_slot(slot, source)
    redis_cluster.wait_ok()


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
        killed.restart()
        cluster.wait_ok()
        assert cluster.replicas_of(replica) == [killed]
        replica.freeze()
        assert cluster.wait_promoted(replica)
        assert cluster.node_of("orders") is killed
        replica.thaw()
        cluster.wait_ok()
        assert cluster.replicas_of(killed) == [replica]


def test_some_slots_of_a_master_move() -> None:
    with redis_cluster(2) as cluster:
        source, to = cluster.nodes
        cluster.reshard(20, source, to)
        cluster.wait_ok()
        assert source.known()[source.id] == {(20, SLOTS // 2 - 1)}
        assert to.known()[to.id] == {(0, 19), (SLOTS // 2, SLOTS - 1)}
