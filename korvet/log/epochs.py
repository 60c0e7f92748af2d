"""Leader epochs: which part of a log was written in which history of Redis (KIP-101, KIP-320).

A history lasts as long as nothing that was acknowledged can have been lost: until Redis starts again, or another server
becomes the master (`replies.history_of`). Each has one epoch, the same for all partitions there and in every worker
(lua/broker/epoch.lua). A partition keeps where its epochs began in its own state, so that this list and the log are cut
together: the first record of an epoch begins it, at the end that the log had then. A consumer that has read past this
end in an earlier epoch finds out that its position is no longer in the log (OffsetForLeaderEpoch).

A worker learns of another history when it connects, from a client or a script that knows a later epoch, and by the
refresh of its topics: no request asks for it.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.logs import Log, RateLimitedLogger
from korvet.redis import scripts
from korvet.redis.client import Redis, RedisNode
from korvet.redis.keys import Keys
from korvet.redis.replies import MovedError, Reply, RespError, is_elsewhere, value_of
from korvet.topics.types import Partition
from korvet.turns import in_turns

if TYPE_CHECKING:
    from korvet_core import DataPath

_EPOCH = scripts.get("broker/epoch")
_log = RateLimitedLogger(Log(__name__), burst=10)

NO_EPOCH = -1
"""In the place of an epoch or of its end, if there is none; a client that gives none is not checked."""

FIRST_EPOCH = 0
"""The epoch of records that are older than all epochs that a partition remembers."""

_SLOTS_TRIED_MAX = 4
"""The lowest slot of a node may have moved, and the next one be on its way."""

_YEAR_2026 = 1_767_225_600
"""Where lua/broker/epoch.lua begins to count the seconds."""

_REFRESH_S_MIN = 1.0
"""How often a client that claims to know a later epoch makes a worker ask for it, and a Redis that refuses is asked."""

_BELIEVE_S_MIN = 60.0
"""How often a client that claims to know an epoch of a node that is gone makes a node of a cluster begin another."""


class EpochStart(NamedTuple):
    """An epoch and its first offset in a partition."""

    epoch: int
    start: int


Epochs: TypeAlias = tuple[EpochStart, ...]
"""The epochs of a partition that are known, oldest first."""


@lru_cache(maxsize=20_000)
def epochs_of(starts: tuple[tuple[int, int], ...]) -> Epochs:
    """Return the epochs that a read has found (korvet_core.Fetched.epochs)."""
    return tuple(EpochStart(*start) for start in starts)


@lru_cache(maxsize=20_000)
def parse_epochs(text: bytes | None) -> Epochs:
    """Return the field `epochs` of a partition's state (lua/shared/leader_epoch.lua); raises ValueError."""
    entries = (entry.partition(b"@") for entry in reversed((text or b"").split()))
    return tuple(EpochStart(int(epoch), int(start)) for epoch, _, start in entries)


def epoch_at(epochs: Epochs, offset: int) -> int:
    """Return the epoch in which the record at an offset was written."""
    for epoch in reversed(epochs):
        if epoch.start <= offset:
            return epoch.epoch
    return FIRST_EPOCH


def next_epoch_start(epochs: Epochs, offset: int) -> float:
    """Return the first offset of the epoch after that of an offset; infinity if none is known."""
    return next((epoch.start for epoch in epochs if epoch.start > offset), math.inf)


def epoch_end(epochs: Epochs, epoch: int, current: int, log_start: int, end: int) -> EpochStart:
    """Return the last epoch that is no later than `epoch`, and the offset at which it ends in a log up to `end`.

    As Kafka's LeaderEpochFileCache: NO_EPOCH for an epoch that has not begun; an epoch before the oldest one with
    records from `log_start` on ends where the oldest one begins. `current` has no entry before its first record, and
    the log may know a later epoch, begun by another worker.
    """
    current = max([current, *(epoch_start.epoch for epoch_start in epochs[-1:])])
    if epoch == NO_EPOCH or epoch > current:
        return EpochStart(NO_EPOCH, NO_EPOCH)
    left = [epoch_start for epoch_start in epochs if next_epoch_start(epochs, epoch_start.start) > log_start]
    later = next(
        (max(epoch_start.start, log_start) for epoch_start in left if epoch_start.epoch > epoch), end
    )
    if epoch == current:
        return EpochStart(epoch, later)
    return EpochStart(
        max((epoch_start.epoch for epoch_start in left if epoch_start.epoch <= epoch), default=epoch), later
    )


class _NodeEpoch:
    """What is known of one node, over whichever connection: its last history, and the epoch that this has.

    `refusal`: why a history got no epoch, and when, for a fetch checks each of its partitions.
    """

    def __init__(self) -> None:
        self.history = ""
        self.epoch = NO_EPOCH
        self.learned_at = self.asked_at = self.believed_at = -math.inf
        self.refusal = "", "", -math.inf


