"""One connection to Redis: opened, authenticated, its writes coalesced and its replies parsed as they come.

It owns the socket. Which reply belongs to which request is the business of its two users, client.py and pubsub.py.
gevent's sockets by name; nothing here is monkey-patched, and nothing runs before the first use.

A reply may be as large as Redis makes it: hiredis holds it whole. Bounds are set by the callers.
"""

from __future__ import annotations

import contextlib
import socket as plain_socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import gevent
import hiredis
from gevent import socket
from gevent import ssl as gevent_ssl
from gevent.hub import get_hub

from korvet.backoff import Backoff
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.redis.replies import Reply, RespError, error_of, history_of
from korvet.redis.url import RedisAddress, Tls

# One read from the kernel: thousands of small replies, or a part of a large one.
READ_BYTES = 128 * 1024
# After this many bytes the reader lets others run: a large reply must not stall the worker.
_BYTES_PER_TURN = 1024 * 1024
_LARGE_BYTES = 8 * 1024
# A peer that vanished without a word is noticed by the kernel after 15 + 3 * 5 s even when nothing is asked.
_KEEPALIVE_IDLE: int = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE")  # noqa: B009 - macOS
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 15, 5, 3

_SETNAME_REFUSALS = ("NOPERM", "unknown command", "unknown subcommand")

MORE = object()
_READ, _WRITE = 1, 2  # what an io watcher of gevent's loop watches for


class _Received(threading.local):
    """Where what is fed to a reader lands before, which copies it: a buffer for the event loop of each thread."""

    def __init__(self) -> None:
        self.buffer: Any = bytearray(READ_BYTES)  # hiredis' types want bytes


_RECEIVED = _Received()

AnySocket: TypeAlias = plain_socket.socket | socket.socket

# A memoryview must be contiguous: hiredis copies its bytes as they lie in memory.
Arg: TypeAlias = bytes | str | int | memoryview
# The types of hiredis 3 say "a tuple of one argument".
pack = cast("Callable[[tuple[Arg, ...]], bytes]", hiredis.pack_command)


def new_reader() -> hiredis.Reader:
    """Return a RESP parser: `MORE` while a reply is not complete, error replies as exceptions."""
    return hiredis.Reader(replyError=error_of, notEnoughData=MORE)


class Observer:
    """What connections report to a listener, such as the metrics; this one ignores it.

    Every method is called in the middle of something else: it must be short, and must not wait or raise.
    """

    def round_trip(self, operation: str, seconds: float) -> None:
        """Note the seconds from the sending of an operation (a script's name, or a client's word) to its reply."""

    def reconnected(self) -> None:
        """Note that a new connection replaced one that was lost."""

    def connect_failed(self) -> None:
        """Note that Redis could not be reached, or refused the connection."""

    def script_failed(self, script: str, error: str) -> None:
        """Note that a script answered with an error, such as UNKNOWN_MEMBER_ID, WRONGTYPE or OOM."""


NO_OBSERVER = Observer()


def reconnect_backoff() -> Backoff:
    """Return the pauses between attempts to reach a Redis that is away; the jitter spreads the workers of a broker."""
    return Backoff(first_s=0.05, max_s=1.0, jitter=0.25)


