"""What drives `korvet_core.RedisClient`, whatever waits for its sockets: the actions that it asks for, and TLS.

The core has all state, and reads and writes plain sockets. A driver opens sockets, waits for them and for the clock,
calls the core then, does what it asks for, and gives replies to those who asked.
"""

from __future__ import annotations

import random
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from korvet_core import RedisClient

from korvet.errors import StorageUnavailableError
from korvet.pending import SendOrder
from korvet.redis.observer import Observer
from korvet.redis.replies import Reply, error_of, prevented, value_of
from korvet.redis.url import RedisTarget, Tls

# What is read of TLS at once (a record), and what is written together.
_TLS_READ_BYTES, _TLS_WRITE_BYTES = 16 * 1024, 64 * 1024

# A peer that vanished without a word is noticed by the kernel after 15 + 3 * 5 s even when nothing is asked.
_KEEPALIVE_IDLE: int = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE")  # noqa: B009 - macOS
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 15, 5, 3

Action: TypeAlias = tuple[Any, ...]


class Awaited(Protocol):
    """Replies that are waited for, those of one request."""

    def ready(self) -> bool:
        """Return whether they have arrived."""

    def get(self) -> list[Reply]:
        """Wait for them; what prevented a reply stands in its place."""


Done: TypeAlias = tuple[Awaited | None, list[Reply], str, float]
Turn: TypeAlias = tuple[list[Done], list[Action]]


class Timeouts(NamedTuple):
    """How long, in ms, an answer may take, and how long a connection."""

    timeout_ms: int
    connect_timeout_ms: int


class LaneOwner(Protocol):
    """Who hears of the connections of a lane. Nothing of this may wait or raise."""

    def on_connected(self, node: int, history: str) -> None:
        """Note a new connection to a node."""

    def on_refused(self, node: int, reason: str) -> None:
        """Note that a node could not be reached."""

    def on_lost(self, node: int, reason: str) -> None:
        """Note that a connection was lost."""

    def on_map(self) -> None:
        """Note that the map of the cluster changed."""


