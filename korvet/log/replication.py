"""What is confirmed by Redis' replicas: appends with acks=all, and changes of groups, topics and configs.

How many an append waits for is the larger of `replicas` and `min.insync.replicas` less the master. If fewer servers
than the latter are in sync, acks=all is refused before anything is written.

WAIT counts the replicas that have the writes of its own connection only, and blocks whatever else that connection
carries. So each number of replicas has a connection of its own, shared by all requests that wait for that number, and
one small write goes before WAIT. The appends were answered before that write was sent: a replica that has this write
has the appends, if both connections lead to one master. So the histories of both are compared (`replies.history_of`).
Each node of a cluster has replicas of its own.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import gevent
import msgspec
from gevent.event import AsyncResult

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.types import Appended
from korvet.redis.client import Redis, RedisNode
from korvet.redis.keys import Keys
from korvet.redis.replies import (
    Arg,
    Reply,
    RespError,
    history_in,
    insync_of,
    is_elsewhere,
    replicas_in,
    replication_info,
)
from korvet.topics.types import Partition

WAIT_SHARE = 0.8
"""Of the connection's timeout: WAIT must have given up, and answered, before that."""

COMMAND_MS_MAX = 500
"""Longest time of one WAIT; requests that came meanwhile are served after it."""


T = TypeVar("T")

INSYNC_AGE_S = 1.0
"""How old the number of servers in sync may be."""


class Round(NamedTuple):
    """How many replicas `held` all that was written to a `history` before."""

    history: str
    held: int

    def confirms(self, history: str, needed: int) -> bool:
        """Return whether as many as `needed` have what was written to, or read from, a history before the round."""
        return self.held >= needed and history == self.history != ""


_UNKNOWN = Round("", 0)


class BegunRound(Protocol):
    """A round under way; gevent's AsyncResult is one."""

    @property
    def value(self) -> Round | None:
        """Its result, None before there is one."""

    def rawlink(self, callback: Callable[[Any], object], /) -> object:
        """Call `callback` with this round when there is a result."""

    def get(self) -> Round | None:
        """Wait for the result."""


class _DoneRound(NamedTuple):
    """A round that has ended."""

    value: Round

    def rawlink(self, callback: Callable[[Any], object], /) -> None:
        callback(self)

    def get(self) -> Round:
        return self.value


class InSync(NamedTuple):
    """How many servers are in sync with a node, by its number, in a history; counts until `until` (time.monotonic)."""

    node: int
    history: str
    servers: int
    until: float


