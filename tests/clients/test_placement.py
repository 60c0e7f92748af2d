"""Administrators of placement with real clients, on two brokers of one Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import TopicPartition as Partition
from kafka.errors import PreferredLeaderNotAvailableError

from tests.clients.librdkafka import LIBRDKAFKA
from tests.clients.tail import Tail, go_on
from tests.support import reading, redis_servers
from tests.support.broker import Broker, korvet_broker, korvet_cluster
from tests.support.load import Load
from tests.support.processes import WAIT_SECONDS_MAX

PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster_redis() -> Iterator[str]:
    with redis_servers.server() as url:
        yield url


@pytest.fixture(scope="module")
def brokers(cluster_redis: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    with korvet_cluster(tmp_path_factory.mktemp("cluster"), cluster_redis) as running:
        yield running
        assert all("Traceback" not in process.log() for process in running)


@pytest.fixture(scope="module")
def admin(brokers: list[Broker]) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=[broker.bootstrap for broker in brokers])
    yield client
    client.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, brokers: list[Broker]) -> str:
    """Give a topic of 4 partitions, named after the test."""
    name = str(request.node.name)[:100]
    reading.create_topic(brokers[0].bootstrap, name, PARTITIONS)
    return name


def described(broker: Broker, topic: str) -> list[tuple[int, list[int], list[int]]]:
    """Return leader, replicas and in-sync replicas of each partition, as confluent-kafka returns them."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    result = client.describe_topics(TopicCollection([topic]))[topic].result(WAIT_SECONDS_MAX)
    return [
        (partition.leader.id, [one.id for one in partition.replicas], [one.id for one in partition.isr])
        for partition in result.partitions
    ]


def elected(
    broker: Broker, kind: ElectionType, partitions: list[TopicPartition] | None
) -> dict[tuple[str, int], int | None]:
    """Return the error code of each partition of an election by confluent-kafka."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    results = client.elect_leaders(kind, partitions).result(WAIT_SECONDS_MAX)
    return {(item.topic, item.partition): error and error.code() for item, error in results.items()}


def test_a_move_is_seen_by_another_client_on_each_broker(
    brokers: list[Broker], admin: Any, topic: str
) -> None:
    moves = {Partition(topic, 0): [1], Partition(topic, 1): [0], Partition(topic, 2): [1, 0]}
    assert admin.alter_partition_reassignments(moves) == dict.fromkeys(moves)
    assert admin.list_partition_reassignments() == {}
    assert admin.list_partition_reassignments(list(moves)) == {}
    for broker in brokers:
        assert described(broker, topic)[:3] == [(1, [1], [1]), (0, [0], [0]), (1, [1, 0], [1, 0])]


def test_a_producer_and_a_consumer_follow_their_partitions(
    brokers: list[Broker], admin: Any, topic: str
) -> None:
    load = Load(brokers[0].bootstrap, topic, PARTITIONS)
    tail = Tail(LIBRDKAFKA, brokers[0].bootstrap, topic, PARTITIONS)
    load.start()
    tail.start()
    for leader in (0, 1, 0):
        moves = {Partition(topic, index): [leader] for index in range(PARTITIONS)}
        assert admin.alter_partition_reassignments(moves) == dict.fromkeys(moves)
        go_on(load, tail, PARTITIONS)
    load.end()
    tail.end(load.sent)
    load.check(reading.read_all(brokers[1].bootstrap, topic, range(PARTITIONS), load.sent))
    tail.check(load.sent)


def test_elections_are_answered_with_the_reason_that_they_change_nothing(
    brokers: list[Broker],
    admin: Any,
    cluster_redis: str,
    topic: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    flags = ("--redis-url", cluster_redis, "--broker-id", "2")
    with korvet_broker(tmp_path_factory.mktemp("third"), *flags, workers=1):
        moves = {Partition(topic, 0): [2, 1], Partition(topic, 1): [1]}
        assert admin.alter_partition_reassignments(moves) == dict.fromkeys(moves)
        assert described(brokers[0], topic)[0] == (2, [2, 1], [2, 1])
        assert elected(brokers[0], ElectionType.PREFERRED, None) == {}
    away = ConfluentError.PREFERRED_LEADER_NOT_AVAILABLE
    asked = [TopicPartition(topic, index) for index in (0, 1)]
    for broker in brokers:
        assert described(broker, topic)[0] == (1, [2, 1], [1])
        answers = {(topic, 0): away, (topic, 1): ConfluentError.ELECTION_NOT_NEEDED}
        assert elected(broker, ElectionType.PREFERRED, asked) == answers
        assert elected(broker, ElectionType.PREFERRED, None) == {(topic, 0): away}
    with pytest.raises(PreferredLeaderNotAvailableError):
        admin.elect_leaders(0, {topic: [0]})
