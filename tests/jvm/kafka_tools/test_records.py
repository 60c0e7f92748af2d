"""Tools that look at records and at those who read and write them: offsets, deletions, groups, producers, clusters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, Producer

from tests.jvm.kafka_tools.test_placement import moves
from tests.jvm.tools import AtBroker
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.records import topic_name
from tests.support.topic_client import Client

File = Callable[[Any], str]
RECORDS = 5


def dense_topic(tools: AtBroker, brokers: list[Broker]) -> str:
    """Give a topic of one partition with a few records, whose offsets count them."""
    name = topic_name("dense")
    # The tool refuses to name configs that Kafka does not know when it makes a topic, hence the broker's pattern.
    tools.done("kafka-topics", "--create", "--topic", name, "--partitions", "1")
    producer = Producer({"bootstrap.servers": brokers[0].bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return name


def offsets(tools: AtBroker, topic: str, time: str) -> int:
    """Return an offset of the topic's only partition: earliest, latest, max-timestamp or by time in ms."""
    output = tools.done("kafka-get-offsets", "--topic", topic, "--time", time)
    assert output.startswith(f"{topic}:0:")
    return int(output.rpartition(":")[2])


def test_records_are_deleted_up_to_an_offset(tools: AtBroker, brokers: list[Broker], file: File) -> None:
    topic = dense_topic(tools, brokers)
    assert (offsets(tools, topic, "earliest"), offsets(tools, topic, "latest")) == (0, RECORDS)

    def deleted(offset: int, of: str = topic) -> str:
        plan = {"version": 1, "partitions": [{"topic": of, "partition": 0, "offset": offset}]}
        return tools.run("kafka-delete-records", "--offset-json-file", file(plan)).out

    assert f"partition: {topic}-0\tlow_watermark: 2\n" in deleted(2)
    assert offsets(tools, topic, "earliest") == 2
    assert "OffsetOutOfRangeException" in deleted(RECORDS + 1)
    assert f"partition: {topic}-0\tlow_watermark: {RECORDS}\n" in deleted(-1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_described_moved_and_deleted(
    tools: AtBroker, brokers: list[Broker], protocol: str
) -> None:
    topic, group = dense_topic(tools, brokers), topic_name("group")
    consumer = Consumer(
        {
            "bootstrap.servers": brokers[0].bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.1) is not None, "it has its part")
        consumer.commit(asynchronous=False)
        output = tools.done("kafka-consumer-groups", "--describe", "--group", group)
        assert re.search(rf"{group} +{topic} +0 +\d +{RECORDS} +\d ", output), output
        members = tools.done(
            "kafka-consumer-groups", "--describe", "--group", group, "--members", "--verbose"
        )
        assert f"{topic}:0" in members.replace("(0)", ":0")
        assert "Stable" in tools.done("kafka-consumer-groups", "--describe", "--group", group, "--state")
        refused = tools.run("kafka-consumer-groups", "--delete", "--group", group).out
        assert "GroupNotEmptyException" in refused
    finally:
        consumer.close()
    assert re.search(
        rf"^{group}\s+{protocol}\s+consumer",
        tools.done("kafka-groups", "--list"),
        re.MULTILINE | re.IGNORECASE,
    )
    assert group in tools.done("kafka-consumer-groups", "--list").split()
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    for target, offset in (("--to-earliest", 0), ("--to-latest", RECORDS), ("--shift-by=-2", RECORDS - 2)):
        moved = tools.done("kafka-consumer-groups", *reset, target, "--execute")
        assert re.search(rf"{group} +{topic} +0 +{offset}\b", moved), moved
    forgotten = ("--delete-offsets", "--group", group, "--topic", topic)
    assert "Successful" in tools.done("kafka-consumer-groups", *forgotten)
    gone = tools.done("kafka-consumer-groups", "--delete", "--group", group)
    assert "was successful" in gone
    again = tools.run("kafka-consumer-groups", "--delete", "--group", group).out
    assert "GroupIdNotFoundException" in again


def test_producers_and_brokers_are_described(tools: AtBroker, brokers: list[Broker], file: File) -> None:
    topic = dense_topic(tools, brokers)
    output = tools.done("kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0")
    _, row = output.splitlines()
    assert row.split()[1:4] == ["0", "-1", str(RECORDS - 1)]
    plan = file(moves(topic, [1]))
    tools.done("kafka-reassign-partitions", "--execute", "--reassignment-json-file", plan)
    moved = tools.done("kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0")
    assert moved == output

    endpoints = tools.done("kafka-cluster", "list-endpoints")
    for number, broker in enumerate(brokers):
        host, _, port = broker.bootstrap.rpartition(":")
        assert re.search(rf"^{number} +{host} +{port} +\S+ +unfenced +broker", endpoints, re.MULTILINE)
    assert tools.done("kafka-cluster", "cluster-id").startswith("Cluster ID: ")
    versions = tools.done("kafka-broker-api-versions")
    assert versions.count("CreateTopics(19): 2 to 7 [usable: 7]") == len(brokers)
    assert "ListTransactions(66): 0 to 2 [usable: 2]" in versions


def test_a_batch_of_too_many_records_is_split_by_the_java_producer(
    tools: AtBroker, cluster_redis: str, brokers: list[Broker]
) -> None:
    topic, records = topic_name("many"), 300_000
    with Client(brokers[0].address) as client:
        # Of these records 2040 make up batch.size. The better they have been compressed, the more come in the next.
        client.create(topic, max_message_records="2100")
    flags = f"compression.type=lz4 linger.ms=1000 --topic {topic} --num-records {records} --record-size 1"
    # Not faster than batches are sent: only then the size of the next ones follows from theirs.
    outcome = tools.run("kafka-producer-perf-test", *flags.split(), "--throughput", "60000")
    assert f"{records} records sent" in outcome.out
    assert "splitting and retrying" in outcome.err
    with redis.Redis.from_url(cluster_redis) as stored:
        assert stored.xlen(f"korvet:{topic}:0") == records
