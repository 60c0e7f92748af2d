"""compression.type in format `batch`, from a client's producer to other clients' consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AsyncTopicPartition
from confluent_kafka import Producer

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.batch import HEADER, BatchHeader
from korvet.protocol.records.compression import Codec
from korvet.topics.registry import TopicSpec
from korvet.topics.types import PartitionRef, TopicRef
from tests.support import reading, redis_servers
from tests.support.batches import ZSTD, batch
from tests.support.broker import Broker, korvet_broker
from tests.support.domain import domain
from tests.support.processes import WAIT_SECONDS_MAX

VALUES = [b"%d " % n * 100 for n in range(2000)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with korvet_broker(tmp_path_factory.mktemp("broker"), workers=1) as running:
        yield running


def produce(broker: Broker, topic: str, codec: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.codec": codec, "linger.ms": 50})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0


def stored_codecs(broker: Broker, topic: str) -> set[str]:
    with redis_servers.connected(broker.redis_url) as client:
        entries: Any = client.xrange(f"korvet:{topic}:0")
    assert entries
    return {
        Codec(BatchHeader._make(HEADER.unpack_from(fields[b"batch"])).codec).name for _, fields in entries
    }


def by_kafka_python(broker: Broker, topic: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        found: list[bytes] = []
        while len(found) < len(VALUES):
            found += [one.value for batch in consumer.poll(5000).values() for one in batch]
        return found
    finally:
        consumer.close()


def by_aiokafka(broker: Broker, topic: str) -> list[bytes]:
    async def consume() -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([AsyncTopicPartition(topic, 0)])
            return [(await consumer.getone()).value for _ in VALUES]
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(consume(), WAIT_SECONDS_MAX))


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["none", "lz4"])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_every_client_reads_what_the_topics_codec_made_of_a_batch(
    broker: Broker, codec: str, sent: str
) -> None:
    topic = f"{sent}-as-{codec}"
    reading.create_topic(
        broker.bootstrap, topic, config={"storage.format": "batch", "compression.type": codec}
    )
    produce(broker, topic, sent)
    assert stored_codecs(broker, topic) == {"none" if codec == "uncompressed" else codec}
    received = reading.read_all(broker.bootstrap, topic, [0], len(VALUES))
    assert [(one.offset, one.value) for one in received] == list(enumerate(VALUES))
    assert by_kafka_python(broker, topic) == VALUES
    assert by_aiokafka(broker, topic) == VALUES


@pytest.mark.parametrize("sent", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_without_a_codec_of_the_topic_the_producers_stays(broker: Broker, sent: str) -> None:
    topic = f"{sent}-as-sent"
    reading.create_topic(broker.bootstrap, topic, config={"storage.format": "batch"})
    produce(broker, topic, sent)
    assert stored_codecs(broker, topic) == {sent}
    received = reading.read_all(broker.bootstrap, topic, [0], len(VALUES))
    assert [one.value for one in received] == VALUES


def test_a_batch_that_is_too_large_in_the_topics_codec_is_refused(redis_url: str) -> None:
    with domain(redis_url, Settings(storage_format="batch")) as here:
        here.topics.create(TopicSpec(name="orders", configs={"compression.type": "uncompressed"}))
        sent = batch(bytes(2_000_000), codec=ZSTD)
        delivery = PartitionRef(TopicRef("orders"), 0, sent)
        [refused] = here.appender.append([delivery], zstd_known=True)
        assert isinstance(refused, KafkaError)
        assert refused.code is ErrorCode.MESSAGE_TOO_LARGE
