"""Offsets by timestamp in a log of several index rows, as real clients ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as Place
from kafka.admin import OffsetSpec as Special

from tests.support import reading
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name

RECORDS = 9_000
FIRST_MS = 1_700_000_000_000
STEP_MS = 10
FAR_MS = 4_000_000_000_000
"""In the year 2096: the timestamp of the third record."""

SPECS: Any = OffsetSpec
"""Its methods carry no types."""


@pytest.fixture(params=["record", "batch"])
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    """Give a topic of one partition whose records are STEP_MS apart, but for the third one."""
    name = topic_name("by-time")
    config = {
        "storage.format": request.param,
        "retention.ms": "-1",
        "message.timestamp.after.max.ms": str(2**62),
    }
    reading.create_topic(broker.bootstrap, name, config=config)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "batch.num.messages": 500})
    for n in range(RECORDS):
        producer.produce(
            name, key=b"k", value=b"%d" % n, partition=0, timestamp=FAR_MS if n == 2 else stamp(n)
        )
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return name


def stamp(number: int) -> int:
    return FIRST_MS + number * STEP_MS


@contextmanager
def librdkafka(broker: Broker) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            # A new position waits for the fetch that is under way.
            "fetch.wait.max.ms": 10,
            "fetch.error.backoff.ms": 10,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def value_at(consumer: Consumer, topic: str, offset: int) -> tuple[int, int]:
    """Read the record at an offset; return its number and its timestamp."""
    consumer.assign([TopicPartition(topic, 0, offset)])
    message = consumer.poll(WAIT_SECONDS_MAX)
    assert message is not None
    assert message.error() is None
    assert message.offset() == offset
    value = message.value()
    assert isinstance(value, bytes)
    return int(value), message.timestamp()[1]


def by_time(consumer: Consumer, topic: str, timestamp: int) -> int:
    [found] = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], WAIT_SECONDS_MAX)
    assert found.error is None
    return int(found.offset)


def by_spec(broker: Broker, topic: str, spec: Any) -> tuple[int, int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    [answer] = admin.list_offsets({TopicPartition(topic, 0): spec}).values()
    found = answer.result(WAIT_SECONDS_MAX)
    return found.offset, found.timestamp


def test_every_client_finds_the_first_record_that_is_not_older(broker: Broker, topic: str) -> None:
    with librdkafka(broker) as consumer, closing(KafkaConsumer(bootstrap_servers=broker.bootstrap)) as other:
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_SECONDS_MAX)
        place = Place(topic, 0)
        assert other.beginning_offsets([place]) == {place: first}
        assert other.end_offsets([place]) == {place: end}
        # The third record is younger than every timestamp asked for: after the second one it is always the first.
        for timestamp, number in (
            (0, 0),
            (stamp(1) - 1, 1),
            (stamp(1), 1),
            (stamp(2), 2),
            (stamp(6_000), 2),
            (FAR_MS, 2),
        ):
            offset = by_time(consumer, topic, timestamp)
            assert value_at(consumer, topic, offset) == (number, FAR_MS if number == 2 else stamp(number))
            assert other.offsets_for_times({place: timestamp})[place].offset == offset
        assert by_time(consumer, topic, FAR_MS + 1) == -1
        assert other.offsets_for_times({place: FAR_MS + 1}) == {place: None}
        largest, at = by_spec(broker, topic, SPECS.max_timestamp())
        assert (value_at(consumer, topic, largest)[0], at) == (2, FAR_MS)


def test_what_was_deleted_is_not_found_any_more(broker: Broker, topic: str) -> None:
    with librdkafka(broker) as consumer, closing(KafkaConsumer(bootstrap_servers=broker.bootstrap)) as other:
        low, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_SECONDS_MAX)
        far = by_time(consumer, topic, FAR_MS)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        [deleted] = admin.delete_records([TopicPartition(topic, 0, far + 1)]).values()
        start = deleted.result(WAIT_SECONDS_MAX).low_watermark
        assert low < start == far + 1
        place = Place(topic, 0)
        for number in (3, 4095, 4096, 4097, RECORDS - 1):
            offset = by_time(consumer, topic, stamp(number) - 1)
            assert value_at(consumer, topic, offset) == (number, stamp(number))
            found = other.offsets_for_times({place: stamp(number)})[place]
            assert (found.offset, found.timestamp) == (offset, stamp(number))
        assert value_at(consumer, topic, by_time(consumer, topic, 0))[0] == 3
        assert by_time(consumer, topic, stamp(RECORDS)) == -1
        assert by_spec(broker, topic, SPECS.max_timestamp()) == (end - 1, stamp(RECORDS - 1))
        assert by_spec(broker, topic, SPECS.earliest())[0] == other.beginning_offsets([place])[place]
        assert by_spec(broker, topic, SPECS.latest())[0] == end


def test_kafka_python_asks_by_every_special_timestamp(broker: Broker, topic: str) -> None:
    with librdkafka(broker) as consumer:
        low, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_SECONDS_MAX)
        far = by_time(consumer, topic, FAR_MS)
    place = Place(topic, 0)
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:

        def ask(special: Special) -> tuple[int, int, int | None]:
            found = admin.list_partition_offsets({place: special})[place]
            return found.offset, found.timestamp, found.leader_epoch

        epoch = ask(Special.LATEST)[2]
        assert epoch is not None
        for start, largest in ((low, (far, FAR_MS, epoch)), (end, (-1, -1, None))):
            assert admin.delete_records({place: start})[place]["error_code"] == 0
            assert ask(Special.EARLIEST) == ask(Special.EARLIEST_LOCAL) == (start, -1, epoch)
            assert ask(Special.LATEST) == (end, -1, epoch)
            assert ask(Special.MAX_TIMESTAMP) == largest
            # Nothing is in a remote tier.
            assert ask(Special.LATEST_TIERED) == (-1, -1, None)
