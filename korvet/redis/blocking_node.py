"""redis-py under `client.Redis`, for threads that may block: Spark's tasks, jobs and queries of the lake.

gevent gives each thread an event loop that it keeps, with two files, until the process ends, so threads that come and
go must not use it. redis-py opens the connections (TLS, login, database) and asks the Sentinels, as for the supervisor
(blocking.py). cluster.py says which request goes to which node: redis-py's own client of a cluster repeats requests
that got no answer, and needs the right to COMMAND.

A request is sent when it is begun. Its replies are read when they are taken, or before the next request to the same
node: so requests to several nodes are under way at once. A connection is for one thread at a time; an idle one learns
of a failover by the next request. Nothing is sent twice, except scripts that Redis refused to run.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, cast

import redis
from korvet_core import NotRespError, RespReader, pack_command

from korvet.errors import OutcomeUnknownError, StorageUnavailableError
from korvet.pending import SendOrder
from korvet.redis import url as redis_url
from korvet.redis.blocking import TimeLimits, connection_to, find_master, one_line
from korvet.redis.client import Redis
from korvet.redis.connection import Arg, Command, reconnect_backoff, unreachable
from korvet.redis.node import RedisNode, ScriptCall, is_missing
from korvet.redis.replies import (
    HistoryChangedError,
    MemoryFullError,
    MovedError,
    ReadOnlyError,
    Reply,
    error_of,
    history_of,
    value_of,
)
from korvet.redis.slots import REFRESH_S_MIN, SLOTS, SlotMap, bounds_of, parsed_slots, spread_tags
from korvet.redis.url import RedisAddress, RedisTarget, server_at

_READ_BYTES = 128 * 1024
_MORE = object()
_GREETING = b"".join(map(pack_command, [("CLIENT", "SETNAME", "korvet"), ("INFO", "replication")]))
_NAME_REFUSALS = ("NOPERM", "unknown command", "unknown subcommand")


def blocking_redis(url: str, *, timeout_ms: int, connect_timeout_ms: int) -> Redis:
    """Return a client for one thread, which may block; raises ConfigError for a malformed `url`.

    A connection opens with the first request that needs it.
    """
    limits = TimeLimits(timeout_ms, connect_timeout_ms)
    target = redis_url.parse_url(url)

    # Both have what stores call, and no base: a test compares them with what workers use.
    def node(server: RedisTarget, order: SendOrder) -> RedisNode:
        return cast("RedisNode", BlockingNode(server, limits, order))

    slots = cast("SlotMap", BlockingSlotMap(target, connect_timeout_ms))
    return Redis(url, timeout_ms=timeout_ms, connect_timeout_ms=connect_timeout_ms, slots=slots, node=node)


class ReplyParser:
    """Reads replies for a connection of redis-py; error replies are the exceptions of `replies.error_of`."""

    def __init__(self) -> None:
        self.was_connected = self._is_greeted = False
        self._received = memoryview(bytearray(_READ_BYTES))
        self._reader = RespReader(error_of)
        self._socket: socket.socket

    def on_connect(self, connection: Any) -> None:  # noqa: ANN401 - redis-py's connection
        """Begin with the socket of a connection, before its handshake."""
        self._socket = connection._sock  # noqa: SLF001 - so redis-py's parsers know it
        self.was_connected = True

    def on_disconnect(self) -> None:
        """Do nothing: each connection has a parser of its own."""

    def greet(self, timeout_s: float) -> Reply:
        """End the handshake and return the answer to INFO replication; `timeout_s` bounds each wait from now on.

        Raises OSError, redis.InvalidResponse and redis.ResponseError.
        """
        # Redis may refuse and close before it has read a word; why it did is still there to be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(_GREETING)
        try:
            self.read_response()
        except redis.ResponseError as error:
            # The name only helps a reader of CLIENT LIST: if CLIENT is forbidden or absent, there is none.
            if not any(word in str(error) for word in _NAME_REFUSALS):
                raise
        self._is_greeted = True
        self._socket.settimeout(timeout_s)
        return self.replies(1)[0]

    @property
    def has_input(self) -> bool:
        """Whether there is something to read now, or the end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def read_response(self, disable_decoding: bool = False, timeout: object = None) -> Reply:  # noqa: ARG002, FBT001, FBT002 - redis-py's
        """Return the next reply; during the handshake an error reply is raised as redis.ResponseError."""
        [reply] = self.replies(1)
        if isinstance(reply, Exception) and not self._is_greeted:
            raise redis.ResponseError(str(reply))
        return reply

    def replies(self, count: int) -> list[Reply]:
        """Wait for `count` replies; raises OSError, redis.InvalidResponse and MemoryError."""
        replies: list[Reply] = []
        next_reply = self._reader.next_reply
        try:
            while len(replies) < count:
                if (reply := next_reply(_MORE)) is not _MORE:
                    replies.append(cast("Reply", reply))
                elif size := self._socket.recv_into(self._received):
                    self._reader.feed(self._received[:size])
                else:
                    raise ConnectionResetError("it closed the connection")
        except NotRespError as error:
            raise redis.InvalidResponse(f"it sent what is not RESP: {error}") from None
        return replies


