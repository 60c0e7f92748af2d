"""The idempotent producers of librdkafka, kafka-python and aiokafka, as programs/__init__.py says."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Message, Producer
from kafka import KafkaProducer

_WINDOW = 2000


class Work:
    """What a producer is to send, and what it has to say."""

    def __init__(self, arguments: list[str]) -> None:
        self.bootstrap, self.topic, partitions, self._name, count, pause, batches = arguments
        self.single = batches == "single"
        self.pause_seconds = int(pause) / 1000
        self.window = threading.Semaphore(_WINDOW)
        self._partitions, self._count = int(partitions), int(count)
        self._going = True
        self._lock = threading.Lock()
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    def values(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield partition, number and value of what is to be sent."""
        number = 0
        while self._going and (number < self._count or not self._count):
            partition = number % self._partitions
            self._write(f"sent {partition} {number}")
            yield partition, number, self._value(number)
            number += 1

    def acknowledged(self, partition: int, number: int, offset: int) -> None:
        """Say so."""
        self.window.release()
        self._write(f"acknowledged {partition} {number} {offset}")

    def failed(self, error: object) -> None:
        """Say so, and send no more."""
        self._going = False
        self.window.release()
        self._write(f"failed {error!r}".replace("\n", " "))

    def _value(self, number: int) -> bytes:
        return f"{self._name}/{number}".encode() if self._name else b"%d" % number

    def _write(self, line: str) -> None:
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def _wait_for_end(self) -> None:
        sys.stdin.read()
        self._going = False


def librdkafka(work: Work) -> None:
    """Send by confluent-kafka."""
    producer = Producer(
        {
            "bootstrap.servers": work.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0 if work.single else 2,
            "batch.num.messages": 1 if work.single else 10_000,
            "request.timeout.ms": 10_000,
            "message.timeout.ms": 180_000,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 0,
        }
    )
    for partition, number, value in work.values():

        def delivered(error: Any, message: Message, partition: int = partition, number: int = number) -> None:
            if error is None:
                offset = message.offset()
                work.acknowledged(partition, number, -1 if offset is None else offset)
            else:
                work.failed(error)

        while not work.window.acquire(blocking=False):
            producer.poll(0.01)
        producer.produce(work.topic, value, partition=partition, on_delivery=delivered)
        producer.poll(work.pause_seconds if number % 10 == 9 else 0)
    producer.flush()


def kafka_python(work: Work) -> None:
    """Send by kafka-python."""
    producer = KafkaProducer(
        bootstrap_servers=work.bootstrap.split(","),
        enable_idempotence=True,
        linger_ms=0 if work.single else 2,
        batch_size=0 if work.single else 16_384,
        request_timeout_ms=10_000,
        delivery_timeout_ms=180_000,
        max_block_ms=180_000,
        retry_backoff_ms=20,
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=500,
        metadata_max_age_ms=500,
    )
    for partition, number, value in work.values():
        work.window.acquire()
        future = producer.send(work.topic, value, partition=partition)
        future.add_callback(
            lambda metadata, partition=partition, number=number: work.acknowledged(
                partition, number, metadata.offset
            )
        )
        future.add_errback(work.failed)
        if number % 10 == 9:
            time.sleep(work.pause_seconds)
    producer.flush(180)


def aiokafka(work: Work) -> None:
    """Send by aiokafka."""
    asyncio.run(_aiokafka(work))


async def _aiokafka(work: Work) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=work.bootstrap,
        enable_idempotence=True,
        linger_ms=0 if work.single else 2,
        max_batch_size=1 if work.single else 16_384,
        request_timeout_ms=10_000,
        retry_backoff_ms=20,
        metadata_max_age_ms=500,
    )
    await producer.start()
    for partition, number, value in work.values():

        def delivered(future: asyncio.Future[Any], partition: int = partition, number: int = number) -> None:
            if (error := future.exception()) is None:
                work.acknowledged(partition, number, future.result().offset)
            else:
                work.failed(error)

        while not work.window.acquire(blocking=False):  # noqa: ASYNC110 - a window of threads, for all libraries
            await asyncio.sleep(0.001)
        try:
            sending = await producer.send(work.topic, value, partition=partition)
        except AiokafkaError as error:
            work.failed(error)
            break
        sending.add_done_callback(delivered)
        if number % 10 == 9:
            await asyncio.sleep(work.pause_seconds)
    await producer.stop()


if __name__ == "__main__":
    logging.disable()
    {"librdkafka": librdkafka, "kafka-python": kafka_python, "aiokafka": aiokafka}[sys.argv[1]](
        Work(sys.argv[2:])
    )
