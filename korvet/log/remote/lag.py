"""How far the archive is behind the logs, for whoever watches it: by what Redis was told, whoever archives.

Knows what the figures mean, how they are taken, and how those of many partitions become few; nothing of tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from korvet.errors import KafkaError
from korvet.log.index import IndexStore, Position
from korvet.log.store import LogStore
from korvet.log.types import Bounds, Fetched, Partition, Read
from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT
from korvet.telemetry.snapshot import OTHER_TOPICS

_FIRST_ENTRIES_PER_READ = 10
"""First entries asked for at once: one may be a batch of many megabytes."""


class LakeLag(msgspec.Struct, frozen=True, kw_only=True):
    """One log, or those of one topic together: then `partition` and `archived_offset` are None, the age is the largest.

    `records` are not archived, the oldest of them `age_ms` old by its timestamp: 0 where there are none, None where it
    has no timestamp. `archived_offset` is the offset to be archived next.
    """

    topic: str
    partition: int | None
    archived_offset: int | None
    records: int
    age_ms: int | None


def read(
    logs: LogStore, indexes: IndexStore, partitions: Sequence[Partition], now_ms: int
) -> tuple[list[LakeLag], list[KafkaError]]:
    """Return how far each log is archived, and what is wrong with the others; a few round trips.

    Raises StorageUnavailableError.
    """
    lags: list[LakeLag] = []
    behind: list[tuple[Partition, Bounds, int]] = []
    errors: list[KafkaError] = []
    for partition, bounds in zip(partitions, logs.bounds(partitions), strict=True):
        if isinstance(bounds, KafkaError):
            errors.append(bounds)
            continue
        first = max(bounds.archived, bounds.local_start if bounds.cold else bounds.log_start)
        if first < bounds.high_watermark:
            behind.append((partition, bounds, first))
        else:
            lags.append(_lag(partition, bounds, 0, 0))
    counts = indexes.records_behind([Position(partition, first) for partition, _, first in behind])
    for at in range(0, len(behind), _FIRST_ENTRIES_PER_READ):
        some = behind[at : at + _FIRST_ENTRIES_PER_READ]
        read_now = logs.read([Read(partition, first, 1) for partition, _, first in some])
        for (partition, bounds, _), count, fetched in zip(some, counts[at:], read_now, strict=False):
            if isinstance(count, KafkaError):
                errors.append(count)
            elif isinstance(fetched, KafkaError):
                errors.append(fetched)
            else:
                timestamp = _first_timestamp(fetched)
                age_ms = max(now_ms - timestamp, 0) if timestamp >= 0 else None
                lags.append(_lag(partition, bounds, count, age_ms))
    return lags, errors


def condensed(lags: Sequence[LakeLag], series_max: int) -> list[LakeLag]:
    """Return at most `series_max` figures and one for the rest: by partition where they are so few, else by topic.

    Where there are still more topics, those most behind keep their own and the others are summed as OTHER_TOPICS.
    """
    if len(lags) <= series_max:
        return list(lags)
    by_topic: dict[str, list[LakeLag]] = defaultdict(list)
    for lag in lags:
        by_topic[lag.topic].append(lag)
    sums = sorted(
        (_sum(topic, some) for topic, some in by_topic.items()), key=lambda lag: (-lag.records, lag.topic)
    )
    return sums[:series_max] + ([_sum(OTHER_TOPICS, sums[series_max:])] if sums[series_max:] else [])


def _lag(partition: Partition, bounds: Bounds, records: int, age_ms: int | None) -> LakeLag:
    return LakeLag(
        topic=partition.topic,
        partition=partition.index,
        archived_offset=bounds.archived,
        records=records,
        age_ms=age_ms,
    )


def _sum(topic: str, lags: Sequence[LakeLag]) -> LakeLag:
    return LakeLag(
        topic=topic,
        partition=None,
        archived_offset=None,
        records=sum(lag.records for lag in lags),
        age_ms=max((lag.age_ms for lag in lags if lag.age_ms is not None), default=None),
    )


def _first_timestamp(fetched: Fetched) -> int:
    """Return the timestamp (ms) of the first record, -1 without one."""
    if fetched.batches:
        header = fetched.batches[0].header
        return header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else header.base_timestamp
    return fetched.records[0][1] if fetched.records else -1