class BaseDriver(ABC):
    """A client in the core, what it shares with all of its lanes, and their owners."""

    watches = True
    """Whether a Sentinel is watched; without that the next request learns of a failover."""

    def __init__(
        self,
        target: RedisTarget,
        timeouts: Timeouts,
        observer: Observer,
        new_waiter: Callable[[], Awaited],
        act: Callable[[list[Action]], object],
    ) -> None:
        self.target, self.observer = target, observer
        self.is_cluster = target.kind == "cluster"
        self.order = SendOrder()
        """Of all that is sent to the nodes, appends among it."""
        self.on_failover: Callable[[], object] = lambda: None
        """Called after a reconnect because a connection led to a replica: those that only read do not notice."""
        login, asked = target.login, target.addresses[0]
        self.core: RedisClient[Awaited] = RedisClient(
            target.kind,
            [(address.path or address.host, address.port) for address in target.addresses],
            target.master_name,
            (login.username, login.password, login.db),
            (asked.username, asked.password) if target.kind == "sentinel" else ("", ""),
            error_of,
            partial(prevented, is_cluster=self.is_cluster),
            new_waiter,
            act,
            timeout_s=timeouts.timeout_ms / 1000,
            connect_timeout_s=timeouts.connect_timeout_ms / 1000,
            seed=random.getrandbits(32),
            watches=self.watches,
        )
        self.begin, self.begin_scripts = self.core.begin, self.core.begin_scripts
        # A feed has none: korvet_core.Channels hears of its connections.
        self._owners: dict[int, LaneOwner] = {}
        self._masters: dict[str, int] = {}
        self._masters_version = self._map_seen = 0
        self._handlers: dict[str, Callable[..., object]] = {
            "open": self.open,
            "close": self.close,
            "flush": self.flush,
            "write": self.write,
            "stuck": self.stuck,
            "unstuck": self.unstuck,
            "timer": self.set_timer,
            "connected": self._connected,
            "refused": self._refused,
            "lost": self._lost,
            "reordered": self.order.change,
            "map": self._map,
            "failover": self._fail_over,
        }

    def add_lane(self, owner: LaneOwner, **options: Any) -> int:  # noqa: ANN401 - those of the core
        """Return a new lane whose owner hears of its connections; the options are those of the core."""
        lane = self.core.add_lane(**options)
        self._owners[lane] = owner
        return lane

    def close_lane(self, lane: int) -> None:
        """Close the connections of a lane for good."""
        self.core.close(lane)

    def read_map(self) -> None:
        """Read the map of the cluster; raises StorageUnavailableError."""
        for error in self.core.read_map().get():
            value_of(error)

    def read_map_soon(self) -> None:
        """Have the map read again, unless that was done just now."""
        self.core.read_map_soon()

    def know_map(self) -> None:
        """Read the map of a cluster unless it is known; raises StorageUnavailableError."""
        if self.is_cluster and not self.core.map_version:
            self.read_map()

    def masters(self) -> dict[str, int]:
        """Return the numbers of the nodes that have slots, by their names; raises StorageUnavailableError."""
        core = self.core
        if not self.is_cluster:
            return {str(self.target): 0}
        self.know_map()
        if self._masters_version != core.map_version:
            self._masters_version = core.map_version
            self._masters = {core.name(number): number for _, _, number in core.slots()}
        return self._masters

    def number_at(self, slot: int) -> int:
        """Return the node that has a slot; raises StorageUnavailableError."""
        self.know_map()
        number = self.core.node_at(slot)
        if number is None:
            self.read_map_soon()
            raise StorageUnavailableError(f"no master of the Redis cluster has slot {slot}")
        return number

    @abstractmethod
    def pause(self, seconds: float) -> None:
        """Wait."""

    @abstractmethod
    def open(self, connection: int, host: str, port: int, is_of_sentinel: bool) -> None:  # noqa: FBT001 - as the core says it
        """Open a socket."""

    @abstractmethod
    def close(self, connection: int) -> None:
        """Forget a connection."""

    @abstractmethod
    def flush(self, connection: int) -> None:
        """Write soon."""

    @abstractmethod
    def write(self, connection: int) -> None:
        """Write now."""

    @abstractmethod
    def stuck(self, connection: int) -> None:
        """Write when the socket takes more."""

    @abstractmethod
    def unstuck(self, connection: int) -> None:
        """Do so no more."""

    @abstractmethod
    def set_timer(self) -> None:
        """Call `tick` when the core wants it."""

    def do(self, action: Action) -> None:
        """Do what the core asks for, or tell the owner of a lane."""
        self._handlers[action[0]](*action[1:])

    def _connected(self, lane: int, node: int, history: str, is_again: bool) -> None:  # noqa: FBT001 - as above
        if is_again:
            self.observer.reconnected()
        if (owner := self._owners.get(lane)) is not None:
            owner.on_connected(node, history)

    def _refused(self, lane: int, node: int, reason: str) -> None:
        self.observer.connect_failed()
        if (owner := self._owners.get(lane)) is not None:
            owner.on_refused(node, reason)

    def _lost(self, lane: int, node: int, reason: str) -> None:
        if (owner := self._owners.get(lane)) is not None:
            owner.on_lost(node, reason)

    def _map(self) -> None:
        self.order.change()
        # Of many changes that are reported together the owners look at the last one.
        if self._map_seen != self.core.map_version:
            self._map_seen = self.core.map_version
            for owner in self._owners.values():
                owner.on_map()

    def _fail_over(self) -> None:
        if not self.is_cluster:
            self.on_failover()

    def tls_of(self, is_of_sentinel: bool) -> Tls | None:  # noqa: FBT001 - as above
        """Return how the connections to a server, or to a Sentinel, are secured."""
        return (self.target.addresses[0] if is_of_sentinel else self.target.login).tls


