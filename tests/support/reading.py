"""Reading whole partitions with confluent-kafka: for tests of what happened to the log, not of the client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicCollection, TopicPartition
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


@contextlib.contextmanager
def consumer(
    bootstrap: str, topic: str, partitions: Iterable[int] = (0,), **config: Any
) -> Iterator[Consumer]:
    """Give a consumer with these partitions assigned, from their beginning."""
    # librdkafka wants a group's name even where partitions are assigned; it never joins.
    common = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    running = Consumer({**common, **config})
    try:
        running.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
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
    config = {"enable.partition.eof": True, "isolation.level": isolation}
    received: list[list[Received]] = [[] for _ in range(count)]
    ended: set[int | None] = set()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    with consumer(bootstrap, topic, range(count), **config) as running:
        while len(ended) < count:
            assert time.monotonic() < deadline, f"{topic} ends only in partitions {ended}"
            for message in running.consume(1000, timeout=0.05):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    record = as_received(message)
                    received[record.partition].append(record)
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
