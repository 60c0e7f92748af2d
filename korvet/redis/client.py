"""The workers' way to Redis, be it one server or a cluster: commands, pipelines, scripts.

With one server all goes to it (node.py), and what prevents a call is raised. In a cluster each request goes to the node
that has its key's slot (cluster.py), and what prevents it stands in the place of its reply, for the others may have
succeeded. A large reply delays all requests after it on its connection, so a process has one `Redis` for small commands
and another for large reads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any, cast

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.pending import Pending, SendOrder
from korvet.redis import url as redis_url
from korvet.redis.cluster import ClusterReplies, RedisCluster
from korvet.redis.connection import NO_OBSERVER, Arg, NodeLimits, Observer
from korvet.redis.node import PendingReplies, RedisNode, ScriptCall
from korvet.redis.replies import HistoryChangedError, Reply, RespError, listed, name_of, value_of
from korvet.redis.scripts import Script
from korvet.redis.slots import SLOTS, SlotMap, slot_of, spread_tags
from korvet.redis.url import RedisAddress, RedisTarget, server_at

__all__ = ["Arg", "HistoryChangedError", "PendingReplies", "Redis", "Reply", "RespError", "ScriptCall"]

# What may be in flight at once. Redis answers ten thousand small commands in a tenth of a second, so more would only
# lengthen the queue; the bytes bound a worker's memory (they lie here and in Redis' query buffer).
_COMMANDS_MAX = 10_000
_BYTES_MAX = 64 * 1024 * 1024
REPLY_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of large replies that may be under way at once: they lie in Redis' output buffer until they are read."""

_BEFORE: ContextVar[Callable[[RedisNode], object] | None] = ContextVar("_BEFORE", default=None)


