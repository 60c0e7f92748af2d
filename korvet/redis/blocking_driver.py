"""Sockets for which their user waits, under `client.Redis`: for threads that may block, as Spark's and the lake's.

gevent gives each thread an event loop that it keeps, with two files, until the process ends, so threads that come and
go must not use it. Here nothing goes on while nobody waits: a request opens what it needs and is sent when it is begun,
and who waits for replies does what is to be done for all. A client is for one thread at a time.

An interruption (KeyboardInterrupt) may come between any two steps. So what the core says is put where it belongs by one
call, without a step of Python between, and is taken away after it was done; to do it twice does no harm.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap
from typing import Any, cast

from korvet.errors import StorageUnavailableError
from korvet.redis.base_driver import (
    Action,
    BaseDriver,
    Timeouts,
    TlsLink,
    Turn,
    configure,
    failure_of,
    secured,
)
from korvet.redis.client import Redis
from korvet.redis.observer import Observer
from korvet.redis.replies import Reply
from korvet.redis.url import RedisTarget

_REFRESH_S_MIN = 0.1
"""How often failing requests have the map of a cluster read again."""


def blocking_redis(url: str, *, timeout_ms: int, connect_timeout_ms: int) -> Redis:
    """Return a client for one thread, which may block; raises ConfigError for a malformed `url`."""
    return Redis(url, timeout_ms=timeout_ms, connect_timeout_ms=connect_timeout_ms, driver=BlockingDriver)


class _Waiter:
    __slots__ = ("_driver", "replies")

    def __init__(self, driver: BlockingDriver) -> None:
        self._driver = driver
        self.replies: list[Reply] | None = None

    def ready(self) -> bool:
        return self.replies is not None

    def get(self) -> list[Reply]:
        while self.replies is None:
            self._driver.step()
        return self.replies


class BlockingDriver(BaseDriver):
    """Drives a client whenever its user begins something, or waits."""

    watches = False

    def __init__(self, target: RedisTarget, timeouts: Timeouts, observer: Observer) -> None:
        self._todo: deque[Turn | list[Action]] = deque()
        self._writes: dict[int, None] = {}
        self._poll = select.poll()
        self._fds: dict[int, int] = {}
        self._connections: dict[int, int] = {}
        self._links: dict[int, TlsLink] = {}
        self._map_is_old, self._read_at = False, -math.inf
        super().__init__(target, timeouts, observer, partial(_Waiter, self), self._todo.append)
        # One Sentinel that cannot be reached leaves time for the others.
        shares = len(target.addresses) + 1 if target.kind == "sentinel" else 1
        self._open_s = timeouts.connect_timeout_ms / 1000 / shares
        self.begin = partial(self._begin, self.core.begin)
        self.begin_scripts = partial(self._begin, self.core.begin_scripts)

    def step(self) -> None:
        """Do what there is to do, or wait for it."""
        if self._todo or self._writes:
            # An interruption may have left it. Then replies may be there, and nothing else to wait for.
            self._settle()
            return
        due_s = self.core.due_s
        events = self._poll.poll(None if due_s is None else max(math.ceil(due_s * 1000), 0))
        # What has come while nobody waited is read before anything is late.
        if events:
            self._handle(events)
            self._settle()
            due_s = self.core.due_s
        if not events or due_s == 0:
            self._todo.extend(starmap(self.core.tick, ((),)))
            self._settle()

    def read_map_soon(self) -> None:
        """Read the map before it is used again."""
        self._map_is_old = True

    def masters(self) -> dict[str, int]:
        """Return those of a map that is not known to be old."""
        self._refresh()
        return super().masters()

    def number_at(self, slot: int) -> int:
        """Return the node that has a slot by such a map."""
        self._refresh()
        return super().number_at(slot)

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def close_lane(self, lane: int) -> None:
        """Close the connections of a lane for good."""
        super().close_lane(lane)
        self._settle()

    def open(self, connection: int, host: str, port: int, is_of_sentinel: bool) -> None:  # noqa: FBT001 - as the core says it
        """Open a socket."""
        if connection in self._connections:
            return
        how, is_connected = self.tls_of(is_of_sentinel), False
        try:
            opened = self._connect(host, port)
            is_connected = True
            if how is not None:
                opened = secured(opened, host, how, self._wait)
        except TimeoutError:
            return  # the core's own time for it is over by now
        except (OSError, ValueError) as error:
            reason = failure_of(error, how, connected=is_connected)
            self._todo.extend(map(self.core.failed, (connection,), (reason,)))
            return
        fd = opened.fileno()
        if how is not None:
            self._links[connection] = TlsLink(self.core, connection, cast("Any", opened), how)
        self._poll.register(fd, select.POLLIN)
        self._fds[fd], self._connections[connection] = connection, fd
        taken = opened.detach() if how is None else None
        self._todo.extend(map(self.core.opened, (connection,), (taken,)))

    def close(self, connection: int) -> None:
        """Forget a connection."""
        fd = self._connections.pop(connection, None)
        if fd is not None and self._fds.pop(fd, None) is not None:
            self._poll.unregister(fd)
        if (link := self._links.pop(connection, None)) is not None:
            link.socket.close()
        self.core.closed(connection)

    def flush(self, connection: int) -> None:
        """Write once nothing else is left to do."""
        self._writes[connection] = None

    def write(self, connection: int) -> None:
        """Write now."""
        if (link := self._links.get(connection)) is not None:
            self._do_tls(connection, link, None)
        elif connection in self._connections:
            self._todo.extend(map(self.core.writable, (connection,)))

    def stuck(self, connection: int) -> None:
        """Write when the socket takes more."""
        self._watch(connection, is_for_writing=True)

    def unstuck(self, connection: int) -> None:
        """Do so no more."""
        self._watch(connection, is_for_writing=False)

    def _watch(self, connection: int, *, is_for_writing: bool) -> None:
        if (fd := self._connections.get(connection)) is not None:
            self._poll.modify(fd, select.POLLIN | (select.POLLOUT if is_for_writing else 0))

    def set_timer(self) -> None:
        """Do nothing: each step asks when it is to end."""

    def _begin(self, begin: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401 - those of the core
        """Begin something once it is known what became of connections that were idle."""
        self._settle()
        self._handle(self._poll.poll(0))
        self._settle()
        self._refresh()
        waiter = begin(*args)
        self._settle()
        return waiter

    def _refresh(self) -> None:
        if self._map_is_old and time.monotonic() - self._read_at >= _REFRESH_S_MIN:
            self._map_is_old, self._read_at = False, time.monotonic()
            try:
                self.read_map()
            except StorageUnavailableError:
                self._map_is_old = True

    def _settle(self) -> None:
        """Do what the core asks for, give replies to those who asked, and write."""
        while self._todo or self._writes:
            if not self._todo:
                connection = next(iter(self._writes))
                self.write(connection)
                del self._writes[connection]
                continue
            turn = self._todo[0]
            done, actions = turn if isinstance(turn, tuple) else ((), turn)
            for waiter, replies, _, _ in done:
                if waiter is not None:
                    cast("_Waiter", waiter).replies = replies
            while actions:
                self._map_is_old |= self.is_cluster and actions[0][0] in {"refused", "lost"}
                self.do(actions[0])
                del actions[0]
            self._todo.popleft()

    def _handle(self, events: Sequence[tuple[int, int]]) -> None:
        for fd, event in events:
            connection = self._fds.get(fd)
            if connection is None:
                continue
            if (link := self._links.get(connection)) is not None:
                self._do_tls(connection, link, event)
                continue
            if event & select.POLLOUT:
                self._todo.extend(map(self.core.writable, (connection,)))
            if event & ~select.POLLOUT:
                self._todo.extend(map(self.core.readable, (connection,)))

    def _do_tls(self, connection: int, link: TlsLink, event: int | None) -> None:
        """Read and write as an event says, without one write. An interruption may lose bytes: it ends a connection."""
        try:
            if event is None:
                link.write()
            elif event & select.POLLOUT:
                link.go_on()
            while event is not None and not link.failure and (data := link.read()):
                self._todo.extend(map(self.core.received, (connection,), (data,)))
        except BaseException:
            link.failure = "the program was interrupted"
            raise
        finally:
            if link.failure:
                self._todo.extend(map(self.core.failed, (connection,), (link.failure,)))
            self._watch(connection, is_for_writing=link.waits_for_write)

    def _connect(self, host: str, port: int) -> socket.socket:
        if host != self.target.addresses[0].path:
            opened = socket.create_connection((host, port), self._open_s)
            configure(opened)
        else:
            opened = socket.socket(socket.AF_UNIX)
            opened.settimeout(self._open_s)
            try:
                opened.connect(host)
            except BaseException:
                opened.close()
                raise
        opened.settimeout(0)
        return opened

    def _wait(self, fd: int, is_write: bool) -> None:  # noqa: FBT001 - of base_driver.secured
        poll = select.poll()
        poll.register(fd, select.POLLOUT if is_write else select.POLLIN)
        if not poll.poll(self._open_s * 1000):
            raise TimeoutError
