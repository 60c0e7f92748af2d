"""The documented layout from both sides: a Redis client writes what Kafka clients read, and reads what they write."""

from __future__ import annotations

from typing import Any, cast

import pytest
import redis

from tests.support import reading, redis_servers
from tests.support.broker import Broker
from tests.support.records import topic_name

BITS = 10
ENCODINGS = pytest.mark.parametrize("encoding", ["time", "dense"])


def offset_of(entry_id: bytes, encoding: str = "time") -> int:
    """Return the offset that the layout gives to an id."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    if encoding == "dense":
        assert milliseconds == b"0"
        return int(sequence) - 1
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


@ENCODINGS
def test_records_of_kafka_clients_are_read_by_xrange_in_the_documented_layout(
    broker: Broker, stored: redis.Redis, encoding: str
) -> None:
    topic = topic_name("external")
    reading.create_topic(broker.bootstrap, topic, config={"offset.encoding": encoding})
    headers = [("h", b"one"), ("h", b"two"), ("empty", b""), ("null", None)]
    offsets = reading.produce(
        broker.bootstrap,
        topic,
        {"key": b"k", "value": b"v", "headers": headers, "timestamp": 1_700_000_000_000},
        {"key": None, "value": b"", "timestamp": 1_700_000_000_001},
        {"key": b"", "value": None, "timestamp": 1_700_000_000_002},
    )
    entries = command(stored, "XRANGE", f"korvet:{topic}:0", "-", "+")
    assert [offset_of(entry_id, encoding) for entry_id, _ in entries] == offsets
    assert [fields for _, fields in entries] == [
        [
            *(b"key", b"k", b"value", b"v", b"timestamp", b"1700000000000"),
            *(b"header.h", b"one", b"header.h", b"two", b"header.empty", b"", b"nullheader.null", b""),
        ],
        [b"value", b"", b"timestamp", b"1700000000001"],
        [b"key", b"", b"timestamp", b"1700000000002"],
    ]


@ENCODINGS
def test_entries_that_redis_clients_add_as_documented_are_records(
    broker: Broker, stored: redis.Redis, encoding: str
) -> None:
    topic = topic_name("external")
    reading.create_topic(broker.bootstrap, topic, config={"offset.encoding": encoding})
    entry, last = ("*", "+") if encoding == "time" else ("0-*", "0-2")
    headers = "header.source web header.version 1.0"
    words = 'XADD STREAM ID key order-123 value {"quantity":5} timestamp 1234567890000 ' + headers
    first, second = (
        command(stored, *line.replace("STREAM", f"korvet:{topic}:0").replace("ID", entry).split())
        for line in (words, 'XADD STREAM ID key order-124 value {"quantity":3} timestamp 1234567891000')
    )
    records = reading.read_all(broker.bootstrap, topic, [0], 2)
    assert [record.offset for record in records] == [offset_of(first, encoding), offset_of(second, encoding)]
    assert [(record.key, record.value, record.timestamp, record.headers) for record in records] == [
        (
            *(b"order-123", b'{"quantity":5}', 1234567890000),
            (("source", b"web"), ("version", b"1.0")),
        ),
        (b"order-124", b'{"quantity":3}', 1234567891000, ()),
    ]
    [newest] = command(stored, "XREVRANGE", f"korvet:{topic}:0", last, "-", "COUNT", "1")
    assert newest == [
        second,
        [b"key", b"order-124", b"value", b'{"quantity":3}', b"timestamp", b"1234567891000"],
    ]
