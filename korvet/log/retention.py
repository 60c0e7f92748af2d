"""Retention of a log: retention.ms and retention.bytes, and for topics with a remote tier local.retention.*.

Kafka's rules. By time the longest prefix goes whose timestamps are all older than retention.ms, so a record from the
future keeps those after it. It does not keep them in Redis where the remote tier has them: there its timestamp does not
count, as if it had none. By size the oldest go as long as what stays is not below retention.bytes. Both go by the
intervals of the index; only if the first record is too old and its interval is not are single records read, or quiet
topics would keep theirs for months.

The keeper does this in its rounds. A producer at full speed writes more between two rounds than retention.bytes allows,
and Redis holds it in memory; so a worker whose append wrote a row of the index checks the size of that log itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from korvet.errors import KafkaError, StorageUnavailableError, or_raise
from korvet.log.store import LogStore
from korvet.log.trim import BackgroundTrims, Reason, Trimmed, Trimmer, TrimState, TrimStore
from korvet.log.types import CheckStep, LogPosition, Read
from korvet.topics.config import TopicConfig
from korvet.topics.registry import TopicRegistry
from korvet.topics.types import Partition

FIRST_ROWS = 1
"""Index rows read of every log: enough to see whether anything is due."""

ROWS_PER_STEP = 256
"""Index rows read if something is due."""

_ENTRIES_MAX, _ENTRIES_GROWTH = 64, 8
"""Entries read at once if single records decide: one at first, for it is mostly not too old, then more."""

_OLDEST_REMEMBERED_MAX = 100_000
"""Logs whose first timestamp is remembered; all are forgotten beyond it, and read again."""


class Policy(msgspec.Struct, frozen=True):
    """What is kept of a log: times in ms, sizes in bytes, -1 without a limit.

    `archived_only`: only what the remote tier holds may go.
    """

    retention_ms: int = -1
    retention_bytes: int = -1
    archived_only: bool = False

    @property
    def limited(self) -> bool:
        """Whether anything ever goes."""
        return self.retention_ms >= 0 or self.retention_bytes >= 0

    def known(self, timestamp: int, now_ms: int) -> int:
        """Return a timestamp, -1 for one from the future if it must keep nothing."""
        return -1 if self.archived_only and timestamp > now_ms else timestamp


def policy_of(config: TopicConfig) -> Policy:
    """Return the policy of a topic: without `delete` in its cleanup.policy, everything is kept.

    With an empty cleanup.policy the remote tier keeps everything, and Redis what is local
    (UnifiedLog.deleteOldSegments).
    """
    if not config.delete and (config.compact or not config.remote_copy):
        return Policy()
    if not config.remote_copy:
        return Policy(config.retention_ms, config.retention_bytes)
    return Policy(config.local_retention_ms, config.local_retention_bytes, archived_only=True)


class Trimming(NamedTuple):
    """Where a log is to start, and why."""

    start: int
    reason: Reason


def due(extent: TrimState, policy: Policy, now_ms: int) -> Trimming | None:
    """Return where the log is to start by its index; None if it stays as it is.

    Records without a timestamp are as old as those after them.
    """
    by_time = _by_time(extent, policy, now_ms) if policy.retention_ms >= 0 else -1
    by_size = _by_size(extent, policy.retention_bytes) if policy.retention_bytes >= 0 else -1
    trimming = Trimming(by_time, "time") if by_time >= by_size else Trimming(by_size, "size")
    return _allowed(extent, policy, trimming)


def _by_time(extent: TrimState, policy: Policy, now_ms: int) -> int:
    expired_before_ms = now_ms - policy.retention_ms
    start = -1
    for row in extent.rows:
        timestamp = policy.known(row.interval, now_ms)
        if timestamp >= expired_before_ms:
            return start
        if timestamp >= 0:
            start = row.offset
    # What came after the last row, if that is the last one.
    if not extent.more_rows and 0 <= policy.known(extent.totals.interval, now_ms) < expired_before_ms:
        start = extent.totals.end
    return start


def _by_size(extent: TrimState, retention_bytes: int) -> int:
    if extent.totals.reindex:
        return -1
    start = -1
    for row in extent.rows:
        if extent.totals.bytes - row.bytes < retention_bytes:
            return start
        start = row.offset
    if not extent.more_rows and retention_bytes == 0:
        start = extent.totals.end
    return start


def _allowed(extent: TrimState, policy: Policy, trimming: Trimming) -> Trimming | None:
    start = min(trimming.start, extent.totals.archived) if policy.archived_only else trimming.start
    return Trimming(start, trimming.reason) if start > extent.totals.start else None


class RetainedLog(NamedTuple):
    """A log and what is kept of it."""

    partition: Partition
    policy: Policy


class Retention:
    """Trims logs; remembers from one round to the next how old their first records are."""

    def __init__(self, log: LogStore, store: TrimStore, trimmer: Trimmer) -> None:
        self._log = log
        self._store = store
        self._trimmer = trimmer
        # By stream: log start, which compacted log it is of, and the timestamp (ms) of the first record that has one.
        self._oldest: dict[str, tuple[object, int]] = {}

    def enforce(
        self, logs: Sequence[RetainedLog], check: CheckStep = lambda: None
    ) -> Iterator[tuple[Partition, KafkaError]]:
        """Read the states of all `logs` in one round trip, and trim what is due, in bounded steps; yields what failed.

        Raises StorageUnavailableError, what `check` raises, and KafkaError if Redis does not answer with the time.
        """
        check()
        now_ms, extents = self._store.states([kept.partition for kept in logs], FIRST_ROWS)
        for kept, extent in zip(logs, extents, strict=True):
            try:
                self._enforce(kept, or_raise(extent), now_ms, check)
            except StorageUnavailableError:
                raise
            except KafkaError as error:
                yield kept.partition, error

    def _enforce(self, kept: RetainedLog, extent: TrimState, now_ms: int, check: CheckStep) -> None:
        partition, policy = kept
        if extent.unfinished:
            self._free(partition, check)
        while True:
            trimming = due(extent, policy, now_ms)
            while trimming is not None:
                check()
                now_ms, extent = self._state(partition)
                trimming = due(extent, policy, now_ms)
                if trimming is not None:
                    self._move(partition, extent, trimming, check)
            trimming = self._expired(kept, extent, now_ms, check)
            if trimming is None:
                return
            self._move(partition, extent, trimming, check)
            if not extent.rows or trimming.start < extent.rows[0].offset:
                return
            # The whole interval has gone: the one after it may begin with what is over too.
            now_ms, extent = self._state(partition)

    def _state(self, partition: Partition) -> tuple[int, TrimState]:
        now_ms, [extent] = self._store.states([partition], ROWS_PER_STEP)
        return now_ms, or_raise(extent)

    def _move(self, partition: Partition, extent: TrimState, trimming: Trimming, check: CheckStep) -> None:
        check()
        if extent.totals.archived > 0:
            self._store.convert_redis_groups(partition)
        [outcome] = self._trimmer.move([LogPosition(partition, trimming.start)], trimming.reason)
        if not isinstance(outcome, Trimmed):
            raise outcome
        if outcome.more:
            self._free(partition, check)

    def _free(self, partition: Partition, check: CheckStep) -> None:
        more = True
        while more:
            check()
            more = self._trimmer.free(partition)

    def _expired(
        self, kept: RetainedLog, extent: TrimState, now_ms: int, check: CheckStep
    ) -> Trimming | None:
        """Return where the log is to start by the timestamps of the records in its first interval."""
        partition, policy = kept
        if policy.retention_ms < 0 or extent.totals.start >= extent.totals.end:
            return None
        expired_before_ms = now_ms - policy.retention_ms
        start = extent.totals.start
        # A pass of compaction may remove the oldest record, and leave the start where it is.
        log = (partition.topic_id, extent.totals.segment, extent.totals.compacted_end)
        remembered, timestamp = self._oldest.get(partition.stream, (None, -1))
        if remembered == (start, log) and timestamp >= expired_before_ms:
            return None
        for next_offset, largest in self._timestamps(partition, extent, check):
            timestamp = policy.known(largest, now_ms)
            if timestamp >= expired_before_ms:
                if len(self._oldest) >= _OLDEST_REMEMBERED_MAX:
                    self._oldest.clear()
                self._oldest[partition.stream] = ((start, log), timestamp)
                break
            if timestamp >= 0:
                start = next_offset
        return _allowed(extent, policy, Trimming(start, "time"))

    def _timestamps(
        self, partition: Partition, extent: TrimState, check: CheckStep
    ) -> Iterator[tuple[int, int]]:
        """Yield for each record or batch of the first interval the offset after it and its largest timestamp."""
        offset = extent.totals.start
        bound = extent.rows[0].offset if extent.rows else extent.totals.end
        entries = 1
        while offset < bound:
            check()
            fetched = or_raise(*self._log.read([Read(partition, offset, entries)]))
            if fetched.next_offset is None:
                return
            yield from fetched.ends()
            offset = fetched.next_offset
            entries = min(entries * _ENTRIES_GROWTH, _ENTRIES_MAX)


class SizeRetentionTrigger:
    """Trims logs by size after appends of one worker."""

    def __init__(self, topics: TopicRegistry, retention: Retention, background: BackgroundTrims) -> None:
        self._topics = topics
        self._retention = retention
        self._background = background

    def crossed(self, grown: Partition) -> None:
        """Trim a log in the background, after an append that wrote a row of its index; never waits."""
        topic = self._topics.get_cached(grown.topic)
        if topic is None:
            return
        policy = policy_of(topic.config)
        if policy.retention_bytes >= 0:
            # Only by size: what is too old can wait for the keeper's next round.
            by_size = Policy(retention_bytes=policy.retention_bytes, archived_only=policy.archived_only)
            self._background.begin(grown, partial(self._enforce, RetainedLog(grown, by_size)))

    def _enforce(self, kept: RetainedLog) -> None:
        for _, error in self._retention.enforce([kept]):
            raise KafkaError(error.code, error.message)
