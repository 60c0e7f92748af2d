"""The first record of a log reaches a consumer that took its position from the empty log, in format `record`."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, TopicPartition

from tests.support import reading
from tests.support.broker import Broker
from tests.support.processes import wait_until
from tests.support.topic_client import Client


def test_the_first_record_is_read_from_offset_0_though_it_lies_far_above(broker: Broker) -> None:
    topic = "first-record"
    reading.create_topic(broker.bootstrap, topic, 1)
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "first",
        "auto.offset.reset": "latest",  # OFFSET_OUT_OF_RANGE would take it past the record
        "enable.partition.eof": True,
    }
    polled: list[Message] = []

    def is_at_end() -> bool:
        message = consumer.poll(0.1)
        error = None if message is None else message.error()
        return error is not None and error.code() == KafkaError._PARTITION_EOF

    def has_record() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            polled.append(message)
        return bool(polled)

    with closing(Consumer(config)) as consumer, Client(broker.address) as client:
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        wait_until(is_at_end, "the consumer stands at the end of the empty log")
        offset = client.append(topic, b"first")
        assert client.fetch(topic, 0).log_start_offset == offset > 0
        wait_until(has_record, "the first record")
        assert (polled[0].value(), polled[0].offset()) == (b"first", offset)
