"""Many connections in one process: requests out, answers with the time at which they came.

Knows Korvet's codecs, which tests hold to Kafka's own schemas, and of Redis' protocol as much as a subscription needs.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from korvet.protocol.compile import decode, encode
from korvet.protocol.schema import Message

_SECONDS_MAX = 60.0
_CLIENT = b"loadtest"
_CHUNK = 1 << 16


class RefusedError(Exception):
    """A broker answered with an error, or not at all; says which."""


class Connection:
    """A connection with at most one request under way, in versions without tagged fields."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._kind: type[Message] | None = None
        self._version = 0
        self._bytes = b""

    def send(self, message: Message, version: int, kind: type[Message]) -> None:
        """Send a request; `kind` is what its answer is."""
        if self._kind is not None:
            raise RefusedError("a second request before the answer to the first")
        self._kind, self._version = kind, version
        body = b"".join(bytes(chunk) for chunk in encode(message, version))
        key = type(message).api.key
        header = struct.pack(f">hhih{len(_CLIENT)}s", key, version, 0, len(_CLIENT), _CLIENT)
        self.socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)

    def receive(self) -> Message | None:
        """Take in what has come; returns the answer once it is whole."""
        piece = self.socket.recv(_CHUNK)
        if not piece or self._kind is None:
            raise RefusedError("a broker closed the connection, or answered what was not asked")
        self._bytes += piece
        if len(self._bytes) < 4 or len(self._bytes) < 4 + struct.unpack_from(">i", self._bytes)[0]:
            return None
        answer = decode(self._kind, self._version, self._bytes[4:], 4)
        self._bytes, self._kind = b"", None
        return answer


Answered: TypeAlias = Callable[[Connection, Message, float], bool]
"""Takes an answer and when it came (monotonic seconds); returns whether to read on from that connection."""


class Hub:
    """Hears all connections at once, and what Redis announces on a channel."""

    def __init__(self, server: Path, channel: str) -> None:
        """`server` is the socket of Redis."""
        self.announced: list[tuple[float, bytes]] = []
        self._selector = selectors.DefaultSelector()
        self._events = socket.socket(socket.AF_UNIX)
        self._events.settimeout(_SECONDS_MAX)
        self._events.connect(str(server))
        self._events.sendall(b"CLIENT SETNAME loadtest\r\nSSUBSCRIBE " + channel.encode() + b"\r\n")
        self._selector.register(self._events, selectors.EVENT_READ)

    def add(self, connection: Connection) -> None:
        """Hear a connection from now on."""
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def close(self) -> None:
        """Close all of them."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets
        self._selector.close()

    def hear(self, awaited: Iterable[Connection], answered: Answered) -> None:
        """Pass answers on until every connection that is awaited has had its last one; raises RefusedError."""
        left = set(awaited)
        deadline = time.monotonic() + _SECONDS_MAX
        while left:
            for connection, answer, now in self.poll(deadline - time.monotonic()):
                if not answered(connection, answer, now):
                    left.discard(connection)
            if time.monotonic() > deadline:
                raise RefusedError(f"{len(left)} answers did not come in {_SECONDS_MAX:.0f} s")

    def poll(self, seconds: float) -> list[tuple[Connection, Message, float]]:
        """Wait so long for something to come; returns the answers that are whole, and when they came."""
        heard: list[tuple[Connection, Message, float]] = []
        for key, _ in self._selector.select(max(seconds, 0)):
            now = time.monotonic()
            if key.data is None:
                self.announced.append((now, self._events.recv(_CHUNK)))
            elif (answer := key.data.receive()) is not None:
                heard.append((key.data, answer, now))
        return heard