class LeaderEpochs:
    """The leader epochs of one worker: that of each node of Redis, which all of its partitions have.

    A partition may come to another node of a cluster, with records of a later epoch than that node's. Then its epoch
    becomes one that is later still, for all its partitions: what was never lost may well get a new epoch.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        """`redis` carries the appends."""
        self._redis = redis
        self._keys = keys
        self._nodes: dict[str, _NodeEpoch] = {}
        self.on_later: Callable[[int, str, int], object] = lambda _number, _history, _epoch: None
        """Called with a node, by its number for the appends, when a later history of it is known; must not wait."""

    def current(self, stream: str) -> int:
        """Return the epoch that Metadata reports for a log: the last known while Redis is away, NO_EPOCH if none is."""
        node = None
        with contextlib.suppress(StorageUnavailableError):
            node = self._redis.node_of(stream)
            return self.of(node)
        return self._of(node).epoch if node else NO_EPOCH

    def now(self) -> EpochsNow:
        """Return the epochs of leaders for one request."""
        return EpochsNow(self, self._redis)

    def of(self, node: RedisNode) -> int:
        """Return the epoch of the history to which a connection leads; raises StorageUnavailableError."""
        of = self._nodes.get(node.name) or self._of(node)
        if self.is_known(node):
            return of.epoch
        if node.history and node.connected_at < of.learned_at:
            # A later history was learned over another connection. This one may lead to the same server, or to a master
            # that was replaced and does not know it.
            node.refresh_history()
            if node.history == of.history:
                return of.epoch
            node.reconnect("another Redis is the master now")
        return self.refresh(node)

    def is_known(self, node: RedisNode) -> bool:
        """Return whether `of` has nothing to ask for."""
        of = self._nodes.get(node.name)
        return of is not None and bool(of.history) and node.history == of.history

    def refresh(self, node: RedisNode, last: int = NO_EPOCH) -> int:
        """Ask a node for its epoch, and return it; raises as `of` does.

        `last` is the epoch of records that it has. An earlier one of its own becomes a later one than that.
        """
        of = self._of(node)
        epoch = self._ask(node, of, of.epoch, of.history)
        return epoch if epoch >= last else self._ask(node, of, last, "")

    def refresh_all(self, redis: Redis) -> None:
        """Ask each node to which a client leads; raises as `of` does, in a cluster for none of them."""
        for node in redis.nodes():
            try:
                self.refresh(node)
            except StorageUnavailableError:
                if not redis.is_cluster:
                    raise

    def _ask(self, node: RedisNode, known: _NodeEpoch, floor: int, floor_history: str) -> int:
        key, turn = "", 0
        reply: Reply = None
        for attempt in range(_SLOTS_TRIED_MAX):
            key = self._keys.epoch_of(self._redis.tag_of(node.name, turn))
            [reply] = node.begin_scripts([(_EPOCH, (key,), (floor, floor_history))]).result()
            if not is_elsewhere(reply):
                break
            self._redis.follow([reply], attempt)
            # All workers ask for it in the lowest slot that the node has, or in the one that is next in turn.
            turn += not isinstance(reply, MovedError)
        try:
            new_history, text = cast("list[bytes]", value_of(reply))
        except StorageUnavailableError:
            raise
        except (KafkaError, RespError) as error:
            # That of all logs, not of the one for which it is asked.
            raise StorageUnavailableError(f"{key}: Redis gives no leader epoch: {error}") from error
        history, epoch = new_history.decode(), int(text)
        if epoch > known.epoch:
            if known.epoch != NO_EPOCH:
                self._redis.order.change()
            known.history, known.epoch, known.learned_at = history, epoch, time.monotonic()
            with contextlib.suppress(StorageUnavailableError):
                self.on_later(self._redis.node_named(node.name).number, history, epoch)
        if node.history != history:
            # It began after the connection was made.
            node.refresh_history()
            if node.history != history:
                raise StorageUnavailableError("another Redis became the master meanwhile")
        return epoch

    def known(self, node: RedisNode) -> int:
        """Return the epoch of the history to which a connection leads as far as it is known, else NO_EPOCH."""
        of = self._of(node)
        return of.epoch if node.history == of.history else NO_EPOCH

    def check(self, node: RedisNode, epoch: int, last: int = NO_EPOCH) -> int:
        """Check the epoch that a client knows, NO_EPOCH for none, and return the current one (KIP-320).

        `last` is that of the log's last record, if it was read. Raises KafkaError FENCED_LEADER_EPOCH for an earlier
        one, UNKNOWN_LEADER_EPOCH for a later one; also as `of`.
        """
        of = self._of(node)
        history, reason, refused_at = of.refusal
        if node.history == history and time.monotonic() - refused_at < _REFRESH_S_MIN:
            raise StorageUnavailableError(reason)
        try:
            current = self.of(node)
            if last > current:
                current = self.refresh(node, last)
        except StorageUnavailableError as error:
            of.refusal = node.history, error.message, time.monotonic()
            raise
        if epoch in (NO_EPOCH, current):
            return current
        if epoch > current and time.monotonic() - of.asked_at >= _REFRESH_S_MIN:
            # Another worker may have begun it, over a connection that was made after this one's.
            of.asked_at = time.monotonic()
            current = self.refresh(node)
        if current < epoch and self._is_believed(of, epoch):
            # The epoch of the node that had the log before and wrote nothing in it. Clients never take an
            # earlier epoch for the current one, so this node begins a later one.
            current = self.refresh(node, epoch)
        if epoch < current:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {epoch} is over")
        if epoch > current:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {epoch} has not begun")
        return current

    def _is_believed(self, known: _NodeEpoch, epoch: int) -> bool:
        """Return whether another node can have begun an epoch that a client knows."""
        if epoch <= max(node.epoch for node in self._nodes.values()):
            return True
        # A node that left the cluster is not known to workers that began later. Its epochs were times (the script), as
        # all are but a few. What a client makes up is believed up to now alone, and seldom: all must learn a new epoch.
        now = time.monotonic()
        if not self._redis.is_cluster or epoch > int(time.time()) - _YEAR_2026:
            return False
        if now - known.believed_at < _BELIEVE_S_MIN:
            return False
        known.believed_at = now
        return True

    def _of(self, node: RedisNode) -> _NodeEpoch:
        return self._nodes.get(node.name) or self._nodes.setdefault(node.name, _NodeEpoch())


class EpochsNow:
    """The epochs of leaders as one request finds them: it asks for that of a node once, and not before it needs it."""

    def __init__(self, epochs: LeaderEpochs, redis: Redis) -> None:
        self._epochs = epochs
        self._redis = redis
        self._by_node: dict[str, int | None] = {}

    def of_all(self) -> int | None:
        """Return the epoch that all leaders have; None in a cluster, where each node has its own."""
        return None if self._redis.is_cluster else self._at("")

    def of(self, partitions: Sequence[Partition]) -> tuple[int | None, ...]:
        """Return the leader epoch of each partition (see `current`), None if its node is away."""
        if self._redis.is_cluster:
            return tuple([self._at(partition.stream) for partition in in_turns(partitions)])
        return (self._at(""),) * len(partitions)

    def _at(self, stream: str) -> int | None:
        redis = self._redis
        try:
            name = redis.node_of(stream).name
        except StorageUnavailableError:
            return None
        if name not in self._by_node:
            is_away = redis.is_cluster and redis.is_away(stream)
            self._by_node[name] = None if is_away else self._epochs.current(stream)
        return self._by_node[name]


_LATER = re.compile(r" has leader epoch (\d+), not ")


def later_epoch(error: KafkaError) -> int:
    """Return the epoch that a script (lua/shared/leader_epoch.lua) found in a log, later than the worker's."""
    match = _LATER.search(error.message)
    return int(match[1]) if match else NO_EPOCH


