"""Limits of connections: by broker, listener and address, their number and their rate, counted by all workers."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gevent
import gevent.socket
import pytest

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from korvet.redis.client import Redis
from korvet.server.net import listener
from tests.handlers.configs import BROKER, change, refused, value
from tests.handlers.quotas import described, set_quotas
from tests.support import ops, processes
from tests.support.broker import Broker, korvet_broker, steady_broker
from tests.support.dispatching import client_quotas, dispatcher
from tests.support.topic_client import Client
from tests.support.wire_client import ClosedByBrokerError, worker_of

OTHER = "127.0.0.2"
"""An address of the same machine that the tests' other connections do not come from."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with steady_broker(tmp_path_factory.mktemp("connections"), workers=2) as running:
        yield running


@contextmanager
def one_of_each_worker(broker: Broker) -> Iterator[tuple[Client, Client]]:
    """Give the only connections, one to each worker."""
    pids, found = broker.worker_pids(), dict[int, Client]()
    while len(found) < 2:
        client = Client(broker.address)
        if found.setdefault(worker_of(client, pids), client) is not client:
            client.close()
    processes.wait_until(lambda: ops.total(broker, "korvet_connections") == 2, "the end of all others")
    one, other = found.values()
    with one, other:
        yield one, other


@pytest.fixture
def admins(broker: Broker) -> Iterator[tuple[Client, Client]]:
    with one_of_each_worker(broker) as clients:
        yield clients


@pytest.fixture
def limit(admins: tuple[Client, Client]) -> Iterator[Callable[[str, str], None]]:
    """Give a function that sets a limit in both workers, until the test ends."""
    one, other = admins
    given: dict[str, str | None] = {}

    def set_in_both(name: str, wanted: str) -> None:
        given[name] = None
        change(one, BROKER, "0", {name: wanted})
        processes.wait_until(lambda: value(other, BROKER, "0", name) == wanted, f"{name} in both workers")

    yield set_in_both
    change(one, BROKER, "0", given)


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[..., Client]]:
    """Give a function that connects, from an address, and sends a request."""
    with ExitStack() as opened:

        def connected(source: str = "127.0.0.1", to: tuple[str, int] = broker.address) -> Client:
            plain = socket.create_connection(to, 30, source_address=(source, 0))
            client = opened.enter_context(Client(plain))
            client.send(ApiVersionsRequest(), 0)
            return client

        yield connected


def is_served(client: Client) -> bool:
    try:
        return bool(client.receive(ApiVersionsResponse, 0).api_keys)
    except (ClosedByBrokerError, ConnectionResetError):
        return False


def test_all_workers_together_have_as_many_connections_as_the_broker_may(
    broker: Broker, limit: Callable[[str, str], None], connect: Callable[..., Client]
) -> None:
    limit("max.connections", "6")
    served = [connect() for _ in range(4)]
    assert all(map(is_served, served))
    waiting = [connect() for _ in range(4)]
    assert all(each.is_silent(0.2) for each in waiting)
    for each in served:
        each.close()
    assert all(map(is_served, waiting))
    assert ops.samples(broker, "korvet_accept_wait_seconds_total").keys() >= {("connections",)}


def test_the_connections_of_a_killed_worker_count_no_more(
    tmp_path: Path, connect: Callable[..., Client]
) -> None:
    def finds_room(at: Broker) -> bool:
        client = connect(to=at.address)
        if client.is_silent(1):
            client.close()
            return False
        return is_served(client)

    with (
        korvet_broker(tmp_path, "--set", "max.connections=4", workers=2) as running,
        one_of_each_worker(running) as (one, _),
    ):
        assert finds_room(running)
        assert finds_room(running)
        assert not finds_room(running)
        processes.kill(worker_of(one, running.worker_pids()), signal.SIGKILL)
        processes.wait_until(lambda: finds_room(running), "room where the killed worker had connections")


