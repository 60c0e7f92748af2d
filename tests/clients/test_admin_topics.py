"""Administrators of topics with real clients: what they make, how it grows and goes, and every refusal by its name."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import NewTopic as PythonTopic

from korvet.admin.client import AdminClient as KorvetAdmin
from korvet.admin.types import settled
from korvet.errors import ErrorCode
from tests.support import reading, redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name

METADATA_MS = 200
GONE = (
    ConfluentError.UNKNOWN_TOPIC_OR_PART,
    ConfluentError._UNKNOWN_TOPIC,
    ConfluentError._UNKNOWN_PARTITION,
)
"""How librdkafka calls a topic that is not there, or not any more."""


@pytest.fixture
def confluent(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def python(broker: Broker) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


@pytest.fixture
def topic(python: Any) -> str:
    """Give a topic of one partition."""
    name = topic_name("administered")
    python.create_topics({name: {"num_partitions": 1}})
    return name


def outcome(futures: dict[str, Any]) -> tuple[int, str]:
    """Return code and message of the one that was refused."""
    [future] = futures.values()
    with pytest.raises(KafkaException) as refused:
        future.result(WAIT_SECONDS_MAX)
    error = refused.value.args[0]
    return error.code(), error.str()


def partitions_of(confluent: AdminClient, name: str) -> list[tuple[int, list[int]]]:
    """Return leader and replicas of every partition."""
    found = confluent.describe_topics(TopicCollection([name]))[name].result(WAIT_SECONDS_MAX)
    return [(each.leader.id, [replica.id for replica in each.replicas]) for each in found.partitions]


def test_a_topic_is_created_as_requested(confluent: AdminClient, python: Any) -> None:
    by_number, by_assignment = topic_name("created"), topic_name("created")
    specs = [
        NewTopic(by_number, num_partitions=2, replication_factor=3, config={"retention.ms": "1000"}),
        NewTopic(by_assignment, num_partitions=2, replica_assignment=[[0], [0]]),
    ]
    for future in confluent.create_topics(specs).values():
        future.result(WAIT_SECONDS_MAX)
    for name in (by_number, by_assignment):
        assert partitions_of(confluent, name) == [(0, [0])] * 2
    [made] = python.create_topics({topic_name("created"): {"configs": {"cleanup.policy": "compact"}}})[
        "topics"
    ]
    assert (made["num_partitions"], made["replication_factor"]) == (3, 1)  # the broker's defaults
    assert made["configs"]["cleanup.policy"]["value"] == "compact"
    assert made["configs"]["segment.bytes"]["value"] == "1073741824"


TopicSpec = Callable[[str], dict[str, Any]]

SPECS: list[tuple[TopicSpec, type[Exception]]] = [
    (lambda name: {name: {}}, kafka_errors.TopicAlreadyExistsError),
    (lambda name: {f"{name} ": {}}, kafka_errors.InvalidTopicError),
    (lambda name: {f"__{name}": {}}, kafka_errors.InvalidTopicError),
    (lambda name: {name.replace("_", "."): {}}, kafka_errors.InvalidTopicError),
    (lambda name: {f"{name}-2": {"num_partitions": 0}}, kafka_errors.InvalidPartitionsError),
    (lambda name: {f"{name}-2": {"num_partitions": 10_001}}, kafka_errors.InvalidPartitionsError),
    (lambda name: {f"{name}-2": {"replication_factor": 0}}, kafka_errors.InvalidReplicationFactorError),
    (lambda name: {f"{name}-2": {"configs": {"no.such": "1"}}}, kafka_errors.InvalidConfigurationError),
    (lambda name: {f"{name}-2": {"assignments": {1: [0]}}}, kafka_errors.InvalidReplicationAssignmentError),
    (
        lambda name: {f"{name}-2": {"assignments": {0: [0, 0]}}},
        kafka_errors.InvalidReplicationAssignmentError,
    ),
    (lambda name: {f"{name}-2": {"assignments": {0: [77]}}}, kafka_errors.InvalidReplicationAssignmentError),
    (
        lambda name: {f"{name}-2": {"assignments": {0: [0]}, "num_partitions": 1}},
        kafka_errors.InvalidRequestError,
    ),
]


@pytest.mark.parametrize("partitions", [6, 7])
def test_a_topic_is_spread_evenly_grown_and_read(
    broker: Broker, confluent: AdminClient, partitions: int
) -> None:
    name = topic_name("even")
    bad = NewTopic(name, num_partitions=1, config={"redis.placement": "evenly"})
    code, message = outcome(confluent.create_topics([bad]))
    assert code == ConfluentError.INVALID_CONFIG
    assert "redis.placement" in message
    assert "one of name, even" in message
    reading.create_topic(broker.bootstrap, name, partitions, {"redis.placement": "even"})
    grown = confluent.create_partitions([NewPartitions(name, partitions + 2)])
    grown[name].result(WAIT_SECONDS_MAX)
    count = partitions + 2
    with KorvetAdmin(broker.bootstrap) as admin:
        nodes = settled(admin.partitions.log_dirs())[0]
    held = [sum(key.topic == name for key in node.partitions) for node in nodes]
    assert len(held) == (3 if redis_servers.is_cluster() else 1)
    assert sum(held) == count
    assert max(held) - min(held) <= 1
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(count):
        producer.produce(name, f"to {partition}", partition=partition)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    records = reading.read_all(broker.bootstrap, name, range(count), count)
    assert sorted((each.partition, each.value) for each in records) == [
        (partition, f"to {partition}".encode()) for partition in range(count)
    ]
    confluent.delete_topics([name])[name].result(WAIT_SECONDS_MAX)
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        partitions_of(confluent, name)


@pytest.mark.parametrize(("spec", "error"), SPECS)
@pytest.mark.parametrize("validate_only", [False, True])
def test_kafka_python_hears_why_a_topic_is_not_made(
    python: Any, confluent: AdminClient, spec: TopicSpec, error: type[Exception], *, validate_only: bool
) -> None:
    name = topic_name("a_name")
    python.create_topics({name: {"num_partitions": 1}})
    before = set(confluent.list_topics(timeout=WAIT_SECONDS_MAX).topics)
    with pytest.raises(error):
        python.create_topics(spec(name), validate_only=validate_only)
    assert set(confluent.list_topics(timeout=WAIT_SECONDS_MAX).topics) == before


def test_confluent_hears_why_a_topic_is_not_made(confluent: AdminClient, topic: str) -> None:
    fresh = topic_name("not-made")
    cases = [
        (NewTopic(topic, 1), ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
        (NewTopic("a b", 1), ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII alphanumerics"),
        (NewTopic(fresh, 10_001), ErrorCode.INVALID_PARTITIONS, "between 1 and 10000"),
        (NewTopic(fresh, 1, config={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG, "retention.ms"),
        (NewTopic(fresh, 1, replica_assignment=[[77]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "[77]"),
    ]
    for spec, code, said in cases:
        for validate_only in (True, False):
            found, message = outcome(confluent.create_topics([spec], validate_only=validate_only))
            assert (found, said in message) == (code, True), message
    collides = f"{fresh}.a"
    confluent.create_topics([NewTopic(collides, 1)])[collides].result(WAIT_SECONDS_MAX)
    found, message = outcome(confluent.create_topics([NewTopic(f"{fresh}_a", 1)]))
    assert found == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert f"collides with existing topic: {collides}" in message


def test_a_topic_that_a_request_names_twice_is_not_made(confluent: AdminClient, python: Any) -> None:
    name = topic_name("twice")
    found, message = outcome(confluent.create_topics([NewTopic(name, 1), NewTopic(name, 2)]))
    assert (found, message) == (ErrorCode.INVALID_REQUEST, f"The request names topic '{name}' twice.")
    with pytest.raises(kafka_errors.InvalidRequestError):
        python.create_topics([PythonTopic(name, 1, 1), PythonTopic(name, 2, 1)])
    assert name not in confluent.list_topics(timeout=WAIT_SECONDS_MAX).topics


def test_producers_and_consumers_find_the_partitions_that_a_topic_is_given(
    broker: Broker, confluent: AdminClient, topic: str
) -> None:
    common = {"bootstrap.servers": broker.bootstrap, "topic.metadata.refresh.interval.ms": METADATA_MS}
    consumer = Consumer({**common, "group.id": topic_name("group"), "auto.offset.reset": "earliest"})
    producer = Producer(common)
    try:
        consumer.subscribe([topic])
        produce(producer, topic, 0)
        assert read(consumer, 1) == {(0, b"0")}
        confluent.create_partitions([NewPartitions(topic, 3)])[topic].result(WAIT_SECONDS_MAX)
        assert len(partitions_of(confluent, topic)) == 3
        sent: set[tuple[int, bytes]] = set()
        for partition in (1, 2):
            produce(producer, topic, partition)
            sent.add((partition, b"%d" % partition))
        assert read(consumer, 2) == sent
    finally:
        consumer.close()


def produced(producer: Producer, topic: str, partition: int) -> int:
    """Send a record whose value is the partition's number; returns the error code of the client or the broker."""
    errors: list[ConfluentError | None] = []
    try:
        producer.produce(
            topic, b"%d" % partition, partition=partition, on_delivery=lambda error, _: errors.append(error)
        )
    except KafkaException as refused:
        errors.append(refused.args[0])
    producer.flush(WAIT_SECONDS_MAX)
    [error] = errors
    return 0 if error is None else error.code()


