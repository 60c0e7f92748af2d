"""Administrators of each library: topics that they make, grow, change and delete, and what only some can ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from kafka import KafkaAdminClient
from kafka import TopicPartition as Partition
from kafka.admin import OffsetSpec as Special

from korvet.errors import ErrorCode
from tests.clients.client_library import Admin, Library, RefusedError, read, written
from tests.clients.librdkafka import LIBRDKAFKA, outcome
from tests.support import reading
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.records import TIMESTAMP_FIRST_MS, Sample, check_exactly, topic_name

GONE = (
    ConfluentError.UNKNOWN_TOPIC_OR_PART,
    ConfluentError._UNKNOWN_TOPIC,
    ConfluentError._UNKNOWN_PARTITION,
)
"""How librdkafka calls a topic that is not there, or not any more."""
SPECS: Any = OffsetSpec
"""Its methods carry no types."""


@pytest.fixture
def topic(broker: Broker) -> str:
    name = topic_name("administered")
    reading.create_topic(broker.bootstrap, name)
    return name


@pytest.fixture
def python(broker: Broker) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def record(partition: int) -> Sample:
    return Sample(partition, b"k", b"to %d" % partition, (), TIMESTAMP_FIRST_MS)


def test_a_topic_is_created_changed_and_deleted_and_its_name_used_again(
    broker: Broker, library: Library, admin: Admin
) -> None:
    topic = topic_name("created")
    for partitions in (2, 3):
        admin.create(topic, partitions, {"retention.ms": "-1"})
        assert admin.partitions(topic) == partitions
        assert admin.config(topic, "retention.ms") == "-1"
        admin.set_config(topic, "max.message.bytes", "400")
        # Any worker may be asked: each of them knows it within milliseconds.
        wait_until(lambda: admin.config(topic, "max.message.bytes") == "400", "every worker knows it")
        with closing(library.producer(broker.bootstrap, {})) as producer:
            [place] = written(producer.send(topic, [record(partitions - 1)]))
            large = record(0)._replace(value=bytes(range(256)) * 2)
            wait_until(lambda: producer.send(topic, [large]) == [ErrorCode.MESSAGE_TOO_LARGE], "it counts")  # noqa: B023 - called at once
        with closing(library.consumer(broker.bootstrap, {"group.id": topic})) as consumer:
            consumer.assign(topic, {partitions - 1: None})
            check_exactly([record(partitions - 1)], read(consumer, 1), [place])
            assert consumer.committed(topic, partitions - 1) is None, "offsets went with the former topic"
            consumer.commit()
        assert topic in admin.groups()
        admin.delete(topic)
        assert admin.partitions(topic) == 0


def test_producers_and_consumers_find_the_partitions_that_a_topic_is_given(
    broker: Broker, library: Library, admin: Admin, topic: str
) -> None:
    refresh = "topic.metadata.refresh.interval.ms" if library is LIBRDKAFKA else "metadata.max.age.ms"
    with closing(library.consumer(broker.bootstrap, {refresh: 200, "group.id": topic})) as consumer:
        consumer.subscribe(topic)
        with closing(library.producer(broker.bootstrap, {})) as producer:
            written(producer.send(topic, [record(0)]))
        check_exactly([record(0)], read(consumer, 1))
        consumer.commit()
        admin.grow(topic, 3)
        assert admin.partitions(topic) == 3
        with closing(library.producer(broker.bootstrap, {})) as producer:
            written(producer.send(topic, [record(1), record(2)]))
        check_exactly([record(1), record(2)], read(consumer, 2))


def test_a_refused_request_has_the_brokers_code(admin: Admin, topic: str) -> None:
    unknown = topic_name("unknown")
    requests: list[tuple[Callable[[], None], ErrorCode]] = [
        (lambda: admin.create(topic), ErrorCode.TOPIC_ALREADY_EXISTS),
        (lambda: admin.create(unknown, 1, {"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (lambda: admin.delete(unknown), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda: admin.grow(topic, 1), ErrorCode.INVALID_PARTITIONS),
        (lambda: admin.set_config(topic, "segment.ms", "x"), ErrorCode.INVALID_CONFIG),
    ]
    for request, code in requests:
        with pytest.raises(RefusedError) as refused:
            request()
        assert refused.value.code == code


def test_clients_of_librdkafka_get_an_error_once_their_topic_is_deleted(broker: Broker, topic: str) -> None:
    common = {
        "bootstrap.servers": broker.bootstrap,
        "topic.metadata.refresh.interval.ms": 200,
        "topic.metadata.propagation.max.ms": 200,
        "allow.auto.create.topics": False,
    }
    consumer = Consumer({**common, "group.id": topic, "auto.offset.reset": "earliest"})
    producer = Producer(common)
    with closing(consumer):
        consumer.subscribe([topic])
        assert outcome(producer, topic) == 0
        message = consumer.poll(WAIT_SECONDS_MAX)
        assert message is not None
        assert message.error() is None
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics([topic])[topic].result(WAIT_SECONDS_MAX)
        message = consumer.poll(WAIT_SECONDS_MAX)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() in GONE
        # Requests in flight when librdkafka drops the topic's leader fail with that error; later ones with the topic's.
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while (code := outcome(producer, topic)) == ConfluentError._DESTROY:
            assert time.monotonic() < deadline
        assert code in GONE


def test_offsets_are_listed_by_every_special_timestamp(broker: Broker, python: Any, topic: str) -> None:
    records = [record(0)._replace(timestamp=TIMESTAMP_FIRST_MS + late) for late in (0, 5000, 1000)]
    with closing(LIBRDKAFKA.producer(broker.bootstrap, {})) as producer:
        offsets = [offset for _, offset in written(producer.send(topic, records))]
    place = Partition(topic, 0)

    def ask(special: Special) -> tuple[int, int]:
        answer = python.list_partition_offsets({place: special})[place]
        return answer.offset, answer.timestamp

    asked: Any = {TopicPartition(topic, 0): SPECS.max_timestamp()}
    confluent = AdminClient({"bootstrap.servers": broker.bootstrap})
    [future] = confluent.list_offsets(asked).values()
    latest = future.result(WAIT_SECONDS_MAX)
    largest = (offsets[1], TIMESTAMP_FIRST_MS + 5000)
    assert (latest.offset, latest.timestamp) == ask(Special.MAX_TIMESTAMP) == largest
    assert ask(Special.EARLIEST) == ask(Special.EARLIEST_LOCAL) == (offsets[0], -1)
    assert ask(Special.LATEST) == (offsets[2] + 1, -1)
    # Nothing is in a remote tier.
    assert ask(Special.LATEST_TIERED) == (-1, -1)


@pytest.mark.embedded
def test_the_embedded_servers_log_directory_is_where_its_data_is(broker: Broker, python: Any) -> None:
    [answer] = python.describe_log_dirs()
    assert [item["log_dir"] for item in answer["log_dirs"]] == [str(broker.data_dir)]
