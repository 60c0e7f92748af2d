"""The workers' way to Redis: any number of greenlets share one connection, which reconnects by itself.

Three files, three duties:

    client       what callers see: commands, pipelines, scripts. It connects, pauses after a failed attempt, loads
                 scripts that Redis lacks, and bounds what is in flight
    multiplex    the order of one connection: which reply is whose, timeouts, the end of a silent connection
    connection   the socket: handshake, framing, coalesced writes

Nobody retries: a request that fails on a lost connection is never sent again, since an append may have been done. The
caller decides. Nothing connects before the first call, so an instance may be made before a fork. A large reply delays
all requests after it, so a process has one `Redis` for small commands and another for large reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, cast

import gevent
from gevent.hub import Waiter

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.redis import url as redis_url
from korvet.redis.connection import NO_OBSERVER, Arg, Observer, connect, pack, reconnect_backoff
from korvet.redis.multiplex import InFlightLimit, Multiplexer
from korvet.redis.replies import Reply, RespError, listed, name_of, value_of
from korvet.redis.scripts import Script

__all__ = ["Arg", "Redis", "Reply", "RespError", "ScriptCall"]

ScriptCall: TypeAlias = tuple[Script, Sequence[str | bytes], Sequence[Arg]]

# What may be in flight at once. Redis answers ten thousand small commands in a tenth of a second, so more would only
# lengthen the queue; the bytes bound a worker's memory (they lie here and in Redis' query buffer).
_COMMANDS_MAX = 10_000
_BYTES_MAX = 64 * 1024 * 1024

_MULTI = pack(("MULTI",))
_EXEC = pack(("EXEC",))


class PendingReplies:
    """Scripts that were sent (a Pending). Redis runs them in the order of sending, unless it has to load one."""

    __slots__ = ("_calls", "_packed", "_redis", "_waiter")
    in_order = True

    def __init__(
        self, redis: Redis, calls: Sequence[ScriptCall], packed: list[bytes], waiter: Waiter[Reply] | None
    ) -> None:
        self._redis, self._calls, self._packed, self._waiter = redis, calls, packed, waiter

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
            missing = [index for index in failed if _is_missing(replies[index])]
            if missing:
                self._redis.rerun(self._calls, self._packed, missing, replies)
            for index in failed:
                self._redis.report_failure(self._calls[index][0], replies[index])
        return replies


class Redis:
    """Redis over one multiplexed connection: coalesced writes, replies in order, a timeout on every call.

    Every method raises StorageUnavailableError when Redis cannot be reached, does not answer within
    `timeout_ms`, loses the connection, or refuses because of its state (LOADING, READONLY, OOM ..:
    `replies.error_of`). Except for such a refusal the outcome of the request is unknown. An error reply
    whose first word is one of Kafka's error names is a KafkaError, any other a RespError. A greenlet may be
    killed while it waits; others do not notice.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_ms: int,
        connect_timeout_ms: int,
        commands_max: int = _COMMANDS_MAX,
        bytes_max: int = _BYTES_MAX,
        observer: Observer = NO_OBSERVER,
        operation: str = "commands",
    ) -> None:
        """Raise ConfigError for a malformed `url`. `commands_max` and `bytes_max` bound what is in flight.

        `operation` is the name under which `observer` hears of commands that are not scripts.
        """
        self._observer = observer
        self._operation = operation
        self.on_failover: Callable[[], object] = lambda: None
        """Called after a reconnect because the old connection led to a replica.

        Connections that only read do not notice a failover, and have to reconnect.
        """
        self._address = redis_url.parse(url)
        self._timeout_ms, self._connect_timeout_ms = timeout_ms, connect_timeout_ms
        self._timeout_s = timeout_ms / 1000
        self._limit = InFlightLimit(commands_max, bytes_max)
        self._multiplexer: Multiplexer | None = None
        self._attempt: gevent.Greenlet[[], Multiplexer | StorageUnavailableError] | None = None
        self._backoff = reconnect_backoff()
        self._not_before = 0.0
        self._refusal = ""
        self._closed = False
        # How many were made: a fact learned over one may not hold for the next, which may lead to another Redis.
        self.connections = 0

    def call(self, *command: Arg) -> Reply:
        """Send one command and return its reply; raises the exception of an error reply."""
        reply = self._exchange(pack(command), 1, self._operation)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, commands: Sequence[Sequence[Arg]]) -> list[Reply]:
        """Send `commands` in one write and return their replies in order; error replies stay in their places.

        Commands of other greenlets and other clients may run between them.
        """
        if not commands:
            return []
        packed = b"".join([pack(tuple(command)) for command in commands])
        return self._exchange_all(packed, len(commands), self._operation)

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
        packed = pack(("EVALSHA", script.sha, len(keys), *keys, *args))
        reply = self._exchange(packed, 1, script.name)
        if not isinstance(reply, Exception):
            return reply
        if _is_missing(reply):
            loaded, reply = self._exchange_all(_load(script) + packed, 2, self._operation)
            # A script that does not compile fails at its load; the second NOSCRIPT would hide why.
            reply = loaded if isinstance(loaded, Exception) else reply
        self.report_failure(script, reply)
        return value_of(reply)

    def scripts(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        """Run scripts in one pipeline and return their replies in order; errors stay in their places.

        Scripts that Redis lacks are loaded and run in a second pipeline, in their order: calls that must not overtake
        each other (two appends to one partition) do not belong into one pipeline.
        """
        return self.begin_scripts(calls).result()

    def begin_scripts(self, calls: Sequence[ScriptCall]) -> PendingReplies:
        """Send scripts as `scripts` does without waiting for their replies, which the caller must take in the end.

        Raises StorageUnavailableError if Redis cannot be reached.
        """
        packed = [pack(("EVALSHA", script.sha, len(keys), *keys, *args)) for script, keys, args in calls]
        waiter = self._begin(b"".join(packed), len(packed), calls[0][0].name) if packed else None
        return PendingReplies(self, calls, packed, waiter)

    def rerun(
        self, calls: Sequence[ScriptCall], packed: list[bytes], missing: list[int], replies: list[Reply]
    ) -> None:
        """Load the scripts of the calls at `missing`, run these again, and put their replies into `replies`."""
        scripts = {calls[index][0].sha: calls[index][0] for index in missing}
        again = b"".join([*map(_load, scripts.values()), *(packed[index] for index in missing)])
        late = self._exchange_all(again, len(scripts) + len(missing), self._operation)
        loaded = dict(zip(scripts, late, strict=False))
        for index, reply in zip(missing, late[len(scripts) :], strict=True):
            load = loaded[calls[index][0].sha]
            replies[index] = load if isinstance(load, Exception) else reply

    def report_failure(self, script: Script, reply: Reply) -> None:
        """Report a script's reply to the observer if it is an error."""
        if isinstance(reply, RespError | KafkaError):
            self._observer.script_failed(script.name, name_of(reply))

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

    def _exchange_all(self, data: bytes, count: int, operation: str) -> list[Reply]:
        return _listed(self._exchange(data, count, operation), count)

    def _exchange(self, data: bytes, count: int, operation: str) -> Reply:
        reply: Reply = self._begin(data, count, operation).get()
        return reply

    def _begin(self, data: bytes, count: int, operation: str) -> Waiter[Reply]:
        deadline = time.monotonic() + self._timeout_s
        self._limit.acquire(count, len(data), deadline)
        multiplexer = self._multiplexer
        if multiplexer is None or multiplexer.lost:
            try:
                multiplexer = self._connected(deadline)
            except BaseException:
                self._limit.release(count, len(data))
                raise
        return multiplexer.exchange(data, count, deadline, operation)

    def _connected(self, deadline: float) -> Multiplexer:
        """Wait for the one attempt under way, or begin it; fails at once in the pause after a failure."""
        if self._closed:
            raise StorageUnavailableError(f"the connection to Redis at {self._address} is closed")
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
        raise StorageUnavailableError(f"Redis at {self._address} could not be reached in time")

    def _connect(self) -> Multiplexer | StorageUnavailableError:
        try:
            connected = connect(self._address, self._connect_timeout_ms)
        except StorageUnavailableError as error:
            self._refusal = error.message
            self._not_before = time.monotonic() + self._backoff.next_s()
            self._observer.connect_failed()
            return error
        else:
            self._backoff.reset()
            before = self._multiplexer
            self.connections += 1
            self._multiplexer = Multiplexer(
                connected, str(self._address), self._limit, self._timeout_ms, self._observer.round_trip
            )
            if before is not None:
                self._observer.reconnected()
                if before.led_to_replica:
                    self.on_failover()
            return self._multiplexer
        finally:
            self._attempt = None


def _listed(answer: Reply, count: int) -> list[Reply]:
    return cast("list[Reply]", answer) if count > 1 else [answer]


def _is_missing(reply: Reply) -> bool:
    return isinstance(reply, RespError) and reply.name == "NOSCRIPT"


def _load(script: Script) -> bytes:
    return pack(("SCRIPT", "LOAD", script.source))
