"""Many greenlets over one connection to Redis: who waits for which reply, for how long, and how much is in flight.

`Multiplexer` owns the order of one connection: Redis answers in the order of the requests, so a queue of pending
replies is all the bookkeeping. The reply to a caller that gave up (its own timeout, or it was killed) is dropped when
it comes. A connection is closed if nothing was heard for a whole timeout while a reply was due, and if it leads to a
master that became a replica: after a failover its name leads elsewhere.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf

import gevent
from gevent import socket
from gevent.hub import Waiter, get_hub

from korvet.errors import OutcomeUnknownError, StorageUnavailableError
from korvet.redis.connection import RedisConnection
from korvet.redis.replies import ReadOnlyError, Reply

# A connection to a replica is not closed earlier: if the address leads to the same replica again, once in this time.
_READ_ONLY_S_MIN = 1.0

SILENCE_SECONDS = 1.0
"""After this time without the reply that is due next somebody may look whether another server is the master by now."""

_UNKNOWN = "the outcome of the request is unknown"


class InFlightLimit:
    """How much may be in flight at once; callers that find it reached wait for their turn, first come first served.

    The request that reaches a limit may exceed it, so one that is larger than the limit still goes through alone.
    """

    __slots__ = ("_bytes_max", "_commands_max", "_queue", "bytes", "commands")

    def __init__(self, commands_max: int, bytes_max: int) -> None:
        self.commands = 0
        self.bytes = 0
        self._commands_max, self._bytes_max = commands_max, bytes_max
        self._queue: deque[_QueuedCaller] = deque()

    @property
    def reached(self) -> bool:
        """Whether who asks now has to wait."""
        return bool(self._queue) or self.commands >= self._commands_max or self.bytes >= self._bytes_max

    def acquire(self, commands: int, size: int, deadline: float) -> None:
        """Wait for room; raises StorageUnavailableError if there is none before `deadline` (time.monotonic)."""
        if self._queue or self.commands >= self._commands_max or self.bytes >= self._bytes_max:
            self._wait(_QueuedCaller(commands, size), deadline)
            return
        self.commands += commands
        self.bytes += size

    def take(self, commands: int, size: int) -> None:
        """Take room that may not be there, without waiting."""
        self.commands += commands
        self.bytes += size

    def release(self, commands: int, size: int) -> None:
        """Free room that was acquired."""
        self.commands -= commands
        self.bytes -= size
        queue = self._queue
        while queue and self.commands < self._commands_max and self.bytes < self._bytes_max:
            queued = queue.popleft()
            queued.granted = True
            self.commands += queued.commands
            self.bytes += queued.size
            get_hub().loop.run_callback(queued.waiter.switch, None)

    def _wait(self, queued: _QueuedCaller, deadline: float) -> None:
        error = StorageUnavailableError("too much is in flight to Redis: timed out before anything was sent")
        self._queue.append(queued)
        try:
            with gevent.Timeout(max(deadline - time.monotonic(), 0.001), error):
                queued.waiter.get()
        except BaseException:
            if queued.granted:
                self.release(queued.commands, queued.size)
            else:
                self._queue.remove(queued)
            raise


class _QueuedCaller:
    __slots__ = ("commands", "granted", "size", "waiter")

    def __init__(self, commands: int, size: int) -> None:
        self.commands, self.size = commands, size
        self.granted = False
        self.waiter: Waiter[None] = Waiter()


class _PendingReply:
    __slots__ = ("count", "deadline", "operation", "replies", "reply_bytes", "sent_at", "size", "waiter")

    def __init__(
        self,
        waiter: Waiter[Reply],
        count: int,
        size: int,
        deadline: float,
        operation: str,
        reply_bytes: int,
    ) -> None:
        self.waiter: Waiter[Reply] | None = waiter
        self.count, self.size, self.deadline, self.reply_bytes = count, size, deadline, reply_bytes
        self.operation, self.sent_at = operation, time.monotonic()
        self.replies: list[Reply] = []


class Multiplexer:
    """One connection shared by any number of greenlets, from its first request to its loss."""

    def __init__(
        self,
        connected: socket.socket,
        name: str,
        limit: InFlightLimit,
        reply_limit: InFlightLimit,
        timeout_ms: int,
        on_round_trip: Callable[[str, float], None],
        *,
        on_silence: Callable[[], None] | None,
    ) -> None:
        """Take over a connection. `name` is the server's, for messages; the limits outlive the connection.

        `on_round_trip` is called with the operation and the seconds of each exchange, late ones included; `on_silence`
        about once in SILENCE_SECONDS while a reply is due and nothing is heard. They must not wait or raise.
        """
        self._on_silence = on_silence
        self._on_round_trip = on_round_trip
        self._name, self._timeout_s = name, timeout_ms / 1000
        self._limit, self._reply_limit = limit, reply_limit
        self._hub = get_hub()
        self._pending: deque[_PendingReply] = deque()
        self._check_at = inf
        self._made_at = time.monotonic()
        self.lost = False
        """Whether the connection is gone."""
        # Whether it was closed for that.
        self.led_to_replica = False
        self._timer = self._hub.loop.timer(0)
        self._connection = RedisConnection(connected, self._on_replies, self._on_lost)

    def exchange(
        self, data: bytes, count: int, deadline: float, operation: str, reply_bytes: int = 0
    ) -> Waiter[Reply]:
        """Send `count` packed commands; the waiter gets their replies (for one command: its reply, not in a list).

        Room for them, and for `reply_bytes` of replies, has been acquired and is released here, or by the caller if
        this raises. `deadline` is time.monotonic()'s; `operation` names them in metrics. Error replies are returned,
        not raised. The waiter may raise OutcomeUnknownError.
        """
        if self._connection.lost is not None:
            raise StorageUnavailableError(f"Redis at {self._name} is away: {self._connection.lost}")
        waiter: Waiter[Reply] = Waiter(self._hub)
        idle = not self._pending
        self._pending.append(_PendingReply(waiter, count, len(data), deadline, operation, reply_bytes))
        if deadline < self._check_at:
            self._schedule_check(deadline if self._on_silence is None else time.monotonic() + SILENCE_SECONDS)
        # Redis has nothing to do for us: it may begin while others are on their way to it.
        self._connection.send(data, at_once=idle)
        return waiter

    def close(self, reason: str) -> None:
        """Close the connection; what is in flight fails with `reason`."""
        self._connection.lose(reason)

    def _on_replies(self, replies: list[Reply]) -> None:
        pending = self._pending
        ready: list[tuple[Waiter[Reply], Reply]] = []
        read_only = False
        heard_at = self._connection.heard_at
        for reply in replies:
            if not pending:
                self._connection.lose(f"it sent a reply without a request: {str(reply)[:100]}")
                break
            oldest = pending[0]
            answer: Reply = reply
            if type(reply) is ReadOnlyError:
                read_only = True
            if oldest.count > 1:
                oldest.replies.append(reply)
                if len(oldest.replies) < oldest.count:
                    continue
                answer = oldest.replies
            pending.popleft()
            self._release(oldest)
            self._on_round_trip(oldest.operation, heard_at - oldest.sent_at)
            if oldest.waiter is not None:
                ready.append((oldest.waiter, answer))
        # First those that nobody waits for yet: a caller that waits for the oldest of several finds all of them. We are
        # in the loop: what the woken greenlets ask next leaves in one write again.
        ready.sort(key=_is_waited_for)
        for waiter, answer in ready:
            waiter.switch(answer)
        if read_only and time.monotonic() - self._made_at >= _READ_ONLY_S_MIN:
            self.led_to_replica = True
            self._connection.lose("the server is a read-only replica")

    def _on_lost(self, reason: str) -> None:
        self.lost = True
        self._timer.stop()
        self._timer.close()
        text = f"the connection to Redis at {self._name} was lost ({reason}): {_UNKNOWN}"
        pending, self._pending = self._pending, deque()
        for each in pending:
            self._release(each)
        failed = [each.waiter for each in pending if each.waiter is not None]
        self._hub.loop.run_callback(_fail, failed, text)

    def _release(self, pending: _PendingReply) -> None:
        self._limit.release(pending.count, pending.size)
        if pending.reply_bytes:
            self._reply_limit.release(0, pending.reply_bytes)

    def _schedule_check(self, at: float) -> None:
        self._check_at = at
        self._timer.stop()
        self._timer.close()
        self._timer = self._hub.loop.timer(max(at - time.monotonic(), 0.001))
        self._timer.start(self._check, update=True)

    def _check(self) -> None:
        """Fail the callers whose time is up, and close the connection if it has gone silent."""
        self._check_at = inf
        if not self._pending:
            return
        now = time.monotonic()
        due = [each for each in self._pending if each.deadline <= now]
        if due and now - self._connection.heard_at >= self._timeout_s:
            self._connection.lose(f"nothing was heard for {self._timeout_s * 1000:.0f} ms")
            return
        timed_out = [each.waiter for each in due if each.waiter is not None]
        for each in due:
            each.waiter = None
        _fail(timed_out, f"Redis at {self._name} did not answer in time: {_UNKNOWN}")
        if self._pending:
            waiting = [each.deadline for each in self._pending if each.deadline > now]
            next_at = min(waiting, default=now + self._timeout_s)
            if self._on_silence is not None:
                next_at = min(next_at, now + SILENCE_SECONDS)
                if now - max(self._connection.heard_at, self._pending[0].sent_at) >= SILENCE_SECONDS:
                    self._hub.loop.run_callback(self._on_silence)
            self._schedule_check(next_at)


def _is_waited_for(ready: tuple[Waiter[Reply], Reply]) -> bool:
    return ready[0].greenlet is not None


def _fail(waiters: list[Waiter[Reply]], text: str) -> None:
    for waiter in waiters:
        waiter.throw(OutcomeUnknownError(text))
