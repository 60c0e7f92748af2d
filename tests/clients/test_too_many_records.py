"""What clients do with a batch of more records than `max.message.records`, as docs/records.md says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from tests.clients.test_kafka_python import MILLISECONDS_MAX
from tests.support.batches import values
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name
from tests.support.topic_client import Client

RECORDS, RECORDS_MAX = 1000, 100
LINGER_MS, BATCH_BYTES = 1000, 1 << 20


def with_kafka_python(bootstrap: str, topic: str) -> Counter[str]:
    config: dict[str, Any] = {"linger_ms": LINGER_MS, "batch_size": BATCH_BYTES}
    with closing(
        KafkaProducer(bootstrap_servers=bootstrap, max_block_ms=MILLISECONDS_MAX, **config)
    ) as producer:
        sent = [producer.send(topic, b"%d" % number) for number in range(RECORDS)]
        for each in sent:
            # Not by flush: kafka-python 3.0 raises there for a batch that it has split.
            each.get(timeout=WAIT_SECONDS_MAX)
        return Counter(["written"] * len(sent))


def with_aiokafka(bootstrap: str, topic: str) -> Counter[str]:
    async def send() -> Counter[str]:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, linger_ms=LINGER_MS, max_batch_size=BATCH_BYTES
        ) as producer:
            sent = [await producer.send(topic, b"%d" % number) for number in range(RECORDS)]
            ends = await asyncio.gather(*sent, return_exceptions=True)
        return Counter(type(each).__name__ if isinstance(each, Exception) else "written" for each in ends)

    return asyncio.run(send())


def with_librdkafka(bootstrap: str, topic: str) -> Counter[str]:
    ends: Counter[str] = Counter()

    def note(error: Any, _message: object) -> None:
        ends[error.name() if error else "written"] += 1

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS, "enable.idempotence": True})
    # Else it holds records back until it knows the topic, and the flush sends the first of them alone: few enough.
    producer.list_topics(topic, WAIT_SECONDS_MAX)
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, on_delivery=note)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return ends


@pytest.mark.parametrize(
    ("send", "outcome"),
    [
        (with_kafka_python, "written"),
        (with_aiokafka, "MessageSizeTooLargeError"),
        (with_librdkafka, "MSG_SIZE_TOO_LARGE"),
    ],
)
def test_a_batch_of_too_many_records_is_split_or_failed_by_its_client(
    broker: Broker, send: Callable[[str, str], Counter[str]], outcome: str
) -> None:
    topic = topic_name("many")
    with Client(broker.address) as client:
        client.create(topic, max_message_records=str(RECORDS_MAX))
        assert send(broker.bootstrap, topic) == {outcome: RECORDS}
        # Split or not at all: nothing is written twice, or without its producer's knowledge.
        expected = RECORDS if outcome == "written" else 0
        assert len(values(client.fetch(topic).records)) == expected