class Replicas:
    """The replicas of the nodes that one worker writes to; `appends` carries what it writes."""

    def __init__(
        self, connection: Callable[[], Redis], appends: Redis, keys: Keys, *, replicas: int, timeout_ms: int
    ) -> None:
        """Wait for `replicas` also if a topic wants fewer; 0 for none.

        `connection` returns another connection to the same Redis, with this timeout.
        """
        self.least = replicas
        self._connection, self._appends = connection, appends
        self._keys = keys
        self._wait_ms = int(timeout_ms * WAIT_SHARE)
        self._waits: dict[int, Redis] = {}
        self._nodes: dict[str, NodeReplicas] = {}

    def of(self, node: RedisNode) -> NodeReplicas:
        """Return the replicas of a node, whichever connection it is named by."""
        return self.of_name(node.name)

    def of_name(self, name: str) -> NodeReplicas:
        return self._nodes.get(name) or self._nodes.setdefault(name, self._made(name))

    def wait(self, rounds: Sequence[BegunRound], seconds: float) -> None:
        """Wait for the end of all rounds, but not for longer."""
        gevent.wait(rounds, seconds)  # type: ignore[type-var]  # these are AsyncResults

    def _made(self, name: str) -> NodeReplicas:
        return NodeReplicas(self, name)

    def check_insync(self, partition: Partition) -> InSync | None:
        """Raise KafkaError NOT_ENOUGH_REPLICAS if fewer replicas are in sync than an append would wait for in vain.

        Returns how many servers are, None if it does not matter. Raises StorageUnavailableError.
        """
        wanted = max(self.least, partition.replicas)
        if not wanted:
            return None
        node = self._appends.node_of(partition.stream)
        replicas = self.of(node)
        history, insync = node.history, replicas.insync()
        if insync <= wanted:
            setting = (
                f"replicas is {wanted}"
                if wanted > partition.replicas
                else f"min.insync.replicas is {wanted + 1}"
            )
            message = f"{insync} servers of Redis are in sync, and {setting}"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message)
        return InSync(node.number, history, insync, replicas.counted_at + INSYNC_AGE_S)

    def confirm_call(
        self,
        change: Callable[[], T],
        unconfirmed: ErrorCode,
        *,
        refuses: bool = True,
        changed: Callable[[T], bool] = lambda _result: True,
    ) -> T:
        """Make a change of groups, topics or configs, and return its result once the replicas have it.

        Raises KafkaError `unconfirmed`: before anything is done on a node of which too few replicas are in sync, or if
        too few have the change in time; then it is made, but a failover may lose it.
        Without `refuses` it is always made. If nothing was `changed`, by its result, no replica is asked.

        A script whose slot moves meanwhile goes to a node that was not looked at before it. So of that node it does not
        hold that nothing is done if too few replicas are in sync: then the change is made there, and `unconfirmed` is
        raised after it. What is confirmed always holds of the nodes and histories to which scripts were sent indeed.
        """
        if not self.least:
            return change()
        looked_at: set[str] = set()

        def look(node: RedisNode) -> None:
            if refuses and node.name not in looked_at and self.of(node).insync() <= self.least:
                raise KafkaError(unconfirmed, "too few replicas of Redis are in sync")
            looked_at.add(node.name)

        with self._appends.before_writes(look) as writes:
            result = change()
        if not changed(result):
            return result
        rounds: list[tuple[str, NodeReplicas, BegunRound]] = []
        for name, history in sorted(writes.sent()):
            replicas = self.of_name(name)
            rounds.append((history, replicas, replicas.begin(self.least)))
        for history, replicas, begun in rounds:
            if not replicas.wait(begun).confirms(history, self.least):
                writes.refresh_histories()
                raise KafkaError(unconfirmed, "too few replicas of Redis have the change yet")
        return result

    def confirm(self, results: Sequence[Appended | KafkaError]) -> list[Appended | KafkaError]:
        """Wait until the replicas have what was appended; returns the results for the producer.

        If too few have it in time, each append is NOT_ENOUGH_REPLICAS_AFTER_APPEND: the records are written, and an
        idempotent producer that sends them again is answered as soon as the replicas have caught up. So is an append to
        a master that has become another one since: the new master may not have it.
        """
        wanted = [
            (result.node, result.history, max(self.least, result.replicas))
            for result in results
            if isinstance(result, Appended)
        ]
        have = iter(self.have(wanted))
        message = "the records are written, but too few replicas of Redis have them yet"
        short = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message)
        return [result if isinstance(result, KafkaError) or next(have) else short for result in results]

    def have(self, wanted: Sequence[tuple[str, str, int]]) -> list[bool]:
        """Wait until replicas have what was written until now, and return for each node, history and number whether."""
        # All begin at once: the nodes and the numbers together take no longer than one.
        begun: dict[tuple[str, int], tuple[NodeReplicas, BegunRound]] = {}
        for name, _, count in wanted:
            if count and (name, count) not in begun:
                replicas = self.of_name(name)
                begun[name, count] = replicas, replicas.begin(count)
        rounds = {at: replicas.wait(round_) for at, (replicas, round_) in begun.items()}
        return [not count or rounds[name, count].confirms(history, count) for name, history, count in wanted]

    def numbered(self, number: int) -> RedisNode:
        """Return the node of that number over the connection that carries the appends."""
        return self._appends.node_numbered(number)

    def node(self, name: str) -> RedisNode:
        """Return the node of that name over the connection that carries the appends."""
        return self._appends.node_named(name)

    def rounds(self, name: str, count: int) -> _Rounds:
        """Return new rounds of a node for a number of replicas; one client waits for that number on all nodes."""
        waits = self._waits.get(count)
        if waits is None:
            waits = self._waits[count] = self._connection()
        return _Rounds(waits, name, self._keys, count, self._wait_ms)


class NodeReplicas:
    """The replicas of one node."""

    def __init__(self, replicas: Replicas, name: str) -> None:
        self._replicas, self._name = replicas, name
        self._rounds: dict[int, _Rounds] = {}
        self._insync = 0
        self.counted_at = -math.inf

    def recount(self) -> None:
        """Let `insync` ask again: it may be of before a failover."""
        self.counted_at = -math.inf

    def insync(self) -> int:
        """Return how many servers have nearly all that was written, the master among them; INSYNC_AGE_S old at most.

        Raises StorageUnavailableError.
        """
        if time.monotonic() - self.counted_at >= INSYNC_AGE_S:
            node = self._replicas.node(self._name)
            self._insync = insync_of(node.call("INFO", "replication"))
            self.counted_at = time.monotonic()
            if not self._insync:
                # No write would fail, and so show it: nothing is sent.
                node.reconnect("the server is a read-only replica")
        return self._insync

    def begin(self, count: int) -> BegunRound:
        """Begin to wait until `count` replicas have all that was written before, or for WAIT_SHARE of the timeout."""
        return self.rounds(count).begin()

    def rounds(self, count: int) -> _Rounds:
        """Return the rounds of those that wait for a number of replicas."""
        rounds = self._rounds.get(count)
        if rounds is None:
            rounds = self._rounds[count] = self._replicas.rounds(self._name, count)
        return rounds

    def wait(self, begun: BegunRound) -> Round:
        """Wait for a round; learns the history of the appends if it is another one by now."""
        round_ = begun.get() or _UNKNOWN
        with contextlib.suppress(StorageUnavailableError):
            node = self._replicas.node(self._name)
            if round_.history and node.history != round_.history:
                node.refresh_history()
        return round_


