"""The master that Sentinels name: found, verified, and followed by connections that write, read or listen."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from korvet.config.settings import Settings
from korvet.doctor.sentinels import examine
from korvet.errors import StorageUnavailableError
from korvet.redis.blocking import connected
from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions
from korvet.redis.url import parse_url
from korvet.server.supervisor import redis_check
from tests.support.processes import free_port
from tests.support.proxy import proxy, until
from tests.support.sentinels import MASTER, Sentinel, Watched, watched

pytestmark = pytest.mark.slow

Connect = Callable[[str], Redis]
TLS = Path(__file__).parents[1] / "support/tls"


@pytest.fixture(scope="module")
def setup() -> Iterator[Watched]:
    """Give a master, two replicas and three Sentinels."""
    with watched() as made:
        yield made


@pytest.fixture
def connect() -> Iterator[Connect]:
    made: list[Redis] = []

    def connected(url: str) -> Redis:
        made.append(Redis(url, timeout_ms=10_000, connect_timeout_ms=4000))
        return made[-1]

    yield connected
    for one in made:
        one.close()


def port_of(redis: Redis) -> int:
    """Return the port of the server that a connection leads to; it only reads."""
    reply: Any = redis.call("CONFIG", "GET", "port")
    return int(reply[1])


@contextlib.contextmanager
def stale(setup: Watched) -> Iterator[Sentinel]:
    """Run a Sentinel that names a replica as the master, and cannot hear the others, which know better."""
    replica = setup.replicas()[0]
    replica.client.execute_command("ACL SETUSER deaf on >deaf -@all +ping +info")
    deaf = (f"sentinel auth-user {MASTER} deaf", f"sentinel auth-pass {MASTER} deaf")
    with contextlib.closing(Sentinel(replica.port, *deaf, down_ms=600_000)) as made:
        yield made
    replica.client.execute_command("ACL DELUSER deaf")


def test_a_failover_is_noticed_by_connections_that_only_read_or_listen(
    setup: Watched, connect: Connect
) -> None:
    heard: list[bytes | None] = []
    reads, writes = connect(setup.url), connect(setup.url)
    subscriptions = Subscriptions(reads, linger_ms=1000)
    subscriptions.listen("channel", heard.append)
    old = setup.master()
    # The old master stays one for itself: nobody but Sentinels says that it is none.
    old.client.execute_command("ACL SETUSER default -replicaof -slaveof -client|kill")
    assert port_of(reads) == port_of(writes) == old.port
    setup.sentinels[0].client.execute_command("SENTINEL", "FAILOVER", MASTER)
    until(lambda: setup.master() is not old)
    until(lambda: None in heard)
    assert old.client.info("replication")["role"] == "master"
    new = setup.master()
    assert port_of(reads) == port_of(writes) == new.port
    new.client.spublish("channel", b"news")
    until(lambda: b"news" in heard)
    subscriptions.close()
    old.client.execute_command("ACL SETUSER default +@all")
    until(old.in_step)


def test_a_connection_stays_where_a_stale_sentinel_would_have_it_leave(
    setup: Watched, connect: Connect
) -> None:
    """All follow the Sentinel that answers first: here the stale one, after all others died."""
    living = Sentinel(setup.master().port)
    with stale(setup) as liar:
        redis = connect(setup.url_by(living.address, liar.address))
        port = port_of(redis)
        before = redis.nodes()[0].connections
        living.close()
        until(lambda: len(liar.client.client_list(_type="pubsub")) == 1)
        gevent.sleep(0.2)
        assert (port_of(redis), redis.nodes()[0].connections) == (port, before)


def test_sentinels_that_are_dead_or_hang_are_passed_over(setup: Watched, connect: Connect) -> None:
    hanging = Sentinel(setup.master().port)
    hanging.freeze()
    redis = connect(setup.url_by(f"127.0.0.1:{free_port()}", hanging.address, setup.sentinels[0].address))
    assert port_of(redis) == setup.master().port
    hanging.close()


def test_an_unknown_name_is_an_error_that_says_so(setup: Watched, connect: Connect) -> None:
    redis = connect(f"redis+sentinel://{setup.sentinels[0].address}/other")
    with pytest.raises(StorageUnavailableError, match="knows no master other"):
        redis.call("PING")


def test_servers_and_sentinels_have_passwords_of_their_own(connect: Connect) -> None:
    with watched(replicas=1, sentinels=1, password="records", sentinel_password="names") as setup:
        address = setup.sentinels[0].address
        assert (
            port_of(connect(setup.url_by(address, query="?sentinel_password=names"))) == setup.master().port
        )
        for query in ("", "?sentinel_password=w0rds"):
            with pytest.raises(StorageUnavailableError) as caught:
                connect(setup.url_by(address, query=query)).call("PING")
            assert "w0rds" not in caught.value.message


def test_the_documented_permissions_at_sentinels_suffice(setup: Watched, connect: Connect) -> None:
    text = (Path(__file__).parents[2] / "docs/redis.md").read_text(encoding="utf-8")
    [rules, doctor] = re.findall(r"`([^`]*sentinel\|[^`]*)`", text)
    with contextlib.closing(Sentinel(setup.master().port)) as sentinel:
        sentinel.client.execute_command(f"ACL SETUSER korvet on >names -@all {rules}")
        query = "?sentinel_username=korvet&sentinel_password=names"
        url = setup.url_by(sentinel.address, query=query)
        redis = connect(url)
        assert port_of(redis) == setup.master().port
        until(lambda: len(sentinel.client.client_list(_type="pubsub")) == 1)
        redis_check.check_kind(Settings(redis_url=url))
        with connected(Settings(redis_url=url)) as masters:
            assert masters.of("any").ping()
        assert any("no permissions" in finding.said for finding in examine(parse_url(url), Settings()))
        sentinel.client.execute_command(f"ACL SETUSER korvet {doctor}")
        assert not any("no permissions" in finding.said for finding in examine(parse_url(url), Settings()))


def test_sentinels_and_the_master_are_reached_by_tls(setup: Watched, connect: Connect) -> None:
    certificate = {"certfile": TLS / "certificate.pem", "keyfile": TLS / "key.pem"}
    with (
        proxy(f"redis://{setup.master().address}", **certificate) as master,
        # It cannot speak TLS and takes the master for dead, but names it all the same.
        contextlib.closing(Sentinel(master.port)) as sentinel,
        proxy(f"redis://{sentinel.address}", **certificate) as asked,
    ):
        url = f"rediss+sentinel://127.0.0.1:{asked.port}/{MASTER}?ssl_ca_certs={TLS}/certificate.pem"
        assert port_of(connect(url)) == setup.master().port
        with pytest.raises(StorageUnavailableError, match="certificate"):
            connect(f"{url}&sentinel_ssl_check_hostname=true").call("PING")

        def ping() -> Any:
            with connected(Settings(redis_url=url)) as masters:
                return masters.of("any").ping()

        assert gevent.get_hub().threadpool.apply(ping)
