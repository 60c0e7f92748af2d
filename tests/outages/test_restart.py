"""A broker started again on its data directory: topics, records and offsets are the same, and go on from there."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from tests.support import processes, reading
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import PARTITIONS, Received, Sample, check_exactly, samples

COUNT = 2000
TOPIC, OTHER = "kept", "empty"


def produce(broker: Broker, sent: list[Sample]) -> list[tuple[int, int]]:
    acknowledged: list[tuple[int, int]] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        acknowledged.append((message.partition() or 0, message.offset() or 0))

    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for record in sent:
        producer.produce(
            TOPIC,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            partition=record.partition,
            timestamp=record.timestamp,
            on_delivery=delivered,
        )
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return acknowledged


def contents(broker: Broker, count: int) -> list[Received]:
    return sorted(reading.read_all(broker.bootstrap, TOPIC, range(PARTITIONS), count))


def end_in_order(broker: Broker) -> None:
    assert broker.stop() == 0


def crash(broker: Broker) -> None:
    broker.wait_until_written()
    server = broker.server_pid()
    processes.kill(server, signal.SIGSTOP)
    broker.kill()
    processes.kill(server)


@pytest.mark.parametrize("end", [end_in_order, pytest.param(crash, marks=pytest.mark.smoke)])
def test_topics_records_and_offsets_survive_a_restart(tmp_path: Path, end: Callable[[Broker], None]) -> None:
    sent = samples(0, COUNT)
    with korvet_broker(tmp_path / "first", data_dir=tmp_path / "data") as broker:
        reading.create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        reading.create_topic(broker.bootstrap, OTHER, 2)
        offsets = produce(broker, sent)
        ids = [reading.topic_id(broker.bootstrap, name) for name in (TOPIC, OTHER)]
        before = contents(broker, COUNT)
        check_exactly(sent, before, offsets)
        end(broker)
    with korvet_broker(tmp_path / "second", data_dir=tmp_path / "data") as broker:
        assert [reading.topic_id(broker.bootstrap, name) for name in (TOPIC, OTHER)] == ids
        assert contents(broker, COUNT) == before
        more = samples(COUNT, COUNT)
        later = produce(broker, more)
        assert min(offset for _, offset in later) > max(offset for _, offset in offsets)
        check_exactly(sent + more, contents(broker, 2 * COUNT), offsets + later)
