"""Producers: idempotent, acks=all, each with a fixed number of records a second, independent of the broker's latency.

Knows the producer's client and the ledger. A record's latency runs from its being handed to the client to the client's
word that it is in the log, so the client's own linger.ms is part of it, as it is for an application.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from pathlib import Path

import gevent
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from locust import constant_throughput, task
from locust.env import Environment

from loadtest.locust import records, topics
from loadtest.locust.ledger import Key, Page
from loadtest.locust.operations import DELIVER, FIRST, Operation
from loadtest.locust.user import KafkaUser

_BURSTS_PER_SECOND = 10
_KEYS_PER_TOPIC = 4
_POLL_SECONDS = 0.5
_FULL_PAUSE_SECONDS = 0.05


class ProducerUser(KafkaUser):
    """Writes a burst of records ten times a second, with keys of its own in all topics."""

    wait_time = constant_throughput(_BURSTS_PER_SECOND)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        name = uuid.uuid4().hex
        self._operations: dict[Key, Operation] = {
            Key(topic.name, f"{name}-{number}"): DELIVER.to(topic.format)
            for number in range(_KEYS_PER_TOPIC)
            for topic in topics.planned(self.options)
        }
        self._turns = deque(self._operations)
        self._page = Page(self._operations)
        self._filler = records.padding(self.options.message_size)
        self._due = 0.0
        self._poller: gevent.Greenlet[[], None] | None = None
        # Filled in the user's thread, emptied in its greenlet.
        self._answered: deque[tuple[Key, int, float, KafkaError | None]] = deque()

    def on_start(self) -> None:
        """Connect, and begin to listen for answers."""
        self._producer = Producer(
            self.client_config(
                **{
                    "enable.idempotence": True,
                    "linger.ms": self.options.linger_ms,
                    "delivery.timeout.ms": int(self.options.delivery_timeout * 1000),
                }
            )
        )
        # librdkafka asks for a producer id when it likes, up to half a second after the start. That would stand out as
        # the slowest records of a run, so a producer's first record has a row of its own.
        with self.measured(FIRST):
            self._send(self._turns[0])
            self.blocking(self._producer.flush)
            key, number, _, error = self._answered.popleft()
            if error is not None:
                raise KafkaException(error)
            self._page.acknowledge(key, number)
        self._poller = gevent.spawn(self._poll)

    @task
    def write(self) -> None:
        """Send a burst; what it must not wait for is reported by `_poll`."""
        self._due += self.options.rate / _BURSTS_PER_SECOND
        while self._due >= 1:
            self._due -= 1
            self._turns.rotate(-1)
            self._send(self._turns[0])

    def _send(self, key: Key) -> None:
        number = self._page.send(key)
        value = records.value(records.Stamp(number, time.time_ns()), self._filler)
        began = time.perf_counter()

        def answered(error: KafkaError | None, _: Message) -> None:
            self._answered.append((key, number, time.perf_counter() - began, error))

        while True:
            try:
                self._producer.produce(key.topic, value=value, key=key.name, on_delivery=answered)
            except BufferError:
                # The broker lags by as much as the client keeps: its latency says so, and fewer are sent.
                gevent.sleep(_FULL_PAUSE_SECONDS)
            else:
                return

    def _poll(self) -> None:
        while True:
            self.blocking(self._producer.poll, _POLL_SECONDS)
            self._settle()

    def _settle(self) -> None:
        while self._answered:
            key, number, seconds, error = self._answered.popleft()
            if error is None:
                self._page.acknowledge(key, number)
            self.report(self._operations[key], seconds, records.SIZE_MIN + len(self._filler), error)

    def on_stop(self) -> None:
        """Wait for the last answers, which come within the time that a delivery may take, and put down what is sure."""
        # None where this user is stopped while it starts.
        if self._poller is not None:
            self._poller.kill()
        self.blocking(self._producer.flush)
        self._settle()
        if self.options.ledger:
            self._page.write(Path(self.options.ledger))
        super().on_stop()
