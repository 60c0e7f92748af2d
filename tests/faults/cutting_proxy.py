"""A proxy before Redis that cuts one connection in the middle of one command, or of its answer.

It knows the command by a text that occurs in it, and counts bytes from its first one; commands have to be small enough
to come in one piece. Threads and blocking sockets, for the tests' clients run threads of their own.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Self

_CHUNK = 1 << 16
_EVALSHA = b"$7\r\nEVALSHA\r\n"


class CuttingProxy:
    """A context manager. `cuts` counts connections cut; `passed_whole` is set by a command that had no such byte."""

    def __init__(self, upstream: Path) -> None:
        self.cuts = 0
        self.passed_whole = False
        self._upstream = upstream
        self._lock = threading.Lock()
        self._next: tuple[bytes, int] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # It wakes the thread that accepts, as closing alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut_next(self, text: bytes, at: int) -> None:
        """Let `at` bytes pass of the next EVALSHA with this text and of its answer, then cut the connection."""
        with self._lock:
            self._next = text, at

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._upstream))
                pair = _Pair(self, client, server)
                for pump in (pair.to_server, pair.to_client):
                    threading.Thread(target=pump, daemon=True).start()

    def take(self, data: bytes) -> tuple[int, int] | None:
        """Return where in `data` the command begins and how many bytes are to pass from there, once; None elsewhere."""
        with self._lock:
            if self._next is None or self._next[0] not in data:
                return None
            (text, at), self._next = self._next, None
        begin = data.rindex(b"*", 0, data.rindex(_EVALSHA, 0, data.index(text)))
        return begin, at


class _Pair:
    """A client's connection and the one to Redis."""

    def __init__(self, proxy: CuttingProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._answer_bytes: int | None = None

    def to_server(self) -> None:
        """Pass what the client sends, up to the cut."""
        with contextlib.suppress(OSError):
            while data := self._client.recv(_CHUNK):
                found = self._proxy.take(data)
                if found is not None:
                    begin, at = found
                    if begin + at < len(data):
                        self._server.sendall(data[: begin + at])
                        self._cut()
                        return
                    # Set before the answer can come.
                    self._answer_bytes = begin + at - len(data)
                self._server.sendall(data)
        self._close()

    def to_client(self) -> None:
        """Pass what Redis answers, up to the cut."""
        with contextlib.suppress(OSError):
            while data := self._server.recv(_CHUNK):
                left, self._answer_bytes = self._answer_bytes, None
                if left is not None and left < len(data):
                    self._client.sendall(data[:left])
                    self._cut()
                    return
                self._proxy.passed_whole |= left is not None
                self._client.sendall(data)
        self._close()

    def _cut(self) -> None:
        self._proxy.cuts += 1
        self._close()

    def _close(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