class RedisConnection:
    """A live connection. `on_replies` gets all replies of one read, in order; `on_lost` is called once.

    Both run in the event loop, or in the caller of `lose`, and must not block. `heard_at` is the last time anything was
    received (time.monotonic), `lost` the reason why the connection is gone, or None.

    Reading and writing are callbacks of the loop and not greenlets: a switch to one would cost every command as much
    as what it does there.
    """

    def __init__(
        self,
        connected: socket.socket,
        on_replies: Callable[[list[Reply]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.lost: str | None = None
        self.heard_at = time.monotonic()
        self._socket = _nonblocking(connected)
        self._pending: Callable[[], int] = getattr(self._socket, "pending", int)
        self._on_replies, self._on_lost = on_replies, on_lost
        self._reader = new_reader()
        self._out: list[bytes] = []
        self._rest = memoryview(b"")
        # What is queued will be sent: in this turn, or (stuck) when the kernel takes more.
        self._flushing = False
        self._stuck = False
        self._loop = get_hub().loop
        self._readable = self._loop.io(self._socket.fileno(), _READ)
        self._writable = self._loop.io(self._socket.fileno(), _WRITE)
        self._readable.start(self._read)

    def send(self, data: bytes, *, at_once: bool = False) -> None:
        """Queue packed commands. They leave with all others of this turn of the event loop, in one write.

        Those that are to leave `at_once` wait for no others; nor do large ones, whose bytes cost more than a write.
        """
        self._out.append(data)
        if self._stuck:
            return
        if at_once or len(data) >= _LARGE_BYTES:
            self._write()
        elif not self._flushing:
            self._flushing = True
            self._loop.run_callback(self._write)

    def lose(self, reason: str) -> None:
        """Close the connection for `reason`; the second and later calls do nothing."""
        if self.lost is not None:
            return
        self.lost = reason
        self._out.clear()
        for watcher in (self._readable, self._writable):
            watcher.stop()
            watcher.close()
        self._socket.close()
        self._on_lost(reason)

    def _write(self) -> None:
        """Send what is queued, as far as the kernel takes it; what is left leaves when it takes more."""
        try:
            while self.lost is None and self._send_some():
                pass
        except OSError as error:
            self.lose(reason_of(error))
        if self.lost is not None:
            return
        stuck = self._stuck
        self._flushing = self._stuck = bool(self._rest)
        if self._stuck and not stuck:
            self._writable.start(self._write)
        elif stuck and not self._stuck:
            self._writable.stop()

    def _send_some(self) -> bool:
        """Send what the kernel takes at once; False if it takes nothing, or nothing is left."""
        if not self._rest:
            if not self._out:
                return False
            self._rest = memoryview(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            self._out.clear()
        try:
            sent = self._socket.send(self._rest)
        except BlockingIOError:
            return False
        self._rest = self._rest[sent:]
        return sent > 0

    def _read(self) -> None:
        taken, size = 0, READ_BYTES
        try:
            # What does not fill the buffer is all there is, except that TLS may hold something back.
            while self.lost is None and (size == READ_BYTES or self._pending()):
                received = _RECEIVED.buffer
                size = self._socket.recv_into(received)
                self._reader.feed(received, 0, size)
                if not size:
                    self.lose("it closed the connection")
                    return
                self._take()
                taken += size
                if taken >= _BYTES_PER_TURN:
                    self._loop.run_callback(self._read)
                    return
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self.lose(reason_of(error))
        except hiredis.ProtocolError as error:
            self.lose(f"it sent what is not RESP: {error}")
        except MemoryError:
            self.lose("there is no memory for what it sent")

    def _take(self) -> None:
        reader = self._reader
        self.heard_at = time.monotonic()
        replies = []
        while (reply := reader.gets()) is not MORE:
            replies.append(reply)
        if replies:
            self._on_replies(replies)


def _nonblocking(connected: socket.socket) -> plain_socket.socket | socket.socket:
    """Return the connection as a socket that never waits.

    A plain one loses gevent's layer, which costs more than the system calls below it.
    """
    if isinstance(connected, gevent_ssl.SSLSocket):
        connected.settimeout(0)
        return connected
    plain = plain_socket.socket(connected.family, connected.type, connected.proto, connected.detach())
    plain.settimeout(0)
    return plain


def connect(address: RedisAddress, timeout_ms: int) -> tuple[socket.socket, str]:
    """Open and authenticate a connection; returns it, and the server's history (`replies.history_of`).

    Raises StorageUnavailableError after at most `timeout_ms`.
    """
    connected, reply = open_connection(address, timeout_ms, ("INFO", "replication"))
    return connected, history_of(reply)


def open_connection(
    address: RedisAddress, timeout_ms: int, command: tuple[Arg, ...]
) -> tuple[socket.socket, Reply]:
    """Open and authenticate a connection; returns it, and the reply to its first command, which may be an error.

    Raises StorageUnavailableError after at most `timeout_ms`.
    """
    opened: socket.socket | None = None
    try:
        with gevent.Timeout(timeout_ms / 1000, _TimedOutError):
            opened = _open(address)
            if address.tls is not None:
                # Closing the wrapped socket closes the inner one, which is detached by then.
                context = tls_context(address.tls, gevent_ssl.SSLContext)
                opened = context.wrap_socket(opened, server_hostname=address.host)
            reply = shake_hands(opened, address, command)
            connected, opened = opened, None
            return connected, reply
    except _TimedOutError as late:
        raise StorageUnavailableError(f"Redis at {address} did not answer within {timeout_ms} ms") from late
    except (OSError, UnicodeError) as error:
        raise unreachable(address, error, connected=opened is not None) from error
    finally:
        if opened is not None:
            opened.close()


def unreachable(address: RedisAddress, error: Exception, *, connected: bool) -> StorageUnavailableError:
    """Return the error for an attempt that failed, maybe only after a connection was there."""
    reason = reason_of(error)
    # With TLS 1.3 a server refuses after the handshake: the alert, or the end of the connection alone, is read.
    anonymous = address.tls is not None and address.tls.certfile is None
    if anonymous and connected and not isinstance(error, ssl.SSLCertVerificationError):
        reason += (
            "; if it requires a client certificate, redis.url must name one by ssl_certfile and ssl_keyfile"
        )
    return StorageUnavailableError(f"Redis at {address} cannot be reached: {reason}")


class _TimedOutError(Exception):
    pass


def _open(address: RedisAddress) -> socket.socket:
    if address.path:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.connect(address.path)
        except BaseException:
            opened.close()
            raise
        return opened
    opened = socket.create_connection((address.host, address.port))
    configure(opened)
    return opened


def configure(opened: AnySocket) -> None:
    """Let a TCP connection send at once, and notice a peer that is gone."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, _KEEPALIVE_IDLE, _KEEPALIVE_IDLE_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


def tls_context(tls: Tls, kind: type[ssl.SSLContext]) -> ssl.SSLContext:
    """Return a context of a kind, gevent's or the standard library's."""
    context = kind(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    if tls.ca_certs is not None:
        context.load_verify_locations(tls.ca_certs)
    elif tls.verify:
        context.load_default_certs()
    if tls.certfile is not None:
        context.load_cert_chain(tls.certfile, tls.keyfile)
    return context


def shake_hands(connected: AnySocket, address: RedisAddress, first: tuple[Arg, ...]) -> Reply:
    """Authenticate, choose the database and name the connection, in one round trip with its first command."""
    commands: list[tuple[Arg, ...]] = []
    if address.password:
        commands.append(("AUTH", *((address.username,) if address.username else ()), address.password))
    if address.db:
        commands.append(("SELECT", address.db))
    commands.append(("CLIENT", "SETNAME", "korvet"))
    # Redis may refuse and close before it has read a word; why it did is still there to be read.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connected.sendall(b"".join(map(pack, (*commands, first))))
    reader = new_reader()
    for command in commands:
        reply = _next_reply(connected, reader)
        if not isinstance(reply, RespError | KafkaError):
            continue
        text = f"{reply.name} {reply.message}" if isinstance(reply, RespError) else reply.message
        # The name only helps a reader of CLIENT LIST: if CLIENT is forbidden or absent, there is none.
        if command[0] == "CLIENT" and any(word in text for word in _SETNAME_REFUSALS):
            continue
        # Redis repeats the arguments of a command that it does not know.
        text = text.replace(address.password or "\0", "***")
        raise StorageUnavailableError(f"Redis at {address} refused the connection ({command[0]!s}): {text}")
    return _next_reply(connected, reader)


def _next_reply(connected: AnySocket, reader: hiredis.Reader) -> Reply:
    try:
        while (reply := reader.gets()) is MORE:
            data = connected.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("it closed the connection")
            reader.feed(data)
    except hiredis.ProtocolError as error:
        raise ConnectionAbortedError(f"it sent what is not RESP: {error}") from error
    return cast("Reply", reply)


def reason_of(error: Exception) -> str:
    """Return the system's words for an error, without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
