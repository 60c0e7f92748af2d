"""A broker on a Redis Cluster, by real processes and clients: topics and groups whose keys lie on all masters."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its package does not say what it exports
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from korvet.redis.keys import Keys
from tests.cli.commands import done, korvet
from tests.support import processes, reading
from tests.support.broker import Broker, steady_broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.redis_cluster import RedisCluster

pytestmark = pytest.mark.slow

KEYS = Keys("korvet")
PARTITIONS = 12


@pytest.fixture(scope="module")
def cluster(cluster_server: RedisCluster) -> RedisCluster:
    cluster_server.empty()
    return cluster_server


@pytest.fixture(scope="module")
def broker(cluster: RedisCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    flags = ("--redis-url", cluster.url, "--set", "group.initial.rebalance.delay.ms=0")
    with steady_broker(tmp_path_factory.mktemp("cluster"), *flags) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def produce(broker: Broker, topic: str, text: str, partitions: int = PARTITIONS) -> set[bytes]:
    """Write ten records to each partition, exactly once; return their values."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    values = set()
    for number in range(10 * partitions):
        values.add(b"%s %d" % (text.encode(), number))
        producer.produce(topic, f"{text} {number}", partition=number % partitions, on_delivery=delivered)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    assert failed == []
    return values


def member(broker: Broker, topic: str) -> Consumer:
    config = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(config | {"enable.auto.commit": False, "heartbeat.interval.ms": 200})
    consumer.subscribe([topic])
    return consumer


def read(members: list[Consumer], count: int) -> list[bytes]:
    """Return the values of this many records that the members get together, and of those that come beyond them."""
    found: list[bytes] = []

    def enough() -> bool:
        before = len(found)
        for member in members:
            found.extend(each.value or b"" for each in map(reading.as_received, member.consume(100, 0.2)))
        return len(found) >= count and len(found) == before

    processes.wait_until(enough, f"{count} records")
    return found


def committed(admin: AdminClient, group: str) -> dict[int, int]:
    """Return the offsets that a group has committed, by partition; of its one topic."""
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = listed[group].result(WAIT_SECONDS_MAX).topic_partitions or []
    return {each.partition: each.offset for each in found}


def test_a_topic_with_even_placement_is_served_like_any_other(
    broker: Broker, cluster: RedisCluster, admin: AdminClient
) -> None:
    reading.create_topic(broker.bootstrap, "even", 7, {"redis.placement": "even", "storage.format": "record"})
    states = [len(node.client.keys("*:even:*:state")) for node in cluster.masters()]
    assert sorted(states) == [2, 2, 3]
    values = produce(broker, "even", "first", 7)
    with contextlib.closing(member(broker, "even")) as first:
        assert sorted(read([first], len(values))) == sorted(values)
        first.commit(asynchronous=False)
    assert set(committed(admin, "even")) == set(range(7))
    admin.create_partitions([NewPartitions("even", 9)])["even"].result(WAIT_SECONDS_MAX)
    states = [len(node.client.keys("*:even:*:state")) for node in cluster.masters()]
    assert states == [3, 3, 3]
    values = produce(broker, "even", "second", 9)
    with contextlib.closing(member(broker, "even")) as other:
        assert sorted(read([other], len(values))) == sorted(values)
    # Where users of Redis find the records.
    [described] = json.loads(done(korvet("topics", "describe", "even", "-b", broker.bootstrap, "--json")))
    streams = [each["stream"] for each in described["partitions"]]
    assert [cluster.node_of(each).client.xlen(each) for each in streams] == [20] * 7 + [10] * 2
    printed = done(korvet("topics", "describe", "even", "-b", broker.bootstrap))
    assert [line.split()[-1] for line in printed.splitlines()[-9:]] == streams
    row = json.loads(cluster.node_of(KEYS.topics).client.hget(KEYS.topics, "even"))
    tags = [row["tags"][3 * at : 3 * at + 3] for at in range(9)]
    assert streams == [f"korvet:even:{at}:{{{tag}}}" for at, tag in enumerate(tags)]
    # All that is described can be set.
    resource = ConfigResource(ConfigResource.Type.TOPIC, "even")
    before = admin.describe_configs([resource])[resource].result(WAIT_SECONDS_MAX)
    assert (before["redis.slot.tags"].value, before["redis.slot.tags"].is_read_only) == (row["tags"], True)
    for name, each in before.items():
        resource.add_incremental_config(
            ConfigEntry(name, each.value, incremental_operation=AlterConfigOpType.SET)
        )
    admin.incremental_alter_configs([resource])[resource].result(WAIT_SECONDS_MAX)
    admin.delete_topics(["even"])["even"].result(WAIT_SECONDS_MAX)
    processes.wait_until(lambda: keys_of(cluster, "korvet:even:") == 0, "no key is left")


def keys_of(cluster: RedisCluster, topic: str) -> int:
    """Return how many keys of a topic all masters have together."""
    return sum(len(node.client.keys(f"*{topic}*")) for node in cluster.masters())
