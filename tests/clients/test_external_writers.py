"""The documented layout from both sides: a Redis client writes what Kafka clients read, and reads what they write."""

from __future__ import annotations

from typing import Any, cast

import redis

from tests.support import reading, redis_servers
from tests.support.broker import Broker
from tests.support.records import topic_name

BITS = 10


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
    offsets = reading.produce(
        broker.bootstrap,
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
