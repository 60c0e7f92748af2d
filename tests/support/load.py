"""Idempotent producers under way in threads of their own, whose progress a test can watch.

Each sends numbered values to the partitions of its topic in turn until it is stopped, and keeps what was acknowledged.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Message, Producer
from kafka import KafkaProducer

from tests.support.records import Received

_BURST = 10
_PAUSE_SECONDS = 0.005
_END_SECONDS_MAX = 60.0
_UNANSWERED_MAX = 3000


class Load(ABC):
    """One producer. `sent` counts records given to the client, `acknowledged` holds partition and offset of each.

    It looks at the metadata again every `metadata_ms`, besides when it has to, and rests between bursts.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        metadata_ms: int = 300_000,
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged: list[tuple[int, int]] = []
        self.errors: list[object] = []
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._metadata_ms = metadata_ms
        self._pause_seconds = pause_seconds
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=topic, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Send no more and wait until everything is answered."""
        self._ending.set()
        self._thread.join(_END_SECONDS_MAX)
        assert not self._thread.is_alive(), f"{self.topic}: {len(self.acknowledged)} of {self.sent} answered"

    def abandon(self) -> None:
        """Send no more, also with requests unanswered."""
        self._ending.set()

    def check(self, received: list[Received]) -> None:
        """Fail unless every record is there once, in order, where its acknowledgement said."""
        assert self.errors == []
        for partition in range(self._partitions):
            values = [record.value for record in received if record.partition == partition]
            assert values == [b"%d" % number for number in range(partition, self.sent, self._partitions)]
        places = sorted((record.partition, record.offset) for record in received)
        assert len(set(places)) == self.sent
        assert sorted(self.acknowledged) == places

    def _run(self) -> None:
        self._open()
        while not self._ending.is_set():
            if self.sent - len(self.acknowledged) < _UNANSWERED_MAX:
                for _ in range(_BURST):
                    self._send(self.sent % self._partitions, b"%d" % self.sent)
                    self.sent += 1
            self._turn(self._pause_seconds)
        self._close()

    @abstractmethod
    def _open(self) -> None:
        """Make the client."""

    @abstractmethod
    def _send(self, partition: int, value: bytes) -> None:
        """Give a record to the client."""

    @abstractmethod
    def _turn(self, seconds: float) -> None:
        """Let time pass, and take acknowledgements."""

    @abstractmethod
    def _close(self) -> None:
        """Wait for what is unanswered."""


class ConfluentLoad(Load):
    """The idempotent producer of confluent-kafka."""

    def _open(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "topic.metadata.refresh.interval.ms": self._metadata_ms,
            }
        )

    def _send(self, partition: int, value: bytes) -> None:
        self._producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append((message.partition() or 0, message.offset() or 0))
        else:
            self.errors.append(error)

    def _turn(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def _close(self) -> None:
        self._producer.flush(_END_SECONDS_MAX)


class KafkaPythonLoad(Load):
    """The idempotent producer of kafka-python."""

    def _open(self) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=self._bootstrap, enable_idempotence=True, metadata_max_age_ms=self._metadata_ms
        )

    def _send(self, partition: int, value: bytes) -> None:
        future = self._producer.send(self.topic, value, partition=partition)
        future.add_callback(self._delivered)
        future.add_errback(self.errors.append)

    def _delivered(self, metadata: Any) -> None:
        self.acknowledged.append((metadata.partition, metadata.offset))

    def _turn(self, seconds: float) -> None:
        time.sleep(seconds)

    def _close(self) -> None:
        self._producer.flush(_END_SECONDS_MAX)
        self._producer.close()
        del self._producer


class AiokafkaLoad(Load):
    """The idempotent producer of aiokafka, with an event loop in this thread."""

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, enable_idempotence=True, metadata_max_age_ms=self._metadata_ms
        )
        await self._producer.start()

    def _send(self, partition: int, value: bytes) -> None:
        future = self._loop.run_until_complete(self._producer.send(self.topic, value, partition=partition))
        future.add_done_callback(self._delivered)

    def _delivered(self, future: asyncio.Future[Any]) -> None:
        error = future.exception()
        if error is None:
            self.acknowledged.append((future.result().partition, future.result().offset))
        else:
            self.errors.append(error)

    def _turn(self, seconds: float) -> None:
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def _close(self) -> None:
        self._loop.run_until_complete(self._producer.stop())
        self._loop.close()