class BlockingReplicas(Replicas):
    """The same for one thread that may block (blocking_driver.py): a round has ended when it is begun."""

    def wait(self, rounds: Sequence[BegunRound], seconds: float) -> None:
        """Return at once."""

    def _made(self, name: str) -> NodeReplicas:
        return _BlockingNodeReplicas(self, name)


class _BlockingNodeReplicas(NodeReplicas):
    def begin(self, count: int) -> BegunRound:
        held, info = self.rounds(count).ask(write=True)
        return _DoneRound(Round(history_in(replication_info(info)), held))


class _OpenRound(msgspec.Struct, gc=False):
    """A round that is under way: its write was the last one before `offset` of the history."""

    begun: AsyncResult[Round]
    until: float
    history: str = ""
    offset: int = -1


class _Rounds:
    """Rounds of WAIT for one number of replicas, over a connection of their own.

    Some may be under way at a time: each WAIT is for the last write alone, and ends when others want to write. What the
    replicas have acknowledged by then (INFO) ends earlier rounds, so that replicas may lag by more than a WAIT takes.
    """

    def __init__(self, waits: Redis, name: str, keys: Keys, count: int, wait_ms: int) -> None:
        self._waits, self._name, self._keys, self._count = waits, name, keys, count
        self._wait_ms, self._command_ms = wait_ms, min(wait_ms, COMMAND_MS_MAX)
        self._next: AsyncResult[Round] | None = None
        self._running = False
        # How often the mark was refused, for its slot was moving or had moved.
        self._moves = 0

    def begin(self) -> AsyncResult[Round]:
        """Return the next round; while one is under way it is the one after that, since its write must come later."""
        if self._next is None:
            self._next = AsyncResult()
        if not self._running:
            self._running = True
            gevent.spawn(self._run)
        return self._next

    def _run(self) -> None:
        """Do rounds for as long as any caller waits for one."""
        open_: list[_OpenRound] = []
        try:
            while self._next is not None or open_:
                if (begun := self._next) is not None:
                    self._next = None
                    open_.append(_OpenRound(begun, time.monotonic() + self._wait_ms / 1000))
                held, info = self.ask(write=begun is not None)
                open_ = [round_ for round_ in open_ if not self._ends(round_, held, info)]
        finally:
            for round_ in open_:
                round_.begun.set(_UNKNOWN)
            self._running = False
            if self._next is not None:
                self.begin()

    def ask(self, *, write: bool) -> tuple[int, Reply]:
        """Return how many replicas have the last write, and INFO after that.

        If it gives the history of an append, the master did not change in between.
        """
        commands: list[tuple[Arg, ...]] = [("WAIT", self._count, self._command_ms), ("INFO", "replication")]
        until = time.monotonic() + self._command_ms / 1000
        attempt = 0
        try:
            while True:
                mark = self._keys.replication_mark_of(self._waits.tag_of(self._name, self._moves))
                writes = [("SET", mark, "1")] if write else []
                *written, held, info = self._waits.node_named(self._name).pipeline([*writes, *commands])
                if not any(map(is_elsewhere, written)):
                    break
                # Another slot of the node has another mark.
                self._moves += 1
                if time.monotonic() >= until:
                    break
                self._waits.follow(written, attempt)
                attempt += 1
        except StorageUnavailableError:
            return 0, None
        if not isinstance(held, int) or any(isinstance(reply, RespError | KafkaError) for reply in written):
            return 0, None
        return held, info

    def _ends(self, round_: _OpenRound, held: int, info: Reply) -> bool:
        """End a round if replicas have its write, if they cannot have it any more, or if its time is over."""
        replication = replication_info(info)
        history = history_in(replication)
        if round_.offset < 0:
            round_.history, round_.offset = history, int(replication.get("master_repl_offset", 0))
        else:
            acknowledged = [int(replica.get("offset", 0)) for replica in replicas_in(replication)]
            held = sum(offset >= round_.offset for offset in acknowledged) if history == round_.history else 0
        if held < self._count and history == round_.history != "" and time.monotonic() < round_.until:
            return False
        round_.begun.set(Round(history, held))
        return True
