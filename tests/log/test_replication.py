"""Waiting for replicas, against a real master with a real replica."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
import redis

from korvet.errors import ErrorCode, KafkaError
from korvet.log import replication
from korvet.log.replication import COMMAND_MS_MAX, WAIT_SHARE, Replicas
from korvet.log.types import Appended
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import insync_of
from korvet.redis.slots import tag_of
from tests.support import redis_servers
from tests.support.commands import commands_of
from tests.support.processes import free_port, wait_until
from tests.support.proxy import proxy, until
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_cluster import redis_cluster as started_cluster
from tests.support.redis_servers import RedisServer

pytestmark = pytest.mark.slow

KEYS = Keys("korvet")
TIMEOUT_MS = 1500
LONG_MS = 20_000
"""For what is to be confirmed, on a machine however busy."""


@pytest.fixture(scope="module")
def master() -> Iterator[RedisServer]:
    with redis_servers.master() as made:
        yield made


@pytest.fixture
def replica(master: RedisServer) -> Iterator[Any]:
    """Give a client of a replica that has caught up with the master."""
    with master.replica() as client:
        yield client


def connected(url: str) -> Redis:
    return Redis(url, timeout_ms=TIMEOUT_MS, connect_timeout_ms=TIMEOUT_MS)


class Writer:
    """Writes over one connection, and has it confirmed over another."""

    def __init__(self, url: str, replicas: int, confirmed_by: str = "", timeout_ms: int = TIMEOUT_MS) -> None:
        self._redis = connected(url)
        self._replicas = Replicas(
            lambda: connected(confirmed_by or url),
            self._redis,
            KEYS,
            replicas=replicas,
            timeout_ms=timeout_ms,
        )

    def write(self, value: str = "x", replicas: int = 0) -> bool:
        [confirmed] = self.write_all(value, replicas)
        return confirmed

    def write_all(self, value: str, *replicas: int) -> list[bool]:
        """Write, and return for each number of replicas whether it is confirmed."""
        self._redis.call("SET", "written", value)
        [node] = self._redis.nodes()
        done = Appended(0, 0, duplicate=False, history=node.history, node=node.name)
        appended = [done._replace(replicas=item) for item in replicas]
        refused = KafkaError(ErrorCode.INVALID_RECORD, "of no interest to replicas")
        *outcomes, other = self._replicas.confirm([*appended, refused])
        assert other is refused
        codes = {item.code for item in outcomes if isinstance(item, KafkaError)}
        assert codes <= {ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
        return [outcome is item for outcome, item in zip(outcomes, appended, strict=True)]

    def change(self) -> None:
        """Make a change of topics, which is confirmed."""
        keys = (KEYS.keeper_lease, KEYS.keeper_fence)
        self._replicas.confirm_call(
            lambda: self._redis.script(scripts.get("keeper/lease"), keys, ("x", 10_000)),
            ErrorCode.REQUEST_TIMED_OUT,
        )

    def lose_connection(self) -> None:
        """Let the next call open another one."""
        self._redis.reconnect("lost")


def test_what_a_replica_has_is_confirmed(master: RedisServer, replica: Any) -> None:
    writer = Writer(master.url, 1, timeout_ms=LONG_MS)
    for n in range(20):
        assert writer.write(str(n))
        assert replica.get("written") == str(n).encode()


def test_a_node_whose_first_slot_moves_away_confirms_on(redis_cluster: RedisCluster) -> None:
    clients = [
        Redis(redis_cluster.url, timeout_ms=LONG_MS, connect_timeout_ms=LONG_MS) for _ in ("writes", "waits")
    ]
    replicas = Replicas(lambda: clients[1], clients[0], KEYS, replicas=0, timeout_ms=LONG_MS)
    node = clients[0].node_of(f"{{{tag_of(0)}}}")
    of = replicas.of(node)
    assert of.wait(of.begin(0)).confirms(node.connect(), 0)
    # Nothing else is in these slots, so nothing but the mark finds out.
    for slot in range(3):
        redis_cluster.move_slot(slot, next(item for item in redis_cluster.nodes if item.address != node.name))
        assert of.wait(of.begin(0)).confirms(node.history, 0)
    for client in clients:
        client.close()


def test_a_node_confirms_on_while_its_first_slot_is_on_its_way() -> None:
    with started_cluster(masters=2) as cluster:
        client = Redis(cluster.url, timeout_ms=LONG_MS, connect_timeout_ms=LONG_MS)
        waits = Redis(cluster.url, timeout_ms=LONG_MS, connect_timeout_ms=LONG_MS)
        replicas = Replicas(lambda: waits, client, KEYS, replicas=0, timeout_ms=LONG_MS)
        node = client.node_of(f"{{{tag_of(0)}}}")
        of = replicas.of(node)
        assert of.wait(of.begin(0)).confirms(node.connect(), 0)
        [to] = [item for item in cluster.nodes if item.address != node.name]
        source = cluster.begin_move(0, to)
        cluster.move_keys(source, to, source.call("CLUSTER", "GETKEYSINSLOT", 0, 10))
        for _ in range(2):
            assert of.wait(of.begin(0)).confirms(node.history, 0)
        waits.close()
        client.close()


def test_what_was_refused_asks_nobody() -> None:
    client = Redis("unix:///nowhere", timeout_ms=TIMEOUT_MS, connect_timeout_ms=TIMEOUT_MS)
    refused = KafkaError(ErrorCode.INVALID_RECORD, "")
    assert Replicas(lambda: client, client, KEYS, replicas=1, timeout_ms=TIMEOUT_MS).confirm([refused]) == [
        refused
    ]


def test_many_that_wait_at_once_share_rounds(master: RedisServer, replica: Any) -> None:
    assert replica.ping()
    writer = Writer(master.url, 1, timeout_ms=LONG_MS)
    with commands_of(master.client) as ran:
        greenlets = [gevent.spawn(writer.write) for _ in range(200)]
        gevent.joinall(greenlets)
    assert all(greenlet.value for greenlet in greenlets)
    assert ran["wait"] < 100


def test_more_replicas_than_there_are_are_not_confirmed(master: RedisServer, replica: Any) -> None:
    assert replica.ping()
    assert not Writer(master.url, 2).write()


def test_a_long_wait_takes_several_commands(master: RedisServer) -> None:
    """One WAIT for all the time would hold up later ones as long."""
    with commands_of(master.client) as ran:
        assert not Writer(master.url, 1).write()
    assert ran["wait"] >= 2


def test_a_replica_that_always_lags_by_more_than_a_wait_takes_confirms(
    master: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "COMMAND_MS_MAX", 100)
    with proxy(f"redis://127.0.0.1:{master.port}") as slow:
        slow.delay_s = 0.06  # there, and back again
        with redis_servers.embedded_server("--replicaof", "127.0.0.1", str(slow.port)) as url:
            client = redis.Redis.from_url(url)
            until(lambda: client.info("replication")["master_link_status"] == "up")
            writer = Writer(master.url, 1, timeout_ms=LONG_MS)
            others = gevent.spawn(lambda: [writer.write() for _ in range(3)])
            for n in range(3):
                assert writer.write(str(n))
                assert client.get("written") is not None
            others.get()
            client.close()


def test_numbers_of_replicas_are_waited_for_at_the_same_time(master: RedisServer) -> None:
    """A request has one timeout, however many its topics want."""
    with commands_of(master.client) as ran:
        assert not any(Writer(master.url, 0).write_all("x", 1, 2, 3))
    assert ran["wait"] <= 3 * math.ceil(TIMEOUT_MS * WAIT_SHARE / COMMAND_MS_MAX)


def test_what_needs_few_replicas_does_not_wait_for_what_needs_more(master: RedisServer, replica: Any) -> None:
    assert replica.ping()
    writer = Writer(master.url, 0, timeout_ms=600_000)
    more = gevent.spawn(writer.write, "more", replicas=2)
    assert writer.write("few", replicas=1)
    assert not more.ready()
    more.kill()


def test_the_first_change_over_another_connection_is_confirmed(master: RedisServer, replica: Any) -> None:
    assert replica.ping()
    writer = Writer(master.url, 1)
    writer.change()
    master.client.execute_command("DEBUG", "CHANGE-REPL-ID")  # as a failover while the connection is lost
    writer.lose_connection()
    writer.change()


def test_a_redis_that_is_away_confirms_nothing_and_does_so_again_when_it_is_back(master: RedisServer) -> None:
    assert not Writer(master.url, 1, confirmed_by="unix:///nowhere").write()
    writer = Writer(master.url, 1)
    assert not writer.write()
    with master.replica():
        assert writer.write()


def test_another_master_confirms_nothing_that_it_was_not_sent(master: RedisServer, replica: Any) -> None:
    """The connection that waits is the first to follow a failover."""
    with redis_servers.embedded_server() as former:
        assert not Writer(former, 1, confirmed_by=master.url).write()


def test_a_master_that_was_a_replica_in_between_confirms_nothing(master: RedisServer, replica: Any) -> None:
    """It has lost what the other master did not have, and its connections stay open all the while."""
    writer = Writer(master.url, 1)
    assert writer.write()
    with redis_servers.embedded_server("--port", str(port := free_port()), "--bind", "127.0.0.1"):
        master.client.execute_command("REPLICAOF", "127.0.0.1", str(port))
        wait_until(
            lambda: master.client.info("replication")["master_link_status"] == "up", "it follows another"
        )
        master.client.execute_command("REPLICAOF", "NO", "ONE")
    wait_until(lambda: replica.info("replication")["master_link_status"] == "up", "a replica in step")
    assert not writer.write()
    assert writer.write()


@pytest.mark.parametrize(
    ("line", "in_sync"),
    [
        ("ip=::1,port=1,state=online,offset=1,lag=1", 2),
        ("ip=::1,port=1,state=online,offset=1,lag=10", 2),
        ("ip=::1,port=1,state=online,offset=1,lag=11", 1),
        ("ip=::1,port=1,state=wait_bgsave,offset=0,lag=0", 1),
        ("ip=::1,port=1,state=online,offset=1", 1),
        ("ip=::1,port=1,offset=1,lag=1", 1),
        ("ip=::1,port=1,state=online,lag=-1", 2),
        ("ip=::1,port=1,state=online,lag=x", 1),
        ("ip=::1,port=1,state=online,lag=-2", 1),
        ("ip=::1,port", 1),
        ("", 1),
    ],
)
def test_a_replica_that_does_not_say_that_it_is_in_sync_is_not(line: str, in_sync: int) -> None:
    assert insync_of(f"role:master\r\nslave0:{line}\r\n".encode()) == in_sync