def produce(producer: Producer, topic: str, partition: int) -> None:
    """Send a record once the producer knows the partition."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while (code := produced(producer, topic, partition)) == ConfluentError._UNKNOWN_PARTITION:
        assert time.monotonic() < deadline
        producer.poll(METADATA_MS / 1000)
    assert code == 0


def read(consumer: Consumer, count: int) -> set[tuple[int, bytes]]:
    """Return `count` records, each as its partition and value."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    found: set[tuple[int, bytes]] = set()
    while len(found) < count:
        assert time.monotonic() < deadline, found
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.add((message.partition() or 0, message.value() or b""))
    return found


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (1, kafka_errors.InvalidPartitionsError),
        (0, kafka_errors.InvalidPartitionsError),
        (10_001, kafka_errors.InvalidPartitionsError),
        ({"count": 3, "assignments": [[0]]}, kafka_errors.InvalidReplicationAssignmentError),
        ({"count": 2, "assignments": [[77]]}, kafka_errors.InvalidReplicationAssignmentError),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_kafka_python_hears_why_a_topic_does_not_grow(
    python: Any, confluent: AdminClient, topic: str, spec: Any, error: type[Exception], *, validate_only: bool
) -> None:
    with pytest.raises(error):
        python.create_partitions({topic: spec}, validate_only=validate_only)
    assert len(partitions_of(confluent, topic)) == 1
    with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
        python.create_partitions({topic_name("nobodys"): spec}, validate_only=validate_only)
    python.create_partitions({topic: 2}, validate_only=True)
    assert len(partitions_of(confluent, topic)) == 1


