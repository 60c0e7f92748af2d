"""One connection to Redis: opened, authenticated, and shared by any number of greenlets.

korvet_core has the socket from then on: it coalesces writes, finds replies as they come, and knows which belongs to
which request. gevent's sockets by name; nothing here is monkey-patched, and nothing runs before the first use.

The reply to a caller that gave up (its own timeout, or it was killed) is dropped when it comes. A connection is closed
if nothing was heard for a whole timeout while a reply was due, and if it leads to a master that became a replica: after
a failover its name leads elsewhere.

A reply may be as large as Redis makes it, and is held whole. Bounds are set by the callers.
"""

from __future__ import annotations

import contextlib
import os
import socket as plain_socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, cast

import gevent
from gevent import socket
from gevent import ssl as gevent_ssl
from gevent.hub import Waiter, get_hub
from korvet_core import NotRespError, RedisLink, RespReader, pack_command

from korvet.backoff import Backoff
from korvet.errors import KafkaError, OutcomeUnknownError, StorageUnavailableError
from korvet.redis.replies import Reply, RespError, error_of, history_of
from korvet.redis.url import RedisAddress, Tls

READ_BYTES = 128 * 1024
"""One read from the kernel: thousands of small replies, or a part of a large one."""

# With TLS: what is read at once (a record), what is written together, and after how much others have their turn.
_TLS_READ_BYTES, _TLS_WRITE_BYTES = 16 * 1024, 64 * 1024
_BYTES_PER_TURN = 1024 * 1024
# A peer that vanished without a word is noticed by the kernel after 15 + 3 * 5 s even when nothing is asked.
_KEEPALIVE_IDLE: int = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE")  # noqa: B009 - macOS
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 15, 5, 3

_SETNAME_REFUSALS = ("NOPERM", "unknown command", "unknown subcommand")

MORE = object()
_READ, _WRITE = 1, 2  # what an io watcher of gevent's loop watches for


AnySocket: TypeAlias = plain_socket.socket | socket.socket

# A memoryview must be contiguous, and show the same until it is written: large ones are not copied.
Arg: TypeAlias = bytes | str | int | memoryview
Command: TypeAlias = Sequence[Arg | Sequence[Arg]]
"""A command's words; those of an inner sequence stand in its place."""

Done: TypeAlias = tuple["Waiter[Reply] | None", Reply, str, float]
"""What is finished: who waited, unless it gave up, the reply or replies, the operation, and the seconds it took."""

# A connection to a replica is not closed earlier: if the address leads to the same replica again, once in this time.
_READ_ONLY_S_MIN = 1.0

SILENCE_SECONDS = 1.0
"""After this time without the reply that is due next somebody may look whether another server is the master by now."""

_UNKNOWN = "the outcome of the request is unknown"


class NodeLimits(NamedTuple):
    """Limits of one connection: times in ms, commands and bytes in flight, bytes of large replies that are expected."""

    timeout_ms: int
    connect_timeout_ms: int
    commands_max: int
    bytes_max: int
    reply_bytes_max: int


# Of a connection over which nothing is asked.
_NO_REQUESTS = NodeLimits(0, 0, 0, 0, 0)


