"""Waiting for replicas, against a real master with a real replica."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest
import redis

from korvet.log.replication import Replicas
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from tests.support import redis_servers
from tests.support.processes import free_port, wait_until

KEYS = Keys("korvet")
TIMEOUT_MS = 1500


@pytest.fixture(scope="module")
def master() -> Iterator[str]:
    port = str(free_port())
    with redis_servers.embedded_server(
        "--port", port, "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"
    ) as url:
        yield f"{url}#{port}"


@pytest.fixture
def replica(master: str) -> Iterator[redis.Redis]:
    """Give a client of a replica that has caught up with the master."""
    port = master.partition("#")[2]
    with redis_servers.embedded_server("--replicaof", "127.0.0.1", port) as url:
        client = redis.Redis.from_url(url)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "a replica in step")
        yield client
        client.close()


def replication(master: str, replicas: int) -> Replicas:
    client = Redis(master.partition("#")[0], timeout_ms=TIMEOUT_MS, connect_timeout_ms=TIMEOUT_MS)
    return Replicas(client, KEYS, replicas=replicas, timeout_ms=TIMEOUT_MS)


def test_without_replicas_to_wait_for_everything_is_confirmed_and_nothing_is_asked() -> None:
    client = Redis("unix:///nowhere", timeout_ms=TIMEOUT_MS, connect_timeout_ms=TIMEOUT_MS)
    assert Replicas(client, KEYS, replicas=0, timeout_ms=TIMEOUT_MS).wait()


def test_what_a_replica_has_is_confirmed(master: str, replica: redis.Redis) -> None:
    writer = redis.Redis.from_url(master.partition("#")[0])
    waiting = replication(master, 1)
    for n in range(20):
        writer.set("written", str(n))
        assert waiting.wait()
        assert replica.get("written") == str(n).encode()


def test_many_that_wait_at_once_share_rounds(master: str, replica: redis.Redis) -> None:
    assert replica.ping()
    writer = redis.Redis.from_url(master.partition("#")[0])
    waiting = replication(master, 1)
    before = writer.info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"]
    greenlets = [gevent.spawn(waiting.wait) for _ in range(200)]
    gevent.joinall(greenlets, timeout=20)
    assert all(greenlet.value for greenlet in greenlets)
    assert writer.info("commandstats")["cmdstat_wait"]["calls"] - before <= 3


def test_more_replicas_than_there_are_are_not_confirmed(master: str, replica: redis.Redis) -> None:
    assert replica.ping()
    assert not replication(master, 2).wait()


def test_a_redis_that_is_away_confirms_nothing_and_does_so_again_when_it_is_back(master: str) -> None:
    assert not replication("unix:///nowhere#0", 1).wait()
    waiting = replication(master, 1)
    assert not waiting.wait()
    port = master.partition("#")[2]
    with redis_servers.embedded_server("--replicaof", "127.0.0.1", port) as url:
        client = redis.Redis.from_url(url)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "a replica in step")
        assert waiting.wait()
        client.close()
