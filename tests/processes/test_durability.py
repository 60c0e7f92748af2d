"""What was acknowledged is there after a restart, also after a crash of broker and embedded server together."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.support import processes
from tests.support.broker import Broker, korvet_broker

COUNT = 1000


def produce(broker: Broker, values: range) -> None:
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce("orders", str(value), partition=0, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert refused == []


def consume(broker: Broker, count: int) -> list[tuple[int | None, bytes | None]]:
    """Return offsets and values of the first `count` records."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("orders", 0, 0)])
    records: list[tuple[int | None, bytes | None]] = []

    def complete() -> bool:
        for record in consumer.consume(count, 1.0):
            assert record.error() is None
            records.append((record.offset(), record.value()))
        return len(records) >= count

    processes.wait_until(complete, f"{count} records")
    consumer.close()
    return records


def test_records_and_offsets_survive_a_drained_stop_and_a_crash_of_everything(tmp_path: Path) -> None:
    with korvet_broker(tmp_path / "first") as broker:
        data_dir = broker.data_dir
        produce(broker, range(COUNT))
        before = consume(broker, COUNT)
        assert broker.stop() == 0
    with korvet_broker(tmp_path / "second", data_dir=data_dir) as broker:
        assert consume(broker, COUNT) == before
        produce(broker, range(COUNT, 2 * COUNT))
        broker.wait_until_written()
        # The server first: it would end in good order when its supervisor is gone.
        processes.kill(broker.server_pid())
        broker.kill()
    with korvet_broker(tmp_path / "third", data_dir=data_dir) as broker:
        after = consume(broker, 2 * COUNT)
        assert after[:COUNT] == before
        assert [value for _, value in after] == [str(number).encode() for number in range(2 * COUNT)]
        produce(broker, range(2 * COUNT, 2 * COUNT + 1))
        assert consume(broker, 2 * COUNT + 1)[-1][1] == str(2 * COUNT).encode()
