"""The second client: librdkafka with its defaults, in a process of its own that writes or reads one partition.

`run` starts the process; it prints records and seconds. Whether all that it wrote is there is found by reading it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from loadtest.harness import NotAvailableError

_SECONDS_MAX = 300.0
_SILENCE_SECONDS_MAX = 20.0
_MESSAGES = 10_000


def run(
    verb: str, address: dict[str, object], topic: str, records: int, payloads: Path
) -> tuple[float, float]:
    """Have records produced or consumed; return how many and in how many seconds, NotAvailableError if it fails."""
    where = [str(address["bootstrap"]), str(address.get("tls", "")), topic, str(records), str(payloads)]
    command = [sys.executable, "-m", "loadtest.bench.librdkafka", verb, *where]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS_MAX)
    if done.returncode:
        raise NotAvailableError(f"librdkafka: {done.stderr.strip().splitlines()[-1]}")
    count, seconds = map(float, done.stdout.split())
    return count, seconds


def produce(config: dict[str, str], topic: str, records: int, payloads: Path) -> float:
    """Write the lines of a file again and again, and return the seconds."""
    values = payloads.read_bytes().splitlines()
    producer = Producer(config)
    producer.list_topics(topic, timeout=_SILENCE_SECONDS_MAX)
    began = time.monotonic()
    for n in range(records):
        while True:
            try:
                producer.produce(topic, values[n % len(values)], partition=0)
            except BufferError:
                producer.poll(0.01)
            else:
                break
    left = producer.flush(_SILENCE_SECONDS_MAX)
    assert not left, f"{left} records were not acknowledged"
    return time.monotonic() - began


def consume(
    config: dict[str, str], topic: str, records: int, silence_seconds: float = _SILENCE_SECONDS_MAX
) -> float:
    """Read a number of records from the start, and return the seconds."""
    consumer = Consumer({**config, "group.id": "bench", "enable.auto.commit": "false"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    count, began = 0, time.monotonic()
    while count < records:
        # It waits for as many as it is asked for.
        messages = consumer.consume(min(_MESSAGES, records - count), silence_seconds)
        failed = [message.error() for message in messages if message.error()]
        assert messages, f"only {count} of {records} records came"
        assert not failed, f"{failed[0]}"
        count += len(messages)
    seconds = time.monotonic() - began
    consumer.close()
    return seconds


def main() -> None:
    """Do what the arguments say."""
    verb, bootstrap, certificate, topic, records, payloads = sys.argv[1:]
    config = {"bootstrap.servers": bootstrap}
    if certificate:
        config |= {"security.protocol": "ssl", "ssl.ca.location": certificate}
    if verb == "produce":
        seconds = produce(config, topic, int(records), Path(payloads))
    else:
        seconds = consume(config, topic, int(records))
    print(records, seconds)


if __name__ == "__main__":
    main()
