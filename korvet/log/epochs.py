"""Leader epochs: which part of a log was written in which history of Redis (KIP-101, KIP-320).

A history lasts as long as nothing that was acknowledged can have been lost: until Redis starts again, or another server
becomes the master (`replies.history_of`). Each has one epoch, the same for all partitions and in every worker
(lua/broker/epoch.lua). A partition keeps where its epochs began in its own state, so that this list and the log are cut
together: the first record of an epoch begins it, at the end that the log had then. A consumer that has read past this
end in an earlier epoch finds out that its position is no longer in the log (OffsetForLeaderEpoch).

A worker learns of another history when it connects, from a client or a script that knows a later epoch, and by the
refresh of its topics: no request asks for it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias, cast

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.logs import Log, RateLimitedLogger
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.replies import RespError
from korvet.topics.types import Partition

_EPOCH = scripts.get("broker/epoch")
_log = RateLimitedLogger(Log(__name__), burst=10)

NO_EPOCH = -1
"""In the place of an epoch or of its end, if there is none; a client that gives none is not checked."""

FIRST_EPOCH = 0
"""The epoch of records that are older than all epochs that a partition remembers."""

_ENDS_MAX = 50_000
"""Logs whose end is remembered; beyond it all are forgotten."""

_REFRESH_S_MIN = 1.0
"""How often a client that claims to know a later epoch makes a worker ask for it, and a Redis that refuses is asked."""


class EpochStart(NamedTuple):
    """An epoch and its first offset in a partition."""

    epoch: int
    start: int


Epochs: TypeAlias = tuple[EpochStart, ...]
"""The epochs of a partition that are known, oldest first."""


@lru_cache(maxsize=20_000)
def parse_epochs(text: bytes | None) -> Epochs:
    """Return the field `epochs` of a partition's state (lua/shared/leader_epoch.lua); raises ValueError."""
    entries = (entry.partition(b"@") for entry in reversed((text or b"").split()))
    return tuple(EpochStart(int(epoch), int(start)) for epoch, _, start in entries)


def epoch_at(epochs: Epochs, offset: int) -> int:
    """Return the epoch in which the record at an offset was written."""
    for each in reversed(epochs):
        if each.start <= offset:
            return each.epoch
    return FIRST_EPOCH


def next_epoch_start(epochs: Epochs, offset: int) -> float:
    """Return the first offset of the epoch after that of an offset; infinity if none is known."""
    return next((each.start for each in epochs if each.start > offset), math.inf)


def epoch_end(epochs: Epochs, epoch: int, current: int, end: int) -> EpochStart:
    """Return the last epoch that is no later than `epoch`, and the offset at which it ends in a log that ends at `end`.

    As Kafka's LeaderEpochFileCache.endOffsetFor: NO_EPOCH for one that has not begun; one that is older than all that
    are known ends where those begin. `current` has no entry before its first record, and the log may know a later one,
    which another worker has begun.
    """
    current = max([current, *(each.epoch for each in epochs[-1:])])
    if epoch == NO_EPOCH or epoch > current:
        return EpochStart(NO_EPOCH, NO_EPOCH)
    later = next((each.start for each in epochs if each.epoch > epoch), end)
    if epoch == current:
        return EpochStart(epoch, later)
    return EpochStart(max((each.epoch for each in epochs if each.epoch <= epoch), default=epoch), later)


