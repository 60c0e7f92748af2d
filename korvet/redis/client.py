"""The workers' way to Redis: any number of greenlets share one connection, which reconnects by itself.

`Redis` is what callers see: commands, pipelines, scripts. It connects, pauses after a failed attempt, loads scripts
that Redis lacks, and bounds what is in flight. `Multiplexer` owns the order of one connection: Redis answers in the
order of the requests, so a queue of pending replies is all the bookkeeping. The reply to a caller that gave up (its own
timeout, or it was killed) is dropped when it comes. A connection is closed if nothing was heard for a whole timeout
while a reply was due, and if it leads to a master that became a replica: after a failover its name leads elsewhere.

Nobody retries: a request that fails on a lost connection is never sent again, since an append may have been done. The
caller decides. Nothing connects before the first call, so an instance may be made before a fork. A large reply delays
all requests after it, so a process has one `Redis` for small commands and another for large reads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TypeAlias, cast

import gevent
from gevent import socket
from gevent.hub import Waiter, get_hub

from korvet.errors import KafkaError, LeaseEndedError, OutcomeUnknownError, StorageUnavailableError
from korvet.redis import url as redis_url
from korvet.redis.connection import (
    NO_OBSERVER,
    Arg,
    Observer,
    RedisConnection,
    pack,
    reconnect_backoff,
)
from korvet.redis.replies import (
    HistoryChangedError,
    ReadOnlyError,
    Reply,
    RespError,
    history_of,
    listed,
    name_of,
    value_of,
)
from korvet.redis.scripts import Script
from korvet.redis.sentinel import connect_to

__all__ = ["Arg", "HistoryChangedError", "Redis", "Reply", "RespError", "ScriptCall"]

ScriptCall: TypeAlias = tuple[Script, Sequence[str | bytes], Sequence[Arg]]

# What may be in flight at once. Redis answers ten thousand small commands in a tenth of a second, so more would only
# lengthen the queue; the bytes bound a worker's memory (they lie here and in Redis' query buffer).
_COMMANDS_MAX = 10_000
_BYTES_MAX = 64 * 1024 * 1024
REPLY_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of large replies that may be under way at once: they lie in Redis' output buffer until they are read."""

# Consumers wait so long for an answer (request.timeout.ms).
_REPLY_ROOM_S_MAX = 30.0

# A connection to a replica is not closed earlier: if the address leads to the same replica again, once in this time.
_READ_ONLY_S_MIN = 1.0

_UNKNOWN = "the outcome of the request is unknown"

_MULTI = pack(("MULTI",))
_EXEC = pack(("EXEC",))


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

    def acquire(self, commands: int, size: int, deadline: float) -> None:
        """Wait for room; raises StorageUnavailableError if there is none before `deadline` (time.monotonic)."""
        if self._queue or self.commands >= self._commands_max or self.bytes >= self._bytes_max:
            self._wait(_QueuedCaller(commands, size), deadline)
            return
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
    ) -> None:
        """Take over a connection. `name` is the server's, for messages; the limits outlive the connection.

        `on_round_trip` is called with the operation and the seconds of each exchange, late ones included.
        """
        self._on_round_trip = on_round_trip
        self._name, self._timeout_s = name, timeout_ms / 1000
        self._limit, self._reply_limit = limit, reply_limit
        self._hub = get_hub()
        self._pending: deque[_PendingReply] = deque()
        self._check_at = inf
        self._made_at = time.monotonic()
        # Whether it was closed for that.
        self.led_to_replica = False
        self._timer = self._hub.loop.timer(0)
        self._connection = RedisConnection(connected, self._on_replies, self._on_lost)

    @property
    def lost(self) -> bool:
        """Whether the connection is gone."""
        return self._connection.lost is not None

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
            self._schedule_check(deadline)
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
            self._schedule_check(min(waiting, default=now + self._timeout_s))


def _is_waited_for(ready: tuple[Waiter[Reply], Reply]) -> bool:
    return ready[0].greenlet is not None


