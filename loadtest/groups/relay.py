"""A way to Redis on which announcements can be lost: everything else passes, and no connection ends.

Run as `python -m loadtest.groups.relay SOCKET`: prints its port, and takes the lines `deaf` and `hear` on stdin. Knows
as much of Redis' protocol as distinguishes an announcement from other bytes.
"""

from __future__ import annotations

import selectors
import socket
import sys

_CHUNK = 1 << 16
_ANNOUNCEMENT = b"*3\r\n$7\r\nmessage\r\n"


class Relay:
    """Passes bytes between clients on a port of 127.0.0.1 and Redis."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._deaf = False
        self._selector = selectors.DefaultSelector()
        self._others: dict[socket.socket, socket.socket] = {}
        self._of_redis: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)

    def run(self) -> None:
        """Pass bytes on until stdin ends."""
        print(self._listener.getsockname()[1], flush=True)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._pass_on(key.fileobj)
                elif line := sys.stdin.readline():
                    self._deaf = line.strip() == "deaf"
                    print("done", flush=True)
                else:
                    return

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server)
        self._of_redis.add(server)
        for one, other in ((client, server), (server, client)):
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        # The other end may have been closed with this one in the same turn.
        if source not in self._others:
            return
        try:
            data = source.recv(_CHUNK)
            if self._deaf and source in self._of_redis and data.startswith(_ANNOUNCEMENT):
                return
            if data:
                self._others[source].sendall(data)
                return
        except OSError:
            pass
        for end in (source, self._others[source]):
            self._selector.unregister(end)
            self._others.pop(end, None)
            self._of_redis.discard(end)
            end.close()


if __name__ == "__main__":
    Relay(sys.argv[1]).run()
