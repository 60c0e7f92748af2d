"""A Redis that was the master and is a replica by now: a worker leaves it with all of its connections."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

import pytest
import redis

from korvet.config.settings import Settings
from korvet.errors import StorageUnavailableError
from korvet.groups.offsets import Commit, Committer, OffsetStore
from korvet.protocol.types import TopicPartition
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.server.worker import Storage
from korvet.topics.registry import TopicSpec, id_text
from korvet.topics.store import TopicStore
from tests.groups.support import Group
from tests.support.batches import read
from tests.support.domain import Domain, domain
from tests.support.processes import free_port
from tests.support.proxy import Proxy, proxy, until
from tests.support.redis_servers import embedded_server

T = TypeVar("T")


@pytest.fixture
def storage(network: Proxy) -> Iterator[Storage]:
    made = Storage.of(Settings(redis_url=network.url), None)
    yield made
    made.close()


def write(connection: Redis) -> str:
    """Write; returns why that was not done, nothing where it was."""
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


def test_callers_get_an_error_if_the_connection_leaves_a_replica(
    network: Proxy, raw_redis: redis.Redis
) -> None:
    moves: list[int] = []
    connection = Redis(network.url, timeout_ms=60_000, connect_timeout_ms=60_000)
    connection.on_failover(lambda: moves.append(network.connections))
    assert write(connection) == ""
    network.cut()
    until(lambda: write(connection) == "")
    assert moves == []
    raw_redis.replicaof("127.0.0.1", "1")
    try:
        until(lambda: bool(write(connection)) and network.connections > 2)
    finally:
        raw_redis.replicaof("NO", "ONE")
    until(lambda: write(connection) == "")
    assert moves[0] > 2
    connection.close()


def test_a_lost_connection_takes_no_other_one_along(storage: Storage, raw_redis: redis.Redis) -> None:
    assert write(storage.redis) == ""
    reads = identity(storage.reads)
    raw_redis.client_kill_filter(_id=str(identity(storage.redis)))
    until(lambda: write(storage.redis) == "")
    assert identity(storage.reads) == reads


def test_topics_are_reloaded_from_a_redis_that_lost_the_last_changes(
    network: Proxy, redis_url: str, raw_redis: redis.Redis
) -> None:
    with domain(network.url) as here, domain(redis_url) as there:
        here.topics.create(TopicSpec(name="lost", partitions=1))
        here.topics.refresh()
        network.cut()
        # As a replica that had nothing of it and was promoted: another topic is the first change there.
        raw_redis.flushall()
        there.topics.create(TopicSpec(name="kept", partitions=1))
        until(lambda: _names(here) == ["kept"])


class Pair(NamedTuple):
    """A master, its replica, and the name that leads to the master."""

    master: Any
    replica: Any
    replica_url: str
    name: Proxy

    def fail_over(self) -> None:
        """Let the replica take over with all that the master has, and the name lead to it."""
        self.master.execute_command("FAILOVER")
        until(lambda: self.replica.info("replication")["role"] == "master")
        self.name.lead_to(self.replica_url)


@pytest.fixture
def pair() -> Iterator[Pair]:
    port, second_port = str(free_port()), str(free_port())
    local = ("--bind", "127.0.0.1")
    with (
        embedded_server("--port", port, *local) as master,
        # A master hands over to a replica that it could connect to.
        embedded_server("--port", second_port, *local, "--replicaof", "127.0.0.1", port) as replica,
        proxy(master) as name,
        redis.Redis.from_url(master) as first,
        redis.Redis.from_url(replica) as second,
    ):
        until(lambda: second.info("replication")["master_link_status"] == "up")
        yield Pair(first, second, replica, name)


def done(act: Callable[[], T]) -> T:
    """Do it as clients do: again where Redis was away."""
    results: list[T] = []

    def attempt() -> bool:
        with contextlib.suppress(StorageUnavailableError):
            results.append(act())
        return bool(results)

    until(attempt)
    return results[0]


def test_a_deletion_and_a_group_go_on_where_a_replica_takes_over(pair: Pair) -> None:
    with domain(pair.name.url) as worker:
        store = TopicStore(worker.redis, Keys("korvet"))
        worker.topics.create(TopicSpec(name="kept", partitions=1))
        wide = worker.topics.create(TopicSpec(name="wide", partitions=600))
        for partition in (0, 300, 599):
            worker.append("wide", b"old", partition=partition)
        offset = worker.append("kept", b"a")
        group = Group(worker.redis, pair.master)
        generation = group.stable("one", "two")
        offsets = OffsetStore(worker.redis, Keys("korvet"), mirror=True)
        by = Committer(group.name, generation, "one")
        kept = worker.topics.get("kept").partition(0)
        assert offsets.commit(by, [Commit(kept, offset, -1, "")]) == [None]

        steps = store.deletion.delete("wide", id_text(wide.id))
        for _ in range(2):
            next(steps)
        pair.fail_over()

        done(lambda: group.heartbeat("one", generation))
        assert done(lambda: offsets.commit(by, [Commit(kept, offset + 1, -1, "")])) == [None]
        [committed] = done(lambda: offsets.fetch(group.name, [TopicPartition("kept", 0)]))
        assert committed is not None
        assert committed.offset == offset + 1
        group.waits(new="three")
        group.waits("two")
        assert group.joined("one").generation == generation + 1

        done(worker.topics.refresh)
        [unfinished] = worker.topics.list_deleting()
        for _ in worker.topics.delete_in_steps(unfinished):
            pass
        assert pair.replica.keys("*wide*") == []
        worker.topics.create(TopicSpec(name="wide", partitions=600))
        worker.append("wide", b"new", partition=300)
        wanted = worker.wanted("wide", 300), worker.wanted("kept")
        found = done(lambda: worker.fetch(*wanted))
        values = [record.value for each in found for record in read(b"".join(each.chunks))]
        assert values == [b"new", b"a"]


def _names(here: Domain) -> list[str]:
    try:
        return [topic.name for topic in here.topics.list_all()]
    except StorageUnavailableError:
        return []
