"""The documented layout from both sides: a Redis client writes what Kafka clients read, and reads what they write."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import lz4.frame
import pytest
import redis
import zstandard
from confluent_kafka import Message, Producer

from tests.support import reading, redis_servers
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name

BITS = 10
EXTERNAL = 20_000
PIPELINED = 5000


def produce(broker: Broker, topic: str, *records: dict[str, Any]) -> list[int]:
    """Send to partition 0 and wait; returns the offsets."""
    offsets: list[int] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset() or 0)

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for record in records:
        producer.produce(topic, partition=0, on_delivery=delivered, **record)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return offsets


def offset_of(entry_id: bytes) -> int:
    """Return the offset that the layout gives to an id."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    return (int(milliseconds) << BITS) | int(sequence)


def command(stored: redis.Redis, *words: str) -> Any:
    """Say what redis-py's dictionaries cannot, a field that repeats, and return the reply as it came."""
    pool = redis_servers.server_of(stored, words[1]).connection_pool
    with redis.client.Redis(connection_pool=pool, single_connection_client=True) as client:
        assert client.connection is not None
        client.connection.send_command(*words)
        return client.connection.read_response()


def test_a_plain_xadd_reaches_a_waiting_kafka_consumer(broker: Broker, stored: redis.Redis) -> None:
    topic = topic_name("external")
    reading.create_topic(broker.bootstrap, topic)
    with reading.consumer(broker.bootstrap, topic) as running:
        assert running.consume(1, timeout=1.0) == []
        entry_id = cast("bytes", stored.xadd(f"korvet:{topic}:0", {"value": "hello"}))
        [record] = reading.read(running, 1)
    assert (record.key, record.value, record.headers) == (None, b"hello", ())
    assert record.offset == offset_of(entry_id)
    assert record.timestamp == int(entry_id.split(b"-")[0])


def test_a_redis_client_can_write_every_part_of_a_record(broker: Broker, stored: redis.Redis) -> None:
    topic = topic_name("external")
    reading.create_topic(broker.bootstrap, topic)
    stream = f"korvet:{topic}:0"
    stored.xadd(
        stream, {"key": "k", "value": b"\x00\xff", "timestamp": 12345, "header.h": "one", "other": "x"}
    )
    command(stored, "XADD", stream, "*", "header.h", "1", "header.h", "2", "nullheader.h", "")
    first, second = reading.read_all(broker.bootstrap, topic, [0], 2)
    assert (first.key, first.value, first.timestamp) == (b"k", b"\x00\xff", 12345)
    assert first.headers == (("h", b"one"), ("other", b"x"))
    assert (second.key, second.value) == (None, None)
    assert second.headers == (("h", b"1"), ("h", b"2"), ("h", None))


def test_records_of_kafka_clients_are_read_by_xrange_in_the_documented_layout(
    broker: Broker, stored: redis.Redis
) -> None:
    topic = topic_name("external")
    reading.create_topic(broker.bootstrap, topic)
    headers = [("h", b"one"), ("h", b"two"), ("empty", b""), ("null", None)]
    offsets = produce(
        broker,
        topic,
        {"key": b"k", "value": b"v", "headers": headers, "timestamp": 1_700_000_000_000},
        {"key": None, "value": b"", "timestamp": 1_700_000_000_001},
        {"key": b"", "value": None, "timestamp": 1_700_000_000_002},
    )
    entries = command(stored, "XRANGE", f"korvet:{topic}:0", "-", "+")
    assert [offset_of(entry_id) for entry_id, _ in entries] == offsets
    assert [fields for _, fields in entries] == [
        [
            *(b"key", b"k", b"value", b"v", b"timestamp", b"1700000000000"),
            *(b"header.h", b"one", b"header.h", b"two", b"header.empty", b"", b"nullheader.null", b""),
        ],
        [b"value", b"", b"timestamp", b"1700000000001"],
        [b"key", b"", b"timestamp", b"1700000000002"],
    ]


