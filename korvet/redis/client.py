"""Korvet's way to Redis, be it one server, the master that Sentinels name, or a cluster: commands, pipelines, scripts.

`korvet_core.RedisClient` has the connections, the map of the cluster and the Sentinels; a driver (driver.py,
blocking_driver.py) waits for its sockets. A large reply delays all requests after it on its connection, so a process
has several lanes of one client, each with connections of its own: for small commands, large reads, waits.

With one server all goes to it, and what prevents a call is raised. In a cluster each request goes to the node that has
its key's slot, and what prevents it stands in the place of its reply, for the others may have succeeded. A request that
a node refuses because it does not have the slot, or is moving it, was not run: it is sent again, to the node that has
the slot then. A request without an answer is never sent again. A node that is away costs the requests
to it alone.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any, Self, TypeAlias, cast

from korvet_core import RawReply

from korvet.errors import KafkaError, NodeAwayError, OutcomeUnknownError, StorageUnavailableError
from korvet.pending import Done, Pending
from korvet.redis import url as redis_url
from korvet.redis.base_driver import Awaited, BaseDriver, Timeouts
from korvet.redis.observer import NO_OBSERVER, Observer
from korvet.redis.replies import (
    Arg,
    Command,
    HistoryChangedError,
    MovedError,
    Reply,
    RespError,
    history_of,
    is_missing,
    is_prevented,
    listed,
    name_of,
    value_of,
)
from korvet.redis.scripts import Script
from korvet.redis.slots import SLOTS, slot_of, spread_tags, tag_of
from korvet.redis.url import RedisTarget, server_at
from korvet.redis.write_watch import WriteWatch

__all__ = ["Arg", "HistoryChangedError", "Redis", "RedisNode", "Reply", "RespError", "ScriptCall"]

ScriptCall: TypeAlias = tuple[Script, Sequence[str | bytes], Sequence[Arg]]

# What may be in flight at once. Redis answers ten thousand small commands in a tenth of a second, so more would only
# lengthen the queue; the bytes bound a worker's memory (they lie here and in Redis' query buffer).
_COMMANDS_MAX = 10_000
_BYTES_MAX = 64 * 1024 * 1024
REPLY_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of large replies that may be under way at once: they lie in Redis' output buffer until they are read."""

_MOVING_S_MIN, _MOVING_S_MAX = 0.02, 0.32
"""Until a request is sent again whose slot is on its way: a slot with a small log takes a few ms."""

MakeDriver: TypeAlias = Callable[[RedisTarget, Timeouts, Observer], BaseDriver]


class PendingReplies:
    """Commands or scripts that were sent (a Pending). Nobody has to take their replies."""

    __slots__ = ("_calls", "_observer", "_raises", "_waiter")

    def __init__(
        self,
        waiter: Awaited,
        *,
        raises: bool,
        calls: Sequence[ScriptCall] = (),
        observer: Observer = NO_OBSERVER,
    ) -> None:
        """Raise what prevents all of them if it `raises`; `observer` hears which of the scripts `calls` have failed."""
        self._waiter, self._raises = waiter, raises
        self._calls, self._observer = calls, observer

    def result(self) -> list[Reply]:
        """Wait for the replies and return them in order; may be called once. Raises StorageUnavailableError."""
        replies = self._waiter.get()
        if self._raises and is_prevented(replies[0]) and all(map(is_prevented, replies)):
            try:
                value_of(replies[0])
            finally:
                del replies  # else the error and this frame would hold each other
        if self._calls:
            self._note_failed(replies)
        return replies

    def _note_failed(self, replies: list[Reply]) -> None:
        for (script, _, _), reply in zip(self._calls, replies, strict=True):
            if isinstance(reply, Exception) and not (is_missing(reply) or is_prevented(reply)):
                self._observer.script_failed(script.name, name_of(reply))


