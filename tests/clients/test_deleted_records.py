"""DeleteRecords by real clients, and what a consumer meets whose position lies below the new log start."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition as AsyncTopicPartition
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from tests.support import reading
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name

FORMATS = pytest.mark.parametrize("storage_format", ["record", "batch"])


def produce(broker: Broker, topic: str, *values: bytes) -> list[int]:
    """Produce values, each acknowledged before the next; returns their offsets."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(
            topic,
            value,
            partition=0,
            on_delivery=lambda _error, message: offsets.append(message.offset() or 0),
        )
        assert producer.flush(WAIT_SECONDS_MAX) == 0
    assert len(offsets) == len(values)
    return offsets


def topic_of(broker: Broker, storage_format: str, **configs: str) -> str:
    topic = topic_name("deleted")
    config = {"storage.format": storage_format} | {
        name.replace("_", "."): value for name, value in configs.items()
    }
    reading.create_topic(broker.bootstrap, topic, 1, config)
    return topic


def delete(broker: Broker, topic: str, offset: int) -> int:
    """Delete by librdkafka's admin client; returns the low watermark."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    [future] = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    low_watermark: int = future.result(WAIT_SECONDS_MAX).low_watermark
    return low_watermark


def values_of(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in reading.read_all(broker.bootstrap, topic, [0], count)]


@FORMATS
def test_librdkafka_deletes_records(broker: Broker, storage_format: str) -> None:
    topic = topic_of(broker, storage_format)
    offsets = produce(broker, topic, *(f"v{n}".encode() for n in range(5)))
    assert delete(broker, topic, offsets[3]) == offsets[3]
    assert values_of(broker, topic, 2) == [b"v3", b"v4"]
    with reading.consumer(broker.bootstrap, topic) as running:
        bounds = running.get_watermark_offsets(TopicPartition(topic, 0), cached=False)
        assert bounds == (offsets[3], offsets[4] + 1)
    assert delete(broker, topic, OFFSET_END) == offsets[4] + 1
    with pytest.raises(KafkaException) as refused:
        delete(broker, topic, offsets[4] + 2)
    assert refused.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE


@FORMATS
def test_librdkafka_gets_policy_violation_for_a_compacted_topic(broker: Broker, storage_format: str) -> None:
    topic = topic_of(broker, storage_format, cleanup_policy="compact")
    with pytest.raises(KafkaException) as refused:
        delete(broker, topic, 0)
    assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION


@FORMATS
def test_a_consumer_at_the_end_of_an_emptied_log_gets_what_comes_next(
    broker: Broker, storage_format: str
) -> None:
    """It was never out of range: with this setting an error would come instead."""
    topic = topic_of(broker, storage_format)
    produce(broker, topic, b"a", b"b")
    config: dict[str, Any] = {"auto.offset.reset": "error"}
    with reading.consumer(broker.bootstrap, topic, (0,), **config) as running:
        assert [record.value for record in reading.read(running, 2)] == [b"a", b"b"]
        delete(broker, topic, OFFSET_END)
        produce(broker, topic, b"c")
        assert [record.value for record in reading.read(running, 1)] == [b"c"]


@FORMATS
@pytest.mark.parametrize(("reset", "value"), [("earliest", b"v3"), ("latest", b"later")])
def test_a_consumer_below_the_log_start_follows_its_reset_policy(
    broker: Broker, storage_format: str, reset: str, value: bytes
) -> None:
    topic = topic_of(broker, storage_format)
    offsets = produce(broker, topic, *(f"v{n}".encode() for n in range(4)))
    delete(broker, topic, offsets[3])
    config: dict[str, Any] = {"auto.offset.reset": reset}
    with reading.consumer(broker.bootstrap, topic, (), **config) as running:
        running.assign([TopicPartition(topic, 0, offsets[1])])
        received: list[Message] = []
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not received:
            assert time.monotonic() < deadline, "nothing received"
            # A consumer at the end gets what is appended after it arrived there.
            if reset == "latest":
                produce(broker, topic, b"later")
            received = running.consume(1, timeout=0.5)
        assert [message.value() for message in received] == [value]


def test_a_start_within_a_batch_is_where_librdkafka_begins(broker: Broker) -> None:
    topic = topic_of(broker, "batch")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1000, "batch.num.messages": 10})
    # Else it holds records back until it knows the topic, and may send the first of them alone.
    producer.list_topics(topic, WAIT_SECONDS_MAX)
    for n in range(10):
        producer.produce(topic, f"v{n}".encode(), partition=0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    assert delete(broker, topic, 7) == 7
    assert values_of(broker, topic, 3) == [b"v7", b"v8", b"v9"]


@FORMATS
def test_kafka_python_deletes_records(broker: Broker, storage_format: str) -> None:
    topic = topic_of(broker, storage_format)
    offsets = produce(broker, topic, b"a", b"b", b"c")
    only = PythonTopicPartition(topic, 0)
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        results: Any = admin.delete_records({only: offsets[1]})
        assert results[only]["low_watermark"] == offsets[1]
        with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap)) as running:
            assert running.beginning_offsets([only]) == {only: offsets[1]}
            assert running.end_offsets([only]) == {only: offsets[2] + 1}
        results = admin.delete_records({only: -1})
        assert results[only]["low_watermark"] == offsets[2] + 1


@FORMATS
def test_aiokafka_deletes_records(broker: Broker, storage_format: str) -> None:
    topic = topic_of(broker, storage_format)
    offsets = produce(broker, topic, b"a", b"b", b"c")
    only = AsyncTopicPartition(topic, 0)

    async def delete_one() -> Any:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            return await admin.delete_records({only: RecordsToDelete(offsets[2])})
        finally:
            await admin.close()

    assert asyncio.run(delete_one()) == {only: offsets[2]}
    assert values_of(broker, topic, 1) == [b"c"]
