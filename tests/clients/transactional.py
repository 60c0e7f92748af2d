"""Transactional producers and consumers of librdkafka, kafka-python and aiokafka, used in the same way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import aiokafka
import confluent_kafka
import kafka
from aiokafka.structs import OffsetAndMetadata as AsyncOffset
from kafka.structs import OffsetAndMetadata

from tests.support import reading
from tests.support.processes import WAIT_SECONDS_MAX

TIMEOUT_MS = 20_000
"""The timeout of transactions that is to abort none."""

T = TypeVar("T")

Offsets = Mapping[tuple[str, int], int]
"""Where a group goes on, by topic and partition."""


class FencedError(Exception):
    """Another producer with the transactional id has taken over."""


class Transactional(Protocol):
    """A producer with a transactional id."""

    def init(self) -> None:
        """Get an identity; aborts what the producer before it has left open."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        """Write values, and wait until they are acknowledged."""

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets of a group with the transaction."""

    def end(self, *, commit: bool) -> None:
        """Commit, or abort. Raises FencedError."""

    def close(self) -> None:
        """End without a word of what is open, as far as the library lets one."""


class Librdkafka:
    """A producer of confluent-kafka."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 5,
                "log_level": 0,
            }
        )

    def init(self) -> None:
        self.producer.init_transactions(WAIT_SECONDS_MAX)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        for value in values:
            self.producer.produce(topic, value, partition=partition)
        assert self.producer.flush(WAIT_SECONDS_MAX) == 0

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        # Of a group without members, as one whose consumers assign partitions themselves.
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": "127.0.0.1:1", "group.id": group, "log_level": 0}
        )
        given = [confluent_kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
        self.producer.send_offsets_to_transaction(given, consumer.consumer_group_metadata(), WAIT_SECONDS_MAX)
        consumer.close()

    def end(self, *, commit: bool) -> None:
        try:
            if commit:
                self.producer.commit_transaction(WAIT_SECONDS_MAX)
            else:
                self.producer.abort_transaction(WAIT_SECONDS_MAX)
        except confluent_kafka.KafkaException as error:
            codes = (confluent_kafka.KafkaError._FENCED, confluent_kafka.KafkaError.PRODUCER_FENCED)
            if error.args[0].code() in codes:
                raise FencedError from error
            raise

    def close(self) -> None:
        self.producer.purge()


class KafkaPython:
    """A producer of kafka-python."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self.producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=5,
        )

    def init(self) -> None:
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        sent = [self.producer.send(topic, value, partition=partition) for value in values]
        self.producer.flush(WAIT_SECONDS_MAX)
        for future in sent:
            future.get(WAIT_SECONDS_MAX)

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        given = {kafka.TopicPartition(*at): OffsetAndMetadata(each, "", -1) for at, each in offsets.items()}
        self.producer.send_offsets_to_transaction(given, group)

    def end(self, *, commit: bool) -> None:
        try:
            if commit:
                self.producer.commit_transaction()
            else:
                self.producer.abort_transaction()
        except (kafka.errors.ProducerFencedError, kafka.errors.InvalidProducerEpochError) as error:
            raise FencedError from error

    def close(self) -> None:
        self.producer.close(timeout=0)


class Aiokafka:
    """A producer of aiokafka, with a loop of its own that runs while something is asked for."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._loop = asyncio.new_event_loop()
        self._bootstrap, self._id, self._timeout_ms = bootstrap, transactional_id, timeout_ms
        self._producer: Any = None

    def init(self) -> None:
        async def start() -> None:
            self._producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                transactional_id=self._id,
                transaction_timeout_ms=self._timeout_ms,
                linger_ms=5,
            )
            await self._producer.start()

        self._run(start())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        async def send() -> None:
            await asyncio.gather(
                *[await self._producer.send(topic, each, partition=partition) for each in values]
            )

        self._run(send())

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        given = {aiokafka.TopicPartition(*at): AsyncOffset(each, "") for at, each in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(given, group))

    def end(self, *, commit: bool) -> None:
        try:
            self._run(self._producer.commit_transaction() if commit else self._producer.abort_transaction())
        except aiokafka.errors.ProducerFenced as error:
            raise FencedError from error

    def close(self) -> None:
        if self._producer is not None:
            # stop() would abort what is open: the connections alone are closed.
            self._run(self._producer._sender.close())
            self._run(self._producer.client.close())
            self._producer._closed = True
        self._loop.close()

    def _run(self, asked: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(asked, WAIT_SECONDS_MAX))


PRODUCERS: Mapping[str, type[Librdkafka | KafkaPython | Aiokafka]] = {
    "librdkafka": Librdkafka,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}


@contextlib.contextmanager
def producer(
    library: str, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS
) -> Iterator[Transactional]:
    """Give a producer that has its identity."""
    running = PRODUCERS[library](bootstrap, transactional_id, timeout_ms)
    try:
        running.init()
        yield running
    finally:
        running.close()


Values = dict[int, list[bytes]]
"""What partitions hold, in order."""


def read(library: str, bootstrap: str, topic: str, partitions: int, isolation: str, last: bytes) -> Values:
    """Return the values of each partition from its beginning to `last`, with which each ends."""
    found: Values = {partition: [] for partition in range(partitions)}

    def take(partition: int, value: bytes) -> bool:
        found[partition].append(value)
        return all(values[-1:] == [last] for values in found.values())

    _READERS[library](bootstrap, topic, partitions, isolation, take)
    return found


Take = Callable[[int, bytes], bool]
"""Takes a record's partition and value, and returns whether it was the last."""


def _by_librdkafka(bootstrap: str, topic: str, partitions: int, isolation: str, take: Take) -> None:
    with reading.consumer(bootstrap, topic, range(partitions), **{"isolation.level": isolation}) as running:
        while True:
            message = running.poll(WAIT_SECONDS_MAX)
            assert message is not None, "nothing more comes"
            record = reading.as_received(message)
            if take(record.partition, record.value or b""):
                return


def _by_kafka_python(bootstrap: str, topic: str, partitions: int, isolation: str, take: Take) -> None:
    running = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        group_id=None,
        consumer_timeout_ms=int(WAIT_SECONDS_MAX * 1000),
    )
    with contextlib.closing(running):
        running.assign([kafka.TopicPartition(topic, each) for each in range(partitions)])
        assert any(take(record.partition, record.value) for record in running), "nothing more comes"


def _by_aiokafka(bootstrap: str, topic: str, partitions: int, isolation: str, take: Take) -> None:
    async def read_all() -> None:
        running = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            group_id=None,
        )
        await running.start()
        try:
            running.assign([aiokafka.TopicPartition(topic, each) for each in range(partitions)])
            done = False
            while not done:
                record = await asyncio.wait_for(running.getone(), WAIT_SECONDS_MAX)
                done = take(record.partition, record.value)
        finally:
            await running.stop()

    asyncio.run(read_all())


_READERS = {"librdkafka": _by_librdkafka, "kafka-python": _by_kafka_python, "aiokafka": _by_aiokafka}