def _fail(waiters: list[Waiter[Reply]], text: str) -> None:
    for waiter in waiters:
        waiter.throw(OutcomeUnknownError(text))


class PendingReplies:
    """Scripts that were sent (a Pending). Redis runs them in the order of sending, unless it has to load one."""

    in_order = True

    def __init__(
        self,
        redis: Redis,
        calls: Sequence[ScriptCall],
        packed: list[bytes],
        waiter: Waiter[Reply] | None,
        history: str | None,
    ) -> None:
        self._redis, self._calls, self._packed, self._waiter = redis, calls, packed, waiter
        self._history = history

    @property
    def ready(self) -> bool:
        """Whether the replies have arrived."""
        return self._waiter is None or self._waiter.ready()

    def result(self) -> list[Reply]:
        """Wait for the replies and return them in the order of the calls; may be called once."""
        if self._waiter is None:
            return []
        replies = _listed(self._waiter.get(), len(self._packed))
        failed = [index for index, reply in enumerate(replies) if isinstance(reply, Exception)]
        if failed:
            self._redis.rerun_missing(self._calls, self._packed, failed, replies, self._history)
        return replies


class Redis:
    """Redis over one multiplexed connection: coalesced writes, replies in order, a timeout on every call.

    Every method raises StorageUnavailableError when Redis cannot be reached, does not answer within
    `timeout_ms`, loses the connection, or refuses because of its state (LOADING, READONLY, OOM ..:
    `replies.error_of`). If a request was sent and no reply came, that is an OutcomeUnknownError. An error reply
    whose first word is one of Kafka's error names is a KafkaError, any other a RespError. A greenlet may be
    killed while it waits; others do not notice.
    """

    def __init__(  # noqa: PLR0913 - the limits of one connection, each by its name
        self,
        url: str,
        *,
        timeout_ms: int,
        connect_timeout_ms: int,
        commands_max: int = _COMMANDS_MAX,
        bytes_max: int = _BYTES_MAX,
        reply_bytes_max: int = REPLY_BYTES_MAX,
        observer: Observer = NO_OBSERVER,
        operation: str = "commands",
    ) -> None:
        """Raise ConfigError for a malformed `url`. `commands_max` and `bytes_max` bound what is in flight.

        `reply_bytes_max` bounds the replies under way, by what their callers expect them to weigh.
        `operation` is the name under which `observer` hears of commands that are not scripts.
        """
        self._observer = observer
        self._operation = operation
        self.on_failover: Callable[[], object] = lambda: None
        """Called after a reconnect because the old connection led to a replica.

        Connections that only read do not notice a failover, and have to reconnect.
        """
        self._target = redis_url.parse_url(url)
        self._timeout_ms, self._connect_timeout_ms = timeout_ms, connect_timeout_ms
        self._timeout_s = timeout_ms / 1000
        self._limit = InFlightLimit(commands_max, bytes_max)
        self._reply_limit = InFlightLimit(1, reply_bytes_max)
        self._multiplexer: Multiplexer | None = None
        self._attempt: gevent.Greenlet[[], Multiplexer | StorageUnavailableError] | None = None
        self._backoff = reconnect_backoff()
        self._not_before = 0.0
        self._refusal = ""
        self._closed = False
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

    def call(self, *command: Arg) -> Reply:
        """Send one command and return its reply; raises the exception of an error reply."""
        [reply] = self.pipeline([command])
        return value_of(reply)

    def pipeline(self, commands: Sequence[Sequence[Arg]], *, reply_bytes: int = 0) -> list[Reply]:
        """Send `commands` in one write and return their replies in order; error replies stay in their places.

        Commands of other greenlets and other clients may run between them. If large replies are expected,
        `reply_bytes` in all, it is their turn when there is room for them; what expects small ones does not wait.
        """
        if not commands:
            return []
        packed = b"".join([pack(tuple(command)) for command in commands])
        return _listed(
            self._begin(packed, len(commands), self._operation, reply_bytes=reply_bytes).get(), len(commands)
        )

    def transaction(self, commands: Sequence[Sequence[Arg]]) -> list[Reply]:
        """Run `commands` in one MULTI .. EXEC, sent in one write; returns their replies as `pipeline` does.

        If Redis refuses to queue a command, its error is raised and none has run.
        """
        packed = [pack(tuple(command)) for command in commands]
        whole = b"".join([_MULTI, *packed, _EXEC])
        begun, *queued, done = self._exchange_all(whole, len(packed) + 2, self._operation)
        # The first refusal says why; EXEC then only says EXECABORT.
        for reply in (begun, *queued, done):
            value_of(reply)
        if not isinstance(done, list) or len(done) != len(packed):
            raise StorageUnavailableError("Redis discarded a transaction: none of its commands has run")
        return done

    def scan_sorted_set(self, key: str, page: int) -> Iterator[list[bytes]]:
        """Yield the members of a sorted set, up to `page` at a time, each once.

        One that is added or removed meanwhile may be missing. Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        cursor, seen = b"0", set[bytes]()
        while True:
            [reply] = self.pipeline([("ZSCAN", key, cursor, "COUNT", page)])
            cursor, found = cast("tuple[bytes, list[bytes]]", listed(key, reply))
            fresh = [member for member in found[::2] if member not in seen]
            seen.update(fresh)
            for at in range(0, len(fresh), page):
                yield fresh[at : at + page]
            if cursor == b"0":
                return

    def script(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Arg]) -> Reply:
        """Run a script and return its reply; loads it and runs it again if Redis lacks it."""
        [reply] = self.scripts([(script, keys, args)])
        return value_of(reply)

    def scripts(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        """Run scripts in one pipeline and return their replies in order; errors stay in their places.

        Scripts that Redis lacks are loaded and run in a second pipeline, in their order: calls that must not overtake
        each other (two appends to one partition) do not belong into one pipeline.
        """
        return self.begin_scripts(calls).result()

    def begin_scripts(self, calls: Sequence[ScriptCall], history: str | None = None) -> PendingReplies:
        """Send scripts as `scripts` does without waiting for their replies, which the caller must take in the end.

        With `history` to that one only. Raises StorageUnavailableError if Redis cannot be reached, or has another one.
        """
        end = (self.lease_end_ms,)
        packed = [
            pack(("EVALSHA", script.sha, len(keys), *keys, *args, *(end if script.leased else ())))
            for script, keys, args in calls
        ]
        waiter = self._begin(b"".join(packed), len(packed), calls[0][0].name, history) if packed else None
        return PendingReplies(self, calls, packed, waiter, history)

    def rerun_missing(
        self,
        calls: Sequence[ScriptCall],
        packed: list[bytes],
        failed: list[int],
        replies: list[Reply],
        history: str | None,
    ) -> None:
        """Run those of the `failed` calls again whose script Redis lacked, and report what still fails.

        `replies` gets the new replies. A script that does not compile fails at its load, which says why.
        """
        missing = [at for at in failed if isinstance(it := replies[at], RespError) and it.name == "NOSCRIPT"]
        if missing:
            scripts = {calls[index][0].sha: calls[index][0] for index in missing}
            loads = [pack(("SCRIPT", "LOAD", script.source)) for script in scripts.values()]
            again = b"".join([*loads, *(packed[index] for index in missing)])
            try:
                late = self._exchange_all(again, len(scripts) + len(missing), self._operation, history)
            except StorageUnavailableError as error:
                # Of these calls only: the others were done, and their replies are here.
                late = [error] * (len(scripts) + len(missing))
            loaded = dict(zip(scripts, late, strict=False))
            for index, reply in zip(missing, late[len(scripts) :], strict=True):
                load = loaded[calls[index][0].sha]
                replies[index] = load if isinstance(load, Exception) else reply
        for index in failed:
            if isinstance(reply := replies[index], RespError | KafkaError):
                self._observer.script_failed(calls[index][0].name, name_of(reply))
                self.lease_ended = self.lease_ended or isinstance(reply, LeaseEndedError)

    def connect(self) -> str:
        """Connect if there is no connection, and return the history to which it leads.

        Raises StorageUnavailableError.
        """
        if self._multiplexer is None or self._multiplexer.lost:
            self._connected(time.monotonic() + self._timeout_s)
        return self.history

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
        if self._multiplexer is not None and not self._multiplexer.lost:
            self._multiplexer.close(reason)

    def close(self) -> None:
        """Close the connection for good: what is in flight or called later fails as if Redis were away."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.kill(block=False)
            self._attempt = None
        if self._multiplexer is not None:
            self._multiplexer.close("closed by this broker")

    def _exchange_all(
        self, data: bytes, count: int, operation: str, history: str | None = None
    ) -> list[Reply]:
        return _listed(self._begin(data, count, operation, history).get(), count)

    def _begin(
        self, data: bytes, count: int, operation: str, history: str | None = None, reply_bytes: int = 0
    ) -> Waiter[Reply]:
        if reply_bytes:
            self._reply_limit.acquire(0, reply_bytes, time.monotonic() + _REPLY_ROOM_S_MAX)
        try:
            deadline = time.monotonic() + self._timeout_s
            self._limit.acquire(count, len(data), deadline)
            try:
                multiplexer = self._multiplexer
                if multiplexer is None or multiplexer.lost:
                    multiplexer = self._connected(deadline)
                self._check_history(history)
                return multiplexer.exchange(data, count, deadline, operation, reply_bytes)
            except BaseException:
                self._limit.release(count, len(data))
                raise
        except BaseException:
            if reply_bytes:
                self._reply_limit.release(0, reply_bytes)
            raise

    def _check_history(self, history: str | None) -> None:
        if history is not None and history != self.history:
            raise HistoryChangedError("Redis has another history: nothing was sent")

    def _connected(self, deadline: float) -> Multiplexer:
        """Wait for the one attempt under way, or begin it; fails at once in the pause after a failure."""
        if self._closed:
            raise StorageUnavailableError(f"the connection to Redis at {self._target} is closed")
        attempt = self._attempt
        if attempt is None:
            if time.monotonic() < self._not_before:
                raise StorageUnavailableError(self._refusal)
            # A greenlet of its own: the caller that began it may be killed, the others still need it.
            attempt = self._attempt = gevent.spawn(self._connect)
        attempt.join(max(deadline - time.monotonic(), 0.001))
        outcome = attempt.value
        if isinstance(outcome, Multiplexer):
            return outcome
        if isinstance(outcome, StorageUnavailableError):
            # One exception object per caller: tracebacks gather in it.
            raise StorageUnavailableError(outcome.message)
        # Not yet, or the attempt was ended by close().
        raise StorageUnavailableError(f"Redis at {self._target} could not be reached in time")

    def _connect(self) -> Multiplexer | StorageUnavailableError:
        try:
            connected, history = connect_to(self._target, self._connect_timeout_ms, self.reconnect)
        except StorageUnavailableError as error:
            self._refusal = error.message
            self._not_before = time.monotonic() + self._backoff.next_s()
            self._observer.connect_failed()
            return error
        else:
            self._backoff.reset()
            before = self._multiplexer
            self.connections += 1
            self.connected_at = time.monotonic()
            self.history = history
            self._multiplexer = Multiplexer(
                connected,
                str(self._target),
                self._limit,
                self._reply_limit,
                self._timeout_ms,
                self._observer.round_trip,
            )
            if before is not None:
                self.reconnected_at = self.connected_at
                self._observer.reconnected()
                if before.led_to_replica:
                    self.on_failover()
            return self._multiplexer
        finally:
            self._attempt = None


def _listed(answer: Reply, count: int) -> list[Reply]:
    return cast("list[Reply]", answer) if count > 1 else [answer]