class _Exchange:
    """Commands that were sent to a node (a Pending)."""

    in_order = True

    def __init__(self, node: BlockingNode, count: int) -> None:
        self.count = count
        self.replies: list[Reply] | None = None
        self.error: StorageUnavailableError | None = None
        self._node = node

    @property
    def ready(self) -> bool:
        """Whether the replies were read, or never will be."""
        return self.replies is not None or self.error is not None

    def result(self) -> list[Reply]:
        """Wait for the replies and return them in order; raises StorageUnavailableError."""
        self._node.read_until(self)
        if self.error is not None:
            raise self.error.without_frames()
        return cast("list[Reply]", self.replies)


class _ScriptExchange:
    """Scripts that were sent to a node (a Pending)."""

    in_order = True

    def __init__(self, node: BlockingNode, calls: Sequence[ScriptCall], history: str | None) -> None:
        self._node, self._calls, self._history = node, calls, history
        self._sent = node.begin_pipeline([self._command(call) for call in calls], history=history)

    @property
    def ready(self) -> bool:
        """Whether the replies were read, or never will be."""
        return self._sent.ready

    def as_they_are(self) -> list[Reply]:
        """Wait for the replies and return them in the order of the calls: NOSCRIPT for a script that Redis lacks."""
        return self._sent.result()

    def result(self) -> list[Reply]:
        """Return the replies as `as_they_are` does, after scripts have run again that Redis lacked or had no room for.

        What prevents this is the reply of these scripts alone: the others have run.
        """
        replies = self._sent.result()
        self._run_again(
            {index: self._calls[index] for index, reply in enumerate(replies) if is_missing(reply)}, replies
        )
        full = {
            index: (when_full, keys, args)
            for index, (reply, (script, keys, args)) in enumerate(zip(replies, self._calls, strict=True))
            if isinstance(reply, MemoryFullError) and (when_full := script.when_full)
        }
        self._run_again(full, replies)
        return replies

    def _run_again(self, calls: Mapping[int, ScriptCall], replies: list[Reply]) -> None:
        """Load and run scripts that did not run; `replies` gets the new replies."""
        if not calls:
            return
        loads = {script.sha: ("SCRIPT", "LOAD", script.source) for script, _, _ in calls.values()}
        commands = [*loads.values(), *map(self._command, calls.values())]
        try:
            self._node.order.change()
            late = self._node.begin_pipeline(commands, history=self._history).result()
        except StorageUnavailableError as error:
            late = [error.without_frames()] * len(commands)
        loaded = dict(zip(loads, late, strict=False))
        for (index, (script, _, _)), reply in zip(calls.items(), late[len(loads) :], strict=True):
            # A script that does not compile fails when it is loaded, and that says why.
            load = loaded[script.sha]
            replies[index] = load if isinstance(load, Exception) else reply

    def _command(self, call: ScriptCall) -> Command:
        script, keys, args = call
        return (
            "EVALSHA",
            script.sha,
            len(keys),
            keys,
            args,
            (self._node.lease_end_ms,) if script.leased else (),
        )


