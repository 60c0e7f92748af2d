"""Many greenlets on one connection: requests out in the order they came, replies back to whoever asked.

Knows which reply belongs to which caller, when a caller has waited long enough, and how much may be in
flight; nothing of commands, reconnecting or sockets.

Redis answers in the order of the requests, so a slot per request in a queue is all the bookkeeping. A caller
that gives up (its own time-out, or it is killed) leaves its slot behind; the reply, when it comes, is dropped
there. A connection on which nothing at all was heard for a whole time-out while a reply was due is given up, and so is
one to a master that has become a replica: after a failover its name leads elsewhere, but this connection does not.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf

import gevent
from gevent import socket
from gevent.hub import Waiter, get_hub

from korvet.errors import StorageUnavailableError
from korvet.redis.connection import Link
from korvet.redis.replies import ReadOnlyError, Reply

# A connection to a replica is given up no sooner: where the address leads to the same replica again, once in this time.
_READ_ONLY_S_MIN = 1.0

_UNKNOWN = "what was asked may or may not have been done"


class Room:
    """How much may be in flight at once; whoever finds it full waits for its turn, first come first served.

    The limits are passed by the one request that reaches them, so a request larger than the limit still goes
    through once it is alone.
    """

    __slots__ = ("_bytes_max", "_commands_max", "_queue", "bytes", "commands")

    def __init__(self, commands_max: int, bytes_max: int) -> None:
        self.commands = 0
        self.bytes = 0
        self._commands_max, self._bytes_max = commands_max, bytes_max
        self._queue: deque[_Place] = deque()

    def take(self, commands: int, size: int, deadline: float) -> None:
        """Take room; raises StorageUnavailableError when there is none before `deadline` (time.monotonic)."""
        if self._queue or self.commands >= self._commands_max or self.bytes >= self._bytes_max:
            self._wait(_Place(commands, size), deadline)
            return
        self.commands += commands
        self.bytes += size

    def give(self, commands: int, size: int) -> None:
        """Return room that was taken."""
        self.commands -= commands
        self.bytes -= size
        queue = self._queue
        while queue and self.commands < self._commands_max and self.bytes < self._bytes_max:
            place = queue.popleft()
            place.granted = True
            self.commands += place.commands
            self.bytes += place.size
            get_hub().loop.run_callback(place.waiter.switch, None)

    def _wait(self, place: _Place, deadline: float) -> None:
        error = StorageUnavailableError("too much is in flight to Redis: timed out before anything was sent")
        self._queue.append(place)
        try:
            with gevent.Timeout(max(deadline - time.monotonic(), 0.001), error):
                place.waiter.get()
        except BaseException:
            if place.granted:
                self.give(place.commands, place.size)
            else:
                self._queue.remove(place)
            raise


class _Place:
    __slots__ = ("commands", "granted", "size", "waiter")

    def __init__(self, commands: int, size: int) -> None:
        self.commands, self.size = commands, size
        self.granted = False
        self.waiter: Waiter[None] = Waiter()


class _Slot:
    __slots__ = ("count", "deadline", "operation", "replies", "sent_at", "size", "waiter")

    def __init__(self, waiter: Waiter[Reply], count: int, size: int, deadline: float, operation: str) -> None:
        self.waiter: Waiter[Reply] | None = waiter
        self.count, self.size, self.deadline = count, size, deadline
        self.operation, self.sent_at = operation, time.monotonic()
        self.replies: list[Reply] = []


class Wire:
    """One connection shared by any number of greenlets, from its first request to its loss."""

    __slots__ = (
        "_check_at",
        "_fifo",
        "_heard",
        "_hub",
        "_link",
        "_made_at",
        "_name",
        "_room",
        "_timeout_s",
        "_timer",
        "led_to_replica",
    )

    def __init__(
        self,
        connected: socket.socket,
        name: str,
        room: Room,
        timeout_ms: int,
        heard: Callable[[str, float], None] = lambda _operation, _seconds: None,
    ) -> None:
        """Take over a connection. `name` is the server's, for messages; `room` outlives the wire.

        `heard` is told how long the answer to each exchange took, in seconds, late ones included.
        """
        self._heard = heard
        self._name, self._room, self._timeout_s = name, room, timeout_ms / 1000
        self._hub = get_hub()
        self._fifo: deque[_Slot] = deque()
        self._check_at = inf
        self._made_at = time.monotonic()
        # Whether it was given up for that.
        self.led_to_replica = False
        self._timer = self._hub.loop.timer(0)
        self._link = Link(connected, self._on_replies, self._on_lost)

    @property
    def lost(self) -> bool:
        """Tell whether the connection is gone."""
        return self._link.lost is not None

    def exchange(self, data: bytes, count: int, deadline: float, operation: str) -> Waiter[Reply]:
        """Send `count` packed commands; the waiter gets their replies (for one command: its reply, not in a list).

        Room for them has been taken and is given back here. `deadline` is time.monotonic()'s; `operation` says in a
        word what they are. Error replies are returned, not raised; StorageUnavailableError tells that the outcome is
        unknown.
        """
        if self._link.lost is not None:
            self._room.give(count, len(data))
            raise StorageUnavailableError(f"Redis at {self._name} is away: {self._link.lost}")
        waiter: Waiter[Reply] = Waiter(self._hub)
        idle = not self._fifo
        self._fifo.append(_Slot(waiter, count, len(data), deadline, operation))
        if deadline < self._check_at:
            self._check_again(deadline)
        # Redis has nothing to do for us: it may begin while others are on their way to it.
        self._link.send(data, at_once=idle)
        return waiter

    def close(self, reason: str) -> None:
        """Close the connection; what is in flight fails with `reason`."""
        self._link.lose(reason)

    def _on_replies(self, replies: list[Reply]) -> None:
        fifo = self._fifo
        ready: list[tuple[Waiter[Reply], Reply]] = []
        read_only = False
        heard_at = self._link.heard_at
        for reply in replies:
            if not fifo:
                self._link.lose(f"it sent what nobody had asked for: {str(reply)[:100]}")
                break
            slot = fifo[0]
            answer: Reply = reply
            if type(reply) is ReadOnlyError:
                read_only = True
            if slot.count > 1:
                slot.replies.append(reply)
                if len(slot.replies) < slot.count:
                    continue
                answer = slot.replies
            fifo.popleft()
            self._room.give(slot.count, slot.size)
            self._heard(slot.operation, heard_at - slot.sent_at)
            if slot.waiter is not None:
                ready.append((slot.waiter, answer))
        # First those that nobody is waiting for yet: whoever waits for the oldest of several finds all of them. We are
        # in the loop: what the woken greenlets ask next leaves in one write again.
        ready.sort(key=_is_waited_for)
        for waiter, answer in ready:
            waiter.switch(answer)
        if read_only and time.monotonic() - self._made_at >= _READ_ONLY_S_MIN:
            self.led_to_replica = True
            self._link.lose("the server is a read-only replica")

    def _on_lost(self, reason: str) -> None:
        self._timer.stop()
        self._timer.close()
        text = f"the connection to Redis at {self._name} was lost ({reason}): {_UNKNOWN}"
        slots, self._fifo = self._fifo, deque()
        for slot in slots:
            self._room.give(slot.count, slot.size)
        failed = [slot.waiter for slot in slots if slot.waiter is not None]
        self._hub.loop.run_callback(_fail, failed, text)

    def _check_again(self, at: float) -> None:
        self._check_at = at
        self._timer.stop()
        self._timer.close()
        self._timer = self._hub.loop.timer(max(at - time.monotonic(), 0.001))
        self._timer.start(self._check, update=True)

    def _check(self) -> None:
        """Fail the callers whose time is up, and give the connection up if it has gone silent."""
        self._check_at = inf
        if not self._fifo:
            return
        now = time.monotonic()
        due = [slot for slot in self._fifo if slot.deadline <= now]
        if due and now - self._link.heard_at >= self._timeout_s:
            self._link.lose(f"nothing was heard for {self._timeout_s * 1000:.0f} ms")
            return
        timed_out = [slot.waiter for slot in due if slot.waiter is not None]
        for slot in due:
            slot.waiter = None
        _fail(timed_out, f"Redis at {self._name} did not answer in time: {_UNKNOWN}")
        if self._fifo:
            waiting = [slot.deadline for slot in self._fifo if slot.deadline > now]
            self._check_again(min(waiting, default=now + self._timeout_s))


def _is_waited_for(ready: tuple[Waiter[Reply], Reply]) -> bool:
    return ready[0].greenlet is not None


def _fail(waiters: list[Waiter[Reply]], text: str) -> None:
    for waiter in waiters:
        waiter.throw(StorageUnavailableError(text))
