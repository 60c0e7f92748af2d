"""A client's socket with TLS: the handshake, and bytes that are encrypted on their way through a Channel.

OpenSSL works in memory, and the Channel moves what it leaves there: one system call takes in what has arrived of
several TLS records, and one sends several.

A handshake costs a millisecond of CPU. They take turns, one in each round of the event loop, so that a flood of them
leaves every other turn to clients that are connected. And a handshake that waits for its peer costs memory: of more
than HANDSHAKES_MAX the oldest ends, so that peers who begin handshakes and leave them keep nobody out.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore

from korvet.clock import CLOCK
from korvet.errors import ProtocolError
from korvet.protocol.wire import Buffer
from korvet.security.session import Principal
from korvet.security.tls import ListenerTls, NoPrincipalError, reason
from korvet.server.net.socket import RECEIVED_BYTES, Channel
from korvet.telemetry import metrics
from korvet.turns import CALLS_PER_LOOK, SHORTEST_SECONDS, give_turn

HANDSHAKES_MAX = 512
"""Handshakes under way at once in one worker; each takes about 60 KB."""

RECORD_BYTES = 16 * 1024
"""Most bytes of one record of TLS."""

PIECE_BYTES = 64 * 1024
"""Encrypted before they are sent: more are no faster."""

FED_BYTES = RECORD_BYTES + 256
"""Given to OpenSSL at once, about a record: of records without data it takes in all that it has, in one call."""

BARREN_BYTES_MAX = 64 * 1024
"""Bytes without any data in them: an honest peer sends a change of keys at times, and an alert."""

_LOOK_SECONDS = 0.002  # of decrypting, before the other greenlets may have their turn

_NOTHING = memoryview(b"")

_received = bytearray(RECEIVED_BYTES)
"""Where everything is decrypted, and copied from before another greenlet runs."""

_HANDSHAKE_BYTES = 16 * 1024  # taken from the kernel at once during a handshake
_HANDSHAKE_RECORD = 0x16
_NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"


LOOK_SECONDS = 5.0
"""How often a worker looks whether certificates were replaced."""


class HandshakeError(ProtocolError):
    """A TLS handshake that failed, and why."""


class CertificateRefusedError(HandshakeError):
    """The client has no certificate that it gets in with: none, none that is trusted, or none with a principal."""


class Handshakes:
    """The handshakes under way in this worker."""

    def __init__(self) -> None:
        self._under_way: dict[TlsChannel, None] = {}  # the oldest first
        self._turn = BoundedSemaphore(1)
        self._next_turn = gevent.get_hub().loop.timer(SHORTEST_SECONDS)

    def begin(self, channel: TlsChannel) -> None:
        """Count a handshake; the oldest ends if there are too many."""
        if len(self._under_way) >= HANDSHAKES_MAX:
            oldest = next(iter(self._under_way))
            del self._under_way[oldest]
            oldest.drop()
        self._under_way[channel] = None

    def end(self, channel: TlsChannel) -> None:
        """Count it no more."""
        self._under_way.pop(channel, None)

    def step(self, tls: ssl.SSLObject) -> bool:
        """Compute the next step, when it is this one's turn; returns whether the handshake is done."""
        self._turn.acquire()
        # The next one's turn comes when the event loop has looked at all sockets.
        self._next_turn.start(self._turn.release, update=True)
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True


