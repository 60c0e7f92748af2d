"""What a log keeps: retention.ms and retention.bytes, and for topics with a cold tier local.retention.*.

Knows Kafka's rules. By time everything goes, from the start on, whose timestamps are all older than retention.ms, so
a record from the future holds what lies behind it. By size the oldest go while what stays is not below
retention.bytes. Both go by the intervals of the index; only where the first record is too old and its interval is not
are single records looked at, or quiet topics would keep theirs for months. Nothing of when this is done.

Retention by size where a log grows faster than the keeper looks: by the worker that appends, beside its requests.

Knows which topics are limited in size; the limit itself is retention's. A producer at full speed writes more between
two looks of the keeper than retention.bytes allows, and Redis holds it in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.log.store import LogStore
from korvet.log.trim import BackgroundTrims, Extent, Reason, Start, Trimmed, Trimmer, TrimStore
from korvet.log.types import Read
from korvet.topics.config import TopicConfig
from korvet.topics.registry import TopicRegistry
from korvet.topics.types import Partition

FIRST_ROWS = 1
"""Index rows looked at of every log: enough to tell whether anything is due."""

ROWS_PER_STEP = 256
"""Index rows looked at where something is."""

_ENTRIES_MAX, _ENTRIES_GROWTH = 64, 8
"""Entries read at once where single records decide: one at first, for it is mostly not too old, then more."""

_OLDEST_REMEMBERED_MAX = 100_000
"""Logs whose first timestamp is remembered; all are forgotten beyond it, and looked at again."""


class Policy(msgspec.Struct, frozen=True):
    """What is to be kept of a log: times in ms, sizes in bytes, -1 without a limit.

    `archived_only`: nothing may go that the cold tier does not hold.
    """

    retention_ms: int = -1
    retention_bytes: int = -1
    archived_only: bool = False

    @property
    def limited(self) -> bool:
        """Whether anything ever goes."""
        return self.retention_ms >= 0 or self.retention_bytes >= 0


def policy_of(config: TopicConfig) -> Policy:
    """Return what a topic's configuration asks for: without `delete` in its cleanup.policy, to keep everything.

    Where the policy is empty, and there is a cold tier, that keeps everything, and Redis what is local
    (UnifiedLog.deleteOldSegments).
    """
    if not config.delete and (config.compact or not config.remote_storage):
        return Policy()
    if not config.remote_storage:
        return Policy(config.retention_ms, config.retention_bytes)
    return Policy(config.local_retention_ms, config.local_retention_bytes, archived_only=True)


class Due(NamedTuple):
    """Where a log is to start, and why."""

    start: int
    reason: Reason


def due(extent: Extent, policy: Policy, now_ms: int) -> Due | None:
    """Return where the log is to start as far as the index tells; None where it is to stay as it is.

    Records without a timestamp are as old as those behind them.
    """
    by_time = _by_time(extent, now_ms - policy.retention_ms) if policy.retention_ms >= 0 else -1
    by_size = _by_size(extent, policy.retention_bytes) if policy.retention_bytes >= 0 else -1
    wished = Due(by_time, "time") if by_time >= by_size else Due(by_size, "size")
    return _allowed(extent, policy, wished)


def _by_time(extent: Extent, expired_before_ms: int) -> int:
    start = -1
    for row in extent.rows:
        if row.interval >= expired_before_ms:
            return start
        if row.interval >= 0:
            start = row.offset
    # Behind the last row: what came since, if that is the last row.
    if not extent.more_rows and 0 <= extent.interval < expired_before_ms:
        start = extent.end
    return start


def _by_size(extent: Extent, retention_bytes: int) -> int:
    if extent.reindex:
        return -1
    start = -1
    for row in extent.rows:
        if extent.bytes - row.bytes < retention_bytes:
            return start
        start = row.offset
    if not extent.more_rows and retention_bytes == 0:
        start = extent.end
    return start


def _allowed(extent: Extent, policy: Policy, wished: Due) -> Due | None:
    start = min(wished.start, extent.archived) if policy.archived_only else wished.start
    return Due(start, wished.reason) if start > extent.start else None


class Kept(NamedTuple):
    """A log and what is to be kept of it."""

    partition: Partition
    policy: Policy


class Retention:
    """Lets go what is not to be kept; remembers from one look to the next how old the first records are."""

    def __init__(self, log: LogStore, store: TrimStore, trimmer: Trimmer) -> None:
        self._log = log
        self._store = store
        self._trimmer = trimmer
        # By stream: topic id, log start, and the timestamp (ms) of the first record that has one.
        self._oldest: dict[str, tuple[str, int, int]] = {}

    def enforce(
        self, logs: Sequence[Kept], check: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[Partition, KafkaError]]:
        """Look at all `logs` in one round trip, and let go what is due, in bounded steps; yields what failed.

        `check` is called before every step and may raise, which ends the work. Raises StorageUnavailableError, and
        KafkaError where Redis does not tell the time.
        """
        check()
        now_ms, extents = self._store.look([kept.partition for kept in logs], FIRST_ROWS)
        for kept, extent in zip(logs, extents, strict=True):
            try:
                if isinstance(extent, KafkaError):
                    raise extent
                self._enforce(kept, extent, now_ms, check)
            except StorageUnavailableError:
                raise
            except KafkaError as error:
                yield kept.partition, error

    def _enforce(self, kept: Kept, extent: Extent, now_ms: int, check: Callable[[], None]) -> None:
        partition, policy = kept
        if extent.unfinished:
            self._give_back(partition, check)
        wished = due(extent, policy, now_ms)
        while wished is not None:
            check()
            now_ms, [looked] = self._store.look([partition], ROWS_PER_STEP)
            if isinstance(looked, KafkaError):
                raise looked
            extent, wished = looked, due(looked, policy, now_ms)
            if wished is not None:
                self._move(partition, wished, check)
        wished = self._expired(kept, extent, now_ms, check)
        if wished is not None:
            self._move(partition, wished, check)

    def _move(self, partition: Partition, wished: Due, check: Callable[[], None]) -> None:
        check()
        [outcome] = self._trimmer.move([Start(partition, wished.start)], wished.reason)
        if not isinstance(outcome, Trimmed):
            raise outcome
        if outcome.more:
            self._give_back(partition, check)

    def _give_back(self, partition: Partition, check: Callable[[], None]) -> None:
        more = True
        while more:
            check()
            more = self._trimmer.give_back(partition)

    def _expired(self, kept: Kept, extent: Extent, now_ms: int, check: Callable[[], None]) -> Due | None:
        """Return where the log is to start by the timestamps of the records in its first interval."""
        partition, policy = kept
        if policy.retention_ms < 0 or extent.start >= extent.end:
            return None
        expired_before_ms = now_ms - policy.retention_ms
        topic_id, start, timestamp = self._oldest.get(partition.stream, ("", -1, -1))
        if (topic_id, start) == (partition.topic_id, extent.start) and timestamp >= expired_before_ms:
            return None
        start = extent.start
        for next_offset, timestamp in self._timestamps(partition, extent, check):
            if timestamp >= expired_before_ms:
                if len(self._oldest) >= _OLDEST_REMEMBERED_MAX:
                    self._oldest.clear()
                self._oldest[partition.stream] = (partition.topic_id, start, timestamp)
                break
            if timestamp >= 0:
                start = next_offset
        return _allowed(extent, policy, Due(start, "time"))

    def _timestamps(
        self, partition: Partition, extent: Extent, check: Callable[[], None]
    ) -> Iterator[tuple[int, int]]:
        """Yield for each record or batch of the first interval the offset behind it and its largest timestamp."""
        offset = extent.start
        bound = extent.rows[0].offset if extent.rows else extent.end
        entries = 1
        while offset < bound:
            check()
            [fetched] = self._log.read([Read(partition, offset, entries)])
            if isinstance(fetched, KafkaError):
                raise fetched
            for batch in fetched.batches:
                yield batch.next_offset, batch.header.max_timestamp
                offset = batch.next_offset
            for record in fetched.records:
                yield record[0] + 1, record[1]
                offset = record[0] + 1
            if not (fetched.batches or fetched.records):
                return
            entries = min(entries * _ENTRIES_GROWTH, _ENTRIES_MAX)


class SizeRetentionTrigger:
    """Watches the appends of one worker."""

    def __init__(self, topics: TopicRegistry, retention: Retention, background: BackgroundTrims) -> None:
        self._topics = topics
        self._retention = retention
        self._background = background

    def crossed(self, grown: Partition) -> None:
        """Let go in the background what is too much, after an append that wrote a row of the index; never waits."""
        topic = self._topics.get_cached(grown.topic)
        if topic is None:
            return
        policy = policy_of(topic.config)
        if policy.retention_bytes >= 0:
            # Only by size: what is too old is so for as long as the keeper takes to look.
            by_size = Policy(retention_bytes=policy.retention_bytes, archived_only=policy.archived_only)
            self._background.begin(grown, partial(self._enforce, Kept(grown, by_size)))

    def _enforce(self, kept: Kept) -> None:
        for _, error in self._retention.enforce([kept]):
            raise KafkaError(error.code, error.message)
