"""Records on the other side of `korvet produce` and `korvet consume`: a consumer and a producer of librdkafka."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.support.broker import Broker
from tests.support.processes import wait_until

COMMAND_SECONDS_MAX = 60


def run(
    broker: Broker, command: str, *arguments: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run `korvet produce` or `korvet consume` with these bytes on standard input."""
    line = [sys.executable, "-m", "korvet", command, "-b", broker.bootstrap, *arguments]
    return subprocess.run(line, input=given, capture_output=True, timeout=COMMAND_SECONDS_MAX, check=False)


def done(result: subprocess.CompletedProcess[bytes]) -> bytes:
    """Return what a command wrote that succeeded, and had nothing to say besides."""
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout


def failed(result: subprocess.CompletedProcess[bytes], code: int = 1) -> str:
    """Return what a command says that failed as it should."""
    assert result.returncode == code, result
    assert b"Traceback" not in result.stderr
    return result.stderr.decode()


def read(broker: Broker, topic: str, count: int, partition: int = 0) -> list[Message]:
    """Return the first records of a partition."""
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer(config)
    found: list[Message] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])

        def enough() -> bool:
            found.extend(each for each in consumer.consume(1000, 0.1) if each.error() is None)
            return len(found) >= count

        wait_until(enough, f"{count} records of {topic} are read")
    finally:
        consumer.close()
    return found


def write(broker: Broker, topic: str, *records: dict[str, Any]) -> None:
    """Produce records, given as librdkafka's produce() takes them."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(COMMAND_SECONDS_MAX) == 0