class KnownEnds:
    """The ends of logs that a worker has seen, by its appends and by reads: they show what Redis has lost."""

    def __init__(self, core: DataPath[Any], on_lost: Callable[[], object]) -> None:
        """`core` keeps them; `on_lost` is called for each log that was cut."""
        self._core = core
        self._on_lost = on_lost

    def note(self, partition: Partition, current: int, end: int, epochs: Epochs) -> None:
        """Note where a read found the end of a log in the epoch `current`, and report what of it was lost.

        An append leaves a later epoch to the next read: only the `epochs` say where the log was cut. Ends of one epoch
        are never compared: a read may be answered after an append that was sent later.

        A log that has moved to a node and back may have an epoch that another worker has begun and this one does not
        know: its `epochs` then say it.
        """
        if epochs:
            current = max(current, epochs[-1].epoch)
        topic_id = partition.topic_id
        last = self._core.end_of(partition.stream)
        if last is None or last[0] != topic_id:
            self._core.put_end(partition.stream, topic_id, current, end)
            return
        _, epoch, start = last
        if current == epoch:
            if end > start:
                self._core.put_end(partition.stream, topic_id, current, end)
            return
        if current < epoch:
            return
        cut = next((epoch_start.start for epoch_start in epochs if epoch_start.epoch > epoch), end)
        if cut < start:
            lost = {"records": start - cut} if partition.is_dense else {}
            where = f"{partition.topic}:{partition.index}"
            _log.error(
                "lost", "Redis has lost records of a log", partition=where, first=cut, end=start, **lost
            )
            self._on_lost()
        self._core.put_end(partition.stream, topic_id, current, end)