def test_a_listener_has_a_limit_of_its_own(tmp_path: Path, connect: Callable[..., Client]) -> None:
    listen = (
        *("--set", "listeners=INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0"),
        *("--set", "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"),
        *("--set", "listener.name.outside.max.connections=1"),
    )
    with korvet_broker(tmp_path, workers=2, listen=listen) as broker:
        first = connect(to=broker.at("OUTSIDE"))
        assert is_served(first)
        second = connect(to=broker.at("OUTSIDE"))
        assert second.is_silent()
        assert all(is_served(connect(to=broker.at("INSIDE"))) for _ in range(3))
        first.close()
        assert is_served(second)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("max.connections.per.ip", "3"), ("max.connections.per.ip.overrides", f"10.0.0.1:9,{OTHER}:3")],
)
def test_connections_of_an_address_beyond_its_limit_are_closed(
    broker: Broker, limit: Callable[[str, str], None], connect: Callable[..., Client], name: str, wanted: str
) -> None:
    limit(name, wanted)
    refused = ops.samples(broker, "korvet_connections_refused_total").get(("address_connections",), 0)
    first, *others = [connect(OTHER) for _ in range(3)]
    assert all(map(is_served, (first, *others)))
    assert not any(is_served(connect(OTHER)) for _ in range(2))
    if "overrides" in name:
        assert all(is_served(connect()) for _ in range(4))
    first.close()
    processes.wait_until(lambda: is_served(connect(OTHER)), "room for another connection")
    processes.wait_until(
        lambda: (
            ops.samples(broker, "korvet_connections_refused_total")[("address_connections",)] >= refused + 2
        ),
        "the refused connections are counted",
    )


@pytest.mark.parametrize("entity", [OTHER, None])
def test_connections_that_an_address_makes_too_fast_are_closed(
    broker: Broker, admins: tuple[Client, Client], connect: Callable[..., Client], entity: str | None
) -> None:
    one, other = admins
    of = (("ip", entity),)
    try:
        set_quotas(one, of, connection_creation_rate=1)
        assert described(other)[of] == {"connection_creation_rate": 1}
        source = OTHER if entity else "127.0.0.3"
        served = sum(map(is_served, [connect(source) for _ in range(16)]))
        # One a second over ten seconds and the present one, however slowly they were made.
        assert served >= 10
        assert served < 16
        set_quotas(one, (("ip", "127.0.0.4"),), connection_creation_rate=0)
        assert described(other)[("ip", "127.0.0.4"),] == {"connection_creation_rate": 0}
        begun = time.monotonic()
        assert not is_served(connect("127.0.0.4"))
        # It is not closed before a window has passed, so that the client does not come again at once.
        assert time.monotonic() - begun >= 1
    finally:
        set_quotas(one, of, connection_creation_rate=None)
        set_quotas(one, (("ip", "127.0.0.4"),), connection_creation_rate=None)


def test_new_connections_of_a_broker_that_come_too_fast_wait(
    broker: Broker, limit: Callable[[str, str], None], connect: Callable[..., Client]
) -> None:
    limit("max.connection.creation.rate", "2")
    begun = time.monotonic()
    assert all(is_served(connect()) for _ in range(24))
    waited = ops.samples(broker, "korvet_accept_wait_seconds_total").get(("rate",), 0)
    # Those that came within ten seconds and the present one are too many by four.
    assert waited > 0 or time.monotonic() - begun > 10


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "10.0.0.1:-1", "10.0.0.1:x", "broker.example:5", "10.0.0.1:1,10.0.0.1:2"]
)
def test_overrides_that_mean_nothing_are_refused(admins: tuple[Client, Client], text: str) -> None:
    code, said = refused(admins[0], BROKER, "0", {"max.connections.per.ip.overrides": text})
    assert code == ErrorCode.INVALID_REQUEST
    assert "ADDRESS:COUNT, comma-separated" in said


class FullSocket(gevent.socket.socket):
    """A listening socket of a process that has no descriptor left."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0

    def accept(self) -> Any:
        self.attempts += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_process_without_descriptors_tries_again_and_says_so_once(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "PAUSE_SECONDS", 0.001)
    with FullSocket() as full:
        bound = listener.BoundListener("PLAINTEXT", full)
        acceptor = listener.Acceptor([bound], dispatcher(redis, {}, []), Settings(), client_quotas(redis))
        acceptor.start()
        while full.attempts < 10:
            gevent.sleep(0.001)
        acceptor.close()
    [line] = [vars(each)["korvet_fields"] for each in caplog.records if "cannot accept" in each.getMessage()]
    assert line == {"listener": "PLAINTEXT", "reason": "[Errno 24] Too many open files"}
