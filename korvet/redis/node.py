"""One server of Redis: a connection that any number of greenlets share, and that reconnects by itself.

`RedisNode` connects, pauses after a failed attempt, loads scripts that the server lacks, and bounds what is in flight.
Nobody retries: a request that fails on a lost connection is never sent again, since an append may have been done. The
caller decides. Nothing connects before the first call, so an instance may be made before a fork.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Protocol, TypeAlias, cast

import gevent

from korvet.errors import KafkaError, LeaseEndedError, StorageUnavailableError
from korvet.pending import SendOrder
from korvet.redis.connection import (
    NO_OBSERVER,
    Arg,
    Command,
    NodeLimits,
    Observer,
    RedisConnection,
    reconnect_backoff,
)
from korvet.redis.replies import (
    HistoryChangedError,
    MemoryFullError,
    Reply,
    RespError,
    history_of,
    name_of,
    value_of,
)
from korvet.redis.room import RoomQueue
from korvet.redis.scripts import Script
from korvet.redis.sentinel import connect_to
from korvet.redis.url import RedisTarget

ScriptCall: TypeAlias = tuple[Script, Sequence[str | bytes], Sequence[Arg]]

# Consumers wait so long for an answer (request.timeout.ms).
_REPLY_ROOM_S_MAX = 30.0


class Awaited(Protocol):
    """Replies that are waited for: one, or a list of several."""

    def ready(self) -> bool:
        """Return whether they have arrived."""

    def get(self) -> Reply:
        """Wait for them; raises StorageUnavailableError."""


class PendingCommands:
    """Commands that were sent (a Pending)."""

    in_order = True

    def __init__(self, waiter: Awaited, count: int) -> None:
        self._waiter, self._count = waiter, count

    @property
    def ready(self) -> bool:
        """Whether the replies have arrived."""
        return self._waiter.ready()

    def result(self) -> list[Reply]:
        """Wait for the replies and return them in order; may be called once. Raises StorageUnavailableError."""
        return _replies_of(self._waiter, self._count)


class PendingReplies:
    """Scripts that were sent (a Pending). Redis runs them in the order of sending, unless it has to load one."""

    in_order = True

    def __init__(
        self,
        node: RedisNode,
        calls: Sequence[ScriptCall],
        commands: list[Command],
        waiter: Awaited | None,
        history: str | None,
    ) -> None:
        self._node, self._calls, self._commands, self._waiter = node, calls, commands, waiter
        self._history = history

    @property
    def ready(self) -> bool:
        """Whether the replies have arrived."""
        return self._waiter is None or self._waiter.ready()

    def result(self) -> list[Reply]:
        """Wait for the replies and return them in the order of the calls; may be called once."""
        replies, failed = self._take(runs_full=True)
        if not failed:
            return replies
        missing = [index for index in failed if is_missing(replies[index])]
        if missing:
            self._node.rerun_missing(self._calls, self._commands, missing, replies, self._history)
        full = [index for index, reply in enumerate(replies) if isinstance(reply, MemoryFullError)]
        again = [index for index in full if self._calls[index][0].when_full]
        if again:
            self._node.rerun_full(self._calls, again, replies, self._history)
        return replies

    def as_they_are(self) -> list[Reply]:
        """Wait for the replies and return them in the order of the calls: NOSCRIPT for a script that Redis lacks."""
        return self._take(runs_full=False)[0]

    def _take(self, *, runs_full: bool) -> tuple[list[Reply], list[int]]:
        """Return the replies, and the indexes of errors among them, which are reported."""
        replies = [] if self._waiter is None else _replies_of(self._waiter, len(self._commands))
        failed = [index for index, reply in enumerate(replies) if isinstance(reply, Exception)]
        if failed:
            self._node.note_failed(self._calls, failed, replies, runs_full=runs_full)
        return replies, failed


def is_missing(reply: Reply) -> bool:
    """Return whether Redis lacks a script: it was not run."""
    return isinstance(reply, RespError) and reply.name == "NOSCRIPT"


class RedisNode:
    """One server over one multiplexed connection. Its methods raise and return what those of `client.Redis` do."""

    def __init__(
        self,
        target: RedisTarget,
        limits: NodeLimits,
        observer: Observer,
        operation: str,
        order: SendOrder,
        load: Sequence[Script],
        *,
        fails_fast: bool,
    ) -> None:
        """`operation` is the name under which `observer` hears of commands that are not scripts.

        `order` hears of scripts that were missing; `load` are those that each connection loads first.
        `fails_fast`: after a failed attempt to connect nobody waits for the next one, for others go on meanwhile.
        """
        self.name = str(target)
        """The server's address, for messages and as its identity."""
        self.safe_url = target.safe_url
        self.on_failover: Callable[[], object] = lambda: None
        """Called after a reconnect because the old connection led to a replica.

        Connections that only read do not notice a failover, and have to reconnect.
        """
        self.on_silence: Callable[[], None] | None = None
        """Called about once a second while a reply is due and nothing is heard; must not wait or raise."""
        self._observer = observer
        self._operation = operation
        self._order = order
        self._first = [_load(script) for script in load]
        self._target = target
        self._timeout_ms, self._connect_timeout_ms = limits.timeout_ms, limits.connect_timeout_ms
        self._timeout_s = limits.timeout_ms / 1000
        self._limits = limits
        # Callers that wait for room; callers with large replies wait in a queue of their own, so small ones pass them.
        self._waiting, self._waiting_for_replies = RoomQueue(), RoomQueue()
        self._fails_fast = fails_fast
        self._connection: RedisConnection | None = None
        self._attempt: gevent.Greenlet[[], RedisConnection | StorageUnavailableError] | None = None
        self._backoff = reconnect_backoff()
        self._not_before = 0.0
        self._refusal = ""
        self._closed = False
        # Kept, since it is held by a weak reference.
        self._on_moved = self.reconnect
        # How many were made: a fact learned over one may not hold for the next, which may lead to another Redis.
        self.connections = 0
        self.connected_at = -inf
        """When the present connection was made (time.monotonic)."""
        self.reconnected_at = -inf
        """When a connection last replaced another one (time.monotonic)."""
        self.history = ""
        """The history of writes to which the present connection leads (`replies.history_of`)."""
        self.lease_end_ms = 0
        """Until when (Redis' clock) scripts that change groups and topics may come; 0: at any time."""
        self.lease_ended = False
        """Whether one came later and was refused since `lease_end_ms` was set."""
        self.memory_refused = False
        """Whether a script was refused for want of memory since this was last reset."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None and self._connection.lost is None

    @property
    def away(self) -> bool:
        """Whether the last attempt to connect failed."""
        return bool(self._refusal)

    @property
    def ready(self) -> bool:
        """Whether a request is sent at once: there is a connection, and room."""
        connection = self._connection
        if connection is None or self._waiting.callers or self._waiting_for_replies.callers:
            return False
        return connection.has_room and connection.has_reply_room

    @property
    def busy(self) -> bool:
        """Whether anything is in flight, or about to be."""
        waiting = self._waiting.callers or self._waiting_for_replies.callers
        return bool(waiting or self._attempt or self.under_way[0])

    @property
    def under_way(self) -> tuple[int, int, int]:
        """Commands, bytes, and bytes of large replies that are in flight."""
        return (0, 0, 0) if self._connection is None else self._connection.under_way

    def call(self, *command: Arg) -> Reply:
        """Send one command and return its reply; raises the exception of an error reply."""
        return value_of(self._begin((command,), self._operation).get())

    def pipeline(self, commands: Sequence[Sequence[Arg]], *, reply_bytes: int = 0) -> list[Reply]:
        """Send `commands` in one write and return their replies in order; error replies stay in their places.

        Commands of other greenlets and other clients may run between them. If large replies are expected,
        `reply_bytes` in all, it is their turn when there is room for them; what expects small ones does not wait.
        """
        if not commands:
            return []
        return _replies_of(self._begin(commands, self._operation, None, reply_bytes), len(commands))

    def begin_pipeline(self, commands: Sequence[Sequence[Arg]], reply_bytes: int = 0) -> PendingCommands:
        """Send `commands`, at least one, as `pipeline` does, without waiting for their replies."""
        return PendingCommands(self._begin(commands, self._operation, None, reply_bytes), len(commands))

    def begin_scripts(self, calls: Sequence[ScriptCall], history: str | None = None) -> PendingReplies:
        """Send scripts without waiting for their replies, which the caller must take in the end (Redis.begin_scripts).

        With `history` to that one only. Raises StorageUnavailableError if Redis cannot be reached, or has another one.
        """
        end = (self.lease_end_ms,)
        commands: list[Command] = [
            ("EVALSHA", script.sha, len(keys), keys, args, end if script.leased else ())
            for script, keys, args in calls
        ]
        waiter = self._begin(commands, calls[0][0].name, history) if commands else None
        return PendingReplies(self, calls, commands, waiter, history)

    def rerun_missing(
        self,
        calls: Sequence[ScriptCall],
        commands: list[Command],
        missing: list[int],
        replies: list[Reply],
        history: str | None,
    ) -> None:
        """Run the calls again whose script Redis lacked, and report what still fails.

        `replies` gets the new replies. A script that does not compile fails at its load, which says why.
        """
        scripts = {calls[index][0].sha: calls[index][0] for index in missing}
        loads = [_load(script) for script in scripts.values()]
        again = [*loads, *(commands[index] for index in missing)]
        try:
            waiter = self._begin(again, self._operation, history)
            self._order.change()
            late = _replies_of(waiter, len(scripts) + len(missing))
        except StorageUnavailableError as error:
            # Of these calls only: the others were done, and their replies are here.
            late = [error] * (len(scripts) + len(missing))
        loaded = dict(zip(scripts, late, strict=False))
        for index, reply in zip(missing, late[len(scripts) :], strict=True):
            load = loaded[calls[index][0].sha]
            replies[index] = load if isinstance(load, Exception) else reply
        self.note_failed(calls, missing, replies, runs_full=True)

    def rerun_full(
        self, calls: Sequence[ScriptCall], indexes: list[int], replies: list[Reply], history: str | None
    ) -> None:
        """Run the calls at `indexes` as Redis takes them while its memory is full; `replies` gets the new replies."""
        again = [
            (full, keys, args)
            for full, keys, args in ((calls[index][0].when_full, *calls[index][1:]) for index in indexes)
            if full
        ]
        try:
            self._order.change()
            late = self.begin_scripts(again, history).result()
        except StorageUnavailableError as error:
            late = [error] * len(again)
        for index, reply in zip(indexes, late, strict=True):
            replies[index] = reply

    def note_failed(
        self, calls: Sequence[ScriptCall], indexes: Iterable[int], replies: list[Reply], *, runs_full: bool
    ) -> None:
        """Report which of the calls at `indexes` have failed, but for what is run again.

        `runs_full`: `rerun_full` runs scripts again that a full memory has refused.
        """
        for index in indexes:
            reply = replies[index]
            if runs_full and isinstance(reply, MemoryFullError) and calls[index][0].when_full:
                self.memory_refused = True
            elif isinstance(reply, RespError | KafkaError) and not is_missing(reply):
                self._observer.script_failed(calls[index][0].name, name_of(reply))
                self.lease_ended = self.lease_ended or isinstance(reply, LeaseEndedError)
                self.memory_refused = self.memory_refused or isinstance(reply, MemoryFullError)

    def connect(self) -> str:
        """Connect if there is no connection, and return the history to which it leads.

        Raises StorageUnavailableError.
        """
        if not self.connected:
            self._connected(time.monotonic() + self._timeout_s)
        return self.history

    def reconnect_soon(self) -> None:
        """Begin an attempt to connect to a server that is away, unless one has just failed."""
        if not self.connected and self._attempt is None and time.monotonic() >= self._not_before:
            self._attempt = gevent.spawn(self._connect)

    def refresh_history(self) -> None:
        """Learn the history again; raises StorageUnavailableError.

        A master also begins a new history when its first replica connects.
        """
        connections = self.connections
        found = history_of(self.call("INFO", "replication"))
        if connections == self.connections:
            self.history = found

    def reconnect(self, reason: str) -> None:
        """Close the connection, and open another one for the next call; what is in flight fails with `reason`."""
        if self._connection is not None:
            self._connection.lose(reason)

    def close(self) -> None:
        """Close the connection for good: what is in flight or called later fails as if Redis were away."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.kill(block=False)
            self._attempt = None
        if self._connection is not None:
            self._connection.lose("closed by this broker")

    def _begin(
        self,
        commands: Sequence[Command],
        operation: str,
        history: str | None = None,
        reply_bytes: int = 0,
    ) -> Awaited:
        """Send commands, once there is a connection and room; `operation` names them in metrics."""
        connection = self._connection
        if (
            connection is not None
            and not self._waiting.callers
            and not (reply_bytes and self._waiting_for_replies.callers)
            and (history is None or history == self.history)
            and (waiter := connection.exchange(commands, operation, reply_bytes)) is not None
        ):
            return waiter
        if not reply_bytes:
            return self._begin_in_turn(commands, operation, history, 0)
        return self._waiting_for_replies.in_turn(
            lambda: self._begin_with_room(commands, operation, history, reply_bytes),
            time.monotonic() + _REPLY_ROOM_S_MAX,
        )

    def _begin_with_room(
        self, commands: Sequence[Command], operation: str, history: str | None, reply_bytes: int
    ) -> Awaited | None:
        """Send commands with large replies, or return None if there is no room for these."""
        connection = self._connected(time.monotonic() + self._timeout_s)
        if connection.has_reply_room:
            return self._begin_in_turn(commands, operation, history, reply_bytes)
        connection.on_room = self._wake
        return None

    def _begin_in_turn(
        self, commands: Sequence[Command], operation: str, history: str | None, reply_bytes: int
    ) -> Awaited:
        """Send commands after those that wait for room already."""
        deadline = time.monotonic() + self._timeout_s

        def send() -> Awaited | None:
            connection = self._connected(deadline)
            self.check_history(history)
            waiter = connection.exchange(commands, operation, reply_bytes, deadline - time.monotonic())
            if waiter is None:
                connection.on_room = self._wake
            return waiter

        if not self._waiting.callers and (waiter := send()) is not None:
            return waiter
        return self._waiting.in_turn(send, deadline)

    def _wake(self) -> None:
        """Let those who wait for room try again; a connection calls this as long as there are any."""
        if self._connection and not (self._waiting.callers or self._waiting_for_replies.callers):
            self._connection.on_room = None
        self._waiting.wake()
        self._waiting_for_replies.wake()

    def check_history(self, wanted: str | None) -> None:
        """Raise HistoryChangedError if the connection leads to another history than the one `wanted`, None for any."""
        if wanted not in (None, self.history):
            raise HistoryChangedError("Redis has another history: nothing was sent")

    def _connected(self, deadline: float) -> RedisConnection:
        """Return the connection. Without one, wait for the attempt under way, or begin one.

        Fails at once in the pause after a failure.
        """
        if self._connection is not None and self._connection.lost is None:
            return self._connection
        if self._closed:
            raise StorageUnavailableError(f"the connection to Redis at {self._target} is closed")
        attempt = self._attempt
        if attempt is None:
            if time.monotonic() < self._not_before:
                raise StorageUnavailableError(self._refusal)
            # A greenlet of its own: the caller that began it may be killed, the others still need it.
            attempt = self._attempt = gevent.spawn(self._connect)
        if self._fails_fast and self._refusal:
            raise StorageUnavailableError(self._refusal)
        attempt.join(max(deadline - time.monotonic(), 0.001))
        outcome = attempt.value
        if isinstance(outcome, RedisConnection):
            return outcome
        if isinstance(outcome, StorageUnavailableError):
            # One exception object per caller: tracebacks gather in it.
            raise StorageUnavailableError(outcome.message)
        # Not yet, or the attempt was ended by close().
        raise StorageUnavailableError(f"Redis at {self._target} could not be reached in time")

    def _connect(self) -> RedisConnection | StorageUnavailableError:
        try:
            connected, history = connect_to(self._target, self._connect_timeout_ms, self._on_moved)
        except StorageUnavailableError as error:
            self._refusal = error.message
            self._not_before = time.monotonic() + self._backoff.next_s()
            self._observer.connect_failed()
            return error
        else:
            self._backoff.reset()
            self._refusal = ""
            before = self._connection
            self.connections += 1
            self.connected_at = time.monotonic()
            self.history = history
            observer = self._observer
            self._connection = RedisConnection(
                connected,
                self.name,
                self._limits,
                on_lost=self._on_lost,
                on_round_trip=None if observer is NO_OBSERVER else observer.round_trip,
                on_silence=self.on_silence,
            )
            if self._first:
                # Before anything else is sent; nobody waits, for one that is missing is loaded when it is run.
                self._connection.exchange(self._first, self._operation, 0, None, True)  # noqa: FBT003 - of the core
            if before is not None:
                self.reconnected_at = self.connected_at
                self._observer.reconnected()
                if before.led_to_replica:
                    self.on_failover()
            return self._connection
        finally:
            self._attempt = None

    def _on_lost(self, _reason: str) -> None:
        self._wake()


def _load(script: Script) -> Command:
    return ("SCRIPT", "LOAD", script.source)


def _replies_of(waiter: Awaited, count: int) -> list[Reply]:
    answer = waiter.get()
    return cast("list[Reply]", answer) if count > 1 else [answer]
