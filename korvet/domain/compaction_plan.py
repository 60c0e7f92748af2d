"""Which log is to be compacted, and up to where: Kafka's rules for its cleaner, on a log without segments.

Knows ratios, lags and tombstones; nothing of how a pass is made. What Kafka never compacts is its active segment; here
that is the tail: what lies behind the newest row of the index. A tail whose oldest record is older than segment.ms, or
max.compaction.lag.ms where that is shorter, counts as one that would have been rolled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from korvet.domain.topic_config import TopicConfig
from korvet.domain.topic_config_table import LONG_MAX
from korvet.storage.clean_store import CleanLook, Period, Row

HISTORY_MAX = 100
"""Periods of a log's history; beyond it the oldest become one, and their tombstones stay as long as its newest ones."""


class Ages(NamedTuple):
    """Timestamps (ms) of the first record that is not compacted, and of the first of the tail.

    None: there is none, or nobody has to know (`asks_for_oldest`, `asks_for_tail`).
    """

    oldest_dirty: int | None = None
    oldest_in_tail: int | None = None


class Due(NamedTuple):
    """A pass that is due: the offset up to which it is to compact the log, and which share of that is dirty."""

    clean_end: int
    ratio: float


def dirty_start(look: CleanLook) -> int:
    """Return the first offset that is not compacted."""
    return max(look.clean_end, look.start)


def tail_start(look: CleanLook) -> int:
    """Return the first offset of the tail."""
    return max(dirty_start(look), look.newest.offset if look.newest is not None else 0)


def dirty_ratio(look: CleanLook) -> float:
    """Return which share of a log, by bytes, is not compacted though it could be; 0 where nothing could."""
    return _ratio(look, look.newest.bytes if look.newest is not None else 0)


def _ratio(look: CleanLook, end_bytes: int) -> float:
    begin_bytes = _dirty_start_bytes(look)
    clean, dirty = max(begin_bytes - look.start_bytes, 0), max(end_bytes - begin_bytes, 0)
    return dirty / (clean + dirty) if dirty else 0.0


def _dirty_start_bytes(look: CleanLook) -> int:
    """Return how many bytes ever came below the first offset that is not compacted."""
    return look.clean_bytes if look.clean_end > look.start else look.start_bytes


def _segment_ms(config: TopicConfig) -> int:
    return min(config.segment_ms, config.max_compaction_lag_ms)


def asks_for_oldest(look: CleanLook, config: TopicConfig) -> bool:
    """Return whether a plan hangs on the age of the first record that is not compacted."""
    return config.max_compaction_lag_ms < LONG_MAX and dirty_start(look) < look.end


def asks_for_tail(look: CleanLook, config: TopicConfig) -> bool:
    """Return whether a plan hangs on the age of the tail's first record."""
    if tail_start(look) >= look.end:
        return False
    is_enough = _ratio(look, look.bytes) > config.min_cleanable_dirty_ratio
    return is_enough or config.max_compaction_lag_ms < LONG_MAX


def asks_for_rows(look: CleanLook, config: TopicConfig) -> bool:
    """Return whether a plan hangs on the rows of the index behind the compacted part."""
    return config.min_compaction_lag_ms > 0 and dirty_start(look) < look.end


def tombstones_due(look: CleanLook, config: TopicConfig) -> bool:
    """Return whether there are tombstones in the compacted part that were kept for as long as they are to be."""
    return look.start < look.clean_end and any(
        _is_due(period, look.now_ms, config.delete_retention_ms) for period in look.history
    )


def _is_due(period: Period, now_ms: int, delete_retention_ms: int) -> bool:
    return now_ms - period.ms >= delete_retention_ms


def due(look: CleanLook, config: TopicConfig, ages: Ages, rows: Sequence[Row]) -> Due | None:
    """Return the pass that is due now, None where none is.

    `rows` are those of the index behind the compacted part, needed only where `asks_for_rows` says so.
    """
    begin = dirty_start(look)
    end = tail_start(look)
    end_bytes = look.newest.bytes if look.newest is not None else look.start_bytes
    tail_is_old = ages.oldest_in_tail is not None and look.now_ms - ages.oldest_in_tail >= _segment_ms(config)
    if end < look.end and tail_is_old:
        end, end_bytes = look.end, look.bytes
    if config.min_compaction_lag_ms > 0:
        young = _first_young(look, rows, look.now_ms - config.min_compaction_lag_ms)
        if young is not None and young.offset < end:
            end, end_bytes = young.offset, young.bytes
    ratio = _ratio(look, end_bytes)
    if end > begin and (_is_overdue(look, config, ages) or ratio > config.min_cleanable_dirty_ratio):
        return Due(end, ratio)
    if tombstones_due(look, config):
        return Due(max(end, look.clean_end), ratio)
    return None


def _is_overdue(look: CleanLook, config: TopicConfig, ages: Ages) -> bool:
    """Return whether the first record that is not compacted has waited too long.

    One without a time tells nothing (Kafka's LogCleanerManager.maxCompactionDelay); were it as old as can be, whatever
    comes would have the whole log compacted again.
    """
    oldest = ages.oldest_dirty
    return oldest is not None and oldest > 0 and look.now_ms - oldest >= config.max_compaction_lag_ms


def _first_young(look: CleanLook, rows: Sequence[Row], limit_ms: int) -> Row | None:
    """Return where the first interval begins that holds a record younger than `limit_ms`, None where none does."""
    before = Row(dirty_start(look), 0, _dirty_start_bytes(look), -1)
    for row in rows:
        if row.interval > limit_ms:
            return before
        before = row
    return before if look.interval > limit_ms else None


class Tombstones:
    """How long each tombstone of a log's compacted part is to stay."""

    def __init__(self, history: Sequence[Period], now_ms: int, delete_retention_ms: int) -> None:
        """`history` is CleanLook's, `delete_retention_ms` the topic's delete.retention.ms."""
        self.history = _coalesced(
            [period for period in history if not _is_due(period, now_ms, delete_retention_ms)]
        )
        """What the history is when all that are due are gone."""
        self._ends = [period.end for period in history]
        self._due = [_is_due(period, now_ms, delete_retention_ms) for period in history]

    def is_due(self, offset: int) -> bool:
        """Return whether a tombstone of the compacted part at `offset` is to go."""
        at = bisect_right(self._ends, offset)
        return at == len(self._ends) or self._due[at]


def _coalesced(history: list[Period]) -> list[Period]:
    # One more comes with the pass that this is for.
    while len(history) >= HISTORY_MAX:
        first, second = history[:2]
        history[:2] = [Period(second.end, max(first.ms, second.ms))]
    return history
