"""A worker's accept loops, one for each listener, and its connections.

A connection that broker or listener has no room for waits in the accept loop of its listener, and those after it in the
kernel's queue (ConnectionQuotas). A worker that is replaced accepts until its queues are empty, and before that leaves
connections that begin to the other workers (ports.begin_no_handshake).

An accepted connection is a descriptor and an address, no object of a socket. The loop closes it if it is refused; from
ClientConnection on the core alone does.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import gevent
from gevent.event import Event
from gevent.hub import get_hub

from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.logs import Log, RateLimitedLogger
from korvet.security.connection_quotas import ConnectionQuotas, address_of
from korvet.security.sasl import Authenticator, SaslListener
from korvet.security.session import Session
from korvet.security.tls import ListenerTls
from korvet.server.net.connection import ClientConnection
from korvet.server.net.dispatch import Dispatcher
from korvet.server.net.sockets import Sockets
from korvet.server.supervisor import ports
from korvet.telemetry import metrics
from korvet.turns import give_turn

_rate_limited_log = RateLimitedLogger(Log(__name__))

BACKLOG = 4096
"""Connections the kernel may hold for a worker that is busy; the system's somaxconn may lower it."""

PAUSE_SECONDS = 0.1
"""Pause if the system has no descriptors or memory for another connection, until others close."""

HANDSHAKE_SECONDS_MAX = 0.5
"""Time for the rest of a handshake that has begun with a client far away, and for its first request."""

THROTTLED_MAX = 1024
"""Connections that a worker closes after a delay, since their address makes too many; more are closed at once."""