class BlockingNode:
    """One server of Redis, or the master that Sentinels name, over one connection of a thread.

    Its methods raise and return what the methods of `RedisNode` do.
    """

    def __init__(self, target: RedisTarget, limits: TimeLimits, order: SendOrder) -> None:
        """`order` hears of scripts that were sent again."""
        self.name = str(target)
        self.safe_url = target.safe_url
        self.order = order
        self.on_failover: Callable[[], object] = lambda: None
        self.on_silence: Callable[[], None] | None = None
        self.connections = 0
        self.connected_at = self.reconnected_at = -inf
        self.history = ""
        self.lease_end_ms = 0
        self._target, self._limits = target, limits
        self._connection: Any = None
        self._parser: ReplyParser
        self._sent: _Exchange | None = None
        self._backoff = reconnect_backoff()
        self._not_before = 0.0
        self._refusal = ""
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    ready = connected

    @property
    def away(self) -> bool:
        """Whether the last attempt to connect failed."""
        return bool(self._refusal)

    @property
    def busy(self) -> bool:
        """Whether replies are due."""
        return self._sent is not None

    def call(self, *command: Arg) -> Reply:
        """Send one command and return its reply; raises the exception of an error reply."""
        [reply] = self.pipeline([command])
        return value_of(reply)

    def pipeline(self, commands: Sequence[Command], *, reply_bytes: int = 0) -> list[Reply]:  # noqa: ARG002 - as below
        """Send commands in one write and return their replies in order; error replies stay in their places."""
        return self.begin_pipeline(commands).result() if commands else []

    def begin_pipeline(
        self,
        commands: Sequence[Command],
        reply_bytes: int = 0,  # noqa: ARG002 - nobody else waits for room
        history: str | None = None,
    ) -> _Exchange:
        """Send commands, at least one, and leave their replies for later; with `history` to that one only."""
        if self._sent is not None:
            # While both ends only write neither reads.
            self.read_until(self._sent)
        connection = self._opened()
        if history not in (None, self.history):
            raise HistoryChangedError("Redis has another history: nothing was sent")
        packed = b"".join(map(pack_command, commands))
        sent = self._sent = _Exchange(self, len(commands))
        try:
            connection.send_packed_command([packed], check_health=False)
        except redis.RedisError as error:
            self.reconnect(one_line(error))
        return sent

    def begin_scripts(self, calls: Sequence[ScriptCall], history: str | None = None) -> _ScriptExchange:
        """Send scripts, at least one, and leave their replies for later; with `history` to that one only."""
        return _ScriptExchange(self, calls, history)

    def connect(self) -> str:
        """Connect if there is no connection, and return the history to which it leads."""
        self._opened()
        return self.history

    def refresh_history(self) -> None:
        """Learn the history again: a master also begins a new one when its first replica connects."""
        self.history = history_of(self.call("INFO", "replication"))

    def reconnect_soon(self) -> None:
        """Do nothing: the next request tries to connect."""

    def reconnect(self, reason: str) -> None:
        """Close the connection, and open another one for the next request; what is in flight fails with `reason`."""
        if self._connection is None:
            return
        self._connection.disconnect()
        self._connection = None
        message = f"the connection to Redis at {self.name} was lost: {reason}; the outcome of the request is unknown"
        if self._sent is not None:
            self._sent.error = OutcomeUnknownError(message)
            self._sent = None

    def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        self.reconnect("closed by this program")

    def read_until(self, wanted: _Exchange) -> None:
        """Read the replies of the request that was sent, unless they were read or the connection is lost."""
        if wanted.ready:
            return
        try:
            wanted.replies = self._parser.replies(wanted.count)
        except TimeoutError:
            self.reconnect(f"it did not answer within {self._limits.reply_ms} ms")
        except (OSError, redis.InvalidResponse) as error:
            self.reconnect(one_line(error))
        except MemoryError:
            self.reconnect("there is no memory for what it sent")
        except BaseException:
            # Some of the replies may be lost: another request must not get the others.
            self.reconnect("the program was interrupted")
            raise
        else:
            self._sent = None
            if any(isinstance(reply, ReadOnlyError) for reply in wanted.replies):
                # Its address may lead to the master by now.
                self.reconnect("the server is a read-only replica")

    def _opened(self) -> Any:  # noqa: ANN401 - untyped there
        if self._closed:
            raise StorageUnavailableError(f"the connection to Redis at {self._target} is closed")
        if self._connection is not None and self._parser.has_input:
            # Nothing is due: that is its end, which came while the connection was idle.
            self.reconnect("it closed the connection")
        if self._connection is not None:
            return self._connection
        if time.monotonic() < self._not_before:
            raise StorageUnavailableError(self._refusal)
        try:
            connection = self._connect()
        except StorageUnavailableError as error:
            self._refusal = error.message
            self._not_before = time.monotonic() + self._backoff.next_s()
            raise
        self._backoff.reset()
        self._refusal = ""
        self._connection = connection
        self.connected_at = time.monotonic()
        if self.connections:
            self.reconnected_at = self.connected_at
        self.connections += 1
        return connection

    def _connect(self) -> Any:  # noqa: ANN401 - untyped there
        """Return a new connection, whose history is known; raises StorageUnavailableError."""
        target, connect_ms = self._target, self._limits.connect_ms
        address = target.addresses[0]
        if target.kind == "sentinel":
            share_ms = connect_ms // (len(target.addresses) + 1) + 1
            try:
                address = find_master(target, TimeLimits(share_ms, share_ms))
            except redis.RedisError as error:
                raise StorageUnavailableError(f"no master for {target}: {one_line(error)}") from None
        parser = self._parser = ReplyParser()
        limits = TimeLimits(connect_ms, connect_ms)
        connection = connection_to(address, limits, parser_class=lambda **_: parser)
        try:
            connection.connect()
            self.history = history_of(parser.greet(self._limits.reply_ms / 1000))
            if target.kind == "sentinel" and not self.history:
                raise redis.ConnectionError("it is a replica by now")
        except (redis.TimeoutError, TimeoutError):
            failure = StorageUnavailableError(f"Redis at {address} did not answer within {connect_ms} ms")
        except (redis.RedisError, OSError, UnicodeError) as error:
            failure = _connect_error(address, error, connected=parser.was_connected)
        else:
            return connection
        connection.disconnect()
        raise failure


