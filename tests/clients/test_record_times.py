"""Timestamps of records as real clients report them, and errors for records that a topic refuses."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from random import Random
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AsyncTopicPartition
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition
from kafka.errors import InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError

from tests.support import reading
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name

LONG_AGO = 1_500_000_000_000
HOUR_MS = 3_600_000
CREATE_TIME, LOG_APPEND_TIME = 0, 1


class ProducedTimestamp(NamedTuple):
    """What a producer gets for one record: the type of its timestamp, and the timestamp."""

    type: int
    timestamp: int


@pytest.fixture(params=["record", "batch"])
def storage_format(request: pytest.FixtureRequest) -> str:
    """Give each storage format."""
    return str(request.param)


@pytest.fixture(params=["none", "zstd"])
def codec(request: pytest.FixtureRequest) -> str:
    """Give the codec of a producer: with one, nobody sees a record before it is decompressed."""
    return str(request.param)


def create(broker: Broker, storage_format: str, **configs: str) -> str:
    """Create a topic and return its name; `configs` have `_` for `.`."""
    topic = topic_name("times")
    given = {name.replace("_", "."): value for name, value in configs.items()}
    reading.create_topic(broker.bootstrap, topic, config={"storage.format": storage_format, **given})
    return topic


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send(
    broker: Broker, topic: str, *records: dict[str, Any], **config: Any
) -> list[ProducedTimestamp | int]:
    """Send records in one batch with librdkafka; returns for each its timestamp, or an error's code."""
    reported: dict[int, ProducedTimestamp | int] = {}
    # The batch is sent by the flush alone, so all records are in it. While librdkafka does not know the topic
    # it holds them back, and hands them to the partition one by one: a flush then sends the first ones alone.
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 60_000, **config})
    producer.list_topics(topic, WAIT_SECONDS_MAX)
    for at, record in enumerate(records):

        def delivered(error: KafkaError | None, message: Message, at: int = at) -> None:
            reported[at] = ProducedTimestamp(*message.timestamp()) if error is None else error.code()

        producer.produce(topic, partition=0, on_delivery=delivered, **record)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return [reported[at] for at in range(len(records))]


def send_by_kafka_python(broker: Broker, topic: str, *record: bytes, **fields: Any) -> int:
    """Send one record with a producer of its own, which would try no other after some of these errors."""
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap)) as producer:
        return int(producer.send(topic, *record, **fields).get(WAIT_SECONDS_MAX).offset)


def test_librdkafka_reports_the_time_of_the_append(broker: Broker, storage_format: str, codec: str) -> None:
    topic = create(broker, storage_format, message_timestamp_type="LogAppendTime")
    before = now_ms()
    records = [{"value": b"v", "timestamp": LONG_AGO + n} for n in range(50)]
    reported = send(broker, topic, *records, **{"compression.type": codec})
    reported += send(broker, topic, *records, **{"compression.type": codec, "enable.idempotence": True})
    assert {type(each) for each in reported} == {ProducedTimestamp}
    with reading.consumer(broker.bootstrap, topic) as running:
        received = [each for _ in reported if (each := running.poll(WAIT_SECONDS_MAX)) is not None]
        assert [ProducedTimestamp(*each.timestamp()) for each in received] == reported
        stamps = sorted({timestamp for _, timestamp in (each.timestamp() for each in received)})
        assert before <= stamps[0] <= stamps[-1] <= now_ms()
        assert {each.timestamp()[0] for each in received} == {TIMESTAMP_LOG_APPEND_TIME}
        [found] = running.offsets_for_times([TopicPartition(topic, 0, stamps[-1])], WAIT_SECONDS_MAX)
        assert found.offset == next(each.offset() for each in received if each.timestamp()[1] == stamps[-1])


def test_librdkafka_reports_the_producers_time(broker: Broker, storage_format: str) -> None:
    topic = create(broker, storage_format)
    reported = send(broker, topic, *[{"value": b"v", "timestamp": LONG_AGO + n} for n in range(5)])
    assert reported == [ProducedTimestamp(TIMESTAMP_CREATE_TIME, LONG_AGO + n) for n in range(5)]
    with reading.consumer(broker.bootstrap, topic) as running:
        received = [each for _ in reported if (each := running.poll(WAIT_SECONDS_MAX)) is not None]
        assert [ProducedTimestamp(*each.timestamp()) for each in received] == reported


def test_kafka_python_reports_the_time_of_the_append(broker: Broker, storage_format: str, codec: str) -> None:
    topic = create(broker, storage_format, message_timestamp_type="LogAppendTime")
    compression = None if codec == "none" else codec
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap, compression_type=compression)) as producer:
        futures = [producer.send(topic, b"%d" % n, timestamp_ms=LONG_AGO) for n in range(20)]
        stamps = [future.get(WAIT_SECONDS_MAX).timestamp for future in futures]
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")) as running:
        running.assign([PythonTopicPartition(topic, 0)])
        received = [next(running) for _ in stamps]
    assert [each.timestamp for each in received] == stamps
    assert {each.timestamp_type for each in received} == {LOG_APPEND_TIME}
    assert min(stamps) > LONG_AGO


