"""confluent-kafka (librdkafka) as a client: it gets back exactly what it sent, and finds its way around the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_END,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.support import ops, reading
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import (
    CODECS,
    PARTITIONS,
    PER_CODEC,
    TIMESTAMP_FIRST_MS,
    Sample,
    by_codec,
    check_exactly,
    samples,
    topic_name,
)


def produce(broker: Broker, topic: str, records: Iterable[Sample], **config: Any) -> list[tuple[int, int]]:
    """Send and wait; returns partition and offset of each acknowledgement."""
    acknowledged: list[tuple[int, int]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        acknowledged.append((message.partition() or 0, message.offset() or 0))

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **config})
    for record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            partition=record.partition,
            timestamp=record.timestamp,
            on_delivery=delivered,
        )
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return acknowledged


def test_twenty_thousand_records_of_all_codecs_come_back_exactly(broker: Broker) -> None:
    topic = topic_name("confluent")
    reading.create_topic(broker.bootstrap, topic, PARTITIONS)
    sent = samples(0, PER_CODEC * len(CODECS))
    offsets: list[tuple[int, int]] = []
    weights: list[float] = []
    for codec, part in by_codec(sent):
        before = ops.settled_total(broker, "korvet_received_bytes_total")
        offsets += produce(broker, topic, part, **{"compression.type": codec})
        weights.append(ops.settled_total(broker, "korvet_received_bytes_total") - before)
    assert max(weights[1:]) < weights[0] / 2, "compressed batches travelled"
    with reading.consumer(broker.bootstrap, topic, range(PARTITIONS)) as running:
        check_exactly(sent, reading.read(running, len(sent)), offsets)


def test_batches_reach_the_consumer_compressed_as_the_topic_says(broker: Broker) -> None:
    weights: list[float] = []
    for codec in CODECS:
        topic = topic_name(f"confluent-{codec}")
        reading.create_topic(broker.bootstrap, topic, PARTITIONS, {"compression.type": codec})
        sent = samples(0, 2000)
        produce(broker, topic, sent)
        before = ops.settled_total(broker, "korvet_sent_bytes_total")
        with reading.consumer(broker.bootstrap, topic, range(PARTITIONS)) as running:
            check_exactly(sent, reading.read(running, len(sent)))
        weights.append(ops.settled_total(broker, "korvet_sent_bytes_total") - before)
    assert max(weights[1:]) < weights[0] / 2, "compressed batches travelled"


def test_an_idempotent_producer_writes_every_record_once(broker: Broker) -> None:
    topic = topic_name("confluent-idempotent")
    reading.create_topic(broker.bootstrap, topic, PARTITIONS)
    sent = samples(0, 5000)
    offsets = produce(broker, topic, sent, **{"enable.idempotence": True})
    with reading.consumer(broker.bootstrap, topic, range(PARTITIONS)) as running:
        check_exactly(sent, reading.read(running, len(sent)), offsets)


def test_offsets_are_found_by_end_and_by_time_and_can_be_sought(broker: Broker) -> None:
    topic = topic_name("confluent-offsets")
    reading.create_topic(broker.bootstrap, topic)
    sent = [record._replace(partition=0) for record in samples(0, 3000)]
    offsets = sorted(offset for _, offset in produce(broker, topic, sent))
    with reading.consumer(broker.bootstrap, topic, range(1)) as running:
        assert running.get_watermark_offsets(TopicPartition(topic, 0), WAIT_SECONDS_MAX) == (
            offsets[0],
            offsets[-1] + 1,
        )
        times = [TIMESTAMP_FIRST_MS + 500, TIMESTAMP_FIRST_MS - 1, TIMESTAMP_FIRST_MS + 3000]
        asked = [TopicPartition(topic, 0, wanted) for wanted in times]
        # One partition may be asked for once in a request.
        found = [running.offsets_for_times([one], WAIT_SECONDS_MAX)[0].offset for one in asked]
        assert found == [offsets[1500], offsets[0], OFFSET_END]
        assert len(reading.read(running, len(sent))) == len(sent)
        running.seek(TopicPartition(topic, 0, offsets[2990]))
        assert [record.offset for record in reading.read(running, 10)] == offsets[2990:]


def test_a_seek_into_the_middle_of_a_batch_begins_at_that_record(broker: Broker) -> None:
    topic = topic_name("confluent-middle")
    reading.create_topic(broker.bootstrap, topic)
    sent = [record._replace(partition=0) for record in samples(0, 100)]
    offsets = [offset for _, offset in produce(broker, topic, sent, **{"linger.ms": 200})]
    with reading.consumer(broker.bootstrap, topic, ()) as running:
        running.assign([TopicPartition(topic, 0, offsets[57])])
        check_exactly(sent[57:], reading.read(running, 43))


def test_a_consumer_that_waits_at_the_end_of_an_empty_topic_gets_the_first_record(broker: Broker) -> None:
    topic = topic_name("confluent-waits")
    reading.create_topic(broker.bootstrap, topic)
    with reading.consumer(broker.bootstrap, topic, (), **{"auto.offset.reset": "error"}) as running:
        _, end = running.get_watermark_offsets(TopicPartition(topic, 0), WAIT_SECONDS_MAX)
        running.assign([TopicPartition(topic, 0, end)])
        assert running.consume(1, timeout=1.0) == []
        sent = [Sample(0, b"first", b"record", (), TIMESTAMP_FIRST_MS)]
        produce(broker, topic, sent)
        check_exactly(sent, reading.read(running, 1))


def test_a_record_of_900_kilobytes_passes_and_a_larger_batch_than_allowed_does_not(broker: Broker) -> None:
    topic = topic_name("confluent-large")
    reading.create_topic(broker.bootstrap, topic)
    large = bytes(range(256)) * 3600
    sent = [Sample(0, None, large, (), TIMESTAMP_FIRST_MS), Sample(0, b"", b"small", (), TIMESTAMP_FIRST_MS)]
    produce(broker, topic, sent)
    with reading.consumer(broker.bootstrap, topic, range(1)) as running:
        check_exactly(sent, reading.read(running, 2))
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 4_000_000})
    producer.produce(topic, large * 2, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    assert [error.code() for error in errors if error] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_an_unknown_topic_is_created_by_a_producer_but_not_by_who_only_looks(broker: Broker) -> None:
    topic = topic_name("confluent-auto")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    described = admin.describe_topics(TopicCollection([topic]))[topic]
    with pytest.raises(KafkaException) as raised:
        described.result(WAIT_SECONDS_MAX)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert topic not in admin.list_topics(timeout=WAIT_SECONDS_MAX).topics
    sent = [Sample(2, b"k", b"v", (), TIMESTAMP_FIRST_MS)]
    offsets = produce(broker, topic, sent)
    assert len(admin.list_topics(timeout=WAIT_SECONDS_MAX).topics[topic].partitions) == 3
    with reading.consumer(broker.bootstrap, topic, range(3)) as running:
        check_exactly(sent, reading.read(running, 1), offsets)


def test_a_deleted_topic_is_gone_and_its_name_can_be_used_again(broker: Broker) -> None:
    topic = topic_name("confluent-deleted")
    reading.create_topic(broker.bootstrap, topic, 2)
    with pytest.raises(KafkaException) as raised:
        reading.create_topic(broker.bootstrap, topic)
    assert raised.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    produce(broker, topic, [Sample(1, b"old", b"old", (), TIMESTAMP_FIRST_MS)])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(WAIT_SECONDS_MAX)
    assert topic not in admin.list_topics(timeout=WAIT_SECONDS_MAX).topics
    reading.create_topic(broker.bootstrap, topic, 2)
    sent = [Sample(1, b"new", b"new", (), TIMESTAMP_FIRST_MS)]
    offsets = produce(broker, topic, sent)
    with reading.consumer(broker.bootstrap, topic, range(2)) as running:
        check_exactly(sent, reading.read(running, 1), offsets)