class LeaderEpochs:
    """The leader epoch of one worker, for its connections to one Redis."""

    def __init__(self, redis: Redis, key: str) -> None:
        """`key` holds the epoch in Redis; `redis` carries the appends."""
        self._redis = redis
        self._key = key
        self._history = ""
        self._epoch = NO_EPOCH
        self._learned_at = -math.inf
        self._asked_at = -math.inf
        # Why a Redis, by its history, gave no epoch, and when: a fetch checks each of its partitions.
        self._refusal = ("", "", -math.inf)

    def current(self) -> int:
        """Return the epoch that Metadata reports: the last one known while Redis is away, NO_EPOCH if none is."""
        with contextlib.suppress(StorageUnavailableError):
            return self.of(self._redis)
        return self._epoch

    def of(self, redis: Redis) -> int:
        """Return the epoch of the history to which a connection leads; raises StorageUnavailableError."""
        if redis.history == self._history and self._history:
            return self._epoch
        if redis.history and redis.connected_at < self._learned_at:
            # A later history was learned over another connection. This one may lead to the same server, or to a master
            # that was replaced and does not know it.
            redis.refresh_history()
            if redis.history == self._history:
                return self._epoch
            redis.reconnect("another Redis is the master now")
        return self.refresh(redis)

    def refresh(self, redis: Redis) -> int:
        """Ask Redis for the epoch, and return it; raises as `of` does."""
        try:
            found, text = cast(
                "tuple[bytes, bytes]", redis.script(_EPOCH, (self._key,), (self._epoch, self._history))
            )
        except StorageUnavailableError:
            raise
        except (KafkaError, RespError) as error:
            # That of all logs, not of the one for which it is asked.
            raise StorageUnavailableError(f"{self._key}: Redis gives no leader epoch: {error}") from error
        history, epoch = found.decode(), int(text)
        if epoch > self._epoch:
            self._history, self._epoch, self._learned_at = history, epoch, time.monotonic()
        if redis.history != history:
            # It began after the connection was made.
            redis.refresh_history()
            if redis.history != history:
                raise StorageUnavailableError("another Redis became the master meanwhile")
        return epoch

    def known(self, redis: Redis) -> int:
        """Return the epoch of the history to which a connection leads as far as it is known, else NO_EPOCH."""
        return self._epoch if redis.history == self._history else NO_EPOCH

    def check(self, redis: Redis, epoch: int) -> int:
        """Check the epoch that a client knows, NO_EPOCH for none, and return the current one (KIP-320).

        Raises KafkaError FENCED_LEADER_EPOCH for an earlier one, UNKNOWN_LEADER_EPOCH for a later one; also as `of`.
        """
        history, reason, refused_at = self._refusal
        if redis.history == history and time.monotonic() - refused_at < _REFRESH_S_MIN:
            raise StorageUnavailableError(reason)
        try:
            current = self.of(redis)
        except StorageUnavailableError as error:
            self._refusal = redis.history, error.message, time.monotonic()
            raise
        if epoch in (NO_EPOCH, current):
            return current
        if epoch > current and time.monotonic() - self._asked_at >= _REFRESH_S_MIN:
            # Another worker may have begun it, over a connection that was made after this one's.
            self._asked_at = time.monotonic()
            current = self.refresh(redis)
        if epoch < current:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {epoch} is over")
        if epoch > current:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {epoch} has not begun")
        return current


class KnownEnds:
    """The ends of logs that a worker has seen, which show what Redis has lost."""

    def __init__(self, on_lost: Callable[[], object]) -> None:
        """`on_lost` is called for each log that was cut."""
        self._on_lost = on_lost
        self._ends: dict[tuple[str, str], EpochStart] = {}

    def note(self, partition: Partition, current: int, end: int, epochs: Epochs | None = None) -> None:
        """Note where a log ended in the epoch `current`, and report what of it was lost since an earlier one.

        Without its `epochs`, after an append, a later epoch is left to the next read: only they say where the log was
        cut. Ends of one epoch are never compared: a read may be answered after an append that was sent later.
        """
        key = partition.stream, partition.topic_id
        last = self._ends.get(key)
        if last is None or current == last.epoch:
            if len(self._ends) >= _ENDS_MAX:
                self._ends.clear()
            if last is None or end > last.start:
                self._ends[key] = EpochStart(current, end)
            return
        if epochs is None or current < last.epoch:
            return
        cut = next((each.start for each in epochs if each.epoch > last.epoch), end)
        if cut < last.start:
            lost = {"records": last.start - cut} if partition.format == "batch" else {}
            where = f"{partition.topic}:{partition.index}"
            _log.error(
                "lost", "Redis has lost records of a log", partition=where, first=cut, end=last.start, **lost
            )
            self._on_lost()
        self._ends[key] = EpochStart(current, end)
