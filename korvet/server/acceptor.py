"""A worker's accept loops, one for each listener, and the connections it holds.

Knows listening sockets and greenlets; nothing of requests. The limit of connections is one for all listeners. A worker
that is replaced goes on accepting until its queues are empty, since the kernel resets what is still in the queue of a
socket that closes.
"""

from __future__ import annotations

import errno
import socket as plain_socket
from collections.abc import Sequence
from typing import NamedTuple

import gevent
import gevent.socket

from korvet.config import Address, Settings
from korvet.logs import Log
from korvet.server import metrics, ports
from korvet.server.budget import Budgets
from korvet.server.channel import Channel
from korvet.server.connection import Connection
from korvet.server.dispatch import Dispatcher
from korvet.server.frames import Limits
from korvet.server.syn_filter import begin_no_handshake

_log = Log(__name__)

BACKLOG = 4096
"""Connections the kernel may hold for a worker that is busy; the system's somaxconn may lower it."""

PAUSE_SECONDS = 0.1
"""Pause where the system has no descriptors or memory for another connection: those that close will free some."""

HANDSHAKE_SECONDS_MAX = 0.5
"""Time for what has begun: the rest of a handshake with a client far away, and its first request."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def listen(address: Address) -> gevent.socket.socket:
    """Return a listening socket of this process's own on an address that its siblings listen on too."""
    listener = gevent.socket.socket(ports.family(address), plain_socket.SOCK_STREAM)
    ports.prepare_shared(listener)
    listener.bind((address.host, address.port))
    listener.listen(BACKLOG)
    return listener


class Door(NamedTuple):
    """A listener of this worker: its name, its socket, and what serves those who come in."""

    name: str
    socket: gevent.socket.socket
    dispatcher: Dispatcher


class Acceptor:
    """Accepts connections and serves each in a greenlet of its own."""

    def __init__(self, doors: Sequence[Door], settings: Settings) -> None:
        self._doors = doors
        self._accepting: list[gevent.Greenlet[..., None]] = []
        self._connections_max = settings.max_connections
        self._limits = Limits.of(settings)
        self._budgets = Budgets.of(settings.queued_max_request_bytes)
        self._connections: dict[Connection, gevent.Greenlet[..., None]] = {}
        self._refusing = False

    def use(self, settings: Settings) -> None:
        """Take over another limit of connections; those that are there stay."""
        self._connections_max = settings.max_connections

    def start(self) -> None:
        """Accept from now on, until closed."""
        self._accepting = [gevent.spawn(self._accept, door) for door in self._doors]

    def leave_to_others(self) -> None:
        """Let connections that begin from now on go to the other workers, and those that have begun come in.

        Takes HANDSHAKE_SECONDS_MAX; to be followed by `close`.
        """
        for door in self._doors:
            begin_no_handshake(door.socket)
        gevent.sleep(HANDSHAKE_SECONDS_MAX)

    def close(self) -> None:
        """Accept what the kernel has queued, then stop listening."""
        gevent.killall(self._accepting)
        for door in self._doors:
            self._accept_queued(door)
            door.socket.close()

    def drain(self, seconds: float) -> int:
        """End every connection behind its present request; returns how many had to be cut off after `seconds`."""
        for connection in list(self._connections):
            connection.drain()
        greenlets = list(self._connections.values())
        gevent.joinall(greenlets, timeout=seconds)
        left = [greenlet for greenlet in greenlets if not greenlet.dead]
        gevent.killall(left)
        return len(left)

    def _accept(self, door: Door) -> None:
        while True:
            try:
                client, address = door.socket.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    _log.warning("cannot accept connections", listener=door.name, reason=str(error))
                    gevent.sleep(PAUSE_SECONDS)
                continue  # any other error concerns a peer that went before it was accepted
            self._serve(door, client, address)

    def _accept_queued(self, door: Door) -> None:
        door.socket.settimeout(0)
        while True:
            try:
                client, address = door.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    return
                continue
            self._serve(door, client, address)

    def _serve(self, door: Door, client: gevent.socket.socket, address: tuple[object, ...]) -> None:
        peer = f"{address[0]}:{address[1]}"
        if len(self._connections) >= self._connections_max:
            if not self._refusing:  # one line for a whole crowd
                _log.warning(
                    "connections refused", listener=door.name, peer=peer, limit=self._connections_max
                )
            self._refusing = True
            metrics.CONNECTIONS_CLOSED.labels("refused").inc()
            client.close()
            return
        self._refusing = False
        plain = plain_socket.socket(client.family, client.type, client.proto, client.detach())
        plain.setsockopt(plain_socket.IPPROTO_TCP, plain_socket.TCP_NODELAY, 1)
        plain.setsockopt(plain_socket.SOL_SOCKET, plain_socket.SO_KEEPALIVE, 1)
        connection = Connection(Channel(plain), peer, door.dispatcher, self._limits, self._budgets)
        metrics.CONNECTIONS_OPENED.labels(door.name).inc()
        metrics.CONNECTIONS.labels(door.name).inc()
        self._connections[connection] = gevent.spawn(self._run, door, connection)

    def _run(self, door: Door, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            metrics.CONNECTIONS.labels(door.name).dec()
            del self._connections[connection]
