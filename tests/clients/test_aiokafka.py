"""aiokafka as a client: it gets back exactly what it sent, and finds its way around the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import MessageSizeTooLargeError

from tests.support import ops
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import (
    CODECS,
    PARTITIONS,
    PER_CODEC,
    TIMESTAMP_FIRST_MS,
    Received,
    Sample,
    by_codec,
    check_exactly,
    samples,
    topic_name,
)

TOPIC_ALREADY_EXISTS = 36


@asynccontextmanager
async def admin(broker: Broker) -> AsyncIterator[Any]:
    running = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await running.start()
    try:
        yield running
    finally:
        await running.close()


async def create(broker: Broker, topic: str, partitions: int = 1) -> int:
    """Create a topic; returns the error code."""
    async with admin(broker) as running:
        response = await running.create_topics([NewTopic(topic, partitions, 1)])
        return int(response.topic_errors[0][1])


async def produce(
    broker: Broker, topic: str, records: Iterable[Sample], **config: Any
) -> list[tuple[int, int]]:
    """Send and wait; returns partition and offset of each acknowledgement."""
    common = {"bootstrap_servers": broker.bootstrap, "linger_ms": 20, "max_batch_size": 256 * 1024}
    producer = AIOKafkaProducer(**{**common, **config})
    await producer.start()
    try:
        futures = [
            await producer.send(
                topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        acknowledged = await asyncio.wait_for(asyncio.gather(*futures), WAIT_SECONDS_MAX)
    finally:
        await producer.stop()
    return [(metadata.partition, metadata.offset) for metadata in acknowledged]


@asynccontextmanager
async def consumer(broker: Broker, topic: str, partitions: int = 1, **config: Any) -> AsyncIterator[Any]:
    common = {"bootstrap_servers": broker.bootstrap, "auto_offset_reset": "earliest", "group_id": None}
    running = AIOKafkaConsumer(**{**common, **config})
    await running.start()
    try:
        running.assign([TopicPartition(topic, index) for index in range(partitions)])
        yield running
    finally:
        await running.stop()


async def consume(running: Any, count: int) -> list[Received]:
    """Read `count` records, then look whether there are more than that."""
    received: list[Received] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(received) < count:
        assert time.monotonic() < deadline, f"{len(received)} of {count} records"
        received += await poll(running, 200)
    return received + await poll(running, 200)


async def poll(running: Any, wait_ms_max: int) -> list[Received]:
    found = await running.getmany(timeout_ms=wait_ms_max, max_records=PER_CODEC)
    return [
        Received(each.partition, each.offset, each.key, each.value, tuple(each.headers), each.timestamp)
        for records in found.values()
        for each in records
    ]


def test_twenty_thousand_records_of_all_codecs_come_back_exactly(broker: Broker) -> None:
    async def run() -> None:
        topic = topic_name("aiokafka")
        await create(broker, topic, PARTITIONS)
        sent = samples(0, PER_CODEC * len(CODECS))
        offsets: list[tuple[int, int]] = []
        weights: list[float] = []
        for codec, part in by_codec(sent):
            before = ops.settled_total(broker, "korvet_received_bytes_total")
            kind = None if codec == "none" else codec
            offsets += await produce(broker, topic, part, compression_type=kind)
            weights.append(ops.settled_total(broker, "korvet_received_bytes_total") - before)
        assert max(weights[1:]) < weights[0] / 2, "compressed batches travelled"
        async with consumer(broker, topic, PARTITIONS) as running:
            check_exactly(sent, await consume(running, len(sent)), offsets)

    asyncio.run(run())


def test_an_idempotent_producer_writes_every_record_once(broker: Broker) -> None:
    async def run() -> None:
        topic = topic_name("aiokafka-idempotent")
        await create(broker, topic, PARTITIONS)
        sent = samples(0, 5000)
        offsets = await produce(broker, topic, sent, enable_idempotence=True, max_batch_size=16 * 1024)
        async with consumer(broker, topic, PARTITIONS) as running:
            check_exactly(sent, await consume(running, len(sent)), offsets)

    asyncio.run(run())


def test_offsets_are_found_by_end_and_by_time_and_can_be_sought(broker: Broker) -> None:
    async def run() -> None:
        topic = topic_name("aiokafka-offsets")
        await create(broker, topic)
        sent = [record._replace(partition=0) for record in samples(0, 3000)]
        offsets = [offset for _, offset in await produce(broker, topic, sent)]
        only = TopicPartition(topic, 0)
        async with consumer(broker, topic) as running:
            assert await running.beginning_offsets([only]) == {only: offsets[0]}
            assert await running.end_offsets([only]) == {only: offsets[-1] + 1}
            found = (await running.offsets_for_times({only: TIMESTAMP_FIRST_MS + 500}))[only]
            assert (found.offset, found.timestamp) == (offsets[1500], TIMESTAMP_FIRST_MS + 500)
            assert await running.offsets_for_times({only: TIMESTAMP_FIRST_MS + 3000}) == {only: None}
            assert len(await consume(running, len(sent))) == len(sent)
            running.seek(only, offsets[1490])
            check_exactly(sent[1490:], await consume(running, 1510))
            await running.seek_to_end(only)
            assert await running.position(only) == offsets[-1] + 1
            await running.seek_to_beginning(only)
            assert await running.position(only) == offsets[0]

    asyncio.run(run())


def test_a_consumer_that_waits_at_the_end_of_an_empty_topic_gets_the_first_record(broker: Broker) -> None:
    async def run() -> None:
        topic = topic_name("aiokafka-waits")
        await create(broker, topic)
        async with consumer(broker, topic, auto_offset_reset="none") as running:
            only = TopicPartition(topic, 0)
            running.seek(only, (await running.end_offsets([only]))[only])
            assert await poll(running, 1000) == []
            sent = [Sample(0, b"first", b"record", (), TIMESTAMP_FIRST_MS)]
            await produce(broker, topic, sent)
            check_exactly(sent, await consume(running, 1))

    asyncio.run(run())


def test_a_record_of_900_kilobytes_passes_and_a_larger_batch_than_allowed_does_not(broker: Broker) -> None:
    async def run() -> None:
        topic = topic_name("aiokafka-large")
        await create(broker, topic)
        large = bytes(range(256)) * 3600
        sent = [
            Sample(0, None, large, (), TIMESTAMP_FIRST_MS),
            Sample(0, b"", b"small", (), TIMESTAMP_FIRST_MS),
        ]
        await produce(broker, topic, sent)
        async with consumer(broker, topic) as running:
            check_exactly(sent, await consume(running, 2))
        too_large = [Sample(0, None, large * 2, (), TIMESTAMP_FIRST_MS)]
        with pytest.raises(MessageSizeTooLargeError):
            await produce(broker, topic, too_large, max_request_size=4_000_000, max_batch_size=4_000_000)

    asyncio.run(run())


def test_an_unknown_topic_is_created_by_a_producer(broker: Broker) -> None:
    async def run() -> None:
        topic = topic_name("aiokafka-auto")
        async with admin(broker) as running:
            assert topic not in await running.list_topics()
            sent = [Sample(2, b"k", b"v", (), TIMESTAMP_FIRST_MS)]
            offsets = await produce(broker, topic, sent)
            (described,) = await running.describe_topics([topic])
            assert len(described["partitions"]) == 3
        async with consumer(broker, topic, 3) as running:
            check_exactly(sent, await consume(running, 1), offsets)

    asyncio.run(run())


def test_a_deleted_topic_is_gone_and_its_name_can_be_used_again(broker: Broker) -> None:
    async def run() -> None:
        topic = topic_name("aiokafka-deleted")
        assert await create(broker, topic, 2) == 0
        assert await create(broker, topic) == TOPIC_ALREADY_EXISTS
        await produce(broker, topic, [Sample(1, b"old", b"old", (), TIMESTAMP_FIRST_MS)])
        async with admin(broker) as running:
            await running.delete_topics([topic])
            assert topic not in await running.list_topics()
        assert await create(broker, topic, 2) == 0
        sent = [Sample(1, b"new", b"new", (), TIMESTAMP_FIRST_MS)]
        offsets = await produce(broker, topic, sent)
        async with consumer(broker, topic, 2) as running:
            check_exactly(sent, await consume(running, 1), offsets)

    asyncio.run(run())
