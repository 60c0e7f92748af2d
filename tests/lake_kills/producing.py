"""The client under kills: librdkafka's idempotent producer in a thread, at a steady rate, and what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from tests.support.records import Sample, samples

_TICK_SECONDS = 0.05
_FLUSH_SECONDS_MAX = 60.0


class Sending:
    """Produces the same records to each topic until the block ends."""

    def __init__(
        self, bootstrap: str, topics: list[str], rate: int, make: Callable[[int, int], list[Sample]] = samples
    ) -> None:
        """`rate` are records a second, to all topics together; `make` returns some, from a number on."""
        self.topics = topics
        self._make = make
        self.acknowledged: dict[str, list[tuple[int, int]]] = {topic: [] for topic in topics}
        self.errors: list[str] = []
        self._per_tick = max(1, round(rate * _TICK_SECONDS / len(topics)))
        self._sent = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
        )

    @property
    def sent(self) -> list[Sample]:
        """What each topic got, in the order in which it was sent."""
        return self._make(0, self._sent)

    def with_offsets(self, topic: str) -> list[tuple[int, Sample]]:
        """Return what a topic got with its offsets, each partition's in their order."""
        offsets = {index: iter(of) for index, of in _by_partition(self.acknowledged[topic]).items()}
        return [(next(offsets[sample.partition]), sample) for sample in self.sent]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ending.is_set():
            began = time.monotonic()
            for sample in self._make(self._sent, self._per_tick):
                for topic in self.topics:
                    self._producer.produce(
                        topic,
                        sample.value,
                        sample.key,
                        sample.partition,
                        on_delivery=self._delivered,
                        timestamp=sample.timestamp,
                        headers=list(sample.headers),
                    )
            self._sent += self._per_tick
            self._producer.poll(0)
            self._ending.wait(max(began + _TICK_SECONDS - time.monotonic(), 0))
        left = self._producer.flush(_FLUSH_SECONDS_MAX)
        if left:
            self.errors.append(f"{left} records were not acknowledged")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None or topic is None or partition is None or offset is None:
            self.errors.append(f"{topic}-{partition}: {error}")
        else:
            self.acknowledged[topic].append((partition, offset))


def _by_partition(acknowledged: list[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for partition, offset in sorted(acknowledged):
        found.setdefault(partition, []).append(offset)
    return found
