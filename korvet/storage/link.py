"""One connection to Redis: opened, authenticated, its writes coalesced and its replies parsed as they come.

Knows sockets, TLS, the handshake and RESP2 framing; not what was asked, so not whose reply a reply is
(wire.py and subscriptions.py know). gevent's sockets by name; nothing here is monkey-patched, nothing runs
before the first use.

A reply may be as large as Redis makes it: hiredis holds it whole. Bounds are set where things are asked for.
"""

from __future__ import annotations

import contextlib
import random
import ssl
import time
from collections.abc import Callable
from typing import TypeAlias, cast

import gevent
import hiredis
from gevent import socket
from gevent import ssl as gevent_ssl
from gevent.hub import get_hub

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.storage.redis_url import RedisAddress, Tls
from korvet.storage.replies import Reply, RespError, error_of

# As much as one read takes from the kernel: thousands of small replies, or a part of a large one.
_READ_BYTES = 128 * 1024
# After so many bytes the reader lets others run: recv does not wait while there is something to read, and a large
# reply must not stall the worker.
_BYTES_PER_TURN = 1024 * 1024
# A peer that vanished without a word is noticed by the kernel after 15 + 3 * 5 s even when nothing is asked.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 15, 5, 3
_BACK_OFF_MS_MIN, _BACK_OFF_MS_MAX = 50, 1000

_NAMELESS = ("NOPERM", "unknown command", "unknown subcommand")

_MORE = object()

# A memoryview must be contiguous: hiredis copies its bytes as they lie in memory.
Arg: TypeAlias = bytes | str | int | memoryview
# The types of hiredis 3 say "a tuple of one argument".
pack = cast("Callable[[tuple[Arg, ...]], bytes]", hiredis.pack_command)


def new_reader() -> hiredis.Reader:
    """Return a RESP parser: `_MORE` where a reply is not complete, error replies as exceptions."""
    return hiredis.Reader(replyError=error_of, notEnoughData=_MORE)


class BackOff:
    """The pauses between attempts to reach a Redis that is away: doubling, spread between processes."""

    def __init__(self) -> None:
        self._ms = _BACK_OFF_MS_MIN

    def next_s(self) -> float:
        """Return the seconds to wait before the next attempt."""
        pause_ms = self._ms * random.uniform(0.75, 1.25)  # noqa: S311 - only spreads attempts over time
        self._ms = min(2 * self._ms, _BACK_OFF_MS_MAX)
        return pause_ms / 1000

    def reset(self) -> None:
        """Begin again with the shortest pause: Redis was reached."""
        self._ms = _BACK_OFF_MS_MIN