class RedisNode:
    """One server, over one multiplexed connection of a lane that reconnects by itself.

    Its methods raise and return as `Redis` does for one server. Nobody retries: a request that fails on a
    lost connection is never sent again, since an append may have been done. The caller decides.
    """

    def __init__(self, driver: BaseDriver, lane: int, number: int, operation: str) -> None:
        self.number = number
        """By which the core knows it."""
        if driver.is_cluster:
            self.name = driver.core.name(number)
            target = server_at(driver.target.at(*driver.core.address(number)))
        else:
            target = driver.target
            self.name = str(target)
        """The server's address, for messages and as its identity."""
        self.safe_url = target.safe_url
        self.connected = False
        """Whether there is a connection now."""
        self.away = False
        """Whether the last attempt to connect failed."""
        self.connections = 0
        """How many were made: a fact learned over one may not hold for the next, which may lead to another Redis."""
        self.connected_at = -math.inf
        """When the present connection was made (time.monotonic)."""
        self.reconnected_at = -math.inf
        """When a connection last replaced another one (time.monotonic)."""
        self.history = ""
        """The history of writes to which the present connection leads (`replies.history_of`)."""
        self._driver, self._core, self._lane, self._operation = driver, driver.core, lane, operation

    @property
    def ready(self) -> bool:
        """Whether a request is sent at once: there is a connection, and room."""
        return self._core.is_ready(self._lane, self.number)

    @property
    def busy(self) -> bool:
        """Whether anything is in flight, or about to be."""
        return self._core.is_busy(self._lane, self.number)

    @property
    def under_way(self) -> tuple[int, int, int]:
        """Commands, bytes, and bytes of large replies that are in flight."""
        return self._core.under_way(self._lane, self.number)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many requests wait for room, and how many for room for large replies."""
        return self._core.waiting(self._lane, self.number)

    @property
    def lease_end_ms(self) -> int:
        """Until when (Redis' clock) scripts that change groups and topics may come; 0: at any time."""
        return self._core.lease_end_ms(self._lane, self.number)

    @lease_end_ms.setter
    def lease_end_ms(self, end_ms: int) -> None:
        """Set it, and forget that a script came too late."""
        self._core.set_lease(self._lane, self.number, end_ms)

    @property
    def lease_ended(self) -> bool:
        """Whether one came later and was refused since `lease_end_ms` was set."""
        return self._core.lease_ended(self._lane, self.number)

    def call(self, *command: Arg) -> Reply:
        """Send one command and return its reply; raises the exception of an error reply."""
        [reply] = self._begin((command,)).get()
        return value_of(reply)

    def pipeline(self, commands: Sequence[Sequence[Arg]], *, reply_bytes: int = 0) -> list[Reply]:
        """Send `commands` as `Redis.pipeline` does, all to this node."""
        return self.begin_pipeline(commands, reply_bytes).result() if commands else []

    def begin_pipeline(self, commands: Sequence[Sequence[Arg]], reply_bytes: int = 0) -> PendingReplies:
        """Send `commands`, at least one, as `pipeline` does, without waiting for their replies."""
        return PendingReplies(self._begin(commands, reply_bytes), raises=True)

    def begin_scripts(self, calls: Sequence[ScriptCall], history: str | None = None) -> PendingReplies:
        """Send scripts, at least one, without waiting for their replies; with `history` to that one only.

        Another history than the one that is wanted is a HistoryChangedError: nothing was sent.
        """
        waiter = self._driver.begin_scripts(self._lane, calls, calls[0][0].name, self.number, history, None)
        return PendingReplies(waiter, raises=True, calls=calls, observer=self._driver.observer)

    def connect(self) -> str:
        """Connect if there is no connection, and return the history to which it leads.

        Raises StorageUnavailableError.
        """
        if not self.connected:
            for error in self._core.connect(self._lane, self.number).get():
                value_of(error)
        return self.history

    def reconnect_soon(self) -> None:
        """Begin an attempt to connect to a server that is away, unless one has just failed."""
        if not self.connected:
            self._core.connect(self._lane, self.number)

    def refresh_history(self) -> None:
        """Learn the history again; raises StorageUnavailableError.

        A master also begins a new history when its first replica connects.
        """
        connections = self.connections
        history = history_of(self.call("INFO", "replication"))
        if connections == self.connections:
            self.history = history
            self._core.set_history(self._lane, self.number, history)

    def reconnect(self, reason: str) -> None:
        """Close the connection, and open another one for the next call; what is in flight fails with `reason`."""
        self._core.lose(self._lane, self.number, reason, False)  # noqa: FBT003 - without a pause

    def on_connected(self, history: str) -> None:
        """Note a new connection."""
        if self.history not in {"", history}:
            # What was to go to the former history only was not sent, and will be sent again.
            self._driver.order.change()
        self.history = history
        self.connected, self.away = True, False
        self.connections += 1
        self.connected_at = time.monotonic()
        if self.connections > 1:
            self.reconnected_at = self.connected_at

    def _begin(self, commands: Sequence[Command], reply_bytes: int = 0) -> Awaited:
        return self._driver.begin(self._lane, commands, self._operation, self.number, reply_bytes)


_WATCH: ContextVar[WriteWatch | None] = ContextVar("_WATCH", default=None)


class Redis:
    """One lane of a client: one multiplexed connection per node, replies in order, a timeout on every call.

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
        load: Sequence[Script] = (),
        driver: MakeDriver | None = None,
    ) -> None:
        """Raise ConfigError for a malformed `url`. The limits are those of each node's connection.

        `commands_max` and `bytes_max` bound what is in flight, `reply_bytes_max` the replies under way, by what their
        callers expect them to weigh. `operation` is the name under which `observer` hears of commands that are not
        scripts. Each connection loads the scripts `load` before anything else is sent over it: a script that has to be
        loaded first is overtaken. `driver`: gevent's if it is None.
        """
        target = redis_url.parse_url(url)
        if driver is None:
            from korvet.redis.driver import GeventDriver  # noqa: PLC0415 - threads without an event loop need no gevent

            driver = GeventDriver
        self.driver = driver(target, Timeouts(timeout_ms, connect_timeout_ms), observer)
        self.connect_timeout_ms, self.timeout_s = connect_timeout_ms, timeout_ms / 1000
        self.order = self.driver.order
        """Of all that is sent to the nodes, appends among it."""
        self.is_cluster = self.driver.is_cluster
        """Whether this is a cluster: then requests are prevented one by one."""
        self._limits = {
            "commands_max": commands_max,
            "bytes_max": bytes_max,
            "reply_bytes_max": reply_bytes_max,
        }
        self._set_lane(operation, load)

    def lane(self, operation: str, load: Sequence[Script] = ()) -> Self:
        """Return another lane of the same client, with the same limits."""
        made = copy.copy(self)
        made._set_lane(operation, load)  # noqa: SLF001 - of this class
        return made

    def _set_lane(self, operation: str, load: Sequence[Script]) -> None:
        first = [("SCRIPT", "LOAD", script.source) for script in load]
        self._operation = operation
        self._nodes: dict[int, RedisNode] = {}
        self.number = self._lane = self.driver.add_lane(self, **self._limits, first=first)
        """Of the lane, by which the core knows it."""
        self._only = None if self.is_cluster else self.node_numbered(0)

    def node_of(self, key: str | bytes) -> RedisNode:
        """Return the node that has a key; raises StorageUnavailableError."""
        if self._only is not None:
            return self._only
        return self.node_numbered(self.driver.number_at(slot_of(key)))

    def node_numbered(self, number: int) -> RedisNode:
        """Return the node of a number of the core's."""
        node = self._nodes.get(number)
        if node is None:
            node = self._nodes[number] = RedisNode(self.driver, self._lane, number, self._operation)
        return node

    def nodes(self) -> list[RedisNode]:
        """Return the masters; raises StorageUnavailableError."""
        return [self.node_numbered(number) for number in self.driver.masters().values()]

    def call(self, *command: Arg) -> Reply:
        """Send one command and return its reply; raises the exception of an error reply."""
        [reply] = self.driver.begin(self._lane, (command,), self._operation, None, 0).get()
        return value_of(reply)

    def pipeline(self, commands: Sequence[Sequence[Arg]], *, reply_bytes: int = 0) -> list[Reply]:
        """Send `commands`, to each node in one write, and return their replies in order; errors stay in their places.

        Commands of other greenlets and other clients may run between them, but those from MULTI to EXEC go to one node
        as one. If large replies are expected, `reply_bytes` in all, it is their turn when there is room for them; what
        expects small ones does not wait.
        """
        return self.begin_pipeline(commands, reply_bytes=reply_bytes).result() if commands else []

    def begin_pipeline(
        self, commands: Sequence[Sequence[Arg]], *, reply_bytes: int = 0
    ) -> Pending[list[Reply]]:
        """Send `commands`, at least one, as `pipeline` does, without waiting for their replies."""
        waiter = self.driver.begin(self._lane, commands, self._operation, None, reply_bytes)
        return PendingReplies(waiter, raises=not self.is_cluster)

    def begin_raw(
        self, commands: Sequence[bytes], *, reply_bytes: int = 0
    ) -> Pending[list[RawReply | KafkaError]]:
        """Do so with commands as Redis takes them; the replies are raw, error replies too."""
        waiter = self.driver.begin(self._lane, commands, self._operation, None, reply_bytes, True)  # noqa: FBT003 - raw
        return cast(
            "Pending[list[RawReply | KafkaError]]", PendingReplies(waiter, raises=not self.is_cluster)
        )

    def transaction(self, commands: Sequence[Sequence[Arg]]) -> list[Reply]:
        """Run `commands` in one MULTI .. EXEC, sent in one write; returns their replies as `pipeline` does.

        If Redis refuses to queue a command, its error is raised and none has run.
        """
        [replies] = self.transactions([commands])
        if isinstance(replies, Exception):
            raise replies
        return replies

    def transactions(
        self, calls: Sequence[Sequence[Sequence[Arg]]]
    ) -> list[list[Reply] | RespError | KafkaError]:
        """Run each of the calls as `transaction` does, all sent in one write; errors stay in their places."""
        replies = iter(
            self.pipeline([command for call in calls for command in (("MULTI",), *call, ("EXEC",))])
        )
        return [_executed(list(islice(replies, len(call) + 2))) for call in calls]

    def scan_sorted_set(self, key: str, page: int) -> Iterator[list[bytes]]:
        """Yield the members of a sorted set, up to `page` at a time, each once.

        One that is added or removed meanwhile may be missing. Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        cursor, seen = b"0", set[bytes]()
        while True:
            [reply] = self.pipeline([("ZSCAN", key, cursor, "COUNT", page)])
            cursor, pairs = cast("list[Any]", listed(key, reply))
            fresh = [member for member in pairs[::2] if member not in seen]
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

        Scripts that Redis lacks are loaded and run again, after the others: calls that must not overtake each
        other (two appends to one partition) do not belong into one pipeline.
        """
        return self.begin_scripts(calls).result()

    def begin_scripts(self, calls: Sequence[ScriptCall]) -> Pending[list[Reply]]:
        """Send scripts as `scripts` does without waiting for their replies, which the caller must take in the end."""
        sent: list[tuple[int, str]] | None = None
        if (watch := _WATCH.get()) is not None:
            for node in {
                self.node_of(keys[0]) for _, keys, _ in calls
            }:  # all of them before anything is sent
                watch.look(node)
            sent = watch.sent_over(self)
        if not calls:
            return Done([])
        waiter = self.driver.begin_scripts(self._lane, calls, calls[0][0].name, None, None, sent)
        return PendingReplies(waiter, raises=not self.is_cluster, calls=calls, observer=self.driver.observer)

    @contextlib.contextmanager
    def before_writes(self, look: Callable[[RedisNode], object]) -> Iterator[WriteWatch]:
        """Call `look` with the nodes of the keys of what this greenlet sends meanwhile; what it raises prevents it.

        It runs before a call sends anything, scripts and announced commands included. A script that follows its
        slot to another node goes there without such a look; what this returns names the nodes to which scripts were
        sent indeed.
        """
        watch = WriteWatch(look)
        token = _WATCH.set(watch)
        try:
            yield watch
        finally:
            _WATCH.reset(token)

    def announce(self, keys: Iterable[str | bytes]) -> None:
        """Have the nodes of keys looked at before commands to them are sent (`before_writes`); raises the errors."""
        if (watch := _WATCH.get()) is not None:
            for node in {self.node_of(key) for key in keys}:
                watch.announced(node)

    def script_failed(self, script: Script, error: KafkaError) -> None:
        """Report an error that a script returned among other results."""
        self.driver.observer.script_failed(script.name, name_of(error))

    def spread_tags(self, taken: Sequence[str], more: int, seed: str) -> list[str]:
        """Return hash tags for `more` keys beside those with the tags `taken`, by which all masters have as many keys.

        Give or take one; `seed` decides what is left open (slots.spread_tags). Raises StorageUnavailableError.
        """
        masters: list[int | None] = [None if self.is_cluster else 0] * SLOTS
        if self.is_cluster:
            self.driver.read_map()
            for first, last, number in self.driver.core.slots():
                masters[first : last + 1] = [number] * (last + 1 - first)
        return spread_tags(masters, taken, more, seed)

    def node_named(self, name: str) -> RedisNode:
        """Return a node by its name (RedisNode.name), over this lane; raises StorageUnavailableError."""
        if self._only is not None:
            return self._only
        number = self.driver.masters().get(name)
        if number is None:
            raise self._no_master(name)
        return self.node_numbered(number)

    def tag_of(self, name: str, turn: int = 0) -> str:
        """Return a hash tag of a slot of a node, for a key that each node of a cluster has; "" without a cluster.

        In the next `turn` it is that of another slot, the highest in place of the lowest: one may be on its way to
        another node. Raises StorageUnavailableError if the node is no master any more.
        """
        if not self.is_cluster:
            return ""
        number = self.driver.masters().get(name)
        if number is None:
            raise self._no_master(name)
        slots = [
            slot for first, last, node in self.driver.core.slots() if node == number for slot in (first, last)
        ]
        return tag_of((max if turn % 2 else min)(slots))

    def _no_master(self, name: str) -> StorageUnavailableError:
        """Return the error, and read the map again: a client that sends nothing does not learn that its own is old."""
        self.driver.read_map_soon()
        return StorageUnavailableError(f"{name} is no master of the Redis cluster any more")

    def known_nodes(self) -> list[RedisNode]:
        """Return the nodes that were used."""
        return list(self._nodes.values())

    @property
    def map_version(self) -> int:
        """Changes whenever requests may go to other nodes of a cluster than before."""
        return self.driver.core.map_version if self.is_cluster else 0

    def lease_nodes(self) -> None:
        """Let new nodes of a cluster refuse what needs a lease until there is one for them."""
        if self.is_cluster:
            self.driver.core.set_lease(self._lane, -1, 1)

    def follow(self, refusals: Iterable[Reply], attempt: int) -> None:
        """Learn from refusals where slots are now; wait for those that are on their way, the longer the later."""
        waits = attempt > 0  # two nodes may each name the other one for a moment
        for refusal in refusals:
            if isinstance(refusal, MovedError):
                self.driver.core.moved(refusal.slot, refusal.host, refusal.port)
            else:
                waits = True
        if waits:
            self.driver.pause(min(_MOVING_S_MIN * 2**attempt, _MOVING_S_MAX))

    def is_away(self, key: str) -> bool:
        """Return whether the node of a cluster that has a key could not be reached; begins another attempt then."""
        try:
            node = self.node_of(key)
        except StorageUnavailableError:
            return True
        if node.away and self.is_cluster:
            node.reconnect_soon()
            self.driver.read_map_soon()
        return node.away

    def failed(self, error: KafkaError) -> KafkaError:
        """Return the error for what a node could not be sent, or did not answer."""
        if not self.is_cluster:
            return error.without_frames()
        # Another node may have the slots by now, or soon.
        self.driver.read_map_soon()
        is_unknown = isinstance(error, OutcomeUnknownError | HistoryChangedError)
        if is_unknown or not isinstance(error, StorageUnavailableError):
            return error.without_frames()
        return NodeAwayError(error.message)

    @property
    def reconnected_at(self) -> float:
        """When a connection last replaced another one (time.monotonic)."""
        return max((node.reconnected_at for node in self.known_nodes()), default=-math.inf)

    def on_failover(self, call: Callable[[], object]) -> None:
        """Call `call` when connections that only read have to reconnect: they do not notice that a master changed."""
        self.driver.on_failover = call

    def reconnect(self, reason: str) -> None:
        """Close the connections, and open others for the next calls; what is in flight fails with `reason`."""
        for node in self.known_nodes():
            node.reconnect(reason)

    def close(self) -> None:
        """Close the connections for good: what is in flight or called later fails as if Redis were away."""
        self.driver.close_lane(self._lane)

    def on_connected(self, node: int, history: str) -> None:
        """Note a new connection to a node (LaneOwner)."""
        self.node_numbered(node).on_connected(history)

    def on_refused(self, node: int, reason: str) -> None:  # noqa: ARG002 - those who wait hear of it
        """Note that a node could not be reached (LaneOwner)."""
        self.node_numbered(node).away = True

    def on_lost(self, node: int, reason: str) -> None:  # noqa: ARG002 - as above
        """Note that a connection was lost (LaneOwner)."""
        if (known := self._nodes.get(node)) is not None:
            known.connected = False

    def on_map(self) -> None:
        """Close and forget nodes that are masters no more and idle (LaneOwner)."""
        masters = {number for _, _, number in self.driver.core.slots()}
        for number, node in list(self._nodes.items()):
            if self.is_cluster and number not in masters and not node.busy:
                del self._nodes[number]
                node.reconnect("no master of the cluster any more")


def _executed(replies: Sequence[Reply]) -> list[Reply] | RespError | KafkaError:
    """Return the replies to the commands from MULTI to EXEC by what these three kinds were answered."""
    done = replies[-1]
    # The first refusal says why; EXEC then only says EXECABORT.
    for reply in replies:
        if isinstance(reply, RespError | KafkaError):
            return reply
    if not isinstance(done, list) or len(done) != len(replies) - 2:
        return StorageUnavailableError("Redis discarded a transaction: none of its commands has run")
    return done
