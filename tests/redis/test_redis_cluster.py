"""The clusters of the tests: what the tests of failover and of moving slots are built on."""

from __future__ import annotations

import pytest

from tests.support.redis_cluster import RedisCluster

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


def test_some_slots_of_a_master_move(redis_cluster: RedisCluster) -> None:
    source, to, third = redis_cluster.nodes
    before = {node: node.slots() for node in redis_cluster.nodes}
    redis_cluster.reshard(20, source, to)
    redis_cluster.wait_ok()
    moved = set(range(20))
    assert source.slots() == before[source] - moved
    assert to.slots() == before[to] | moved
    assert third.slots() == before[third]
    redis_cluster.put_back()
    assert {node: node.slots() for node in redis_cluster.nodes} == before