def _connect_error(address: RedisAddress, error: Exception, *, connected: bool) -> StorageUnavailableError:
    if isinstance(error, redis.ResponseError):
        # Redis repeats the arguments of a command that it does not know.
        text = str(error).replace(address.password or "\0", "***")
        return StorageUnavailableError(f"Redis at {address} refused the connection: {text}")
    cause = error.__context__ if isinstance(error.__context__, OSError) else error
    return unreachable(address, cause, connected=connected or isinstance(cause, ssl.SSLError))


class BlockingSlotMap:
    """Which master of a cluster has which slot, for one thread; read again by the first request after a failure."""

    def __init__(self, target: RedisTarget, timeout_ms: int) -> None:
        """`target` names nodes of the cluster; `timeout_ms` bounds each step of asking one of them."""
        self.version = 0
        """Changes whenever the map may be another."""
        self._target = target
        self._limits = TimeLimits(timeout_ms, timeout_ms)
        self._masters: list[RedisAddress | None] = [None] * SLOTS
        self._is_old = True
        self._read_at = -inf
        self._next = 0
        self._silent: set[RedisAddress] = set()
        self._followers: list[Callable[[], object]] = []

    def follow(self, changed: Callable[[], object]) -> None:
        """Call `changed` when slots are elsewhere."""
        self._followers.append(changed)

    def master_of(self, slot: int) -> RedisAddress:
        """Return the master of a slot; raises StorageUnavailableError if there is none."""
        self._refresh()
        address = self._masters[slot]
        if address is None:
            self.read_soon()
            raise StorageUnavailableError(f"no master of the Redis cluster has slot {slot}")
        return address

    def masters(self) -> dict[RedisAddress, tuple[int, int]]:
        """Return the masters that have slots, each with its lowest and its highest; raises StorageUnavailableError."""
        self._refresh()
        return bounds_of(self._masters)

    def spread_tags(self, taken: Sequence[str], more: int, seed: str) -> list[str]:
        """Return what `slots.spread_tags` does by the map as it is now; raises StorageUnavailableError."""
        self._read()
        return spread_tags(self._masters, taken, more, seed)

    def moved(self, error: MovedError) -> None:
        """Note where a node said that a slot is now. The next request follows it, and the map is read after that."""
        # "?" has a name in the map only.
        if error.host != "?":
            before = self._masters[error.slot]
            self._masters[error.slot] = self._target.at(
                error.host or (before.host if before else ""), error.port
            )
            self._read_at = time.monotonic()
        self.read_soon()

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def read_soon(self) -> None:
        """Read the map before it is used again."""
        self._is_old = True
        self._change()

    def _refresh(self) -> None:
        if self._is_old and (time.monotonic() - self._read_at >= REFRESH_S_MIN or not any(self._masters)):
            self._read_at = time.monotonic()
            self._read()

    def _read(self) -> None:
        """Take the map of the first node that gives it; raises StorageUnavailableError if none does."""
        known = list(dict.fromkeys([*filter(None, self._masters), *self._target.addresses]))
        # Another one first each time: one whose map is old must not be believed every time. One that hangs is the last.
        self._next += 1
        begin = self._next % len(known)
        failure = StorageUnavailableError("the Redis cluster has no node")
        for address in sorted([*known[begin:], *known[:begin]], key=self._silent.__contains__):
            try:
                with contextlib.closing(BlockingNode(server_at(address), self._limits, SendOrder())) as node:
                    [reply] = node.pipeline([("CLUSTER", "SLOTS")])
                masters = parsed_slots(self._target, address, reply)
            except StorageUnavailableError as error:
                self._silent.add(address)
                failure = error
                continue
            self._silent.discard(address)
            self._is_old = False
            if masters != self._masters:
                self._masters = masters
                self._change()
            return
        raise failure

    def _change(self) -> None:
        self.version += 1
        for changed in self._followers:
            changed()
