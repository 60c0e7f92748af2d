"""Redis dies or falls silent under a producer and a consumer, and comes back: nothing is lost, nothing comes twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from tests.support import processes, reading
from tests.support.broker import korvet_broker
from tests.support.load import Load
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import Received
from tests.support.redis_servers import DurableServer

PARTITIONS = 2
OUTAGE_SECONDS = 3.0


def outcome(producer: Producer, topic: str) -> KafkaError | None:
    """Send one record and return what became of it."""
    outcomes: list[KafkaError | None] = []
    producer.produce(topic, b"one", on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    [only] = outcomes
    return only


@pytest.mark.parametrize(
    ("go", "come_back"),
    [
        pytest.param(DurableServer.kill, DurableServer.start, marks=pytest.mark.smoke),
        (DurableServer.freeze, DurableServer.thaw),
    ],
    ids=["killed", "silent"],
)
def test_an_outage_of_redis_costs_an_idempotent_producer_and_a_consumer_nothing(
    server: DurableServer,
    tmp_path: Path,
    go: Callable[[DurableServer], None],
    come_back: Callable[[DurableServer], None],
) -> None:
    # A silent server is given up well within the outage, and finds what it was sent before when it wakes.
    flags = ("--redis-url", server.url, "--set", "redis.timeout.ms=1000")
    with korvet_broker(tmp_path / "broker", *flags) as broker:
        workers = broker.worker_pids()
        load = Load(broker.bootstrap, "outage", PARTITIONS)
        for topic in (load.topic, "other"):
            reading.create_topic(broker.bootstrap, topic, PARTITIONS)
        once = Producer({"bootstrap.servers": broker.bootstrap, "retries": 0, "acks": "all"})
        assert outcome(once, "other") is None
        received: list[Received] = []
        with reading.consumer(broker.bootstrap, load.topic, range(PARTITIONS)) as running:

            def consume() -> int:
                received.extend(reading.as_received(item) for item in running.consume(5000, timeout=0.1))
                return len(received)

            load.start()
            processes.wait_until(lambda: consume() > 2000, "records arrive")
            go(server)
            again = time.monotonic() + OUTAGE_SECONDS
            error = outcome(once, "other")
            assert error is not None
            # Retriable in every client: nothing is written, or that is unknown, or the topic was asked for again.
            assert error.code() in (
                KafkaError.KAFKA_STORAGE_ERROR,
                KafkaError.REQUEST_TIMED_OUT,
                KafkaError.LEADER_NOT_AVAILABLE,
            )
            while time.monotonic() < again:
                consume()
            acknowledged = len(load.acknowledged)
            come_back(server)
            processes.wait_until(
                lambda: consume() and len(load.acknowledged) > acknowledged + 2000, "records arrive again"
            )
            load.end()
            received += reading.read(running, load.sent - consume())
        load.check(received)
        # Its worker may rest for a second after its last attempt to reach Redis, and this producer does not retry.
        processes.wait_until(lambda: outcome(once, "other") is None, "a producer without retries is served")
        assert broker.worker_pids() == workers
        assert "Traceback" not in broker.log()
