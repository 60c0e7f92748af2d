"""Real clients inside and outside of a container network: each is led to addresses of its own listener alone.

The brokers are configured as the example of docs/cluster.md; a published port stands for the container network's edge.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.clients.client_library import Library, read, written
from tests.support import ops, redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.docs import PAGES
from tests.support.processes import free_port
from tests.support.proxy_process import Proxy
from tests.support.records import TIMESTAMP_FIRST_MS, Sample, check_exactly

PARTITIONS = 8
RECORDS = [Sample(number % PARTITIONS, b"k", b"%d" % number, (), TIMESTAMP_FIRST_MS) for number in range(80)]
LISTENERS = ("INSIDE", "OUTSIDE")
WITHOUT_DELAY = "group.initial.rebalance.delay.ms=0"


def example(published: Proxy) -> tuple[dict[str, str], dict[str, int]]:
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
    for item, result in there.items():
        assert item in block
        settings = {name: value.replace(item, result) for name, value in settings.items()}
    return settings, ports


class Site:
    """Two brokers, and where the clients of each listener begin."""

    def __init__(self, running: ExitStack, directories: list[Any]) -> None:
        url = running.enter_context(redis_servers.server())
        self.brokers: list[Broker] = []
        self.bootstrap: dict[str, str] = {}
        for number, directory in enumerate(directories):
            published = running.enter_context(Proxy(0))
            settings, ports = example(published)
            published.say(f"lead {ports['OUTSIDE']}")
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


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_client_produces_and_reads_in_a_group_by_the_addresses_of_its_listener_alone(
    site: Site, library: Library, listener: str
) -> None:
    topic, bootstrap = f"{library.name}-{listener}", site.bootstrap[listener]
    others = next(item for item in LISTENERS if item != listener)
    before = {item: site.opened(item) for item in LISTENERS}
    with closing(library.admin(bootstrap)) as admin:
        admin.create(topic, PARTITIONS)
        reported = admin.brokers()
    assert len(reported) == len(site.brokers)
    assert {host for host, _ in reported} == {bootstrap.rpartition(":")[0]}
    with closing(library.producer(bootstrap, {})) as producer:
        written(producer.send(topic, RECORDS))
    with closing(library.consumer(bootstrap, {"group.id": topic})) as consumer:
        consumer.subscribe(topic)
        check_exactly(RECORDS, read(consumer, len(RECORDS)))
        consumer.commit()
    assert site.opened(others) == before[others]
    assert all(now > was for now, was in zip(site.opened(listener), before[listener], strict=True))
