"""Real clients on compacted topics, in both formats: what they read, wherever they begin, and what they wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest
import redis
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AIOKafkaPartition
from confluent_kafka import OFFSET_BEGINNING, Message, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from tests.support import ops, processes, reading
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name

OLD_MS = 1_600_000_000_000
KEYS, COUNT = 50, 6000
FORMATS = pytest.mark.parametrize("storage_format", ["record", "batch"])
CODECS = pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])


class Pair(NamedTuple):
    """A record by what compaction is about."""

    offset: int
    key: bytes | None
    value: bytes | None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker whose keeper compacts as soon as there is something to compact."""
    eager = ("--set", "log.cleaner.backoff.ms=50", "--set", "log.cleaner.min.cleanable.ratio=0")
    with korvet_broker(tmp_path_factory.mktemp("broker"), *eager, workers=2) as running:
        yield running


def produce(broker: Broker, topic: str, pairs: list[tuple[bytes, bytes | None]], **config: Any) -> list[Pair]:
    """Send to partition 0 with timestamps long past, and wait; returns what was sent with its offsets."""
    offsets: list[int] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset() or 0)

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, **config})
    for n, (key, value) in enumerate(pairs):
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            timestamp=OLD_MS + n,
            headers=[("n", b"%d" % n)],
            on_delivery=delivered,
        )
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return [Pair(offset, *pair) for offset, pair in zip(offsets, pairs, strict=True)]


def compacted(stored: redis.Redis, topic: str) -> None:
    """Wait until the keeper has compacted all there is."""

    def done() -> bool:
        end, clean_end = stored.hmget(f"{{korvet:{topic}:0}}:state", "next", "clean_end")
        return end == clean_end

    processes.wait_until(done, f"{topic} is compacted")


def latest(sent: list[Pair]) -> list[Pair]:
    """Return what must be left of it."""
    last = {pair.key: pair for pair in sent}
    return sorted(last.values())


def with_confluent(broker: Broker, topic: str, offset: int, count: int) -> list[Pair]:
    with reading.consumer(broker.bootstrap, topic) as running:
        running.assign([TopicPartition(topic, 0, offset)])
        return [Pair(each.offset, each.key, each.value) for each in reading.read(running, count)]


def with_kafka_python(broker: Broker, topic: str, offset: int, count: int) -> list[Pair]:
    found: list[Pair] = []
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)) as running:
        running.assign([KafkaPartition(topic, 0)])
        running.seek(KafkaPartition(topic, 0), offset)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(found) < count and time.monotonic() < deadline:
            for records in running.poll(500).values():
                found += [Pair(each.offset, each.key, each.value) for each in records]
    return found


def with_aiokafka(broker: Broker, topic: str, offset: int, count: int) -> list[Pair]:
    async def read() -> list[Pair]:
        running = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
        await running.start()
        try:
            running.assign([AIOKafkaPartition(topic, 0)])
            running.seek(AIOKafkaPartition(topic, 0), offset)
            found: list[Pair] = []
            while len(found) < count:
                each = await asyncio.wait_for(running.getone(), WAIT_SECONDS_MAX)
                found.append(Pair(each.offset, each.key, each.value))
            return found
        finally:
            await running.stop()

    return asyncio.run(read())


CLIENTS: list[Callable[[Broker, str, int, int], list[Pair]]] = [
    with_confluent,
    with_kafka_python,
    with_aiokafka,
]
EVERY_CLIENT = pytest.mark.parametrize("read", CLIENTS, ids=lambda read: str(read.__name__))


def table(broker: Broker, storage_format: str, **config: str) -> str:
    """Make a compacted topic."""
    topic = topic_name("table")
    overrides = {"cleanup.policy": "compact", "storage.format": storage_format, **config}
    reading.create_topic(broker.bootstrap, topic, config=overrides)
    return topic


def rewritten(count: int = COUNT, keys: int = KEYS) -> list[tuple[bytes, bytes | None]]:
    """Return records over `count` keys, the last one of each different from the others."""
    return [(b"key-%d" % (n * 7 % keys), b"value-%d" % n) for n in range(count)]


@FORMATS
@EVERY_CLIENT
def test_a_client_reads_a_compacted_topic_from_its_first_offset_on(
    broker: Broker, stored: redis.Redis, storage_format: str, read: Callable[..., list[Pair]]
) -> None:
    topic = table(broker, storage_format)
    sent = produce(broker, topic, rewritten())
    compacted(stored, topic)
    expected = latest(sent)
    assert len(expected) == KEYS
    assert read(broker, topic, sent[0].offset, KEYS) == expected