class TlsChannel(Channel):
    """A connected socket with TLS; to be used after `handshake`."""

    __slots__ = (
        "_barren",
        "_closed",
        "_dropped",
        "_encrypted",
        "_handshakes",
        "_incoming",
        "_outgoing",
        "_patience",
        "_server",
        "_tls",
    )

    def __init__(self, connected: socket.socket, server: ListenerTls, handshakes: Handshakes) -> None:
        """Take over a socket, with TLS as its listener has it now."""
        super().__init__(connected)
        self._server = server
        self._handshakes = handshakes
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = server.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._encrypted = _NOTHING
        self._patience = 0.0
        self._barren = 0
        self._closed = self._dropped = False

    def handshake(self, seconds: float) -> Principal:
        """Do the handshake within `seconds`; raises HandshakeError, CertificateRefusedError, OSError."""
        self._patience = seconds
        self._handshakes.begin(self)
        try:
            self._shake_hands(time.monotonic() + seconds)
            return self._server.principal(self._tls.getpeercert(binary_form=True))
        except NoPrincipalError as error:
            raise CertificateRefusedError(f"TLS: {error}") from None
        except TimeoutError:
            raise HandshakeError(f"TLS handshake failed: not done within {seconds:g} s") from None
        finally:
            self._handshakes.end(self)

    def drop(self) -> None:
        """End the handshake: there are too many others."""
        self._dropped = True
        self.end_receiving()

    def receive(self, size_max: int, seconds: float | None) -> bytes:
        """See Channel. `seconds` are for all of a record: a peer that sends one slowly gets no more."""
        due = None if seconds is None else time.monotonic() + seconds
        waited = False
        while not (data := self._take_in(size_max)) and not (self._closed or self._ended):
            waited = True
            try:
                self._wait(self._readable, None if due is None else max(0.0, due - time.monotonic()))
            except TimeoutError:
                if not self._ended:
                    raise
        self.waited = waited
        return data

    def receive_at_once(self, size_max: int) -> bytes | None:
        """See Channel."""
        self.waited = False
        data = self._take_in(size_max)
        return data if data or self._closed else None

    def send(self, pieces: Sequence[Buffer], seconds: float) -> int:
        """See Channel; each piece is encrypted when those before it are on their way."""
        size = sum(map(len, pieces))
        for piece in [b"".join(pieces)] if size <= RECORD_BYTES else _pieces(pieces):
            self._tls.write(piece)
            if self._outgoing.pending >= PIECE_BYTES:
                self._send_all(self._outgoing.read(), seconds)
                give_turn(CALLS_PER_LOOK)
        self._send_all(self._outgoing.read(), seconds)
        return size

    def close_after_peer(self, seconds: float, *, announced: bool = True) -> None:
        """See Channel."""
        if announced:
            self._say_goodbye()
        super().close_after_peer(seconds, announced=announced)

    def close(self) -> None:
        """See Channel."""
        self._say_goodbye()
        super().close()

    def _take_in(self, size_max: int) -> bytes:
        """Return what is here, decrypted, up to `size_max` bytes; send what OpenSSL itself has to say.

        It is less only if nothing is left in the kernel: what is known of the time when a request came follows from
        that. A record of one byte, or of new keys, costs as much as a large one: others have their turn meanwhile.
        """
        parts: list[bytes] = []
        view = memoryview(_received)[:size_max]
        size, is_empty, began = self._decrypt(view), False, time.monotonic()
        while size < len(view) and not self._closed:
            if not self._encrypted:
                data = None if is_empty else super().receive_at_once(RECEIVED_BYTES)
                if data is None:
                    break
                self._closed, is_empty = not data, len(data) < RECEIVED_BYTES
                self._encrypted = memoryview(data)
            size += self._feed(view[size:])
            if time.monotonic() - began > _LOOK_SECONDS:
                parts.append(bytes(view[:size]))  # others decrypt to the same place
                view, size = view[: len(view) - size], 0
                self._answer()
                give_turn(CALLS_PER_LOOK)
                is_empty, began = False, time.monotonic()
        parts.append(bytes(view[:size]))
        self._answer()
        return b"".join(parts)

    def _feed(self, view: memoryview) -> int:
        """Decrypt the next of the bytes that are taken from the kernel into `view`, and return the size."""
        fed, self._encrypted = self._encrypted[:FED_BYTES], self._encrypted[FED_BYTES:]
        if not self._encrypted:
            self._encrypted = _NOTHING  # an empty view would keep all that it is of in memory
        self._incoming.write(fed)
        size = self._decrypt(view)
        self._barren = 0 if size else self._barren + len(fed)
        if self._barren > BARREN_BYTES_MAX:
            raise ProtocolError("TLS: the peer sends messages of TLS alone, and no data")
        return size

    def _decrypt(self, view: memoryview) -> int:
        size = 0
        tls: Any = self._tls  # typeshed does not know reading into a buffer
        try:
            while size < len(view) and (self._incoming.pending or tls.pending()):
                read: int = tls.read(len(view) - size, view[size:])
                if not read:
                    self._closed = True
                    break
                size += read
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still to come
        except ssl.SSLError as error:
            self._send_at_once()
            raise ProtocolError(f"TLS: {reason(error)}") from None
        return size

    def _answer(self) -> None:
        """Send what OpenSSL itself has to say, to a peer that asks for new keys or a new handshake."""
        if self._outgoing.pending:
            self._send_all(self._outgoing.read(), self._patience)

    def _send_all(self, data: bytes, seconds: float) -> None:
        left = memoryview(data)
        while left:
            sent = self._sent(self._socket.send, left, seconds)
            left = left[sent:]

    def _send_at_once(self) -> None:
        """Send what OpenSSL has to say, if the peer takes it now."""
        with contextlib.suppress(OSError):
            self._socket.send(self._outgoing.read())

    def _say_goodbye(self) -> None:
        """Tell the peer that nothing follows: without that it must take the end for an attack."""
        with contextlib.suppress(OSError):
            self._tls.unwrap()
        self._send_at_once()

    def _shake_hands(self, due: float) -> None:
        begun = False
        while True:
            try:
                done = begun and self._handshakes.step(self._tls)
            except ssl.SSLError as error:
                self._send_at_once()  # the alert that has the reason
                refused = isinstance(error, ssl.SSLCertVerificationError) or error.reason == _NO_CERTIFICATE
                failure = CertificateRefusedError if refused else HandshakeError
                raise failure(f"TLS handshake failed: {reason(error)}") from None
            if self._outgoing.pending:
                self._send_all(self._outgoing.read(), max(0.0, due - time.monotonic()))
            if done:
                return
            data = super().receive(_HANDSHAKE_BYTES, max(0.0, due - time.monotonic()))
            if self._dropped:
                raise HandshakeError(
                    f"TLS handshake failed: more than {HANDSHAKES_MAX} others began after it"
                )
            if not data:
                raise ConnectionAbortedError("closed before its TLS handshake was done")
            if not begun and data[0] != _HANDSHAKE_RECORD:
                raise HandshakeError(
                    f"not TLS: the listener {self._server.listener} expects it of its clients"
                )
            begun = True
            self._incoming.write(data)


def _pieces(pieces: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the bytes of `pieces`: small ones joined to a record of TLS at least, large ones cut and not copied."""
    held: list[Buffer] = []
    size = 0
    for piece in pieces:
        if len(piece) >= RECORD_BYTES:
            if held:
                yield b"".join(held)
                held, size = [], 0
            view = memoryview(piece)
            for at in range(0, len(view), PIECE_BYTES):
                yield view[at : at + PIECE_BYTES]
            continue
        held.append(piece)
        size += len(piece)
        if size >= RECORD_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def watch_certificates(listeners: Sequence[ListenerTls]) -> None:
    """Take up certificates that were replaced, and report when those in use end."""
    while listeners:
        for listener in listeners:
            listener.refresh()
            metrics.TLS_CERTIFICATE_EXPIRY.labels(listener.listener).set(listener.expires_at)
        CLOCK.sleep(LOOK_SECONDS)
