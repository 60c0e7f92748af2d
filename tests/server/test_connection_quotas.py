"""Limits of connections: by broker, listener and address, their number and their rate, counted by all workers."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from korvet.redis.client import Redis
from korvet.server.net import listener
from korvet.telemetry import metrics
from tests.handlers.configs import BROKER, change, value
from tests.support import ops, processes
from tests.support.broker import Broker, korvet_broker, steady_broker
from tests.support.dispatching import client_quotas, dispatcher
from tests.support.topic_client import Client
from tests.support.virtual_clock import VirtualClock
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
    pids, result = broker.worker_pids(), dict[int, Client]()
    while len(result) < 2:
        client = Client(broker.address)
        if result.setdefault(worker_of(client, pids), client) is not client:
            client.close()
    processes.wait_until(lambda: ops.total(broker, "korvet_connections") == 2, "the end of all others")
    one, other = result.values()
    with one, other:
        yield one, other


@pytest.fixture
def admins(broker: Broker) -> Iterator[tuple[Client, Client]]:
    with one_of_each_worker(broker) as clients:
        yield clients


@pytest.fixture
def limit(admins: tuple[Client, Client]) -> Iterator[Callable[[str, str], None]]:
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


@pytest.mark.slow
def test_all_workers_together_have_as_many_connections_as_the_broker_may(
    broker: Broker, limit: Callable[[str, str], None], connect: Callable[..., Client]
) -> None:
    limit("max.connections", "6")
    served = [connect() for _ in range(4)]
    assert all(map(is_served, served))
    waiting = [connect() for _ in range(4)]
    assert all(waiter.is_silent(0.2) for waiter in waiting)
    assert broker.log().count("no room for another connection") in (1, 2), "one line of each worker"
    for item in served:
        item.close()
    assert all(map(is_served, waiting))
    assert ops.samples(broker, "korvet_accept_wait_seconds_total").keys() >= {("connections",)}


@pytest.mark.slow
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


@pytest.mark.slow
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
        processes.wait_until(
            lambda: ops.samples(broker, "korvet_connections") == {("INSIDE",): 3, ("OUTSIDE",): 1},
            "they are counted by listener",
        )
        first.close()
        assert is_served(second)


@pytest.mark.slow
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


class Accepting:
    """A listener on a clock of the test's own, and who has connected to it."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.clock = VirtualClock()
        self.quotas = client_quotas(redis, self.clock)
        self._socket = listener.listen(Address("127.0.0.1", 0))
        bound = listener.BoundListener("PLAINTEXT", self._socket)
        self.acceptor = listener.Acceptor(
            [bound], dispatcher(redis, {}, self.quotas), settings, clock=self.clock
        )
        self.clients: list[socket.socket] = []

    def connect(self, source: str = "127.0.0.1") -> None:
        address = self._socket.getsockname()
        client = socket.create_connection(address, 30, source_address=(source, 0))
        client.settimeout(0)
        self.clients.append(client)

    def served(self) -> int:
        return self.quotas.usage.connections()

    def closed(self) -> int:
        """Return to how many of the clients the listener has closed the connection."""
        return sum(map(is_closed, self.clients))


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


@contextmanager
def accepting(redis: Redis, **settings: Any) -> Iterator[Accepting]:
    made = Accepting(redis, Settings(**settings))
    made.acceptor.start()
    try:
        yield made
    finally:
        for client in made.clients:
            client.close()
        made.acceptor.close()
        made.acceptor.drain(60)


@pytest.mark.parametrize("entity", [OTHER, None])
def test_connections_that_an_address_makes_too_fast_are_closed_after_a_window(
    redis: Redis, entity: str | None
) -> None:
    counted = metrics.CONNECTIONS_REFUSED.labels("address_rate")._value
    refused = counted.get()
    with accepting(redis) as broker:
        broker.quotas.alter((("ip", entity),), {"connection_creation_rate": 1})
        for _ in range(16):
            broker.connect(OTHER)
        broker.clock.run_until(lambda: broker.served() + counted.get() - refused == 16)
        assert broker.served() == 10, "one a second over ten seconds"
        broker.quotas.alter((("ip", "127.0.0.4"),), {"connection_creation_rate": 0})
        broker.connect("127.0.0.4")
        broker.clock.run_until(lambda: counted.get() == refused + 7)
        # They are not closed before a window has passed, so that the client does not come again at once.
        broker.clock.jump(0.9)
        assert broker.closed() == 0
        broker.clock.jump(0.1)
        broker.clock.run_until(lambda: broker.closed() == 7)


def test_new_connections_of_a_broker_that_come_too_fast_wait(redis: Redis) -> None:
    waited = metrics.ACCEPT_WAIT_SECONDS.labels("rate")._value
    waits = [waited.get()]
    with accepting(redis, max_connection_creation_rate=2) as broker:
        for _ in range(24):
            broker.connect()
        # Two a second over ten seconds. How long the next one waits depends on the time when it is counted, so that
        # time moves on only while it waits.
        for served in range(20, 24):
            broker.clock.run_until(lambda: waited.get() > waits[-1])
            assert broker.served() == served
            waits.append(waited.get())
            broker.clock.jump(waits[-1] - waits[-2] + 0.001)
        broker.clock.run_until(lambda: broker.served() == 24)
        assert broker.closed() == 0


def test_connections_have_the_options_of_their_listener() -> None:
    """So a worker need not set them on each."""
    with listener.listen(Address("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname(), 30):
            processes.wait_until(lambda: select.select([listening], [], [], 0)[0], "the connection")
            accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


class FullSocket(socket.socket):
    """A listening socket of a process that has no descriptor left."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0

    def _accept(self) -> Any:
        self.attempts += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_process_without_descriptors_tries_again_and_says_so_once(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    with FullSocket() as full:
        bound = listener.BoundListener("PLAINTEXT", full)
        acceptor = listener.Acceptor([bound], dispatcher(redis, {}), Settings(), clock=clock)
        acceptor.start()
        for attempts in range(1, 10):
            clock.run_until_idle()
            assert full.attempts == attempts
            clock.advance(listener.PAUSE_SECONDS)
        acceptor.close()
    [line] = [
        vars(record)["korvet_fields"] for record in caplog.records if "cannot accept" in record.getMessage()
    ]
    assert line == {"listener": "PLAINTEXT", "reason": "[Errno 24] Too many open files"}
