"""A broker on a Redis Cluster: the keys of each node, refusals of a full one, and texts about one that is away."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from korvet.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.redis.keys import Keys
from tests.support.batches import batch
from tests.support.broker import Broker, steady_broker
from tests.support.processes import wait_until
from tests.support.redis_cluster import ClusterNode, RedisCluster, redis_cluster
from tests.support.topic_client import Client

pytestmark = pytest.mark.slow

KEYS = Keys("korvet")
PARTITIONS = 12
BALLAST_BYTES = 50_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Run a cluster of its own: a node is killed."""
    with redis_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def broker(cluster: RedisCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    flags = ("--redis-url", cluster.url, "--set", "throttle.max.ms=20", "--set", "redis.timeout.ms=2000")
    with steady_broker(tmp_path_factory.mktemp("broker"), *flags, workers=1) as running:
        with Client(running.address) as client:
            client.create("orders", PARTITIONS)
        yield running


def partitions_of(cluster: RedisCluster) -> dict[ClusterNode, set[int]]:
    """Return the partitions of each node."""
    result: dict[ClusterNode, set[int]] = {}
    for index in range(PARTITIONS):
        result.setdefault(cluster.node_of(KEYS.stream("orders", index)), set()).add(index)
    assert len(result) == 3
    return result


def other_than_the_registry(cluster: RedisCluster) -> ClusterNode:
    registry = [cluster.node_of(key) for key in (KEYS.topics, KEYS.brokers)]
    return next(node for node in cluster.nodes if node not in registry)


def refused(client: Client, reason: str = "maxmemory is") -> set[int]:
    """Produce to every partition by one request; return those that refuse for want of room.

    A refusal throttles nobody; before the first one its node throttles.
    """
    data = [PartitionProduceData(index=index, records=batch(b"x")) for index in range(PARTITIONS)]
    topics = [TopicProduceData(name="orders", partition_data=data)]
    response = client.call(ProduceRequest(acks=-1, timeout_ms=0, topic_data=topics), 8)
    [answer] = response.responses
    failed = [
        partition_response
        for partition_response in answer.partition_responses
        if partition_response.error_code
    ]
    assert all(failure.error_code == ErrorCode.KAFKA_STORAGE_ERROR for failure in failed)
    assert all(reason in failure.error_message for failure in failed)
    assert not failed or response.throttle_time_ms == 0
    return {failure.index for failure in failed}


def log_dirs(client: Client, topics: list[DescribableLogDirTopic] | None = None) -> dict[str, Any]:
    answer = client.call(DescribeLogDirsRequest(topics=topics), 4)
    return {result.log_dir: result for result in answer.results}


def readiness(broker: Broker) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(broker.ops_address, timeout=30)
    connection.request("GET", "/readyz")
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_each_node_is_a_log_directory(client: Client, cluster: RedisCluster) -> None:
    client.append("orders", b"x" * 100, partition=5)
    one = cluster.nodes[0]
    one.client.config_set("maxmemory", 1 << 30)
    results = log_dirs(client)
    one.client.config_set("maxmemory", 0)
    for node, partitions in partitions_of(cluster).items():
        result = results.pop(f"redis://{node.address}/0")
        sizes = {
            partition.partition_index: partition.partition_size for partition in result.topics[0].partitions
        }
        assert (result.error_code, set(sizes)) == (ErrorCode.NONE, partitions)
        assert 5 not in sizes or sizes[5] > 100
        assert result.total_bytes == (1 << 30 if node is one else -1)
        # A partition is in the directory of its node, and no broker moves it to another.
        topic = AlterReplicaLogDirTopic(name="orders", partitions=list(range(PARTITIONS)))
        moves = [AlterReplicaLogDir(path=result.log_dir, topics=[topic])]
        [answer] = client.call(AlterReplicaLogDirsRequest(dirs=moves), 2).results
        assert {
            partition.partition_index for partition in answer.partitions if not partition.error_code
        } == partitions
    assert not results


def test_a_full_node_refuses_what_is_for_its_partitions(client: Client, cluster: RedisCluster) -> None:
    full = cluster.nodes[1]
    full.client.setrange(
        f"{{{KEYS.stream('orders', min(partitions_of(cluster)[full]))}}}:ballast", BALLAST_BYTES, "x"
    )
    assert refused(client) == set()
    full.client.config_set("maxmemory", int(full.client.info("memory")["used_memory"] / 0.97))
    wait_until(lambda: refused(client) == partitions_of(cluster)[full], "the node's partitions refuse")
    full.client.config_set("maxmemory", 0)
    wait_until(lambda: refused(client) == set(), "the shortage ends")
    full.client.config_set("maxmemory", 1)
    # By the node itself, or by the broker if that has just read its usage.
    assert refused(client, "maxmemory") == partitions_of(cluster)[full]
    full.client.config_set("maxmemory", 0)
    wait_until(lambda: refused(client, "maxmemory") == set(), "the shortage ends")


def test_a_broker_is_not_ready_while_the_cluster_is_down(broker: Broker, cluster: RedisCluster) -> None:
    owner = cluster.owner(0)
    for node in sorted(cluster.nodes, key=lambda node: node is not owner):
        node.client.config_set("cluster-require-full-coverage", "yes")
        node.call("CLUSTER", "DELSLOTS", 0)
    down = "; ".join(
        f"{name}: the cluster is down (cluster_state fail)"
        for name in sorted(node.address for node in cluster.nodes)
    )
    wait_until(lambda: readiness(broker)[0] == 503, "the broker is not ready")
    wait_until(lambda: readiness(broker)[1]["redis"] == down, "all nodes say so")
    owner.call("CLUSTER", "ADDSLOTS", 0)
    for node in cluster.nodes:
        node.client.config_set("cluster-require-full-coverage", "no")
    cluster.wait_ok()
    assert readiness(broker)[0] == 200


def test_a_broker_is_ready_while_a_node_is_away_and_names_it(
    broker: Broker, client: Client, cluster: RedisCluster
) -> None:
    away = other_than_the_registry(cluster)
    away.kill()
    status, content = readiness(broker)
    assert (status, content["ready"]) == (200, True)
    assert content["redis"] == f"{away.address}: Connection refused"
    # Also by a broker that leads no partition there.
    for result in (log_dirs(client), log_dirs(client, [])):
        assert {place for place, item in result.items() if item.error_code} == {f"redis://{away.address}/0"}
    for node in cluster.living():
        node.kill()
    status, content = readiness(broker)
    assert (status, content["ready"]) == (503, False)
