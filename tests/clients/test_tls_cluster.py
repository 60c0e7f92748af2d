"""A Redis Cluster that is reached by TLS (`rediss+cluster://`): a real client writes to all its nodes, and reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from confluent_kafka import Producer

from korvet.redis.keys import Keys
from tests.support import reading, redis_servers
from tests.support.broker import korvet_broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.proxy import proxy, until
from tests.support.redis_cluster import RedisCluster, redis_cluster

TLS = Path(__file__).parents[1] / "support/tls"
CERTIFICATE = TLS / "certificate.pem"
KEYS = Keys("korvet")
TOPIC, PARTITIONS, RECORDS = "secured", 9, 900


@pytest.fixture
def cluster() -> Iterator[tuple[RedisCluster, str]]:
    """Give a cluster and its URL; nodes that were built without TLS have proxies with it, whose ports they announce."""
    has_tls = b"libssl" in Path(redis_servers.program()).read_bytes()
    with redis_cluster(tls=has_tls) as running, contextlib.ExitStack() as stack:
        ports = [node.port for node in running.nodes]
        if not has_tls:
            for at, node in enumerate(running.nodes):
                way = stack.enter_context(proxy(f"redis://{node.address}", CERTIFICATE, TLS / "key.pem"))
                node.call("CONFIG", "SET", "cluster-announce-port", way.port)
                ports[at] = way.port

        def known(at: int) -> list[int]:
            slots = running.nodes[at].call("CLUSTER", "SLOTS")
            return [port for _, _, (_, port, *_) in sorted(slots)]

        until(lambda: all(known(at) == ports for at in range(len(ports))))
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        yield running, f"rediss+cluster://{hosts}?ssl_ca_certs={CERTIFICATE}"


def test_a_client_writes_and_reads(tmp_path: Path, cluster: tuple[RedisCluster, str]) -> None:
    nodes, url = cluster
    streams = [KEYS.stream(TOPIC, index) for index in range(PARTITIONS)]

    def write_and_read() -> list[tuple[int, bytes | None]]:
        with korvet_broker(tmp_path, "--redis-url", url, workers=1) as broker:
            reading.create_topic(broker.bootstrap, TOPIC, PARTITIONS)
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            for number in range(RECORDS):
                producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
            assert producer.flush(WAIT_SECONDS_MAX) == 0
            read = reading.read_all(broker.bootstrap, TOPIC, range(PARTITIONS), RECORDS)
        return sorted((item.partition, item.value) for item in read)

    # In a thread: the proxies run on this one.
    result = gevent.get_hub().threadpool.apply(write_and_read)
    assert result == sorted((number % PARTITIONS, b"%d" % number) for number in range(RECORDS))
    assert {nodes.node_of(stream) for stream in streams} == set(nodes.nodes)
