"""A Redis that was the master and is a replica by now: a worker leaves it with all of its connections."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import pytest
import redis

from korvet.config.settings import Settings
from korvet.errors import StorageUnavailableError
from korvet.redis.client import Redis
from korvet.server.services import Storage
from tests.support.proxy import Proxy, until

T = TypeVar("T")


@pytest.fixture
def storage(network: Proxy) -> Iterator[Storage]:
    made = Storage.of(Settings(redis_url=network.url), None)
    yield made
    made.close()


def write(connection: Redis) -> str:
    try:
        connection.call("SET", "k", "v")
    except StorageUnavailableError as error:
        return error.message
    return ""


def identity(connection: Redis) -> int:
    """Return the number that Redis gave to the connection."""
    return done(lambda: cast("int", connection.call("CLIENT", "ID")))


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
    # Subscribers have to refresh: nobody received what was published meanwhile.
    until(lambda: None in heard)
    raw_redis.spublish("news", "x")
    until(lambda: b"x" in heard)


def test_a_lost_connection_takes_no_other_one_along(storage: Storage, raw_redis: redis.Redis) -> None:
    assert write(storage.redis) == ""
    reads = identity(storage.reads)
    raw_redis.client_kill_filter(_id=str(identity(storage.redis)))
    until(lambda: write(storage.redis) == "")
    assert identity(storage.reads) == reads


def done(act: Callable[[], T]) -> T:
    """Do it as clients do: again where Redis was away."""
    results: list[T] = []

    def attempt() -> bool:
        with contextlib.suppress(StorageUnavailableError):
            results.append(act())
        return bool(results)

    until(attempt)
    return results[0]
