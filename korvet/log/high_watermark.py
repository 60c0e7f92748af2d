"""High watermarks: how far logs are known to be held by as many of Redis' replicas as their topics want.

Consumers see nothing past it, since a failover could lose that. Each worker finds out for itself, and nobody has to
advance it: not for acks=0 or 1, nor for what other Redis clients XADD. A read that finds more of a log than is known to
be held begins a round (replication.py) after its reply. What the round's replicas have includes all that was read, if
both are of one history. Where no topic wants replicas, the high watermark is the end of the log and nothing is asked.
The last stable offset goes with it: a failover could lose a marker, and its transaction end in another way.

While too few replicas are in sync nothing is asked either, so that consumers see what was held before. The rest
comes with the first read after the replicas are back.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from korvet_core import Fetched

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.replication import BegunRound, NodeReplicas, Replicas, Round
from korvet.log.types import Bounds
from korvet.redis.client import Redis, RedisNode
from korvet.topics.types import Partition

WAIT_SECONDS = 0.5
"""How long a read waits for replicas at most: a replica that hangs holds up what else the fetch has found.

After a wait in vain no read waits for AGE_SECONDS, or until a round succeeds: a later one shows what that found.
"""

AGE_SECONDS = 1.0
"""How old a high watermark past what is read may be: it only says how far a consumer lags."""

REMEMBERED_MAX = 50_000
"""Logs whose high watermark is remembered; beyond it all are forgotten, at the price of a round for each."""

BOUNDS_TRIES = 3
"""The first attempt may find that the number of servers in sync was old, the second that the history was."""

_LogKey: TypeAlias = tuple[str, str]
"""The name of a stream, and the topic id: another topic may get the name."""

Histories: TypeAlias = dict[RedisNode, str]
"""The history of each node of which something is read."""


class LogEnd(NamedTuple):
    """Where a log ended when it was read, and its last stable offset, and up to where what was read is to be shown.

    `committed`: that is shown only if replicas have the markers of all transactions below.
    """

    partition: Partition
    end: int
    stable: int
    shown: int
    committed: bool = False


class _Held(NamedTuple):
    """A high watermark, and the last stable offset of the log up to there; when that was found (time.monotonic)."""

    end: int
    stable: int
    found_at: float


_NOTHING = _Held(-1, -1, 0.0)


class HighWatermarks:
    """The high watermarks that one worker knows, of what `reads` leads to; without `replicas` there are none."""

    def __init__(self, reads: Redis, replicas: Replicas | None) -> None:
        self._reads = reads
        self._replicas = replicas
        self._nodes: dict[RedisNode, _NodeWatermarks] = {}

    def begin(self, partitions: Iterable[Partition]) -> Histories:
        """Return the histories of what is read of some logs from now on; raises StorageUnavailableError.

        A node of a cluster that is away has none: what is read of it fails for itself.
        """
        replicas = self._replicas
        wanted = [partition for partition in partitions if self._wanted(partition)]
        if replicas is None or not wanted:
            return {}
        histories: Histories = {}
        for item in wanted:
            try:
                node = self._reads.node_of(item.stream)
                if node not in histories:
                    histories[node] = self._of(node, replicas).begin()
            except StorageUnavailableError:
                if not self._reads.is_cluster:
                    raise
        return histories

    def limit(
        self,
        histories: Histories,
        partitions: Sequence[Partition],
        results: Sequence[Fetched | KafkaError],
    ) -> list[Fetched | KafkaError]:
        """Return what was read of logs since `begin` returned `histories`, up to the high watermarks."""
        read = list(zip(partitions, results, strict=True))
        ends = [_end_of(of, result) for of, result in read if not isinstance(result, KafkaError)]
        self._advance(histories, ends)
        return [
            result
            if isinstance(result, KafkaError) or not self._wanted(of)
            else result.limit(*self._held(of, histories))
            for of, result in read
        ]

    def limits(self, asked: Sequence[tuple[int | None, str, LogEnd]]) -> list[tuple[int, int] | None]:
        """Return up to where replicas have logs, and their last stable offsets up to there; -1 if that is not known.

        Each log was read from the node of that number, in that history; None: the node has another history. Raises
        StorageUnavailableError.
        """
        replicas = self._replicas
        if replicas is None:
            return [(limit.end, limit.stable) for _, _, limit in asked]
        histories: Histories = {}
        current: list[bool] = []
        for number, history, _ in asked:
            node = None if number is None else self._reads.node_numbered(number)
            if node is not None and node not in histories:
                histories[node] = self._of(node, replicas).begin()
            current.append(node is not None and histories[node] == history)
        ends = [end for (_, _, end), is_current in zip(asked, current, strict=True) if is_current]
        self._advance(histories, ends)
        return [
            self._held(end.partition, histories) if is_current else None
            for (_, _, end), is_current in zip(asked, current, strict=True)
        ]

    def limit_bounds(
        self,
        histories: Histories,
        partitions: Sequence[Partition],
        results: Sequence[Bounds | KafkaError],
    ) -> list[Bounds | KafkaError]:
        """Return bounds that were read since `begin`, with the high watermarks; -1 if none is known."""
        read = list(zip(partitions, results, strict=True))
        ends = [
            LogEnd(of, bounds.high_watermark, bounds.stable_offset, bounds.high_watermark)
            for of, bounds in read
            if not isinstance(bounds, KafkaError)
        ]
        self._advance(histories, ends)
        return [
            bounds
            if isinstance(bounds, KafkaError) or not self._wanted(of)
            else cut_bounds(bounds, *self._held(of, histories))
            for of, bounds in read
        ]

    def are_final(self, partitions: Sequence[Partition], results: Sequence[Bounds | KafkaError]) -> bool:
        """Return whether each high watermark is known, or too few replicas are in sync for it."""
        return all(
            self._has_too_few(of)
            for of, bounds in zip(partitions, results, strict=True)
            if isinstance(bounds, Bounds) and bounds.high_watermark < 0
        )

    def _advance(self, histories: Histories, ends: Sequence[LogEnd]) -> None:
        """Ask replicas for logs that go on past their high watermarks; wait if something is to be shown of that."""
        replicas = self._replicas
        if replicas is None or not histories:
            return
        by_node: dict[RedisNode, list[tuple[int, LogEnd]]] = {}
        for end in ends:
            count = self._wanted(end.partition)
            if count and (node := self._node_in(histories, end.partition)):
                by_node.setdefault(node, []).append((count, end))
        # All nodes are asked before any is waited for.
        waits = [
            (self._of(node, replicas), self._of(node, replicas).ask(histories[node], chunk))
            for node, chunk in by_node.items()
        ]
        if awaited := [round_ for _, rounds in waits for round_ in rounds.values()]:
            replicas.wait(awaited, WAIT_SECONDS)
            for watermarks, rounds in waits:
                watermarks.note_vain(rounds)

    def _held(self, partition: Partition, histories: Histories) -> tuple[int, int]:
        node = self._node_in(histories, partition)
        return (self._nodes[node].held(partition, histories[node]) if node else _NOTHING)[:2]

    def _node_in(self, histories: Histories, partition: Partition) -> RedisNode | None:
        """Return the node that a log was read of, None if it has moved since."""
        with contextlib.suppress(StorageUnavailableError):
            node = self._reads.node_of(partition.stream)
            return node if node in histories else None
        return None

    def _of(self, node: RedisNode, replicas: Replicas) -> _NodeWatermarks:
        of = self._nodes.get(node)
        if of is None:
            # Those of nodes that are masters no more would stay with all their logs.
            known = self._reads.known_nodes()
            self._nodes = {name: kept for name, kept in self._nodes.items() if name in known}
            of = self._nodes[node] = _NodeWatermarks(node, replicas.of(node))
        return of

    def _wanted(self, partition: Partition) -> int:
        """Return how many replicas must have what is shown of a log."""
        return 0 if self._replicas is None else max(self._replicas.least, partition.replicas)

    def _has_too_few(self, partition: Partition) -> bool:
        """Return whether Redis, asked again, has fewer replicas in sync than a log wants."""
        with contextlib.suppress(StorageUnavailableError):
            if self._replicas is None:
                return True
            of = self._replicas.of(self._reads.node_of(partition.stream))
            of.recount()
            # 0: the connection led to a replica, and the next one may lead to the master.
            return 0 < of.insync() <= self._wanted(partition)
        return False


class _NodeWatermarks:
    """Those of the logs of one node."""

    def __init__(self, node: RedisNode, replicas: NodeReplicas) -> None:
        self._node, self._replicas = node, replicas
        self._history = ""
        self._ends: dict[_LogKey, _Held] = {}
        self._outdated: str | None = None
        # When a wait for that number of replicas was in vain: one that hangs counts as in sync for a while, and a fetch
        # reads many times.
        self._vain_at: dict[int, float] = {}

    def begin(self) -> str:
        """Return the history of what is read from now on; raises StorageUnavailableError."""
        history = self._node.connect()
        if history == self._outdated:
            # A round found another one: the connection knows only that of its beginning.
            self._outdated = None
            self._node.refresh_history()
            if not self._node.history:
                # It never writes, and would not notice.
                self._node.reconnect("the server is a replica")
                self._node.connect()
        return self._node.history

    def ask(self, history: str, ends: Iterable[tuple[int, LogEnd]]) -> dict[int, BegunRound]:
        """Begin rounds for logs that go on past their high watermarks, each with the number of replicas that it wants.

        Returns those to wait for, by their number.
        """
        if history != self._node.history:
            return {}
        asked: dict[int, list[LogEnd]] = {}
        awaited: set[int] = set()
        now = time.monotonic()
        for count, end in ends:
            held = self.held(end.partition, history)
            if held.end >= end.end:
                continue
            if (held.stable if end.committed else held.end) < end.shown:
                if now - self._vain_at.get(count, -math.inf) >= AGE_SECONDS:
                    awaited.add(count)
            elif now - held.found_at < AGE_SECONDS:
                continue
            asked.setdefault(count, []).append(end)
        rounds = {count: round_ for count, of in asked.items() if (round_ := self._begin(history, count, of))}
        return {count: round_ for count, round_ in rounds.items() if count in awaited}

    def note_vain(self, rounds: Mapping[int, BegunRound]) -> None:
        """Note which rounds were waited for in vain."""
        vain = [count for count, round_ in rounds.items() if _was_vain(round_.value, count)]
        self._vain_at |= dict.fromkeys(vain, time.monotonic())

    def _begin(self, history: str, count: int, ends: list[LogEnd]) -> BegunRound | None:
        """Begin a round for logs, unless it would wait for replicas that are away."""
        with contextlib.suppress(StorageUnavailableError):
            if self._replicas.insync() > count:
                round_ = self._replicas.begin(count)
                # Before those who wait are woken, for links are called in their order.
                round_.rawlink(partial(self._note, history, count, ends))
                return round_
        return None

    def held(self, partition: Partition, history: str) -> _Held:
        """Return the high watermark of a log in a history; -1 if none is known."""
        if not history == self._history == self._node.history:
            return _NOTHING
        return self._ends.get((partition.stream, partition.topic_id), _NOTHING)

    def _note(self, history: str, count: int, ends: list[LogEnd], done: BegunRound) -> None:
        """Note the ends of logs that were read before a round, if it confirms them."""
        round_ = done.value
        if round_ is None or not round_.confirms(history, count):
            if round_ is not None and round_.history and round_.history != history:
                self._outdated = history
            return
        self._vain_at.pop(count, None)
        if history != self._history:
            # What replicas held of another history says nothing: a failover may have cut the logs since.
            self._ends.clear()
            self._history = history
        if len(self._ends) + len(ends) > REMEMBERED_MAX:
            self._ends.clear()
        now = time.monotonic()
        for end in ends:
            key = end.partition.stream, end.partition.topic_id
            self._ends[key] = max(_Held(end.end, end.stable, now), self._ends.get(key, _NOTHING))._replace(
                found_at=now
            )


def _end_of(partition: Partition, fetched: Fetched) -> LogEnd:
    # A committed read may have asked no more than whether there is something.
    shown = fetched.next_offset or (fetched.stable_offset if fetched.is_committed else 0)
    return LogEnd(partition, fetched.high_watermark, fetched.stable_offset, shown, fetched.is_committed)


def _was_vain(round_: Round | None, count: int) -> bool:
    """Return whether a round took its time, None if it does yet; one that loses its connection takes none."""
    return round_ is None or (round_.history != "" and round_.held < count)


def cut_bounds(bounds: Bounds, high_watermark: int, stable: int) -> Bounds:
    """Return the bounds of a log with a high watermark, -1 if none is known and the log holds anything.

    `stable` is the last stable offset of the log up to there.
    """
    # What is archived was held.
    start = max(bounds.remote.end if bounds.remote else bounds.first_offset, bounds.archived)
    if start >= bounds.high_watermark:
        return bounds
    known = high_watermark >= 0
    end = max(min(high_watermark, bounds.high_watermark), start) if known else -1
    if end < bounds.high_watermark:
        bounds = bounds._replace(open_offset=max(stable, start) if stable < end else None)
    return bounds._replace(high_watermark=end)


def unknown() -> KafkaError:
    """Return the error for a question that only the high watermark answers: clients ask again."""
    return KafkaError(
        ErrorCode.OFFSET_NOT_AVAILABLE, "replicas of Redis have not confirmed the end of the log"
    )
