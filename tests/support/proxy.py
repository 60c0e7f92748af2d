"""A real TCP proxy before a real Redis, which fails as networks fail: cut, silent, late, refusing, lying.

Runs on gevent in the test's own process; connections are real sockets. With a certificate it speaks TLS to its
clients, for servers built without it.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
from gevent import socket
from gevent import ssl as gevent_ssl
from gevent.event import Event
from gevent.server import StreamServer

from korvet.redis import url as redis_url

_CHUNK = 65536
_PATIENCE_S = 60.0


def until(condition: Callable[[], object]) -> None:
    """Let greenlets run until something holds; fails if that takes unreasonably long."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        gevent.sleep(0.005)


def turn(count: int = 1) -> None:
    """Let the event loop go round: what is ready runs."""
    for _ in range(count):
        gevent.sleep(0)


class Proxy:
    """The faults; everything passes until one is chosen."""

    def __init__(self, upstream: str, certfile: Path | None = None, keyfile: Path | None = None) -> None:
        self.connections = 0
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self.cut_after_to_server: int | None = None
        self.cut_after_to_client: int | None = None
        """Where the connection is cut that comes so far: once, the next one is whole."""
        self.delay_s = 0.0
        self._flowing = Event()
        self._flowing.set()
        self._open: list[socket.socket] = []
        self._upstream = redis_url.parse(upstream)
        if certfile is None or keyfile is None:
            self._server = StreamServer(("127.0.0.1", 0), self._serve)
        else:
            context = gevent_ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certfile, keyfile)
            self._server = StreamServer(("127.0.0.1", 0), self._serve, ssl_context=context)
        self._server.start()
        self.port = int(self._server.server_port or 0)
        scheme = "redis" if certfile is None else "rediss"
        self.url = f"{scheme}://127.0.0.1:{self.port}"

    def lead_to(self, upstream: str) -> None:
        """Lead new connections to another server, as a name does; those that are open stay."""
        self._upstream = redis_url.parse(upstream)

    def cut(self) -> None:
        """Close every connection, both ends, now."""
        broken, self._open = self._open, []
        for end in broken:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def silence(self) -> None:
        """Pass nothing on any more but keep the connections: a half-open peer. New ones are silent too."""
        self._flowing.clear()

    def speak(self) -> None:
        """Let everything flow again, what was held back first."""
        self._flowing.set()

    def say(self, data: bytes) -> None:
        """Send bytes of our own to every client."""
        for end in self._open[::2]:
            end.sendall(data)

    def refuse(self) -> None:
        """Accept no more and cut what is open: the server is away. For good: the port is free afterwards."""
        self._server.stop()
        self.cut()

    def close(self) -> None:
        """End the proxy."""
        self.refuse()
        self.speak()

    def _serve(self, client: socket.socket, _address: object) -> None:
        self.connections += 1
        server = self._connect()
        self._open += [client, server]
        pumps = [gevent.spawn(self._pump, client, server), gevent.spawn(self._pump, server, client)]
        gevent.joinall(pumps, count=1)
        gevent.killall(pumps)
        for end in (client, server):
            if end in self._open:
                self._open.remove(end)
            end.close()

    def _connect(self) -> socket.socket:
        if not self._upstream.path:
            return socket.create_connection((self._upstream.host, self._upstream.port))
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.connect(self._upstream.path)
        return server

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        to_server = source in self._open[::2]
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._flowing.wait()
                if self.delay_s:
                    gevent.sleep(self.delay_s)
                limit = self.cut_after_to_server if to_server else self.cut_after_to_client
                passed = self.bytes_to_server if to_server else self.bytes_to_client
                if limit is not None and passed + len(data) > limit:
                    self.cut_after_to_server = self.cut_after_to_client = None
                    target.sendall(data[: max(limit - passed, 0)])
                    return
                if to_server:
                    self.bytes_to_server += len(data)
                else:
                    self.bytes_to_client += len(data)
                target.sendall(data)


@contextlib.contextmanager
def proxy(upstream: str, certfile: Path | None = None, keyfile: Path | None = None) -> Iterator[Proxy]:
    """Run a proxy before the Redis at the URL `upstream`."""
    running = Proxy(upstream, certfile, keyfile)
    try:
        yield running
    finally:
        running.close()
