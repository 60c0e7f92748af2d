"""Facts about Redis Cluster on which Korvet is built, shown at a real one: moving slots, and keys on the way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from redis.crc import key_slot
from redis.exceptions import ResponseError

from tests.support.processes import wait_until
from tests.support.redis_cluster import ClusterNode, RedisCluster
from tests.support.redis_cluster import redis_cluster as run_cluster

pytestmark = pytest.mark.slow

NOT_LOCAL = "ttempted to access a non local key"


@contextlib.contextmanager
def moving(cluster: RedisCluster, key: str) -> Iterator[tuple[ClusterNode, ClusterNode]]:
    """Have a key's slot on its way, from the first node to the second."""
    slot = key_slot(key.encode())
    to = next(node for node in cluster.nodes if node is not cluster.owner(slot))
    source = cluster.begin_move(slot, to)
    try:
        yield source, to
    finally:
        cluster.end_move(slot, source, to)
        cluster.wait_ok()


def test_a_master_that_wants_replicas_and_has_none_takes_no_key_that_moves(
    redis_cluster: RedisCluster,
) -> None:
    """docs/redis.md: the old master keeps it then."""
    redis_cluster.node_of("orders").client.set("orders", "x")
    with moving(redis_cluster, "orders") as (source, to):
        to.client.config_set("min-replicas-to-write", 1)
        try:
            with pytest.raises(ResponseError, match="NOREPLICAS"):
                redis_cluster.move_keys(source, to, [b"orders"])
            assert source.client.get("orders") == b"x"
        finally:
            to.client.config_set("min-replicas-to-write", 0)


def test_a_master_whose_replicas_must_not_replace_it_has_all_keys_again_that_moved_to_it() -> None:
    """docs/redis.md: whatever its replicas had received of them when it was killed."""
    with run_cluster(3, 1, node_timeout_ms=1000, append_only=True) as cluster:
        source = cluster.node_of("orders")
        source.client.set("orders", "x")
        to, other = (node for node in cluster.masters() if node is not source)
        [replica] = cluster.replicas_of(to)
        replica.client.config_set("cluster-replica-no-failover", "yes")
        cluster.move_slot(key_slot(b"orders"), to)
        to.kill()
        wait_until(lambda: other.info()["cluster_slots_fail"] != "0", "the others know that it is away")
        to.start()
        cluster.wait_ok()
        assert not replica.is_master()
        assert cluster.node_of("orders") is to
        assert to.client.get("orders") == b"x"


def test_while_a_slot_moves_a_script_cannot_use_again_a_key_that_it_deleted(
    redis_cluster: RedisCluster,
) -> None:
    redis_cluster.node_of("{t}a").client.zadd("{t}a", {"last": 1})
    redis_cluster.node_of("{t}a").client.set("{t}b", 1)
    script = """
        redis.call('INCR', KEYS[2])
        redis.call('ZREM', KEYS[1], 'last')
        return redis.call('ZADD', KEYS[1], 2, 'next')
    """
    with moving(redis_cluster, "{t}a") as (source, _), pytest.raises(ResponseError, match=NOT_LOCAL):
        source.call("EVAL", script, 2, "{t}a", "{t}b")
    # What it wrote before stays.
    assert redis_cluster.node_of("{t}b").client.get("{t}b") == b"2"


def test_a_stream_longer_than_a_bulk_of_the_target_does_not_move(redis_cluster: RedisCluster) -> None:
    owner = redis_cluster.node_of("orders")
    for _ in range(20):
        owner.client.xadd("orders", {"value": os.urandom(100_000)})
    with moving(redis_cluster, "orders") as (source, to):
        to.client.config_set("proto-max-bulk-len", 1 << 20)
        try:
            # The source may read why the target ends the connection, or not.
            with pytest.raises(ResponseError, match=r"IOERR|invalid bulk length"):
                redis_cluster.move_keys(source, to, [b"orders"])
            assert source.client.xlen("orders") == 20
            assert source.client.xadd("orders", {"value": "goes on"})
        finally:
            to.client.config_set("proto-max-bulk-len", 512 << 20)
    assert to.client.xlen("orders") == 21
