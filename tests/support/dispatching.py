"""Requests served in the test's own process: by a worker's dispatcher, or by a connection over a pair of sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gevent
from gevent import socket as gevent_socket
from korvet_core import DataPath

from korvet.clock import CLOCK, Clock
from korvet.config.listeners import DEFAULT_LISTENER
from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.handlers.registry import Handler, Services
from korvet.log.replication import Replicas
from korvet.protocol.frame import SIZE_BYTES
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.produce import ProduceRequest
from korvet.protocol.schema import Message
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.security.client_quotas import ClientQuotas
from korvet.security.quotas import QuotaStore
from korvet.security.sasl import Authenticator
from korvet.security.session import Session
from korvet.security.tls import ListenerTls
from korvet.security.usage import UsageTable
from korvet.server.net.budget import Frame
from korvet.server.net.connection import ClientConnection
from korvet.server.net.dispatch import Dispatcher
from korvet.server.net.sockets import Sockets
from korvet.server.services import Storage, build_services
from korvet.server.serving_lease import ServingLease
from korvet.server.supervisor.ports import Bound
from korvet.turns import SHORTEST_SECONDS
from tests.support.wire_client import RESPONSES, WireClient, decode_response, request_frame

TIMEOUT_MS = 60_000


@dataclass
class Present:
    """A client that waits for its answers, over no connection."""

    session: Session
    sasl: Authenticator | None = None

    def is_gone(self) -> bool:
        return False


def dispatcher(
    redis: Redis,
    handlers: Mapping[int, Handler],
    quotas: ClientQuotas | None = None,
    lease: ServingLease | None = None,
) -> Dispatcher:
    """Return a dispatcher of handlers that call no services, of a worker without replicas, whose lease is long.

    Its requests are all served in Python.
    """
    services: Any = SimpleNamespace(
        replicas=Replicas(lambda: redis, redis, Keys("korvet"), replicas=0, timeout_ms=TIMEOUT_MS),
        quotas=quotas or client_quotas(redis),
        authorizer=None,
        appends=SimpleNamespace(core=None),
    )
    return Dispatcher(handlers, services, lease or ServingLease(redis, TIMEOUT_MS))


def services_on(storage: Storage, settings: Settings, clock: Clock = CLOCK) -> Services:
    """Return the services of the only worker of a broker."""
    address = Address("127.0.0.1", 9092)
    usage = UsageTable.of(settings, workers=1).worker(0)
    return build_services(
        settings, storage, [Bound(DEFAULT_LISTENER, address, address)], None, usage, clock=clock
    )


def client_quotas(redis: Redis, clock: Clock = CLOCK) -> ClientQuotas:
    """Return the quotas of a broker with one worker, none of them read yet."""
    usage = UsageTable.of(Settings(), workers=1).worker(0)
    return ClientQuotas(QuotaStore(redis, Keys("korvet")), usage, usage.windows, clock=clock)


@contextmanager
def received(data: bytes) -> Iterator[Frame]:
    """Give a request's frame as its connection has it; the client waits for the answer until the block ends."""
    # A frame comes by the event loop, which looks at the worker's connections to Redis too.
    gevent.sleep(SHORTEST_SECONDS)
    now = time.monotonic()
    frame = Frame(0, memoryview(data)[SIZE_BYTES:], now, now, None)
    yield frame
    frame.close()


@contextmanager
def opened_sockets(settings: Settings | None = None, path: DataPath[Any] | None = None) -> Iterator[Sockets]:
    """Give the sockets of a worker, whose Produce and Fetch `path` serves."""
    sockets = Sockets(settings or Settings(), path)
    try:
        yield sockets
    finally:
        sockets.close()


@contextmanager
def connected(
    by: Dispatcher, sockets: Sockets, tls: ListenerTls | None = None, session: Session | None = None
) -> Iterator[tuple[ClientConnection, Any]]:
    """Give a connection that is served on gevent's loop, and its client's socket."""
    ours, theirs = socket.socketpair()
    session = session or Session("peer:1")
    connection = ClientConnection(ours.detach(), sockets, session, by, lambda _: None, tls=tls)
    try:
        with gevent_socket.socket(fileno=theirs.detach()) as client:
            yield connection, client
    finally:
        if connection.served_by is not None:
            gevent.kill(connection.served_by)
        connection.cut_off("draining")


def served(by: Dispatcher, sockets: Sockets, request: ProduceRequest, version: int, session: Session) -> Any:
    """Serve a request over a connection, as the core does, and return the answer decoded, None if there is none.

    Raises ClosedByBrokerError.
    """
    session = Session(session.peer, session.listener, session.principal)  # it ends with the connection
    with connected(by, sockets, session=session) as (_, client):
        wire = WireClient(client)
        if request.acks:
            return wire.call(request, version)
        wire.send(request, version)
        wire.call(ApiVersionsRequest(), 0)  # answered after it
        return None


def answer(by: Dispatcher, request: Message, version: int) -> Any:
    """Serve a request, and return the answer decoded."""
    with received(request_frame(request, version)) as frame:
        chunks = by.serve(frame, Present(Session("peer:1"))).chunks
    return decode_response(RESPONSES[request.api.key], version, b"".join(chunks)[4:])
