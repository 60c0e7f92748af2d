"""Consumers under way in threads of their own, which read whole partitions as they grow, also while brokers end.

Each has its partitions assigned, from their beginning, and keeps what it received in the order in which it came.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from tests.support.load import Load
from tests.support.processes import wait_until

_TURN_MS = 100
_AT_ONCE = 1000
_END_SECONDS_MAX = 60.0

Record = tuple[int, int, bytes | None]
"""Partition, offset and value."""


class Tail(ABC):
    """One consumer of a topic; it looks at the metadata again every `metadata_ms`, besides when it has to."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, metadata_ms: int = 300_000) -> None:
        self.topic = topic
        self.received: list[Record] = []
        self.errors: list[object] = []
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._metadata_ms = metadata_ms
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tail of {topic}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self, count: int) -> None:
        """Read on until there are `count` records, then once more, and end."""
        wait_until(lambda: len(self.received) >= count or self.errors, f"{count} records of {self.topic}")
        self._ending.set()
        self._thread.join(_END_SECONDS_MAX)
        assert not self._thread.is_alive(), f"the tail of {self.topic} does not end"

    def check(self, count: int) -> None:
        """Fail unless a load's `count` records came, each once and in the order of their offsets."""
        assert self.errors == []
        for partition in range(self._partitions):
            found = [(offset, value) for of, offset, value in self.received if of == partition]
            assert [value for _, value in found] == [
                b"%d" % n for n in range(partition, count, self._partitions)
            ]
            assert sorted(found) == found

    def _run(self) -> None:
        try:
            self._open()
            while not self._ending.is_set():
                self.received += self._read()
            self.received += self._read()
            self._close()
        except Exception as error:  # noqa: BLE001 - any error fails the test
            self.errors.append(error)

    @abstractmethod
    def _open(self) -> None:
        """Make the client."""

    @abstractmethod
    def _read(self) -> list[Record]:
        """Wait a moment for records."""

    @abstractmethod
    def _close(self) -> None:
        """End the client."""


class ConfluentTail(Tail):
    """The consumer of confluent-kafka."""

    def _open(self) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": self._metadata_ms,
            }
        )
        partitions = range(self._partitions)
        self._consumer.assign([TopicPartition(self.topic, each, OFFSET_BEGINNING) for each in partitions])

    def _read(self) -> list[Record]:
        found: list[Record] = []
        for message in self._consumer.consume(_AT_ONCE, timeout=_TURN_MS / 1000):
            if error := message.error():
                self.errors.append(error)
            else:
                found.append((message.partition() or 0, message.offset() or 0, message.value()))
        return found

    def _close(self) -> None:
        self._consumer.close()


class KafkaPythonTail(Tail):
    """The consumer of kafka-python."""

    def _open(self) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
            metadata_max_age_ms=self._metadata_ms,
        )
        self._consumer.assign([KafkaPythonPartition(self.topic, each) for each in range(self._partitions)])

    def _read(self) -> list[Record]:
        found = self._consumer.poll(timeout_ms=_TURN_MS, max_records=_AT_ONCE)
        return [(each.partition, each.offset, each.value) for some in found.values() for each in some]

    def _close(self) -> None:
        self._consumer.close()
        del self._consumer


class AiokafkaTail(Tail):
    """The consumer of aiokafka, with an event loop in this thread."""

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
            metadata_max_age_ms=self._metadata_ms,
        )
        await self._consumer.start()
        self._consumer.assign([AiokafkaPartition(self.topic, each) for each in range(self._partitions)])

    def _read(self) -> list[Record]:
        reading = self._consumer.getmany(timeout_ms=_TURN_MS, max_records=_AT_ONCE)
        found = self._loop.run_until_complete(reading)
        return [(each.partition, each.offset, each.value) for some in found.values() for each in some]

    def _close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


def go_on(load: Load, tail: Tail, partitions: int) -> None:
    """Wait until producer and consumer have got further in every partition, so through every broker that leads one."""
    acknowledged, received = len(load.acknowledged), len(tail.received)

    def everywhere() -> bool:
        written = {partition for partition, _ in load.acknowledged[acknowledged:]}
        read = {partition for partition, _, _ in tail.received[received:]}
        return len(written) == len(read) == partitions

    wait_until(lambda: everywhere() or load.errors or tail.errors, "producer and consumer go on")
