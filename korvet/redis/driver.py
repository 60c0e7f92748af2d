"""gevent under `client.Redis`: sockets are opened in greenlets, and everything else is callbacks of the event loop.

A switch to a greenlet would cost each command as much again. gevent's sockets by name: nothing here is monkey-patched,
and nothing runs before the first use, so that a client may be made before a fork. Each thread has a loop of its own,
and clients of its own.
"""

from __future__ import annotations

import socket as plain_socket
from collections import deque
from typing import Any, cast

import gevent
from gevent import socket
from gevent.hub import Waiter, get_hub

from korvet.redis.base_driver import (
    Action,
    BaseDriver,
    Done,
    Timeouts,
    TlsLink,
    Turn,
    configure,
    failure_of,
    secured,
)
from korvet.redis.observer import NO_OBSERVER, Observer
from korvet.redis.replies import Reply
from korvet.redis.url import RedisTarget, Tls

_READ, _WRITE = 1, 2  # what an io watcher of gevent's loop watches for

_READS_PER_TURN = 64
"""Of a connection with TLS: 1 MiB, after which others have their turn."""

_TIMER_S_MIN = 0.001


class _Link:
    """An open socket: its watchers, and TLS if it has that."""

    __slots__ = ("is_writing", "readable", "tls", "writable")

    def __init__(self, fd: int, tls: TlsLink | None) -> None:
        loop = get_hub().loop
        self.readable, self.writable = loop.io(fd, _READ), loop.io(fd, _WRITE)
        self.tls = tls
        self.is_writing = False

    def close(self) -> None:
        for watcher in (self.readable, self.writable):
            watcher.stop()
            watcher.close()
        if self.tls is not None:
            self.tls.socket.close()


