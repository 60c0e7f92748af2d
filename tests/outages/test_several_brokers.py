"""Real clients while brokers join, stop and are killed: nothing is lost, doubled or out of order, and nothing fails."""

from __future__ import annotations

import gc
import logging
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.aio_kafka import AIOKAFKA
from tests.clients.client_library import Library
from tests.clients.kafka_python import KAFKA_PYTHON
from tests.clients.librdkafka import LIBRDKAFKA
from tests.clients.tail import Tail, go_on
from tests.support import ops, reading
from tests.support.broker import Broker, korvet_broker
from tests.support.load import Load
from tests.support.processes import wait_until

PARTITIONS = 8
LEASE_MS = 2000


def serves_clients(broker: Broker) -> None:
    """Wait until producers and consumers use the broker, not only its metadata."""
    for api in ("Produce", "Fetch"):
        served = f'korvet_requests_total{{api="{api}",error="NONE"}}'
        wait_until(lambda: f"\n{served}" in ops.page(broker, "/metrics"), f"{api} comes here")  # noqa: B023 - called before the loop goes on


# kafka-python leaves the sockets of lost connections to the garbage collector, and its log records hold them.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "library",
    [pytest.param(LIBRDKAFKA, marks=pytest.mark.smoke), KAFKA_PYTHON, AIOKAFKA],
    ids=lambda library: str(library.name),
)
def test_brokers_that_join_stop_and_are_killed_cost_a_client_no_record_and_no_error(
    tmp_path: Path, redis_url: str, library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("kafka", "aiokafka"):  # they log every connection that they lose
        caplog.set_level(logging.CRITICAL, name)

    def broker(number: int, start: str) -> Broker:
        flags = ("--redis-url", redis_url, "--broker-id", str(number), "--set", f"broker.lease.ms={LEASE_MS}")
        return running.enter_context(korvet_broker(tmp_path / start, *flags, workers=1))

    with ExitStack() as running:
        zero = broker(0, "zero")
        reading.create_topic(zero.bootstrap, "orders", PARTITIONS)
        load = Load(zero.bootstrap, "orders", PARTITIONS, library.name)
        tail = Tail(library, zero.bootstrap, "orders", PARTITIONS)
        load.start()
        tail.start()
        go_on(load, tail, PARTITIONS)
        one = broker(1, "one")
        serves_clients(one)
        assert zero.stop() == 0
        go_on(load, tail, PARTITIONS)
        zero = broker(0, "zero again")
        serves_clients(zero)
        one.kill()
        go_on(load, tail, PARTITIONS)
        load.end()
        tail.end(load.sent)
        load.check(reading.read_all(zero.bootstrap, "orders", range(PARTITIONS), load.sent))
        tail.check(load.sent)
    gc.collect()
