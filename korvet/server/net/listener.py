"""A worker's accept loops, one for each listener, and its connections.

A connection that broker or listener has no room for waits in the accept loop of its listener, and those after it in the
kernel's queue (ConnectionQuotas). A worker that is replaced accepts until its queues are empty: the kernel
resets what is in the queue of a socket that closes, and what is on its way there. So before one of several sockets of
a port closes, no handshake may begin on it. A filter in the kernel (classic BPF, see socket(7)) drops the first packet
of each connection; its client sends it again after a second, and by then the port's other sockets get it. Handshakes
under way go on: only their first packet carries SYN, and it has passed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import random
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

import gevent
import gevent.socket
from gevent.event import Event

from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.logs import Log, RateLimitedLogger
from korvet.security.client_quotas import ClientQuotas
from korvet.security.connection_quotas import ConnectionQuotas, address_of
from korvet.security.sasl import Authenticator, SaslListener
from korvet.security.session import Session
from korvet.security.tls import ListenerTls
from korvet.server.net.budget import Budgets
from korvet.server.net.connection import ClientConnection
from korvet.server.net.dispatch import Dispatcher
from korvet.server.net.framing import ConnectionLimits
from korvet.server.net.socket import Channel
from korvet.server.net.tls import Handshakes, TlsChannel
from korvet.server.supervisor import ports
from korvet.telemetry import metrics
from korvet.turns import give_turn

_rate_limited_log = RateLimitedLogger(Log(__name__))

_SO_ATTACH_FILTER = 26
_LOAD_BYTE, _JUMP_IF_ANY_BIT, _RETURN = 0x30, 0x45, 0x06
_FLAGS_AT, _SYN = 13, 0x02
"""Offset of the flags in the TCP header, where the filter of a TCP socket counts from, and the flag SYN."""
_ALL = 0xFFFFFFFF
# Code, instructions to skip if true and if false, operand.
_PROGRAM = (
    (_LOAD_BYTE, 0, 0, _FLAGS_AT),
    (_JUMP_IF_ANY_BIT, 0, 1, _SYN),
    (_RETURN, 0, 0, 0),
    (_RETURN, 0, 0, _ALL),
)

BACKLOG = 4096
"""Connections the kernel may hold for a worker that is busy; the system's somaxconn may lower it."""

PAUSE_SECONDS = 0.1
"""Pause if the system has no descriptors or memory for another connection, until others close."""

HANDSHAKE_SECONDS_MAX = 0.5
"""Time for the rest of a handshake that has begun with a client far away, and for its first request."""