class GeventDriver(BaseDriver):
    """Drives a client on the event loop of the thread that uses it."""

    def __init__(self, target: RedisTarget, timeouts: Timeouts, observer: Observer) -> None:
        self._links: dict[int, _Link] = {}
        self._attempts: dict[int, gevent.Greenlet[..., None]] = {}
        self._timer: Any = None
        self._actions: deque[Action] = deque()
        self._is_acting = False
        self._on_round_trip = None if observer is NO_OBSERVER else observer.round_trip
        super().__init__(target, timeouts, observer, Waiter, self._act)

    def pause(self, seconds: float) -> None:
        """Wait; other greenlets go on."""
        gevent.sleep(seconds)

    def open(self, connection: int, host: str, port: int, is_of_sentinel: bool) -> None:  # noqa: FBT001 - as the core says it
        """Open a socket in a greenlet."""
        how = self.tls_of(is_of_sentinel)
        self._attempts[connection] = gevent.spawn(self._open, connection, host, port, how)

    def close(self, connection: int) -> None:
        """Forget a connection, or end the attempt."""
        if (attempt := self._attempts.pop(connection, None)) is not None:
            attempt.kill(block=False)
        if (link := self._links.pop(connection, None)) is not None:
            link.close()
        self.core.closed(connection)

    def flush(self, connection: int) -> None:
        """Write at the end of this turn of the event loop."""
        get_hub().loop.run_callback(self._write, connection)

    def write(self, connection: int) -> None:
        """Write now, with TLS."""
        link = self._links.get(connection)
        if link is not None and link.tls is not None:
            link.tls.write()
            self._watch(link, connection)
            if link.tls.failure:
                # Only the event loop's own greenlet may wake those that wait.
                get_hub().loop.run_callback(self._read_tls, connection)

    def stuck(self, connection: int) -> None:
        """Write when the socket takes more."""
        if (link := self._links.get(connection)) is not None and not link.is_writing:
            link.is_writing = True
            link.writable.start(self._write, connection)

    def unstuck(self, connection: int) -> None:
        """Do so no more."""
        if (link := self._links.get(connection)) is not None and link.is_writing:
            link.is_writing = False
            link.writable.stop()

    def set_timer(self) -> None:
        """Call `tick` when the core wants it."""
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None
        due_s = self.core.due_s
        if due_s is not None:
            self._timer = get_hub().loop.timer(max(due_s, _TIMER_S_MIN) if due_s > 0 else 0.0)
            self._timer.start(self._tick, update=True)

    def _act(self, actions: list[Action]) -> None:
        """Do actions in their order; an action that results from another is appended."""
        self._actions += actions
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while self._actions:
                self.do(self._actions.popleft())
        finally:
            self._is_acting = False
            if self._actions:
                # One has failed. It is a fault of ours, and the others are done all the same.
                get_hub().loop.run_callback(self._act, [])

    def _take(self, turn: Turn) -> None:
        """Do what the core asks for, and give replies to those who asked; in the event loop's own greenlet."""
        done, actions = turn
        try:
            if actions:
                self._act(actions)
        finally:
            # Whatever becomes of an action: who waits has no other time limit.
            if done:
                self._answer(done)

    def _answer(self, done: list[Done]) -> None:
        on_round_trip = self._on_round_trip
        waited_for: list[tuple[Any, list[Reply]]] = []
        # First requests without a waiting caller: a caller who waits for the oldest of several then finds all answered.
        # The requests of the woken greenlets leave in one write again, for the event loop runs this.
        for awaited, replies, operation, seconds in done:
            if on_round_trip is not None and operation and seconds >= 0:
                on_round_trip(operation, seconds)
            waiter: Any = awaited
            if waiter is None:
                continue
            if waiter.greenlet is None:
                waiter.switch(replies)
            else:
                waited_for.append((waiter, replies))
        for waiter, replies in waited_for:
            waiter.switch(replies)

    def _write(self, connection: int) -> None:
        link = self._links.get(connection)
        if link is None:
            return
        if link.tls is None:
            self._take(self.core.writable(connection))
        else:
            self.write(connection)

    def _read(self, connection: int) -> None:
        turn = self.core.readable(connection)
        if turn[1]:
            self._take(turn)
        else:
            self._answer(turn[0])

    def _read_tls(self, connection: int) -> None:
        """Read what there is, but no more than a turn's."""
        for _ in range(_READS_PER_TURN):
            link = self._links.get(connection)
            if link is None or link.tls is None:
                return
            data = b"" if link.tls.failure else link.tls.read()
            if not data:
                self._watch(link, connection)
                if link.tls.failure:
                    self._take(self.core.failed(connection, link.tls.failure))
                return
            self._take(self.core.received(connection, data))
        # TLS may have what the kernel has no more.
        get_hub().loop.run_callback(self._read_tls, connection)

    def _on_writable(self, connection: int) -> None:
        link = self._links.get(connection)
        if link is not None and link.tls is not None:
            link.tls.go_on()
            self._read_tls(connection)

    def _watch(self, link: _Link, connection: int) -> None:
        """Watch for room in the socket of a connection with TLS as long as something has to wait for that."""
        wanted = link.tls is not None and link.tls.waits_for_write
        if wanted != link.is_writing:
            link.is_writing = wanted
            if wanted:
                link.writable.start(self._on_writable, connection)
            else:
                link.writable.stop()

    def _tick(self) -> None:
        timer = self._timer
        self._take(self.core.tick())
        if self._timer is timer:
            self.set_timer()

    def _open(self, connection: int, host: str, port: int, how: Tls | None) -> None:
        """Open a socket, and tell the event loop's own greenlet."""
        run_callback = get_hub().loop.run_callback
        is_connected = False
        try:
            opened = _connected(host, port, is_path=host == self.target.addresses[0].path)
            is_connected = True
            if how is not None:
                opened = secured(opened, host, how, _wait)
        except (OSError, ValueError) as error:
            run_callback(self._failed, connection, failure_of(error, how, connected=is_connected))
        else:
            run_callback(self._opened, connection, opened, how)

    def _failed(self, connection: int, reason: str) -> None:
        if self._attempts.pop(connection, None) is not None:
            self._take(self.core.failed(connection, reason))

    def _opened(self, connection: int, opened: plain_socket.socket, how: Tls | None) -> None:
        if self._attempts.pop(connection, None) is None:
            opened.close()
        elif how is None:
            fd = opened.detach()
            link = self._links[connection] = _Link(fd, None)
            link.readable.start(self._read, connection)
            self._take(self.core.opened(connection, fd))
        else:
            tls = TlsLink(self.core, connection, cast("Any", opened), how)
            link = self._links[connection] = _Link(opened.fileno(), tls)
            link.readable.start(self._read_tls, connection)
            self._take(self.core.opened(connection, None))


def _connected(host: str, port: int, *, is_path: bool) -> plain_socket.socket:
    """Return a socket of the standard library that is connected and does not block."""
    if not is_path:
        opened = socket.create_connection((host, port))
    else:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.connect(host)
        except BaseException:
            opened.close()
            raise
    plain = plain_socket.socket(fileno=opened.detach())
    plain.settimeout(0)
    if not is_path:
        configure(plain)
    return plain


def _wait(fd: int, is_write: bool) -> None:  # noqa: FBT001 - of base_driver.secured
    if is_write:
        socket.wait_write(fd)
    else:
        socket.wait_read(fd)
