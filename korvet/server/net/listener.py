"""A worker's accept loops, one for each listener, and the connections it holds.

Knows listening sockets and greenlets; nothing of requests. The limit of connections is one for all listeners. A worker
that is replaced goes on accepting until its queues are empty, since the kernel resets what is still in the queue of a
socket that closes.

How a listening socket takes no new connection and loses none: a filter in the kernel that drops each first packet.

Knows classic BPF (Linux' socket filters, socket(7)); nothing of who listens. The kernel resets what is in the queue of
a socket that closes, and what is on its way there by then. So before one of several sockets of a port closes, no
handshake may begin on it: a client whose first packet is dropped sends it again after a second, and by then the port's
other sockets have it. Handshakes under way go on, since only their first packet carries SYN without having passed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import socket as plain_socket
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

import gevent
import gevent.socket

from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.logs import Log
from korvet.server.net.budget import Budgets
from korvet.server.net.connection import Connection
from korvet.server.net.dispatch import Dispatcher
from korvet.server.net.framing import Limits
from korvet.server.net.socket import Channel
from korvet.server.supervisor import ports
from korvet.telemetry import metrics

_SO_ATTACH_FILTER = 26
_LOAD_BYTE, _JUMP_IF_ANY_BIT, _RETURN = 0x30, 0x45, 0x06
_FLAGS_AT, _SYN = 13, 0x02
"""Where the flags stand in a TCP header, at which the filter of a TCP socket begins to count, and the first one's."""
_ALL = 0xFFFFFFFF
# Code, how many instructions to skip where true and where not, operand.
_PROGRAM = (
    (_LOAD_BYTE, 0, 0, _FLAGS_AT),
    (_JUMP_IF_ANY_BIT, 0, 1, _SYN),
    (_RETURN, 0, 0, 0),
    (_RETURN, 0, 0, _ALL),
)


def begin_no_handshake(listener: socket.socket) -> None:
    """Let `listener` drop every packet that begins a connection, from now on; does nothing but on Linux."""
    if not sys.platform.startswith("linux"):
        return
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _PROGRAM)
    program = ctypes.create_string_buffer(code, len(code))
    # A kernel that takes no filter leaves things as they are without.
    with contextlib.suppress(OSError):
        described = struct.pack("@HP", len(_PROGRAM), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


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


class BoundListener(NamedTuple):
    """A listener of this worker: its name, its socket, and what serves those who come in."""

    name: str
    socket: gevent.socket.socket
    dispatcher: Dispatcher


class Acceptor:
    """Accepts connections and serves each in a greenlet of its own."""

    def __init__(self, doors: Sequence[BoundListener], settings: Settings) -> None:
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

    def _accept(self, door: BoundListener) -> None:
        while True:
            try:
                client, address = door.socket.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    _log.warning("cannot accept connections", listener=door.name, reason=str(error))
                    gevent.sleep(PAUSE_SECONDS)
                continue  # any other error concerns a peer that went before it was accepted
            self._serve(door, client, address)

    def _accept_queued(self, door: BoundListener) -> None:
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

    def _serve(self, door: BoundListener, client: gevent.socket.socket, address: tuple[object, ...]) -> None:
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

    def _run(self, door: BoundListener, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            metrics.CONNECTIONS.labels(door.name).dec()
            del self._connections[connection]