def test_twenty_thousand_pipelined_xadds_beside_a_producer_are_all_consumed_once_in_order(
    broker: Broker, stored: redis.Redis
) -> None:
    topic = topic_name("external")
    reading.create_topic(broker.bootstrap, topic)
    stop = threading.Event()
    produced: list[bytes] = []

    def keep_producing() -> None:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 1, "enable.idempotence": True}
        )
        while not stop.is_set():
            value = b"kafka-%d" % len(produced)
            produced.append(value)
            producer.produce(topic, value, partition=0)
            producer.poll(0)
            time.sleep(0.0005)
        assert producer.flush(WAIT_SECONDS_MAX) == 0

    thread = threading.Thread(target=keep_producing)
    thread.start()
    external = [b"redis-%d" % number for number in range(EXTERNAL)]
    try:
        for start in range(0, EXTERNAL, PIPELINED):
            pipeline = stored.pipeline(transaction=False)
            for value in external[start : start + PIPELINED]:
                pipeline.xadd(f"korvet:{topic}:0", {"value": value})
            pipeline.execute()
    finally:
        stop.set()
        thread.join()
    with reading.consumer(broker.bootstrap, topic) as running:
        received = reading.read(running, EXTERNAL + len(produced))
    values = [record.value for record in received]
    assert [value for value in values if value and value.startswith(b"redis-")] == external
    assert [value for value in values if value and value.startswith(b"kafka-")] == produced
    assert len(values) == EXTERNAL + len(produced)
    offsets = [record.offset for record in received]
    assert offsets == sorted(set(offsets))


def test_entries_whose_ids_are_no_offsets_are_consumed_too(broker: Broker, stored: redis.Redis) -> None:
    topic = topic_name("external")
    reading.create_topic(broker.bootstrap, topic)
    now_ms = int(time.time() * 1000)
    values = [b"redis-%d" % number for number in range(3000)]
    pipeline = stored.pipeline(transaction=False)
    for number, value in enumerate(values):
        # As a burst within one millisecond makes them: sequences far beyond 2^bits.
        pipeline.xadd(f"korvet:{topic}:0", {"value": value}, id=f"{now_ms}-{number}")
    pipeline.execute()
    received = reading.read_all(broker.bootstrap, topic, [0], len(values))
    assert [record.value for record in received] == values
    assert produce(broker, topic, {"value": b"after"})[0] > received[-1].offset
    again = reading.read_all(broker.bootstrap, topic, [0], len(values) + 1)
    assert [record.value for record in again] == [*values, b"after"]


def test_a_stream_that_was_there_before_its_topic_is_adopted(broker: Broker, stored: redis.Redis) -> None:
    topic = topic_name("external")
    ids = [
        cast("bytes", stored.xadd(f"korvet:{topic}:0", {"value": f"before {number}"})) for number in range(3)
    ]
    reading.create_topic(broker.bootstrap, topic)
    offsets = produce(broker, topic, {"value": b"after"})
    received = reading.read_all(broker.bootstrap, topic, [0], 4)
    assert [record.value for record in received] == [b"before 0", b"before 1", b"before 2", b"after"]
    assert [record.offset for record in received] == [offset_of(each) for each in ids] + offsets


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_large_values_are_compressed_at_rest_as_the_topic_says(
    broker: Broker, stored: redis.Redis, codec: str
) -> None:
    topic = topic_name("external")
    reading.create_topic(broker.bootstrap, topic, config={"storage.compression": codec})
    large, small = b"0123456789abcdef" * 64, b"x" * 1023
    produce(broker, topic, {"value": large}, {"value": small})
    [first, second] = [fields for _, fields in cast("list[Any]", stored.xrange(f"korvet:{topic}:0"))]
    assert second[b"value"] == small
    assert b"korvet.encoding" not in second
    if codec == "none":
        assert first[b"value"] == large
        assert b"korvet.encoding" not in first
    else:
        assert first[b"korvet.encoding"] == codec.encode()
        decompress = lz4.frame.decompress if codec == "lz4" else zstandard.decompress
        assert decompress(first[b"value"]) == large
        assert len(first[b"value"]) < len(large) / 2
    assert [record.value for record in reading.read_all(broker.bootstrap, topic, [0], 2)] == [large, small]
