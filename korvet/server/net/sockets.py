"""Clients' sockets on gevent's loop: one watcher and one timer for all, and greenlets for those that have requests.

`korvet_core.ClientSockets` owns the sockets from accept to close: frames, answers, TLS, and every limit of time and of
memory on what is in them. It says by events what there is to do, and this hands them to the connections. An idle
connection has neither a greenlet nor a watcher nor a timer in Python.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import gevent
from gevent.hub import get_hub
from korvet_core import ClientSockets, DataPath

from korvet.config.settings import Settings

if TYPE_CHECKING:
    from korvet.server.net.connection import ClientConnection

PIPELINED_MAX = 5
"""Requests of one connection under way at once: as many as an idempotent producer has in flight."""

AHEAD_BYTES_MAX = 1024 * 1024
"""What is read of a client's next requests while those before them are served."""

LOGINS_SHARE = 8
"""All that clients send before they have logged in may hold this part of the budget; incomplete small requests too."""

HANDSHAKES_MAX = 512
"""TLS handshakes under way at once; of more the oldest ends."""

_IDLE_GREENLETS_MAX = 64
_SHORTEST_SECONDS = 0.001  # of the timer: what is due at once has its turn after the sockets that are ready
_READ = 1  # what a watcher of gevent's loop watches for


class Sockets:
    """The connections of one worker: their sockets in the core, and what bounds the memory of serving them."""

    def __init__(
        self,
        settings: Settings,
        path: DataPath[ClientConnection] | None = None,
        *,
        may_all: bool = False,
    ) -> None:
        """Take the limits from the settings; `path` serves Produce and Fetch; `may_all`: clients may do everything."""
        idle_ms, self.budget_bytes = settings.connections_max_idle_ms, settings.queued_max_request_bytes
        self.path, self._may_all = path, may_all
        self.core: ClientSockets[ClientConnection] = ClientSockets(
            idle_s=None if idle_ms < 0 else idle_ms / 1000,
            receive_s=settings.connection_receive_timeout_ms / 1000,
            produce_frame_max=settings.socket_request_max_bytes,
            other_frame_max=min(settings.request_control_max_bytes, settings.socket_request_max_bytes),
            frames_max=PIPELINED_MAX,
            ahead_bytes=AHEAD_BYTES_MAX,
            budget_bytes=self.budget_bytes,
            login_budget_bytes=self.budget_bytes // LOGINS_SHARE,
            half_budget_bytes=self.budget_bytes // LOGINS_SHARE,
            handshakes_max=HANDSHAKES_MAX,
            now_s=time.monotonic(),
        )
        if path is not None:
            path.serve_clients(self.core)
        self._hub = get_hub()
        self._ready: deque[ClientConnection] = deque()
        """Those that have a request, and no greenlet."""
        self._idle: list[Any] = []
        """Greenlets without a connection."""
        self._watcher = self._hub.loop.io(self.core.fileno(), _READ)
        self._watcher.start(lambda: self.handle(self.core.turn()))
        self._timer = self._hub.loop.timer(0)

    def close(self) -> None:
        """Stop watching; the connections are over."""
        gevent.killall(self._idle)
        for watcher in (self._watcher, self._timer):
            watcher.stop()
            watcher.close()

    def handle(self, events: Iterable[tuple[ClientConnection | None, str, object]]) -> None:
        """Do what follows from events of the core; requests are served from the hub, soon."""
        left = iter(events)
        for connection, word, detail in left:
            if connection is None:
                self._set_timer()
            elif word != "frame":
                try:
                    connection.note(word, detail)
                except Exception:
                    # A fault of ours ends its connection, and the events of others are still to be handled.
                    self._hub.loop.run_callback(self.handle, left)
                    connection.cut_off("fault")
                    raise
            elif connection.served_by is None:
                self._ready.append(connection)
        if self._ready:
            if gevent.getcurrent() is self._hub:
                self._serve_ready()
            else:
                self._hub.loop.run_callback(self._serve_ready)

    def put_session(self, connection: int, ends_s: float | None) -> None:
        """Have the core serve Produce and Fetch of a connection until its session ends (time.monotonic)."""
        if self.path is not None:
            self.path.put_session(connection, self._may_all, ends_s)

    def serve(self, connection: ClientConnection) -> None:
        """Have a greenlet serve a connection that none serves, soon."""
        self._ready.append(connection)
        self._hub.loop.run_callback(self._serve_ready)

    def _set_timer(self) -> None:
        due_s = self.core.due_s
        self._timer.stop()
        if due_s is not None:
            self._timer.close()
            self._timer = self._hub.loop.timer(max(due_s, _SHORTEST_SECONDS))
            self._timer.start(lambda: self.handle(self.core.tick()), update=True)

    def _serve_ready(self) -> None:
        """Have a greenlet serve all that have requests, and when it waits for something another one the rest."""
        while self._ready:
            if not self._idle:
                gevent.spawn(self._serve)
                self._hub.loop.run_callback(self._serve_ready)  # once that one has begun
                return
            self._idle.pop().switch()

    def _serve(self) -> None:
        own = gevent.getcurrent()
        connection: ClientConnection | None
        while True:
            while self._ready:
                connection = self._ready.popleft()
                if connection.served_by is None:
                    connection.served_by = own
                    connection.serve()
            if len(self._idle) >= _IDLE_GREENLETS_MAX:
                return
            connection = None  # while this waits it keeps nothing alive
            self._idle.append(own)
            self._hub.switch()
