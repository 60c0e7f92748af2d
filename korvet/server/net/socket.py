"""A client's socket: bytes in and out, each wait with a limit; other greenlets of the worker go on.

The system call is tried first, and waited for only if it would block: gevent's own sockets cost a request more in
layers than in the calls themselves.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from typing import Any, Protocol

from gevent import getcurrent, sleep
from gevent.hub import get_hub

from korvet.protocol.wire import Buffer
from korvet.security.session import ANONYMOUS, Principal

_READ, _WRITE = 1, 2  # what an io watcher of gevent's loop watches for

_GONE = getattr(select, "POLLRDHUP", 0)  # beside POLLHUP and POLLERR, which need not be asked for

JOIN_BYTES = 16 * 1024
"""What is sent at once is joined up to this size: cheaper than passing each piece to the kernel."""

PIECE_BYTES_MIN = 256
"""Pieces that have fewer on average are joined too: a large response may be of nothing but numbers."""

_DROPPED_BYTES = 64 * 1024  # taken from the kernel at once, of what is not read any more

RECEIVED_BYTES = 256 * 1024
"""Taken from the kernel at once: a typical request comes whole, and a frame grows no faster than it arrives."""

_received = memoryview(bytearray(RECEIVED_BYTES))
"""Where the kernel puts all that arrives, and what it is copied from before another greenlet runs.

A buffer of its own for each call would be mapped, faulted in and unmapped again, for a request of a few bytes too.
"""

PIECES_MAX = 512
"""Pieces given to the kernel at once; it takes 1024 (IOV_MAX)."""


class _Watcher(Protocol):
    def start(self, callback: Callable[[], object], /) -> object: ...
    def stop(self) -> object: ...


class Channel:
    """One connected socket; used by one greenlet at a time."""

    __slots__ = (
        "_due",
        "_ended",
        "_hub",
        "_readable",
        "_socket",
        "_timer",
        "_timer_due",
        "_waiting",
        "_writable",
        "waited",
    )

    def __init__(self, connected: socket.socket) -> None:
        """Take over a socket; from now on it never blocks."""
        connected.settimeout(0)
        self._socket = connected
        self._hub = get_hub()
        loop = self._hub.loop
        self._readable = loop.io(connected.fileno(), _READ)
        self._writable = loop.io(connected.fileno(), _WRITE)
        self._timer = loop.timer(0)
        self._timer_due = self._due = inf
        self._waiting: Any = None
        self._ended = False
        self.waited = False
        """Whether the last `receive` had to wait."""

    def handshake(self, seconds: float) -> Principal:  # noqa: ARG002 - TLS takes it
        """Do what has to come before the first request; return as whom the peer has shown itself by that."""
        return ANONYMOUS

    def receive(self, size_max: int, seconds: float | None) -> bytes:
        """Return what has arrived, up to `size_max` bytes; waits for the first of it, None: without a limit.

        `size_max` is at most RECEIVED_BYTES. Returns b"" if the peer has closed. Raises TimeoutError, OSError.
        """
        self.waited = False
        while True:
            try:
                size = self._socket.recv_into(_received, size_max)
                return _received[:size].tobytes()
            except BlockingIOError:
                if self._ended:
                    return b""
                self.waited = True
            try:
                self._wait(self._readable, seconds)
            except TimeoutError:
                if not self._ended:
                    raise

    def receive_at_once(self, size_max: int) -> bytes | None:
        """Return what has arrived already; None: nothing has."""
        self.waited = False
        try:
            size = self._socket.recv_into(_received, size_max)
            return _received[:size].tobytes()
        except BlockingIOError:
            return None

    def send(self, pieces: Sequence[Buffer], seconds: float) -> int:
        """Send all of `pieces` and return their size; few or small ones are joined, others sent as they lie in memory.

        `seconds` limits each wait for the peer to take some of it, so that much may take its time. Raises
        TimeoutError, OSError.
        """
        size = sum(map(len, pieces))
        if size > max(JOIN_BYTES, PIECE_BYTES_MIN * len(pieces)):
            self._send_pieces(deque([memoryview(piece) for piece in pieces]), seconds)
            return size
        left = memoryview(b"".join(pieces))
        while left:
            sent = self._sent(self._socket.send, left, seconds)
            left = left[sent:]
        return size

    def is_peer_gone(self) -> bool:
        """Return whether the peer has closed, or at least its sending half, even if not all is received yet."""
        poll = select.poll()
        poll.register(self._socket, _GONE)
        return bool(poll.poll(0))

    def end_receiving(self) -> None:
        """Let a waiting `receive`, and every later one, find that the peer has closed, if nothing has arrived."""
        self._ended = True
        if self._waiting is not None:
            self._due = time.monotonic()
            self._set_timer(0)

    def close_after_peer(self, seconds: float, *, announced: bool = True) -> None:
        """Close once the peer has read what was sent and closed too, after `seconds` at the latest.

        Unless it is `announced`, the peer sees the end no sooner: some clients drop an answer that the end comes with.

        What it still sends is dropped. A socket that closes with unread bytes resets the connection, and responses
        that are on their way are lost.
        """
        try:
            if announced:
                self._socket.shutdown(socket.SHUT_WR)
            self._ended = False
            due = time.monotonic() + seconds
            # The bytes as they are, encrypted or not.
            while (left := due - time.monotonic()) > 0 and Channel.receive(self, _DROPPED_BYTES, left):
                # A peer that sends without a pause does not keep other sockets waiting, as after sleep(0).
                sleep(1e-6)
        except OSError:
            return  # the peer left first, or not in time
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket; nobody may be waiting."""
        for watcher in (self._readable, self._writable, self._timer):
            watcher.stop()
            watcher.close()
        self._socket.close()

    def _send_pieces(self, left: deque[memoryview], seconds: float) -> None:
        while left:
            sent = self._sent(self._socket.sendmsg, list(islice(left, PIECES_MAX)), seconds)
            while left and sent >= len(left[0]):
                sent -= len(left.popleft())
            if sent:
                left[0] = left[0][sent:]

    def _sent(self, send: Callable[[Any], int], data: object, seconds: float) -> int:
        while True:
            try:
                return send(data)
            except BlockingIOError:
                self._wait(self._writable, seconds)

    def _wait(self, watcher: _Watcher, seconds: float | None) -> None:
        """Let others run until the socket is ready; raises TimeoutError after `seconds`.

        There is one timer, and most waits leave it alone: it may go off too early, and is set again then.
        """
        if seconds is not None:
            self._due = time.monotonic() + seconds
            if self._due < self._timer_due:
                self._set_timer(seconds)
        else:
            self._due = inf
        self._waiting = getcurrent()
        watcher.start(self._waiting.switch)
        try:
            self._hub.switch()
        finally:
            self._waiting = None
            watcher.stop()

    def _set_timer(self, seconds: float) -> None:
        self._timer_due = self._due
        self._timer.stop()
        self._timer.close()
        self._timer = self._hub.loop.timer(max(seconds, 0.001))
        self._timer.start(self._on_timer, update=True)

    def _on_timer(self) -> None:
        self._timer_due = inf
        if self._waiting is None or self._due == inf:
            return
        left = self._due - time.monotonic()
        if left > 0:
            self._set_timer(left)
        else:
            self._waiting.throw(TimeoutError)