def new_reader() -> RespReader:
    """Return a RESP parser: error replies as exceptions."""
    return RespReader(error_of)


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
    """A live connection that any number of greenlets share, from its first request to its loss.

    `korvet_core.RedisLink` has the socket and all state. gevent's watchers call it here, as callbacks of the loop: a
    switch to a greenlet would cost each command as much again.

    `exchange` is the link's; its waiter raises OutcomeUnknownError if no answer comes. Error replies are returned.
    """

    def __init__(
        self,
        connected: socket.socket,
        name: str,
        limits: NodeLimits = _NO_REQUESTS,
        *,
        on_lost: Callable[[str], None],
        on_round_trip: Callable[[str, float], None] | None = None,
        on_silence: Callable[[], None] | None = None,
        on_replies: Callable[[list[Reply]], None] | None = None,
    ) -> None:
        """Take over a connection to the server `name`, which messages say.

        `on_lost` is called once, in the event loop or in the caller of `lose`, with the reason; `on_round_trip` with
        the operation and the seconds of each exchange, late ones included; `on_silence` about once in SILENCE_SECONDS
        while a reply is due and nothing is heard; `on_replies` with replies that no request asked for, without which
        they end the connection. None of them may wait or raise.
        """
        self.lost: str | None = None
        """The reason why the connection is gone."""
        self.led_to_replica = False
        """Whether it was closed for that."""
        self._made_at = time.monotonic()
        self.on_room: Callable[[], None] | None = None
        """Called when replies have come, and so less is under way."""
        self._name = name
        self._hub = get_hub()
        self._loop = self._hub.loop
        self._on_lost, self._on_round_trip = on_lost, on_round_trip
        self._on_silence, self._on_replies = on_silence, on_replies
        self._tls = connected if isinstance(connected, gevent_ssl.SSLSocket) else None
        fd = connected.fileno()
        if self._tls is None:
            connected.detach()
            os.set_blocking(fd, False)
        else:
            self._tls.settimeout(0)
        self._link: RedisLink[Waiter[Reply]] = RedisLink(
            fd if self._tls is None else None,
            error_of,
            partial(Waiter, self._hub),
            self._act,
            timeout_s=limits.timeout_ms / 1000,
            silence_s=None if on_silence is None else SILENCE_SECONDS,
            commands_max=limits.commands_max,
            bytes_max=limits.bytes_max,
            reply_bytes_max=limits.reply_bytes_max,
            takes_unasked=on_replies is not None,
        )
        self.exchange, self._receive = self._link.exchange, self._link.receive
        self._writing = False
        self._timer = self._loop.timer(0)
        self._readable = self._loop.io(fd, _READ)
        self._writable = self._loop.io(fd, _WRITE)
        self._readable.start(self._read if self._tls is None else self._read_tls)

    @property
    def heard_at(self) -> float:
        """When anything was received last (time.monotonic)."""
        return time.monotonic() - self._link.silent_s

    @property
    def has_room(self) -> bool:
        """Whether a request is sent at once, by what is under way."""
        return self._link.has_room

    @property
    def has_reply_room(self) -> bool:
        """Whether there is room for large replies."""
        return self._link.has_reply_room

    @property
    def under_way(self) -> tuple[int, int, int]:
        """Commands, bytes, and bytes of large replies that are under way."""
        return self._link.under_way

    def send(self, command: Command) -> None:
        """Send a command at the end of this turn of the event loop; its reply goes to `on_replies`."""
        self._act(self._link.send((command,)))

    def lose(self, reason: str) -> None:
        """Close the connection for `reason`; the second and later calls do nothing."""
        self._link.lose_for(reason)
        self._close()

    def _act(self, todo: int) -> None:
        """Do what the core asks for."""
        if todo & RedisLink.FLUSH:
            self._loop.run_callback(self._write)
        if todo & RedisLink.STUCK and not self._writing:
            self._writing = True
            self._writable.start(self._write)
        if todo & RedisLink.WRITE:
            self._write()
        if todo & RedisLink.TIMER:
            self._set_timer()
        if todo & RedisLink.LOST:
            self._close()

    def _write(self) -> None:
        if self.lost is not None:
            return
        todo = self._link.write() if self._tls is None else self._write_tls(self._tls)
        if self._writing and not todo & RedisLink.STUCK:
            self._writing = False
            self._writable.stop()
        self._act(todo)

    def _write_tls(self, tls: gevent_ssl.SSLSocket) -> int:
        try:
            while data := self._link.unwritten(_TLS_WRITE_BYTES):
                sent = tls.send(data)
                self._link.wrote(sent)
                if not sent:
                    return RedisLink.STUCK
        except OSError as error:
            self.lose(reason_of(error))
        return 0

    def _read(self) -> None:
        done, todo = self._receive()
        if done:
            self._answer(done)
        if todo:
            self._finish(todo)

    def _read_tls(self) -> None:
        tls, taken = self._tls, 0
        try:
            # What does not fill the buffer is all there is, except that TLS may hold something back.
            size = _TLS_READ_BYTES
            while self.lost is None and tls is not None and (size == _TLS_READ_BYTES or tls.pending()):
                if taken >= _BYTES_PER_TURN:
                    self._loop.run_callback(self._read_tls)
                    return
                data = tls.recv(_TLS_READ_BYTES)
                size = len(data)
                if not size:
                    self.lose("it closed the connection")
                    return
                taken += size
                done, todo = self._link.received(data)
                self._answer(done)
                self._finish(todo)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self.lose(reason_of(error))

    def _answer(self, done: list[Done]) -> None:
        """Give replies to those who asked."""
        if self._on_replies is not None:
            self._on_replies([reply for _, reply, _, _ in done])
            return
        on_round_trip = self._on_round_trip
        waited_for: list[tuple[Waiter[Reply], Reply]] = []
        # First requests without a waiting caller: a caller who waits for the oldest of several then finds all answered.
        # The requests of the woken greenlets leave in one write again, for the event loop runs this.
        for waiter, reply, operation, seconds in done:
            if on_round_trip is not None:
                on_round_trip(operation, seconds)
            if waiter is None:
                continue
            if waiter.greenlet is None:
                waiter.switch(reply)
            else:
                waited_for.append((waiter, reply))
        for waiter, reply in waited_for:
            waiter.switch(reply)
        if self.on_room is not None:
            self.on_room()

    def _finish(self, todo: int) -> None:
        """Do what reading has brought besides replies."""
        if todo & RedisLink.READ_ONLY and time.monotonic() - self._made_at >= _READ_ONLY_S_MIN:
            self.led_to_replica = True
            self.lose("the server is a read-only replica")
        self._act(todo)

    def _set_timer(self) -> None:
        self._timer.stop()
        due_s = self._link.due_s
        if due_s is not None:
            self._timer.close()
            self._timer = self._loop.timer(max(due_s, 0.001))
            self._timer.start(self._tick, update=True)

    def _tick(self) -> None:
        """Fail the callers whose time is up, and close the connection if it has gone silent."""
        late, todo = self._link.tick()
        if late:
            _fail(late, f"Redis at {self._name} did not answer in time: {_UNKNOWN}")
        if todo & RedisLink.SILENT and self._on_silence is not None:
            self._loop.run_callback(self._on_silence)
        if self.lost is None:
            self._act(todo)

    def _close(self) -> None:
        if self.lost is not None:
            return
        self.lost = self._link.lost or ""
        for watcher in (self._readable, self._writable, self._timer):
            watcher.stop()
            watcher.close()
        failed = self._link.close()
        if self._tls is not None:
            self._tls.close()
        text = f"the connection to Redis at {self._name} was lost ({self.lost}): {_UNKNOWN}"
        self._loop.run_callback(_fail, failed, text)
        self._on_lost(self.lost)


def _fail(waiters: list[Waiter[Reply]], text: str) -> None:
    for waiter in waiters:
        waiter.throw(OutcomeUnknownError(text))


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


def shake_hands(connected: AnySocket, address: RedisAddress, first: Command) -> Reply:
    """Authenticate, choose the database and name the connection, in one round trip with its first command."""
    commands: list[Command] = []
    if address.password:
        commands.append(("AUTH", *((address.username,) if address.username else ()), address.password))
    if address.db:
        commands.append(("SELECT", address.db))
    commands.append(("CLIENT", "SETNAME", "korvet"))
    # Redis may refuse and close before it has read a word; why it did is still there to be read.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connected.sendall(b"".join(map(pack_command, (*commands, first))))
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


def _next_reply(connected: AnySocket, reader: RespReader) -> Reply:
    try:
        while (reply := reader.next_reply(MORE)) is MORE:
            data = connected.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("it closed the connection")
            reader.feed(data)
    except NotRespError as error:
        raise ConnectionAbortedError(f"it sent what is not RESP: {error}") from error
    return cast("Reply", reply)


def reason_of(error: Exception) -> str:
    """Return the system's words for an error, without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
