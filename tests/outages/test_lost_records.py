"""Redis comes back without its last records, and others get their offsets: no consumer passes over those silently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from korvet.errors import ErrorCode
from tests.support import reading
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.redis_servers import DurableServer
from tests.support.topic_client import Client, fetch_request

TOPIC = "orders"
KEPT = [b"kept-%d" % n for n in range(6)]
LOST = [b"lost-%d" % n for n in range(4)]
NEW = [b"new-%d" % n for n in range(8)]


@pytest.fixture(params=["batch", "record"])
def storage_format(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def broker(tmp_path: Path, server: DurableServer, storage_format: str) -> Iterator[Broker]:
    flags = ("--redis-url", server.url, "--set", f"storage.format={storage_format}")
    with korvet_broker(tmp_path, *flags, workers=1) as running:
        reading.create_topic(running.bootstrap, TOPIC, 1)
        yield running


def produce(broker: Broker, values: list[bytes]) -> None:
    """Produce records one by one, all acknowledged in the end."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for value in values:
        producer.produce(TOPIC, value)
        assert producer.flush(WAIT_SECONDS_MAX) == 0


def consumer_of(broker: Broker, reset: str) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
        }
    )
    made.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    return made


def read(consumer: Consumer, count: int) -> list[bytes]:
    """Read records; an error of the partition ends it, as what it says."""
    result: list[bytes] = []

    def more() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            result.append(message.value() or b"")
        elif message is not None and (error := message.error()) is not None:
            assert error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION), error
            result.append(b"truncated")
        return len(result) >= count or b"truncated" in result

    wait_until(more, f"{count} records")
    return result


def fetched(client: Client, offset: int, *, version: int = 11, **fields: Any) -> Any:
    """Return the partition's response, asked again while Redis cannot be reached.

    A worker has several connections to it, and each rests for itself after an attempt in vain: one may be back, and
    the one that reads not yet.
    """
    result: list[Any] = []

    def answered() -> bool:
        answer = client.call(fetch_request(TOPIC, offset, **fields), version)
        result[:] = [] if answer.error_code else [answer.responses[0].partitions[0]]
        return bool(result) and result[0].error_code != ErrorCode.KAFKA_STORAGE_ERROR

    wait_until(answered, "Redis is back")
    return result[0]


def epoch_end(client: Client, epoch: int, current: int) -> tuple[int, int, int]:
    """Return what OffsetForLeaderEpoch answers, asked again in the same way."""
    result: list[tuple[int, int, int]] = []

    def answered() -> bool:
        result[:] = [client.epoch_end(TOPIC, epoch, current=current)]
        return result[0][0] != ErrorCode.KAFKA_STORAGE_ERROR

    wait_until(answered, "Redis is back")
    return result[0]


def lose_the_tail(broker: Broker, server: DurableServer, consumer: Consumer) -> None:
    """Have a consumer read ten records, and Redis come back with six of them; others are produced then."""
    produce(broker, KEPT)
    kept = server.copy()
    produce(broker, LOST)
    assert read(consumer, 10) == KEPT + LOST
    consumer.pause([TopicPartition(TOPIC, 0)])
    server.go_back(kept)
    produce(broker, NEW)


@pytest.mark.parametrize("reset", ["earliest", "error"])
def test_a_consumer_past_the_cut_passes_over_nothing(
    broker: Broker, server: DurableServer, reset: str
) -> None:
    with closing(consumer_of(broker, reset)) as consumer:
        lose_the_tail(broker, server, consumer)
        consumer.resume([TopicPartition(TOPIC, 0)])
        if reset == "error":
            assert read(consumer, 1) == [b"truncated"]
        else:
            # It goes on at the first offset that is another record's now.
            assert read(consumer, len(NEW)) == NEW


@pytest.mark.smoke
def test_the_epochs_say_where_the_log_was_cut(
    broker: Broker, server: DurableServer, storage_format: str
) -> None:
    with closing(consumer_of(broker, "error")) as consumer, Client(broker.address) as client:
        produce(broker, KEPT)
        first = client.leader_epoch(TOPIC)
        cut = client.offset_at(TOPIC, -1)[0]
        kept = server.copy()
        produce(broker, LOST)
        end = client.offset_at(TOPIC, -1)[0]
        server.go_back(kept)
        # Before anything is written: the position is past the end, and the epoch comes first.
        fenced = fetched(client, end, current_leader_epoch=first)
        assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
        second = client.leader_epoch(TOPIC)
        assert second > first
        assert epoch_end(client, first, second) == (0, first, cut)
        out_of_range = fetched(client, end, current_leader_epoch=second)
        assert out_of_range.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        produce(broker, NEW)
        assert epoch_end(client, first, second) == (0, first, cut)
        assert epoch_end(client, second, second)[1] == second
        diverging = fetched(client, end, version=12, current_leader_epoch=second, last_fetched_epoch=first)
        assert (diverging.error_code, list(diverging.records)) == (0, [])
        assert (diverging.diverging_epoch.epoch, diverging.diverging_epoch.end_offset) == (first, cut)
        same = fetched(client, cut, version=12, current_leader_epoch=second, last_fetched_epoch=first)
        assert same.diverging_epoch is None
        assert consumer.assignment()
