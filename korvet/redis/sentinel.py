"""The way to a server: at its address, or at that of the master that Sentinels name.

Sentinels are asked in turn for the master, and what one names is connected to and has to be a master: one that was away
during a failover names the old master until it has heard of the new one. What fails is tried again by the caller, who
pauses between two attempts. A Sentinel that hangs costs its share of the time, and the one that answered is asked first
the next time.

A failover is noticed without asking: each process subscribes to `+switch-master` at one Sentinel, and connections to
another server than the new master are closed. Without that, a connection that only reads would not notice that its
server became a replica, and none would that it was cut off. A message may get lost with its connection, so after each
subscription the Sentinel is asked once. An old master that its Sentinel still names goes on by its own rules: what it
takes is acknowledged by `replicas` and `min.insync.replicas` alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

import gevent
from gevent import socket
from gevent.event import Event
from gevent.hub import Hub, get_hub

from korvet.errors import StorageUnavailableError
from korvet.redis.connection import RedisConnection, connect, open_connection, reconnect_backoff
from korvet.redis.replies import Reply
from korvet.redis.url import SWITCHED, RedisAddress, RedisTarget

OnMoved = Callable[[str], object]
"""Closes a connection, for the reason that is given."""

# A Sentinel that died without a word is noticed within twice this time.
_PING_S = 10.0
_PING = ("PING",)


def connect_to(target: RedisTarget, timeout_ms: int, on_moved: OnMoved) -> tuple[socket.socket, str]:
    """Open a connection to the one server of a target, or to its master; returns what `connection.connect` returns.

    `on_moved` is called when another server has become the master, as long as the caller keeps it. Raises
    StorageUnavailableError.
    """
    if target.kind != "sentinel":
        return connect(target.addresses[0], timeout_ms)
    watches = _WATCHES.setdefault(get_hub(), {})
    if target not in watches:
        watches[target] = _MasterWatch(target, timeout_ms)
    return watches[target].connect(timeout_ms, on_moved)


def named_master(target: RedisTarget, sentinel: RedisAddress, reply: Reply) -> RedisAddress:
    """Return the master of a target that a Sentinel names; raises StorageUnavailableError if it names none."""
    match reply:
        case [bytes(host), bytes(port)] if port.isdigit():
            return target.at(host.decode(errors="replace"), int(port))
        case None:
            raise StorageUnavailableError(f"the Sentinel at {sentinel} knows no master {target.master_name}")
        case _:
            raise StorageUnavailableError(f"the Sentinel at {sentinel} answered {str(reply)[:200]}")


class _MasterWatch:
    """The Sentinels of one target, and who holds connections to the master that they named."""

    def __init__(self, target: RedisTarget, timeout_ms: int) -> None:
        self._target, self._timeout_ms = target, timeout_ms
        # The one that answered last is the first.
        self._sentinels = list(target.addresses)
        self._holders: WeakKeyDictionary[OnMoved, RedisAddress] = WeakKeyDictionary()
        self._runner: gevent.Greenlet[[], None] | None = None
        self._woken = Event()
        self._switched = False
        self._master: RedisAddress | None = None

    def connect(self, timeout_ms: int, on_moved: OnMoved) -> tuple[socket.socket, str]:
        """Open a connection to the master as `connect_to` does."""
        deadline = time.monotonic() + timeout_ms / 1000
        share_ms = timeout_ms // (len(self._sentinels) + 1) + 1
        problems: dict[RedisAddress, str] = {}
        for sentinel in list(self._sentinels):
            left_ms = min(share_ms, int((deadline - time.monotonic()) * 1000))
            if left_ms <= 0:
                break
            asked = sentinel
            try:
                asked = self._ask(sentinel, left_ms)
                if asked in problems:
                    continue
                connected, history = connect(asked, left_ms)
            except StorageUnavailableError as error:
                problems[asked] = error.message
                continue
            if history:
                self._put_first(sentinel)
                self._holders[on_moved] = asked
                if self._runner is None:
                    self._runner = gevent.spawn(self._run)
                elif asked != self._master:
                    # The switch came while this connection was being made.
                    self._switched = True
                    self._woken.set()
                return connected, history
            connected.close()
            problems[asked] = f"the Sentinel at {sentinel} names {asked}, which is no master"
        raise StorageUnavailableError(f"no master for {self._target}: {'; '.join(problems.values())}")

    def _ask(self, sentinel: RedisAddress, timeout_ms: int) -> RedisAddress:
        """Return the master that a Sentinel names; raises StorageUnavailableError."""
        name = self._target.master_name
        opened, reply = open_connection(sentinel, timeout_ms, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name))
        opened.close()
        return named_master(self._target, sentinel, reply)

    def _put_first(self, sentinel: RedisAddress) -> None:
        self._sentinels.sort(key=sentinel.__ne__)

    def _run(self) -> None:
        """Follow one Sentinel after the other, until nobody holds a connection."""
        backoff = reconnect_backoff()
        while self._holders:
            for sentinel in list(self._sentinels):
                try:
                    opened, reply = open_connection(sentinel, self._timeout_ms, ("SUBSCRIBE", SWITCHED))
                except StorageUnavailableError:
                    continue
                if isinstance(reply, list):
                    backoff.reset()
                    self._follow(sentinel, opened)
                    break
                opened.close()
            gevent.sleep(backoff.next_s())
        self._runner = None

    def _follow(self, sentinel: RedisAddress, opened: socket.socket) -> None:
        """Close connections to old masters while a Sentinel can be heard."""
        connection = RedisConnection(
            opened, str(sentinel), on_lost=lambda _: self._woken.set(), on_replies=self._on_replies
        )
        # Before the subscription it may have been said already.
        self._switched = True
        while connection.lost is None and self._holders:
            if self._switched:
                self._close_old(sentinel)
            if not self._woken.wait(_PING_S):
                if time.monotonic() - connection.heard_at >= 2 * _PING_S:
                    connection.lose("it did not answer a PING")
                else:
                    connection.send(_PING)
            self._woken.clear()
        connection.lose("nobody needs it any more")

    def _on_replies(self, replies: list[Reply]) -> None:
        if any(isinstance(reply, list) and reply[0] == b"message" for reply in replies):
            self._switched = True
            self._woken.set()

    def _close_old(self, sentinel: RedisAddress) -> None:
        """Close connections to another server than the master that a Sentinel names, if that is one.

        If this cannot be found out it is tried again later.
        """
        try:
            master = self._ask(sentinel, self._timeout_ms)
            old = [on_moved for on_moved, address in self._holders.items() if address != master]
            if old:
                opened, history = connect(master, self._timeout_ms)
                opened.close()
                if not history:
                    return
        except StorageUnavailableError:
            return
        self._switched, self._master = False, master
        for on_moved in old:
            on_moved(f"Sentinel names {master} as the master")


# Greenlets cannot be shared by threads, of which each has a hub.
_WATCHES: WeakKeyDictionary[Hub, dict[RedisTarget, _MasterWatch]] = WeakKeyDictionary()