THROTTLED_MAX = 1024
"""Connections that a worker closes after a delay, since their address makes too many; more are closed at once."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def begin_no_handshake(listener: socket.socket) -> None:
    """Have `listener` drop every packet that begins a connection, from now on; on Linux only."""
    if not sys.platform.startswith("linux"):
        return
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _PROGRAM)
    program = ctypes.create_string_buffer(code, len(code))
    # A kernel without filters: the queue may lose connections.
    with contextlib.suppress(OSError):
        described = struct.pack("@HP", len(_PROGRAM), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def listen(address: Address) -> gevent.socket.socket:
    """Return a listening socket of this process on an address that its siblings listen on too (SO_REUSEPORT)."""
    listener = gevent.socket.socket(ports.family(address), socket.SOCK_STREAM)
    ports.prepare_shared(listener)
    listener.bind((address.host, address.port))
    listener.listen(BACKLOG)
    return listener


class BoundListener(NamedTuple):
    """A listener of this worker: its name, its socket, how its clients log in if they have to, and its TLS."""

    name: str
    socket: gevent.socket.socket
    sasl: SaslListener | None = None
    tls: ListenerTls | None = None


class Acceptor:
    """Accepts connections and serves each in a greenlet of its own."""

    def __init__(
        self,
        listeners: Sequence[BoundListener],
        dispatcher: Dispatcher,
        settings: Settings,
        quotas: ClientQuotas,
        *,
        clock: Clock = CLOCK,
    ) -> None:
        self._clock = clock
        self._listeners = listeners
        self._dispatcher = dispatcher
        self._accepting: list[gevent.Greenlet[..., None]] = []
        self._quotas = ConnectionQuotas(quotas, [each.name for each in listeners], settings)
        self._freed = Event()
        self._throttled = 0
        self._limits = ConnectionLimits.of(settings)
        self._budgets = Budgets.of(settings.queued_max_request_bytes)
        self._connections: dict[ClientConnection, gevent.Greenlet[..., None]] = {}
        self._handshakes = Handshakes()

    def use(self, settings: Settings) -> None:
        """Apply other limits of connections; open ones stay."""
        self._quotas.use(settings)
        self._freed.set()

    def start(self) -> None:
        """Accept from now on, until closed."""
        self._accepting = [self._clock.spawn(self._accept, listener) for listener in self._listeners]

    def leave_to_others(self) -> None:
        """Leave connections that begin from now on to the other workers, and wait for those that have begun.

        Takes HANDSHAKE_SECONDS_MAX; to be followed by `close`.
        """
        for listener in self._listeners:
            begin_no_handshake(listener.socket)
        self._clock.sleep(HANDSHAKE_SECONDS_MAX)

    def close(self) -> None:
        """Accept what the kernel has queued, then stop listening."""
        gevent.killall(self._accepting)
        for listener in self._listeners:
            listener.socket.settimeout(0)
            self._accept(listener)
            listener.socket.close()

    def drain(self, seconds: float) -> int:
        """End every connection after its current request; returns how many were cut off after `seconds`."""
        for connection in list(self._connections):
            connection.drain()
        greenlets = list(self._connections.values())
        gevent.joinall(greenlets, timeout=seconds)
        left = [greenlet for greenlet in greenlets if not greenlet.dead]
        gevent.killall(left)
        return len(left)

    def _accept(self, listener: BoundListener) -> None:
        """Accept without an end, or with a timeout of 0 what is queued."""
        while True:
            try:
                client, address = listener.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    if listener.socket.gettimeout() == 0:
                        return
                    reason = str(error)
                    _rate_limited_log.warning(
                        reason, "cannot accept connections", listener=listener.name, reason=reason
                    )
                    self._clock.sleep(PAUSE_SECONDS)
                continue  # any other error: a peer that left before it was accepted
            try:
                admitted = self._admit(listener, client, address)
            except gevent.GreenletExit:
                client.close()
                raise
            if admitted:
                self._serve(listener, client, address)
            # A queue that is never empty keeps nobody waiting.
            give_turn()

    def _admit(self, listener: BoundListener, client: gevent.socket.socket, peer: tuple[object, ...]) -> bool:
        """Wait for room in broker and listener, and return whether there is for the address too; else it is closed."""
        at, address = self._listeners.index(listener), address_of(peer)
        leaving = listener.socket.gettimeout() == 0
        if not leaving and (wait_ms := self._quotas.count_new(at)):
            metrics.ACCEPT_WAIT_SECONDS.labels("rate").inc(wait_ms / 1000)
            self._clock.sleep(wait_ms / 1000)
        began = 0.0
        while not self._quotas.open(at, address):
            if leaving:
                self._refuse(listener, client, peer, "draining")
                return False
            _rate_limited_log.warning("full", "no room for another connection", listener=listener.name)
            began = began or self._clock.monotonic()
            self._freed.clear()
            # Two workers that always look at the same time would both see the other's attempt, and no room.
            self._clock.wait(self._freed, PAUSE_SECONDS * random.uniform(0.5, 1))  # noqa: S311 - no secret
        if began:
            metrics.ACCEPT_WAIT_SECONDS.labels("connections").inc(self._clock.monotonic() - began)
        if wait_ms := self._quotas.count_address(at, address):
            self._quotas.close(at, address)
            self._refuse(listener, client, peer, "address_rate", wait_ms / 1000)
            return False
        if self._quotas.address_limit_exceeded(address) is not None:
            self._quotas.close(at, address)
            self._refuse(listener, client, peer, "address_connections")
            return False
        return True

    def _refuse(
        self,
        listener: BoundListener,
        client: gevent.socket.socket,
        peer: tuple[object, ...],
        reason: str,
        seconds: float = 0.0,
    ) -> None:
        """Close a connection, after `seconds` if not very many wait for that: each holds a descriptor."""
        metrics.CONNECTIONS_REFUSED.labels(reason).inc()
        _rate_limited_log.warning(
            reason, "connection refused", listener=listener.name, peer=peer[0], reason=reason
        )
        if not seconds or self._throttled >= THROTTLED_MAX:
            client.close()
            return
        self._throttled += 1

        def close() -> None:
            self._throttled -= 1
            client.close()

        self._clock.spawn_later(seconds, close)

    def _serve(
        self, listener: BoundListener, client: gevent.socket.socket, address: tuple[object, ...]
    ) -> None:
        peer = f"{address[0]}:{address[1]}"
        plain = socket.socket(client.family, client.type, client.proto, client.detach())
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        session = Session(peer, listener.name)
        if listener.sasl is not None:
            session.sasl = Authenticator(listener.sasl, session)
        tls = listener.tls
        channel = TlsChannel(plain, tls, self._handshakes) if tls else Channel(plain)
        connection = ClientConnection(channel, session, self._dispatcher, self._limits, self._budgets)
        metrics.CONNECTIONS_OPENED.labels(listener.name).inc()
        metrics.CONNECTIONS.labels(listener.name).inc()
        self._connections[connection] = self._clock.spawn(
            self._run, listener, connection, address_of(address)
        )

    def _run(self, listener: BoundListener, connection: ClientConnection, address: str) -> None:
        try:
            connection.serve()
        finally:
            metrics.CONNECTIONS.labels(listener.name).dec()
            del self._connections[connection]
            self._quotas.close(self._listeners.index(listener), address)
            self._freed.set()