def test_aiokafka_reports_the_time_of_the_append(broker: Broker, storage_format: str) -> None:
    topic = create(broker, storage_format, message_timestamp_type="LogAppendTime")

    async def both() -> tuple[list[Any], list[Any]]:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await producer.start()
        try:
            sent = [await producer.send_and_wait(topic, b"v", timestamp_ms=LONG_AGO) for _ in range(5)]
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([AsyncTopicPartition(topic, 0)])
            return sent, [await consumer.getone() for _ in sent]
        finally:
            await consumer.stop()

    sent, received = asyncio.run(asyncio.wait_for(both(), WAIT_SECONDS_MAX))
    reported = [(each.offset, each.timestamp, each.timestamp_type) for each in received]
    assert reported == [(each.offset, each.timestamp, each.timestamp_type) for each in sent]
    assert {kind for _, _, kind in reported} == {LOG_APPEND_TIME}


def test_librdkafka_gets_the_records_that_have_no_key(
    broker: Broker, storage_format: str, codec: str
) -> None:
    topic = create(broker, storage_format, cleanup_policy="compact")
    records = [{"key": b"k", "value": b"v"}, {"value": b"v"}, {"key": b"l", "value": b"v"}, {"value": b"w"}]
    others = KafkaError._INVALID_DIFFERENT_RECORD
    assert send(broker, topic, *records, **{"compression.type": codec}) == [
        others,
        KafkaError.INVALID_RECORD,
        others,
        KafkaError.INVALID_RECORD,
    ]
    taken = send(broker, topic, records[0], {"key": b"l"}, **{"compression.type": codec})
    assert {type(each) for each in taken} == {ProducedTimestamp}
    assert [each.key for each in reading.read_all(broker.bootstrap, topic, [0], 2)] == [b"k", b"l"]


def test_librdkafka_gets_an_error_for_a_time_out_of_range(
    broker: Broker, storage_format: str, codec: str
) -> None:
    topic = create(broker, storage_format, message_timestamp_before_max_ms=str(HOUR_MS))
    for timestamp in (now_ms() - 2 * HOUR_MS, now_ms() + 2 * HOUR_MS):
        reported = send(broker, topic, {"value": b"v", "timestamp": timestamp}, **{"compression.type": codec})
        assert reported == [KafkaError.INVALID_TIMESTAMP]
    [taken] = send(broker, topic, {"value": b"v"}, **{"compression.type": codec})
    assert isinstance(taken, ProducedTimestamp)


def test_kafka_python_gets_an_error_for_refused_records(broker: Broker, storage_format: str) -> None:
    topic = create(
        broker, storage_format, cleanup_policy="compact", message_timestamp_before_max_ms=str(HOUR_MS)
    )
    with pytest.raises(InvalidRecordError):
        send_by_kafka_python(broker, topic, b"v")
    with pytest.raises(InvalidTimestampError):
        send_by_kafka_python(broker, topic, b"v", b"k", timestamp_ms=LONG_AGO)
    assert send_by_kafka_python(broker, topic, b"v", b"k") >= 0


def test_a_batch_larger_than_the_topic_allows_is_message_too_large(
    broker: Broker, storage_format: str, codec: str
) -> None:
    topic = create(broker, storage_format, max_message_bytes="2000")
    random = Random(0).randbytes(8000)
    assert send(broker, topic, {"value": random}, **{"compression.type": codec}) == [
        KafkaError.MSG_SIZE_TOO_LARGE
    ]
    with pytest.raises(MessageSizeTooLargeError):
        send_by_kafka_python(broker, topic, random)
    assert send_by_kafka_python(broker, topic, b"small") >= 0
    # The limit is on the batch as it travels.
    [taken] = send(broker, topic, {"value": bytes(100_000)}, **{"compression.type": "zstd"})
    assert isinstance(taken, ProducedTimestamp)


@pytest.mark.parametrize("of_topic", ["gzip", "uncompressed"])
def test_the_limit_holds_in_the_topics_codec_too(broker: Broker, of_topic: str) -> None:
    topic = create(broker, "batch", max_message_bytes="2000", compression_type=of_topic)
    reported = send(broker, topic, {"value": bytes(100_000)}, **{"compression.type": "zstd"})
    if of_topic == "gzip":
        assert isinstance(reported[0], ProducedTimestamp)
    else:
        assert reported == [KafkaError.MSG_SIZE_TOO_LARGE]
