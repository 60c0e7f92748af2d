"""Clients' sockets under the loop: descriptors that come back, and the end of all connections of a worker."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
from gevent import socket as gevent_socket
from gevent.event import Event

from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.handlers.registry import HANDLERS, Caller, Handler
from korvet.log.store import LogStore
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from korvet.protocol.schema import Message
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.security.session import Session
from korvet.server.net.connection import ClientConnection
from korvet.server.net.dispatch import Dispatcher
from korvet.server.net.listener import Acceptor, BoundListener, listen
from korvet.server.net.sockets import Sockets
from korvet.telemetry import metrics
from tests.support.dispatching import connected, dispatcher, opened_sockets
from tests.support.proxy import turn, until
from tests.support.wire_client import request_frame

SECONDS_MAX = 30
LARGE_BYTES = 30_000
REQUEST = DescribeClusterRequest(include_cluster_authorized_operations=False)


def serving(redis: Redis, handle: Callable[..., Message]) -> Dispatcher:
    return dispatcher(redis, {60: Handler(DescribeClusterRequest, handle, HANDLERS[60].refuse)})


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    with gevent.Timeout(SECONDS_MAX):
        yield


def correlation_id(client: Any) -> int:
    """Return the number of the request that the next answer belongs to."""
    size = int.from_bytes(client.recv(4))
    data = bytearray()
    while len(data) < size:
        data += client.recv(size - len(data))
    return int.from_bytes(data[:4])


class Held:
    """A handler whose answers wait for a gate; `begun` requests were given to it."""

    def __init__(self) -> None:
        self.begun = 0
        self.gate = Event()

    def handle(self, *_: object) -> Message:
        self.begun += 1
        self.gate.wait()
        return DescribeClusterResponse(cluster_id="")


@contextmanager
def accepting(redis: Redis, handle: Callable[..., Message]) -> Iterator[tuple[Acceptor, Any]]:
    """Give a worker's acceptor, and a client that it serves."""
    listening = listen(Address("127.0.0.1", 0))
    by = serving(redis, handle)
    bound = [BoundListener("PLAINTEXT", listening)]
    acceptor = Acceptor(bound, by, Settings())
    acceptor.start()
    with gevent_socket.create_connection(listening.getsockname()) as client:
        yield acceptor, client


def test_what_is_called_at_the_end_of_a_session_may_wait(redis: Redis) -> None:
    by = serving(redis, lambda *_: DescribeClusterResponse(cluster_id=""))
    ended: list[ClientConnection] = []
    with opened_sockets() as sockets, socket.create_server(("127.0.0.1", 0)) as server:
        client = gevent_socket.create_connection(server.getsockname())
        session = Session("peer", "PLAINTEXT")
        session.on_end(lambda: redis.node_of("any").call("PING"))
        ClientConnection(server.accept()[0].detach(), sockets, session, by, ended.append)
        client.close()
        until(lambda: len(ended) == 1)


def slow_client(sockets: Sockets, by: Dispatcher) -> Any:
    """Return the socket of a client whose answers lie in the worker until it reads them."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ClientConnection(ours.detach(), sockets, Session("peer:1"), by, lambda _: None)
    return gevent_socket.socket(fileno=theirs.detach())


def test_an_answer_is_sent_to_its_end_though_a_later_request_ends_the_connection(redis: Redis) -> None:
    by = serving(redis, lambda *_: DescribeClusterResponse(cluster_id="x" * LARGE_BYTES))
    with opened_sockets() as sockets, slow_client(sockets, by) as client:
        unknown = (8).to_bytes(4, "big") + struct.pack(">hhi", 999, 0, 2)
        client.sendall(request_frame(REQUEST, 0, 1) + unknown)
        turn(10)
        assert correlation_id(client) == 1
        assert client.recv(1) == b""


def test_what_an_answer_holds_is_released_though_answers_before_it_were_written_meanwhile(
    redis: Redis,
) -> None:
    gate = Event()

    def late(_request: Message, caller: Caller, _api: object) -> Message:
        gate.wait()
        caller.fetched.reserve(1 << 20)
        return ListGroupsResponse(groups=[])

    large = DescribeClusterResponse(cluster_id="x" * LARGE_BYTES)
    handlers = {
        60: Handler(DescribeClusterRequest, lambda *_: large, HANDLERS[60].refuse),
        16: Handler(ListGroupsRequest, late, HANDLERS[16].refuse),
    }
    by = dispatcher(redis, handlers)
    core = LogStore(redis, redis, Keys("korvet")).appends.core
    with opened_sockets(path=core) as sockets, slow_client(sockets, by) as client:
        room = core.fetch_room
        client.sendall(request_frame(REQUEST, 0, 1) + request_frame(ListGroupsRequest(), 0, 2))
        assert correlation_id(client) == 1
        turn(10)
        assert core.fetch_room == room
        gate.set()
        assert correlation_id(client) == 2
        until(lambda: core.fetch_room == room)


def test_the_end_of_one_session_keeps_no_other_waiting(redis: Redis) -> None:
    by, gate = serving(redis, lambda *_: DescribeClusterResponse(cluster_id="")), Event()
    ended: list[object] = []
    with opened_sockets() as sockets, connected(by, sockets) as (_, client):
        ours, theirs = socket.socketpair()
        session = Session("peer:2")
        session.on_end(gate.wait)
        ClientConnection(ours.detach(), sockets, session, by, ended.append)
        theirs.close()
        for number in range(3):
            client.sendall(request_frame(REQUEST, 0, number))
            assert correlation_id(client) == number
        assert not ended
        gate.set()
        until(lambda: ended)


def test_a_drain_counts_those_that_it_cuts_off(redis: Redis) -> None:
    held = Held()
    counted = metrics.CONNECTIONS_CLOSED.labels("draining")._value
    before = counted.get()
    with accepting(redis, held.handle) as (acceptor, client):
        client.sendall(request_frame(REQUEST, 0, 1))
        until(lambda: held.begun)
        acceptor.close()
        assert acceptor.drain(0.01) == 1
        assert client.recv(1) == b""
    assert counted.get() == before + 1


def test_a_drain_answers_what_has_begun_and_ends_idle_connections_at_once(redis: Redis) -> None:
    held = Held()
    with accepting(redis, held.handle) as (acceptor, client):
        idle = gevent_socket.create_connection(client.getpeername())
        client.sendall(request_frame(REQUEST, 0, 1) + request_frame(REQUEST, 0, 2))
        until(lambda: held.begun)
        acceptor.close()
        draining = gevent.spawn(acceptor.drain, SECONDS_MAX)
        with idle:
            assert idle.recv(1) == b""
        assert not draining.ready()
        held.gate.set()
        assert correlation_id(client) == 1
        assert client.recv(1) == b"", "the second is not begun any more"
        client.close()
        assert draining.get() == 0
        assert held.begun == 1