CERTIFICATES_LOOK_SECONDS = 5.0
"""How often a worker looks whether certificates were replaced."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_READ = 1  # what a watcher of gevent's loop watches for


def listen(address: Address) -> socket.socket:
    """Return a listening socket of this process on an address that its siblings listen on too (SO_REUSEPORT).

    It does not block. Connections have its options.
    """
    listener = socket.socket(ports.family(address), socket.SOCK_STREAM)
    ports.prepare_shared(listener)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.bind((address.host, address.port))
    listener.listen(BACKLOG)
    listener.settimeout(0)
    return listener


class BoundListener(NamedTuple):
    """A listener of this worker: its name, its socket, how its clients log in if they have to, and its TLS."""

    name: str
    socket: socket.socket
    sasl: SaslListener | None = None
    tls: ListenerTls | None = None


class Acceptor:
    """Accepts the connections of a worker, and ends them; a listener is named by its index."""

    def __init__(
        self,
        listeners: Sequence[BoundListener],
        dispatcher: Dispatcher,
        settings: Settings,
        *,
        clock: Clock = CLOCK,
    ) -> None:
        services = dispatcher.services
        self._clock = clock
        self.listeners = listeners
        self._dispatcher = dispatcher
        self._accepting: list[gevent.Greenlet[..., None]] = []
        self._quotas = ConnectionQuotas(services.quotas, [listener.name for listener in listeners], settings)
        self._freed = Event()
        self._throttled = 0
        self._is_closing = False
        self._sockets = Sockets(settings, services.appends.core, may_all=services.authorizer is None)
        self._connections: dict[ClientConnection, tuple[int, str]] = {}
        """Each with its listener, and the address of its client as quotas name it."""
        self._emptied = Event()
        self._opened = [metrics.CONNECTIONS_OPENED.labels(listener.name) for listener in listeners]
        self._open = [metrics.CONNECTIONS.labels(listener.name) for listener in listeners]

    def use(self, settings: Settings) -> None:
        """Apply other limits of connections; open ones stay."""
        self._quotas.use(settings)
        self._freed.set()

    def start(self) -> None:
        self._accepting = [self._clock.spawn(self._accept, index) for index in range(len(self.listeners))]

    def leave_to_others(self) -> None:
        """Leave new connections to the other workers, and wait for connections that have begun.

        Takes HANDSHAKE_SECONDS_MAX; to be followed by `close`.
        """
        for listener in self.listeners:
            ports.begin_no_handshake(listener.socket)
        self._clock.sleep(HANDSHAKE_SECONDS_MAX)

    def close(self) -> None:
        """Accept what the kernel has queued, then stop listening."""
        gevent.killall(self._accepting)
        self._is_closing = True
        for index, listener in enumerate(self.listeners):
            self._accept(index)
            listener.socket.close()

    def drain(self, seconds: float) -> int:
        """End every connection after its current request; returns how many were cut off after `seconds`."""
        for connection in list(self._connections):
            connection.drain()
        self._emptied.clear()
        if self._connections:
            self._emptied.wait(seconds)
        left = list(self._connections)
        greenlets = [connection.served_by for connection in left]
        gevent.killall([greenlet for greenlet in greenlets if greenlet is not None])
        for connection in left:
            connection.cut_off("draining")
        if left:
            self._emptied.wait(seconds)  # for what ends with their sessions
        self._sockets.close()
        return len(left)

    def _accept(self, index: int) -> None:
        """Accept without an end, or if the listener closes what is queued."""
        listener, hub = self.listeners[index], get_hub()
        sock: Any = listener.socket  # whose `_accept` typeshed does not know: `accept` without an object
        readable = None if self._is_closing else hub.loop.io(sock.fileno(), _READ)
        try:
            while True:
                try:
                    fd, peer = sock._accept()  # noqa: SLF001 - as said above
                except BlockingIOError:
                    if readable is None:
                        return
                    hub.wait(readable)
                    continue
                except OSError as error:
                    if error.errno in _EXHAUSTED:
                        if readable is None:
                            return
                        self._note_exhausted(listener, error)
                        self._clock.sleep(PAUSE_SECONDS)
                    continue  # any other error: a peer that left before it was accepted
                try:
                    address = self._admit(index, fd, peer)
                except BaseException:
                    os.close(fd)
                    raise
                if address is not None:
                    self._serve(index, fd, peer, address)
                # A queue that is never empty keeps nobody waiting.
                give_turn()
        finally:
            if readable is not None:
                readable.stop()
                readable.close()

    def _note_exhausted(self, listener: BoundListener, error: OSError) -> None:
        reason = str(error)
        _rate_limited_log.warning(reason, "cannot accept connections", listener=listener.name, reason=reason)

    def _admit(self, index: int, fd: int, peer: Any) -> str | None:  # noqa: ANN401 - an address of any family
        """Wait for room in broker and listener; return the peer's address if there is some for it too, else refuse."""
        address = address_of(peer)
        if not self._is_closing and (wait_ms := self._quotas.count_new(index)):
            metrics.ACCEPT_WAIT_SECONDS.labels("rate").inc(wait_ms / 1000)
            self._clock.sleep(wait_ms / 1000)
        began = 0.0
        while not self._quotas.open(index, address):
            if self._is_closing:
                self._refuse(index, fd, peer, "draining")
                return None
            _rate_limited_log.warning(
                "full", "no room for another connection", listener=self.listeners[index].name
            )
            began = began or self._clock.monotonic()
            self._freed.clear()
            # Two workers that always look at the same time would both see the other's attempt, and no room.
            self._clock.wait(self._freed, PAUSE_SECONDS * random.uniform(0.5, 1))  # noqa: S311 - no secret
        if began:
            metrics.ACCEPT_WAIT_SECONDS.labels("connections").inc(self._clock.monotonic() - began)
        if wait_ms := self._quotas.count_address(index, address):
            self._quotas.close(index, address)
            self._refuse(index, fd, peer, "address_rate", wait_ms / 1000)
        elif self._quotas.address_limit_exceeded(address) is not None:
            self._quotas.close(index, address)
            self._refuse(index, fd, peer, "address_connections")
        else:
            return address
        return None

    def _refuse(self, index: int, fd: int, peer: Any, reason: str, seconds: float = 0.0) -> None:  # noqa: ANN401 - as above
        """Close a connection, after `seconds` if not very many wait for that: each holds a descriptor."""
        metrics.CONNECTIONS_REFUSED.labels(reason).inc()
        name = self.listeners[index].name
        _rate_limited_log.warning(reason, "connection refused", listener=name, peer=peer[0], reason=reason)
        if not seconds or self._throttled >= THROTTLED_MAX:
            os.close(fd)
            return
        self._throttled += 1

        def close() -> None:
            self._throttled -= 1
            os.close(fd)

        self._clock.spawn_later(seconds, close)

    def _serve(self, index: int, fd: int, peer: Any, address: str) -> None:  # noqa: ANN401 - as above
        listener = self.listeners[index]
        session = Session(f"{peer[0]}:{peer[1]}", listener.name)
        sasl = None if listener.sasl is None else Authenticator(listener.sasl, session)
        try:
            connection = ClientConnection(
                fd,
                self._sockets,
                session,
                self._dispatcher,
                self._forget,
                sasl=sasl,
                tls=listener.tls,
            )
        except OSError as error:  # the core has no room in the kernel to watch it, and has closed it
            self._quotas.close(index, address)
            self._note_exhausted(listener, error)
            return
        self._connections[connection] = index, address
        self._opened[index].inc()
        self._open[index].inc()

    def _forget(self, connection: ClientConnection) -> None:
        index, address = self._connections.pop(connection)
        self._open[index].dec()
        self._quotas.close(index, address)
        self._freed.set()
        if not self._connections:
            self._emptied.set()


def watch_certificates(listeners: Sequence[ListenerTls]) -> None:
    """Take up certificates that were replaced, and report when those in use end."""
    while listeners:
        for listener in listeners:
            listener.refresh()
            metrics.TLS_CERTIFICATE_EXPIRY.labels(listener.listener).set(listener.expires_at)
        CLOCK.sleep(CERTIFICATES_LOOK_SECONDS)