class Redis:
    """Redis over one multiplexed connection per node: coalesced writes, replies in order, a timeout on every call.

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
        slots: SlotMap | None = None,
        load: Sequence[Script] = (),
        node: Callable[[RedisTarget, SendOrder], RedisNode] | None = None,
    ) -> None:
        """Raise ConfigError for a malformed `url`. The limits are those of each node's connection.

        `commands_max` and `bytes_max` bound what is in flight, `reply_bytes_max` the replies under way, by what their
        callers expect them to weigh. `operation` is the name under which `observer` hears of commands that are not
        scripts. `slots` is the map of the cluster that `url` names, for several clients to share. Each connection loads
        the scripts `load` before anything else is sent over it: a script that has to be loaded first is overtaken.
        `node` makes another client of a server, for threads that have no event loop (blocking_node.py).
        """
        self.timeout_s = timeout_ms / 1000
        self._observer = observer
        target = redis_url.parse_url(url)
        limits = NodeLimits(timeout_ms, connect_timeout_ms, commands_max, bytes_max, reply_bytes_max)
        self.order = SendOrder()
        """Of all that is sent to the nodes, appends among it."""
        self.is_cluster = target.kind == "cluster"
        """Whether this is a cluster: then requests are prevented one by one."""
        fails_fast = self.is_cluster

        def made(server: RedisTarget) -> RedisNode:
            if node is not None:
                return node(server, self.order)
            return RedisNode(server, limits, observer, operation, self.order, load, fails_fast=fails_fast)

        self._cluster: RedisCluster | None = None
        self._only: RedisNode
        if self.is_cluster:
            slots = slots or SlotMap(target, connect_timeout_ms)
            slots.follow(self.order.change)
            self._cluster = RedisCluster(slots, timeout_ms, lambda address: made(server_at(address)))
        else:
            self._only = made(target)

    def node_of(self, key: str | bytes) -> RedisNode:
        """Return the node that has a key; raises StorageUnavailableError."""
        return self._cluster.node_at(slot_of(key)) if self._cluster else self._only

    def nodes(self) -> list[RedisNode]:
        """Return the masters; raises StorageUnavailableError."""
        return self._cluster.nodes() if self._cluster else [self._only]

    def call(self, *command: Arg) -> Reply:
        """Send one command and return its reply; raises the exception of an error reply."""
        if self._cluster is None:
            return self._only.call(*command)
        [reply] = self.pipeline([command])
        return value_of(reply)

    def pipeline(self, commands: Sequence[Sequence[Arg]], *, reply_bytes: int = 0) -> list[Reply]:
        """Send `commands`, to each node in one write, and return their replies in order; errors stay in their places.

        Commands of other greenlets and other clients may run between them, but those from MULTI to EXEC go to one node
        as one. If large replies are expected, `reply_bytes` in all, it is their turn when there is room for them; what
        expects small ones does not wait.
        """
        if self._cluster is None:
            return self._only.pipeline(commands, reply_bytes=reply_bytes)
        return self.begin_pipeline(commands, reply_bytes=reply_bytes).result() if commands else []

    def begin_pipeline(
        self, commands: Sequence[Sequence[Arg]], *, reply_bytes: int = 0
    ) -> Pending[list[Reply]]:
        """Send `commands`, at least one, as `pipeline` does, without waiting for their replies.

        Nobody has to take them. With one server this raises StorageUnavailableError if it cannot be reached.
        """
        return (self._cluster or self._only).begin_pipeline(commands, reply_bytes)

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
            cursor, found = cast("list[Any]", listed(key, reply))
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

    def begin_scripts(self, calls: Sequence[ScriptCall]) -> PendingReplies | ClusterReplies:
        """Send scripts as `scripts` does without waiting for their replies, which the caller must take in the end.

        With one server this raises StorageUnavailableError if it cannot be reached.
        """
        before = _BEFORE.get()
        if before is not None:
            self.announce(keys[0] for _, keys, _ in calls)  # all of them before anything is sent
        if self._cluster:
            return self._cluster.begin_scripts(calls, before)
        return self._only.begin_scripts(calls)

    def announce(self, keys: Iterable[str | bytes]) -> None:
        """Call the function of `before_scripts` for the nodes of keys, before a write; raises its errors."""
        before = _BEFORE.get()
        if before is not None:
            for node in {self.node_of(key) for key in keys}:
                before(node)

    def script_failed(self, script: Script, error: KafkaError) -> None:
        """Report an error that a script returned among other results."""
        self._observer.script_failed(script.name, name_of(error))

    def spread_tags(self, taken: Sequence[str], more: int, seed: str) -> list[str]:
        """Return hash tags for `more` keys beside those with the tags `taken`, by which all masters have as many keys.

        Give or take one; `seed` decides what is left open (slots.spread_tags). Raises StorageUnavailableError.
        """
        if self._cluster:
            return self._cluster.slots.spread_tags(taken, more, seed)
        return spread_tags([RedisAddress()] * SLOTS, taken, more, seed)

    def node_named(self, name: str) -> RedisNode:
        """Return a node by its name (RedisNode.name), over this connection; raises StorageUnavailableError."""
        return self._cluster.node_named(name) if self._cluster else self._only

    def tag_of(self, name: str, turn: int = 0) -> str:
        """Return a hash tag of a slot of a node, for a key that each node of a cluster has; "" without a cluster.

        In the next `turn` it is that of another slot: one may be on its way to another node. Raises
        StorageUnavailableError if the node is no master any more.
        """
        return self._cluster.tag_of(name, turn) if self._cluster else ""

    def known_nodes(self) -> list[RedisNode]:
        """Return the nodes that were used."""
        return self._cluster.known_nodes() if self._cluster else [self._only]

    @property
    def map_version(self) -> int:
        """Changes whenever requests may go to other nodes of a cluster than before."""
        return self._cluster.slots.version if self._cluster else 0

    def lease_nodes(self) -> None:
        """Let new nodes of a cluster refuse what needs a lease until there is one for them."""
        if self._cluster:
            self._cluster.first_lease_end_ms = 1

    def follow(self, refusals: Iterable[Reply], attempt: int) -> None:
        """Learn from refusals where slots are now, or wait for those on their way: RedisCluster.follow."""
        if self._cluster:
            self._cluster.follow(refusals, attempt)

    def is_away(self, key: str) -> bool:
        """Return whether the node of a cluster that has a key could not be reached; begins another attempt then."""
        try:
            node = self.node_of(key)
        except StorageUnavailableError:
            return True
        if node.away and self._cluster:
            self._cluster.look_for(node)
        return node.away

    def failed(self, error: KafkaError) -> KafkaError:
        """Return the error for what a node could not be sent, or did not answer: RedisCluster.failed."""
        return self._cluster.failed(error) if self._cluster else error.without_frames()

    @contextlib.contextmanager
    def before_scripts(self, before: Callable[[RedisNode], object]) -> Iterator[None]:
        """Call `before` with the node of each script that this greenlet sends meanwhile; what it raises prevents it."""
        token = _BEFORE.set(before)
        try:
            yield
        finally:
            _BEFORE.reset(token)

    @property
    def reconnected_at(self) -> float:
        """When a connection last replaced another one (time.monotonic)."""
        return max((node.reconnected_at for node in self.known_nodes()), default=-math.inf)

    def on_failover(self, call: Callable[[], object]) -> None:
        """Call `call` when connections that only read have to reconnect: they do not notice that a master changed."""
        if not self._cluster:
            self._only.on_failover = call

    def reconnect(self, reason: str) -> None:
        """Close the connections, and open others for the next calls; what is in flight fails with `reason`."""
        for node in self.known_nodes():
            node.reconnect(reason)

    def close(self) -> None:
        """Close the connections for good: what is in flight or called later fails as if Redis were away."""
        for node in self.known_nodes():
            node.close()


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
