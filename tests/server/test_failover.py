"""A Redis that was the master and is a replica by now: a worker leaves it with all of its connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import cast

import gevent
import pytest
import redis

from korvet.config import Settings
from korvet.domain.topics import NewTopic
from korvet.errors import StorageUnavailableError
from korvet.server.worker import Storage
from korvet.storage.resp import Redis
from tests.domain.support import Domain, domain
from tests.support.proxy import Proxy, proxy

PATIENCE_S = 20.0


@pytest.fixture
def network(redis_url: str) -> Iterator[Proxy]:
    with proxy(redis_url) as running:
        yield running


@pytest.fixture
def storage(network: Proxy) -> Iterator[Storage]:
    made = Storage.of(Settings(redis_url=network.url), None)
    yield made
    made.close()


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, "it does not happen"
        gevent.sleep(0.02)


def write(connection: Redis) -> str:
    """Write; returns why that was not done, nothing where it was."""
    try:
        connection.call("SET", "k", "v")
    except StorageUnavailableError as error:
        return error.message
    return ""


def identity(connection: Redis) -> int:
    """Return the number that Redis gave to the connection."""
    while True:
        try:
            return cast("int", connection.call("CLIENT", "ID"))
        except StorageUnavailableError:
            gevent.sleep(0.02)


def test_connections_that_only_read_leave_a_replica_with_those_that_write(
    storage: Storage, network: Proxy, raw_redis: redis.Redis
) -> None:
    heard: list[bytes | None] = []
    storage.subscriptions.listen("news", heard.append)
    assert write(storage.redis) == ""
    reads = identity(storage.reads)
    raw_redis.replicaof("127.0.0.1", "1")
    try:
        before = network.connections
        until(lambda: bool(write(storage.redis)) and network.connections > before)
    finally:
        raw_redis.replicaof("NO", "ONE")
    until(lambda: write(storage.redis) == "")
    until(lambda: identity(storage.reads) != reads)
    # Whoever listens has to look again: what was told meanwhile nobody has heard.
    until(lambda: None in heard)
    raw_redis.publish("news", "x")
    until(lambda: b"x" in heard)


def test_a_lost_connection_takes_no_other_one_along(storage: Storage, raw_redis: redis.Redis) -> None:
    assert write(storage.redis) == ""
    reads = identity(storage.reads)
    raw_redis.client_kill_filter(_id=str(identity(storage.redis)))
    until(lambda: write(storage.redis) == "")
    assert identity(storage.reads) == reads


def test_topics_are_read_anew_from_a_redis_that_has_lost_the_last_changes(
    network: Proxy, redis_url: str, raw_redis: redis.Redis
) -> None:
    with domain(network.url) as here, domain(redis_url) as there:
        here.topics.create(NewTopic(name="lost", partitions=1))
        here.topics.refresh()
        network.cut()
        # As a replica that had nothing of it and was promoted: another topic is the first change there.
        raw_redis.flushall()
        there.topics.create(NewTopic(name="kept", partitions=1))
        until(lambda: _names(here) == ["kept"])


def _names(here: Domain) -> list[str]:
    try:
        return [topic.name for topic in here.topics.all()]
    except StorageUnavailableError:
        return []
