"""A port of this machine that leads to another one, as a container's published port does: clients know only this."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

_CHUNK = 65536


class PublishedPort:
    """Forwards connections to `target`, which may be set later; a context manager that ends them all."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.target: tuple[str, int] | None = None
        threading.Thread(target=self._accept, name="published port", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._open):
            _end(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                assert self.target is not None, "nothing listens there yet"
                server = socket.create_connection(self.target)
                self._open.append(server)
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
    for each in (source, sink):
        _end(each)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