class TlsLink:
    """A connection with TLS, whose socket never blocks: bytes between it and the core."""

    def __init__(self, core: RedisClient[Awaited], connection: int, tls: ssl.SSLSocket, how: Tls) -> None:
        self.socket = tls
        self.failure = ""
        """Why the connection is lost."""
        self._core, self._connection, self._how = core, connection, how
        self._has_heard = self._is_drained = False
        self._reads_stuck = self._writes_stuck = self._writes_after_read = False

    @property
    def waits_for_write(self) -> bool:
        """Whether `go_on` is to be called when the socket takes more."""
        return self._reads_stuck or self._writes_stuck

    def go_on(self) -> None:
        """Write what had to wait until the socket takes more; a read that had to goes on by `read`."""
        self._reads_stuck = self._writes_stuck = False
        self.write()

    def read(self) -> bytes:
        """Return the next bytes for the core, none if there are none now."""
        if self._is_drained:
            self._is_drained = False
            return b""
        try:
            data = self.socket.recv(_TLS_READ_BYTES)
        except ssl.SSLWantWriteError:
            self._reads_stuck = True
            return b""
        except (BlockingIOError, ssl.SSLWantReadError):
            if self._writes_after_read:
                self.write()
            return b""
        except OSError as error:
            self._fail(reason_of(error))
            return b""
        if not data:
            self._fail("it closed the connection")
        self._has_heard = True
        # What does not fill the buffer is all there is, except that TLS may hold something back.
        self._is_drained = 0 < len(data) < _TLS_READ_BYTES and not self.socket.pending()
        return data

    def write(self) -> None:
        """Write what the socket takes, unless it is known to take nothing."""
        self._writes_after_read = False
        try:
            while not self._writes_stuck and (
                data := self._core.unwritten(self._connection, _TLS_WRITE_BYTES)
            ):
                self._core.wrote(self._connection, self.socket.send(data))
        except (BlockingIOError, ssl.SSLWantWriteError):
            self._writes_stuck = True
        except ssl.SSLWantReadError:
            self._writes_after_read = True
        except (BrokenPipeError, ConnectionResetError):
            pass  # why the server has closed it may be there to be read, and its end is
        except OSError as error:
            self._fail(reason_of(error))

    def _fail(self, reason: str) -> None:
        # With TLS 1.3 a server refuses after the handshake: the alert, or the end of the connection alone, is read.
        self.failure = reason + ("" if self._has_heard else _certificate_hint(self._how))


def configure(opened: socket.socket) -> None:
    """Let a TCP connection send at once, and notice a peer that is gone."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, _KEEPALIVE_IDLE, _KEEPALIVE_IDLE_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


def secured(opened: socket.socket, host: str, how: Tls, wait: Callable[[int, bool], object]) -> ssl.SSLSocket:
    """Return a connected socket that does not block with TLS over it; closes it if this fails.

    `wait` waits until a file descriptor can be read, or written.
    """
    with opened:
        wrapped = tls_context(how).wrap_socket(opened, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                wait(wrapped.fileno(), False)  # noqa: FBT003 - as said above
            except ssl.SSLWantWriteError:
                wait(wrapped.fileno(), True)  # noqa: FBT003 - as said above
            else:
                return wrapped
    except BaseException:
        wrapped.close()
        raise


def tls_context(how: Tls) -> ssl.SSLContext:
    """Return the context of connections that are secured in that way."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = how.check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if how.verify else ssl.CERT_NONE
    if how.ca_certs is not None:
        context.load_verify_locations(how.ca_certs)
    elif how.verify:
        context.load_default_certs()
    if how.certfile is not None:
        context.load_cert_chain(how.certfile, how.keyfile)
    return context


def failure_of(error: Exception, how: Tls | None, *, connected: bool) -> str:
    """Return why a socket could not be opened; `connected`: TLS alone was missing."""
    if how is None or not connected or isinstance(error, ssl.SSLCertVerificationError):
        return reason_of(error)
    return reason_of(error) + _certificate_hint(how)


def _certificate_hint(how: Tls) -> str:
    if how.certfile is not None:
        return ""
    return "; if it requires a client certificate, redis.url must name one by ssl_certfile and ssl_keyfile"


def reason_of(error: Exception) -> str:
    """Return the system's words for an error, without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
