"""Both clients over TLS: what the layer between them and the socket holds up, and what it must not lose."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import gevent
import pytest

from korvet.config.sources import with_password
from korvet.errors import OutcomeUnknownError
from korvet.redis.base_driver import TlsLink
from korvet.redis.blocking_driver import BlockingDriver, blocking_redis
from korvet.redis.client import Redis
from korvet.redis.driver import GeventDriver
from tests.support.proxy import proxy, turn, until
from tests.support.secured_redis import secured_redis

pytestmark = pytest.mark.slow

TLS = Path(__file__).parents[1] / "support" / "tls"
CERTIFICATE, KEY = TLS / "certificate.pem", TLS / "key.pem"
KEY_NAME = "korvet:topics"
LARGE = bytes(range(256)) * 80_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a server that speaks TLS alone."""
    with secured_redis(tmp_path_factory.mktemp("redis")) as secured:
        yield with_password(secured.url, str(secured.password_file))


@pytest.fixture(params=[Redis, blocking_redis])
def connection(request: pytest.FixtureRequest, url: str) -> Iterator[Redis]:
    with closing(request.param(url, timeout_ms=20_000, connect_timeout_ms=20_000)) as made:
        yield made


def socket_of(connection: Redis) -> ssl.SSLSocket:
    """Return the socket of the one connection."""
    driver = connection.driver
    assert isinstance(driver, GeventDriver | BlockingDriver)
    [link] = driver._links.values()
    tls = link if isinstance(link, TlsLink) else link.tls
    assert tls is not None
    return tls.socket


def failing_once(connection: Redis, name: str, error: type[ssl.SSLError]) -> Callable[[], bool]:
    """Let the next call of a method of the client's socket fail; returns whether it has."""
    failed: list[bool] = []
    tls = socket_of(connection)
    works = getattr(tls, name)

    def fails(*args: object) -> object:
        if not failed:
            failed.append(True)
            raise error
        return works(*args)

    setattr(tls, name, fails)
    return lambda: bool(failed)


def test_large_requests_and_replies_pass(connection: Redis) -> None:
    written, read, deleted = connection.pipeline(
        [("HSET", KEY_NAME, "f", LARGE), ("HGET", KEY_NAME, "f"), ("DEL", KEY_NAME)]
    )
    assert (written, read == LARGE, deleted) == (1, True, 1)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("recv", ssl.SSLWantWriteError),
        ("recv", ssl.SSLWantReadError),
        ("send", ssl.SSLWantWriteError),
        ("send", ssl.SSLWantReadError),
    ],
)
def test_tls_that_has_to_wait_for_the_socket_goes_on_over_the_same_connection(
    connection: Redis, name: str, error: type[ssl.SSLError]
) -> None:
    connection.call("DEL", KEY_NAME)
    has_failed = failing_once(connection, name, error)
    asked = connection.begin_pipeline([("HSET", KEY_NAME, "1", "")])
    if (name, error) == ("send", ssl.SSLWantReadError):
        # Nothing comes by itself, as it would in such a case. The next request takes it along.
        turn(3)
        assert connection.call("HSET", KEY_NAME, "2", "") == 1
    assert asked.result() == [1]
    assert has_failed()
    assert connection.nodes()[0].connections == 1


def test_a_connection_that_ends_is_made_again(connection: Redis) -> None:
    connection.call("DEL", KEY_NAME)
    for _ in range(2):
        asked = connection.begin_pipeline([("HSET", KEY_NAME, "1", "")])
        socket_of(connection).shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OutcomeUnknownError):
            asked.result()
        assert connection.call("EXISTS", KEY_NAME) in {0, 1}
    assert connection.nodes()[0].connections == 3


def test_a_full_socket_is_not_written_to_before_it_takes_more(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = 0
    send = ssl.SSLSocket.send

    def counted(tls: ssl.SSLSocket, data: bytes, flags: int = 0) -> int:
        nonlocal sends
        sends += 1
        return send(tls, data, flags)

    with proxy(redis_url, CERTIFICATE, KEY) as network:
        url = f"{network.url}?ssl_ca_certs={CERTIFICATE}"
        with closing(Redis(url, timeout_ms=20_000, connect_timeout_ms=20_000)) as connection:
            connection.call("PING")
            network.silence()
            monkeypatch.setattr(ssl.SSLSocket, "send", counted)
            large = gevent.spawn(connection.call, "SET", "k", LARGE)
            before = -1
            while before != sends:
                before = sends
                turn(20)
            small = [gevent.spawn(connection.call, "ECHO", str(number)) for number in range(100)]
            turn(20)
            assert sends == before
            network.speak()
            until(lambda: large.ready() and all(asked.ready() for asked in small))
            assert large.value == b"OK"
            assert [asked.value for asked in small] == [str(number).encode() for number in range(100)]
