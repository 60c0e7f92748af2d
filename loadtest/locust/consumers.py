"""Consumers without a group: some follow the end of a topic, some read back from anywhere in it.

Knows the consumer's client. End to end is from when the producer had a record to when the consumer has it.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Mapping
from typing import ClassVar

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message, TopicPartition
from locust import constant_throughput, task
from locust.env import Environment

from loadtest.locust import records, topics
from loadtest.locust.operations import FETCH, LIST_OFFSETS, TAIL
from loadtest.locust.user import REQUEST_SECONDS_MAX, KafkaUser

_WAIT_SECONDS = 0.5
_RECORDS_MAX = 1000
_LOOKS_PER_SECOND = 2


def config(group: str, **more: str | float) -> dict[str, str | float]:
    """Return what all consumers configure; one without a group has to name one all the same."""
    return {"group.id": group, "enable.auto.commit": False, **more}


def take(consumer: Consumer) -> tuple[list[Message], int]:
    """Wait for records and return all that are there, with the time when (ns, Unix time).

    Consumer.consume alone would wait until it has as many as it may return.
    """
    first = consumer.poll(_WAIT_SECONDS)
    if first is None:
        return [], 0
    messages = [first, *consumer.consume(_RECORDS_MAX - 1, 0)]
    now_ns = time.time_ns()
    for message in messages:
        if (error := message.error()) is not None:
            raise KafkaException(error)
    return messages, now_ns


class _Unpartitioned(KafkaUser):
    """Has one consumer, without a group, and one of the topics, each user the next one."""

    abstract = True
    _numbers = itertools.count()
    _config: ClassVar[Mapping[str, str | float]] = {}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        planned = topics.planned(self.options)
        self._topic = planned[next(self._numbers) % len(planned)]

    def on_start(self) -> None:
        """Connect."""
        group = f"{self.options.prefix}-{uuid.uuid4().hex}"
        self._consumer = Consumer(self.client_config(**config(group, **self._config)))

    def on_stop(self) -> None:
        """Disconnect."""
        self.blocking(self._consumer.close)
        super().on_stop()


class ConsumerUser(_Unpartitioned):
    """Follows the end of all partitions of one topic."""

    _numbers = itertools.count()

    def on_start(self) -> None:
        """Begin at the end."""
        super().on_start()
        name = self._topic.name
        self._consumer.assign(
            [TopicPartition(name, number, OFFSET_END) for number in range(self.options.partitions)]
        )

    @task
    def follow(self) -> None:
        """Take what has come."""
        operation = TAIL.to(self._topic.format)
        try:
            messages, now_ns = self.blocking(take, self._consumer)
        except KafkaException as error:
            self.report(operation, 0, error=error)
            return
        for message in messages:
            if (stamp := records.parse(message.value())) is not None:
                self.report(operation, (now_ns - stamp.sent_ns) / 1e9, len(message))


class ReaderUser(_Unpartitioned):
    """Asks for the bounds of a partition, and reads on from a random offset between them: catching up, replaying."""

    wait_time = constant_throughput(_LOOKS_PER_SECOND)
    _numbers = itertools.count()
    # By default librdkafka reads on by megabytes, which are thrown away here, and all else waits for them. One that
    # may not read on looks whether it may again after a second by default, also where it was sent elsewhere since.
    _config: ClassVar[Mapping[str, str | float]] = {
        "fetch.message.max.bytes": 1 << 16,
        "queued.min.messages": 1,
        "fetch.queue.backoff.ms": 10,
    }

    @task
    def look_back(self) -> None:
        """Read one piece."""
        partition = TopicPartition(self._topic.name, random.randrange(self.options.partitions))
        low = high = 0
        with self.measured(LIST_OFFSETS):
            low, high = self.blocking(
                self._consumer.get_watermark_offsets, partition, timeout=REQUEST_SECONDS_MAX, cached=False
            )
        if low >= high:
            return
        partition.offset = random.randrange(low, high)
        with self.measured(FETCH.to(self._topic.format)) as fetch:
            fetch.size = self.blocking(self._read, partition)

    def _read(self, partition: TopicPartition) -> int:
        """Read what comes first from an offset, in the user's thread; returns how many bytes that were."""
        # Taken off afterwards: a client that is left at the end of a log has a fetch waiting there, and asks for
        # nothing else until that is answered.
        self._consumer.assign([partition])
        try:
            first = self._consumer.poll(REQUEST_SECONDS_MAX)
            if first is None:
                raise KafkaException(f"nothing came from an offset below the end: {partition}")
            if (error := first.error()) is not None:
                raise KafkaException(error)
            return len(first) + sum(len(each) for each in self._consumer.consume(_RECORDS_MAX, 0))
        finally:
            self._consumer.unassign()