@FORMATS
@EVERY_CLIENT
def test_a_client_that_stands_in_an_emptied_range_gets_what_comes_next(
    broker: Broker, stored: redis.Redis, storage_format: str, read: Callable[..., list[Pair]]
) -> None:
    topic = table(broker, storage_format)
    sent = produce(
        broker, topic, [(b"first", b"1"), *((b"same", b"%d" % n) for n in range(3000)), (b"last", b"2")]
    )
    compacted(stored, topic)
    for place in (1, 700, 2999):
        assert read(broker, topic, sent[place].offset, 2) == sent[-2:]


@CODECS
def test_batches_that_lost_records_are_read_in_every_codec(
    broker: Broker, stored: redis.Redis, codec: str
) -> None:
    topic = table(broker, "batch", **{"compression.type": "producer"})
    sent = produce(broker, topic, rewritten(), **{"compression.type": codec, "batch.num.messages": 500})
    compacted(stored, topic)
    for read in CLIENTS:
        assert read(broker, topic, 0, KEYS) == latest(sent)


@FORMATS
def test_a_consumer_that_waits_at_the_end_gets_what_is_written_after_a_pass(
    broker: Broker, stored: redis.Redis, storage_format: str
) -> None:
    topic = table(broker, storage_format)
    with reading.consumer(broker.bootstrap, topic) as running:
        sent = produce(broker, topic, rewritten(500))
        received = reading.read(running, 1)
        compacted(stored, topic)
        sent += produce(broker, topic, [(b"key-0", b"later")])
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while received[-1].offset != sent[-1].offset:
            assert time.monotonic() < deadline
            received += [reading.as_received(message) for message in running.consume(100, timeout=0.2)]
        assert {each.key: each.value for each in received} == {pair.key: pair.value for pair in sent}
        assert [each.offset for each in received] == sorted({each.offset for each in received})


@FORMATS
def test_tombstones_are_seen_and_go(broker: Broker, stored: redis.Redis, storage_format: str) -> None:
    topic = table(broker, storage_format, **{"delete.retention.ms": "0"})
    sent = produce(broker, topic, [(b"gone", b"1"), (b"kept", b"2"), (b"gone", None), (b"last", b"3")])

    def left() -> list[Pair]:
        with reading.consumer(broker.bootstrap, topic) as running:
            running.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            read = running.consume(10, timeout=1.0)
        return [Pair(each.offset() or 0, each.key(), each.value()) for each in read]

    processes.wait_until(lambda: left() == [sent[1], sent[3]], "the tombstone goes")


@FORMATS
def test_records_keep_their_times_and_headers(
    broker: Broker, stored: redis.Redis, storage_format: str
) -> None:
    topic = table(broker, storage_format)
    sent = produce(broker, topic, rewritten())
    compacted(stored, topic)
    places = {pair.offset: n for n, pair in enumerate(sent)}
    for each in reading.read_all(broker.bootstrap, topic, [0], KEYS):
        n = places[each.offset]
        assert (each.timestamp, list(each.headers)) == (OLD_MS + n, [("n", b"%d" % n)])


@FORMATS
def test_offsets_by_time_are_those_of_records_that_are_left(
    broker: Broker, stored: redis.Redis, storage_format: str
) -> None:
    topic = table(broker, storage_format)
    sent = produce(broker, topic, rewritten())
    compacted(stored, topic)
    expected = latest(sent)
    times = {pair.offset: OLD_MS + n for n, pair in enumerate(sent)}
    with reading.consumer(broker.bootstrap, topic) as running:
        for wanted in (OLD_MS, OLD_MS + COUNT // 2, OLD_MS + COUNT - KEYS + 3, OLD_MS + COUNT - 1):
            [found] = running.offsets_for_times([TopicPartition(topic, 0, wanted)], WAIT_SECONDS_MAX)
            assert found.offset == next(pair.offset for pair in expected if times[pair.offset] >= wanted)


def test_passes_are_counted(broker: Broker, stored: redis.Redis) -> None:
    topic = table(broker, "record")
    before = ops.total(broker, "korvet_compaction_records_removed_total")
    produce(broker, topic, rewritten())
    compacted(stored, topic)
    processes.wait_until(
        lambda: ops.total(broker, "korvet_compaction_records_removed_total") - before >= COUNT - KEYS,
        "the metric counts what was removed",
    )
