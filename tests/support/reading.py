"""Writing records and reading whole partitions with confluent-kafka: for tests of the log, not of the client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import Received


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, config=config or {})])[topic].result(WAIT_SECONDS_MAX)


def topic_id(bootstrap: str, topic: str) -> str:
    """Return the id of a topic as text."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(WAIT_SECONDS_MAX)
    return str(described.topic_id)


def produce(bootstrap: str, topic: str, *records: Mapping[str, Any], **config: str) -> list[int]:
    """Write records, the arguments of `Producer.produce` by name; returns their offsets."""
    return send(Producer({"bootstrap.servers": bootstrap, **config}), topic, *records)


def send(producer: Producer, topic: str, *records: Mapping[str, Any]) -> list[int]:
    """Do so with a producer that may have a transaction open."""
    offsets: list[int] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset() or 0)

    for record in records:
        producer.produce(topic, on_delivery=delivered, **record)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return offsets


@contextlib.contextmanager
def consumer(
    bootstrap: str, topic: str, partitions: Iterable[int] = (0,), **config: Any
) -> Iterator[Consumer]:
    """Give a consumer with these partitions assigned, from their beginning."""
    # librdkafka wants a group's name even where partitions are assigned; it never joins.
    common = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    running = Consumer({**common, **config})
    try:
        running.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        yield running
    finally:
        running.close()


def read(running: Consumer, count: int, seconds: float = WAIT_SECONDS_MAX) -> list[Received]:
    """Read `count` records, then look whether there are more than that."""
    received: list[Received] = []
    deadline = time.monotonic() + seconds
    while len(received) < count:
        assert time.monotonic() < deadline, f"{len(received)} of {count} records"
        received += [as_received(message) for message in running.consume(count, timeout=0.2)]
    return received + [as_received(message) for message in running.consume(1, timeout=0.2)]


def read_all(bootstrap: str, topic: str, partitions: Iterable[int], count: int) -> list[Received]:
    """Read the whole of some partitions, which hold `count` records."""
    with consumer(bootstrap, topic, partitions) as running:
        return read(running, count)


def read_to_end(bootstrap: str, topic: str, count: int, isolation: str) -> list[list[Received]]:
    """Read what each of a topic's `count` partitions has for that isolation level now."""
    return [*partitions_to_end(bootstrap, [(topic, index) for index in range(count)], isolation).values()]


def partitions_to_end(
    bootstrap: str, partitions: Iterable[tuple[str, int]], isolation: str
) -> dict[tuple[str, int], list[Received]]:
    """Read what partitions of several topics have for that isolation level now."""
    config = {"enable.partition.eof": True, "isolation.level": isolation}
    received: dict[tuple[str, int], list[Received]] = {partition: [] for partition in partitions}
    left = set(received)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    with consumer(bootstrap, "", (), **config) as running:
        running.assign([TopicPartition(*partition, OFFSET_BEGINNING) for partition in received])
        while left:
            assert time.monotonic() < deadline, f"{left} do not end"
            for message in running.consume(1000, timeout=0.05):
                error = message.error()
                partition = (message.topic() or "", message.partition() or 0)
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    left.discard(partition)
                else:
                    received[partition].append(as_received(message))
    return received


def as_received(message: Message) -> Received:
    """Return what a message holds; fails where it is an error."""
    error = message.error()
    assert error is None, error
    headers: Any = message.headers() or ()
    key: Any = message.key()
    value: Any = message.value()
    return Received(
        message.partition() or 0, message.offset() or 0, key, value, tuple(headers), message.timestamp()[1]
    )
