"""Runs librdkafka's mock cluster until stdin ends; prints the port of its one broker.

A producer makes the cluster beside itself and sends nothing; other programs reach its broker by TCP.
"""

from __future__ import annotations

import sys

from confluent_kafka import Producer


def main() -> None:
    """Start, tell, wait."""
    # librdkafka reports on stderr that it mocks; the bootstrap is replaced by the mock broker's.
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 3})
    [broker] = producer.list_topics(timeout=10).brokers.values()
    print(broker.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