class Link:
    """A live connection. `on_replies` gets all replies of one read, in order; `on_lost` is called once.

    Both run in the link's reader greenlet or in whoever calls `lose`, and must not block. `heard_at` is the
    last time anything was received (time.monotonic), `lost` the reason why the connection is gone, or None.
    """

    __slots__ = (
        "_hub",
        "_on_lost",
        "_on_replies",
        "_out",
        "_parked",
        "_socket",
        "_writer",
        "heard_at",
        "lost",
    )

    def __init__(
        self,
        connected: socket.socket,
        on_replies: Callable[[list[Reply]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.lost: str | None = None
        self.heard_at = time.monotonic()
        self._socket = connected
        self._on_replies, self._on_lost = on_replies, on_lost
        self._hub = get_hub()
        self._out: list[bytes] = []
        self._parked = False
        self._writer = gevent.spawn(self._write)
        gevent.spawn(self._read)

    def send(self, data: bytes) -> None:
        """Queue packed commands. They leave with all others of this turn of the event loop, in one write."""
        self._out.append(data)
        if self._parked:
            self._wake_writer()

    def lose(self, reason: str) -> None:
        """Close the connection for `reason`; the second and later calls do nothing."""
        if self.lost is not None:
            return
        self.lost = reason
        self._out.clear()
        # Closing ends the greenlets that wait in recv and sendall; gevent raises OSError there.
        self._socket.close()
        if self._parked:
            self._wake_writer()
        self._on_lost(reason)

    def _wake_writer(self) -> None:
        self._parked = False
        self._hub.loop.run_callback(self._writer.switch)

    def _write(self) -> None:
        out = self._out
        while self.lost is None:
            if not out:
                self._parked = True
                self._hub.switch()
                continue
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            try:
                self._socket.sendall(data)
            except OSError as error:
                self.lose(_told(error))

    def _read(self) -> None:
        reader = new_reader()
        buffer = bytearray(_READ_BYTES)
        taken = 0
        try:
            while size := self._socket.recv_into(buffer):
                self.heard_at = time.monotonic()
                # hiredis takes any buffer, its types say bytes.
                reader.feed(cast("bytes", buffer), 0, size)
                replies = []
                while (reply := reader.gets()) is not _MORE:
                    replies.append(reply)
                if replies:
                    self._on_replies(replies)
                taken += size
                if taken >= _BYTES_PER_TURN:
                    taken = 0
                    gevent.sleep(0)
        except OSError as error:
            self.lose(_told(error))
        except hiredis.ProtocolError as error:
            self.lose(f"it sent what is not RESP: {error}")
        else:
            self.lose("it closed the connection")


def connect(address: RedisAddress, timeout_ms: int) -> socket.socket:
    """Open and authenticate a connection; raises StorageUnavailableError after at most `timeout_ms`."""
    opened: socket.socket | None = None
    try:
        with gevent.Timeout(timeout_ms / 1000, _TimedOutError):
            opened = _open(address)
            if address.tls is not None:
                # Closing the wrapped socket closes the inner one, which is detached by then.
                opened = _tls_context(address.tls).wrap_socket(opened, server_hostname=address.host)
            _shake_hands(opened, address)
            connected, opened = opened, None
            return connected
    except _TimedOutError as error:
        raise StorageUnavailableError(f"Redis at {address} did not answer within {timeout_ms} ms") from error
    except (OSError, UnicodeError) as error:
        raise StorageUnavailableError(f"Redis at {address} cannot be reached: {_told(error)}") from error
    finally:
        if opened is not None:
            opened.close()


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
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    return opened


def _tls_context(tls: Tls) -> ssl.SSLContext:
    context = gevent_ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
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


def _shake_hands(connected: socket.socket, address: RedisAddress) -> None:
    """Authenticate, choose the database and give the connection its name, in one round trip."""
    commands: list[tuple[str | int, ...]] = []
    if address.password:
        commands.append(("AUTH", *((address.username,) if address.username else ()), address.password))
    if address.db:
        commands.append(("SELECT", address.db))
    commands.append(("CLIENT", "SETNAME", "korvet"))
    # Redis may refuse and close before it has read a word; why it did is still there to be read.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connected.sendall(b"".join(map(pack, commands)))
    reader = new_reader()
    for command in commands:
        reply = _next_reply(connected, reader)
        if not isinstance(reply, RespError | KafkaError):
            continue
        text = f"{reply.name} {reply.message}" if isinstance(reply, RespError) else reply.message
        # The name only helps whoever reads CLIENT LIST: where CLIENT is forbidden or absent, we stay
        # nameless.
        if command[0] == "CLIENT" and any(word in text for word in _NAMELESS):
            continue
        # Redis repeats the arguments of a command that it does not know.
        text = text.replace(address.password or "\0", "***")
        raise StorageUnavailableError(f"Redis at {address} refused the connection ({command[0]}): {text}")


def _next_reply(connected: socket.socket, reader: hiredis.Reader) -> Reply:
    try:
        while (reply := reader.gets()) is _MORE:
            data = connected.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("it closed the connection")
            reader.feed(data)
    except hiredis.ProtocolError as error:
        raise ConnectionAbortedError(f"it sent what is not RESP: {error}") from error
    return cast("Reply", reply)


def _told(error: Exception) -> str:
    """Say what went wrong in the system's words without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
