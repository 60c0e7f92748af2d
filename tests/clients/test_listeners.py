"""Real clients inside and outside of a container network: each is led to addresses of its own listener alone.

The brokers are configured as the example of docs/cluster.md; a published port stands for the container network's edge.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.support import ops, reading, redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.docs import PAGES
from tests.support.processes import WAIT_SECONDS_MAX, free_port, wait_until
from tests.support.published_port import PublishedPort

PARTITIONS = 8
RECORDS = [b"%d" % number for number in range(80)]
LISTENERS = ("INSIDE", "OUTSIDE")
WITHOUT_DELAY = "group.initial.rebalance.delay.ms=0"


def example(published: PublishedPort) -> tuple[dict[str, str], dict[str, int]]:
    """Return the settings of the page's example, and their ports by listener, with addresses that are there."""
    text = PAGES["docs/cluster.md"]
    [block] = re.findall(r'^ {4}"listeners" = .*\n(?: {4}".*\n)+', text, re.MULTILINE)
    settings: dict[str, str] = tomllib.loads(block)
    ports = {name: free_port() for name in LISTENERS}
    there = {
        "0.0.0.0:9092": f"0.0.0.0:{ports['INSIDE']}",
        "0.0.0.0:9094": f"0.0.0.0:{ports['OUTSIDE']}",
        "korvet:9092": f"127.0.0.1:{ports['INSIDE']}",
        "broker.example:19094": f"localhost:{published.port}",
    }
    for each, found in there.items():
        assert each in block
        settings = {name: value.replace(each, found) for name, value in settings.items()}
    return settings, ports


class Site:
    """Two brokers, and where the clients of each listener begin."""

    def __init__(self, running: ExitStack, directories: list[Any]) -> None:
        url = running.enter_context(redis_servers.server())
        self.brokers: list[Broker] = []
        self.bootstrap: dict[str, str] = {}
        for number, directory in enumerate(directories):
            published = running.enter_context(PublishedPort())
            settings, ports = example(published)
            published.target = ("127.0.0.1", ports["OUTSIDE"])
            named = [flag for name, value in settings.items() for flag in ("--set", f"{name}={value}")]
            flags = ("--redis-url", url, "--broker-id", str(number), "--set", WITHOUT_DELAY)
            self.brokers.append(
                running.enter_context(korvet_broker(directory, *flags, workers=1, listen=named))
            )
            self.bootstrap = {
                "INSIDE": f"127.0.0.1:{ports['INSIDE']}",
                "OUTSIDE": f"localhost:{published.port}",
            }

    def opened(self, listener: str) -> list[float]:
        """Return how many connections each broker has taken by a listener."""
        line = rf'korvet_connections_opened_total{{listener="{listener}"}}'
        return [ops.total(broker, re.escape(line)) for broker in self.brokers]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as running:
        yield Site(running, [tmp_path_factory.mktemp("broker") for _ in range(2)])


def with_confluent(bootstrap: str, topic: str) -> tuple[set[str], list[bytes]]:
    """Produce, and read as a member of a group; returns the brokers in the client's metadata, and what it read."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(RECORDS):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    reported = {f"{each.host}:{each.port}" for each in producer.list_topics(topic).brokers.values()}
    config = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(config)
    consumer.subscribe([topic])
    received = reading.read(consumer, len(RECORDS))
    consumer.commit(asynchronous=False)
    consumer.close()
    return reported, [each.value or b"" for each in received]


def with_kafka_python(bootstrap: str, topic: str) -> tuple[set[str], list[bytes]]:
    """Do the same as `with_confluent`."""
    with closing(kafka.KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        for number, value in enumerate(RECORDS):
            producer.send(topic, value, partition=number % PARTITIONS)
        producer.flush(WAIT_SECONDS_MAX)
        reported = {f"{each.host}:{each.port}" for each in producer._metadata.brokers()}
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest"
    )
    received: list[bytes] = []

    def more() -> bool:
        # kafka-python loses its membership if a poll ends between the responses of JoinGroup and SyncGroup.
        received.extend(each.value for found in consumer.poll(10_000).values() for each in found)
        return len(received) >= len(RECORDS)

    with closing(consumer):
        wait_until(more, "all records come")
        consumer.commit()
    return reported, received


def with_aiokafka(bootstrap: str, topic: str) -> tuple[set[str], list[bytes]]:
    """Do the same as `with_confluent`."""

    async def run() -> tuple[set[str], list[bytes]]:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for number, value in enumerate(RECORDS):
                await producer.send(topic, value, partition=number % PARTITIONS)
            await producer.flush()
            reported = {f"{each.host}:{each.port}" for each in producer.client.cluster.brokers()}
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest"
        )
        async with consumer:
            received = [(await consumer.getone()).value for _ in RECORDS]
            await consumer.commit()
        return reported, received

    return asyncio.run(asyncio.wait_for(run(), WAIT_SECONDS_MAX))


CLIENTS = {"confluent": with_confluent, "kafka-python": with_kafka_python, "aiokafka": with_aiokafka}


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_produces_and_reads_in_a_group_by_the_addresses_of_its_listener_alone(
    site: Site, client: str, listener: str
) -> None:
    topic = f"{client}-{listener}"
    reading.create_topic(site.bootstrap[listener], topic, PARTITIONS)
    own, others = listener, next(each for each in LISTENERS if each != listener)
    before = {each: site.opened(each) for each in LISTENERS}
    use: Callable[[str, str], tuple[set[str], list[bytes]]] = CLIENTS[client]
    reported, received = use(site.bootstrap[listener], topic)
    assert sorted(received) == sorted(RECORDS)
    assert len(reported) == len(site.brokers)
    assert {each.rpartition(":")[0] for each in reported} == {site.bootstrap[listener].rpartition(":")[0]}
    assert site.opened(others) == before[others]
    assert all(now > was for now, was in zip(site.opened(own), before[own], strict=True))