def test_confluent_hears_why_a_topic_does_not_grow(confluent: AdminClient, topic: str) -> None:
    cases = [
        (NewPartitions(topic, 1), ErrorCode.INVALID_PARTITIONS, "already has 1"),
        (NewPartitions(topic, 10_001), ErrorCode.INVALID_PARTITIONS, "10000"),
        (NewPartitions(topic, 2, [[77]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "[77]"),
        (NewPartitions(topic_name("nobodys"), 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not exist"),
    ]
    for spec, code, said in cases:
        found, message = outcome(confluent.create_partitions([spec]))
        assert (found, said in message) == (code, True), message
    assert len(partitions_of(confluent, topic)) == 1


@pytest.mark.parametrize("partitions", [1, 130])
def test_clients_of_a_deleted_topic_get_an_error(
    broker: Broker, confluent: AdminClient, partitions: int
) -> None:
    name = topic_name("deleted")
    confluent.create_topics([NewTopic(name, partitions)])[name].result(WAIT_SECONDS_MAX)
    common = {
        "bootstrap.servers": broker.bootstrap,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "topic.metadata.propagation.max.ms": METADATA_MS,
        "allow.auto.create.topics": False,
    }
    consumer = Consumer({**common, "group.id": topic_name("group"), "auto.offset.reset": "earliest"})
    producer = Producer(common)
    try:
        consumer.subscribe([name])
        produce(producer, name, 0)
        assert read(consumer, 1) == {(0, b"0")}
        confluent.delete_topics([name])[name].result(WAIT_SECONDS_MAX)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        reported: ConfluentError | None = None
        while reported is None:
            assert time.monotonic() < deadline, "the consumer gets no error"
            message = consumer.poll(0.5)
            reported = None if message is None else message.error()
        assert reported.code() in GONE
        # Requests in flight when librdkafka drops the topic's leader fail with that error; later ones with the topic's.
        while (code := produced(producer, name, 0)) == ConfluentError._DESTROY:
            assert time.monotonic() < deadline
        assert code in GONE
    finally:
        consumer.close()


def test_topics_are_deleted_by_name_and_by_id(confluent: AdminClient, python: Any, topic: str) -> None:
    other = topic_name("deleted")
    [made] = python.create_topics({other: {}})["topics"]
    topic_id = uuid.UUID(str(made["topic_id"]))
    confluent.delete_topics([topic])[topic].result(WAIT_SECONDS_MAX)
    python.delete_topics([topic_id])
    assert not {topic, other} & set(confluent.list_topics(timeout=WAIT_SECONDS_MAX).topics)
    assert outcome(confluent.delete_topics([topic]))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
        python.delete_topics([other])
    with pytest.raises(kafka_errors.UnknownTopicIdError):
        python.delete_topics([topic_id])


def test_topics_stay_where_the_broker_lets_nobody_delete_them(tmp_path: Path) -> None:
    with korvet_broker(tmp_path, "--set", "delete.topic.enable=false", workers=1) as broker:
        confluent = AdminClient({"bootstrap.servers": broker.bootstrap})
        python = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        try:
            python.create_topics({"kept": {"num_partitions": 1}})
            assert outcome(confluent.delete_topics(["kept"]))[0] == ErrorCode.TOPIC_DELETION_DISABLED
            with pytest.raises(kafka_errors.TopicDeletionDisabledError):
                python.delete_topics(["kept"])
            assert "kept" in confluent.list_topics(timeout=WAIT_SECONDS_MAX).topics
        finally:
            python.close()


def test_topics_of_one_request_have_too_many_partitions_in_all(confluent: AdminClient, python: Any) -> None:
    names = [topic_name("many"), topic_name("many")]
    for future in confluent.create_topics([NewTopic(each, 5001) for each in names]).values():
        found, message = outcome({"": future})
        assert (found, "not 10002" in message) == (ErrorCode.POLICY_VIOLATION, True), message
    with pytest.raises(kafka_errors.PolicyViolationError):
        python.create_topics({each: {"num_partitions": 5001} for each in names})
    assert not set(names) & set(confluent.list_topics(timeout=WAIT_SECONDS_MAX).topics)
