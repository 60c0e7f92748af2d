"""The lag of the archive behind the logs, by what Redis knows of it: so it holds for any archiver."""

from __future__ import annotations

from collections.abc import Sequence

from korvet.errors import KafkaError
from korvet.log.index import IndexStore, LogPosition
from korvet.log.store import LogStore
from korvet.log.types import Bounds, Read
from korvet.telemetry.stats import LakeLag
from korvet.topics.types import Partition

_FIRST_ENTRIES_PER_READ = 10
"""First entries read at once: one may be a batch of many megabytes."""


def read(
    logs: LogStore, indexes: IndexStore, partitions: Sequence[Partition], now_ms: int
) -> tuple[list[LakeLag], list[KafkaError]]:
    """Return how far each log is archived, and what is wrong with the others; a few round trips.

    Raises StorageUnavailableError.
    """
    lags: list[LakeLag] = []
    lagging: list[tuple[Partition, Bounds, int]] = []
    errors: list[KafkaError] = []
    for partition, bounds in zip(partitions, logs.bounds(partitions), strict=True):
        if isinstance(bounds, KafkaError):
            errors.append(bounds)
            continue
        first = max(bounds.archived, bounds.local_start if bounds.remote else bounds.log_start)
        if first < bounds.high_watermark:
            lagging.append((partition, bounds, first))
        else:
            lags.append(_lag(partition, bounds, 0, 0))
    counts = indexes.records_from([LogPosition(partition, first) for partition, _, first in lagging])
    for at in range(0, len(lagging), _FIRST_ENTRIES_PER_READ):
        some = lagging[at : at + _FIRST_ENTRIES_PER_READ]
        read_now = logs.read([Read(partition, first, 1) for partition, _, first in some])
        for (partition, bounds, _), count, fetched in zip(some, counts[at:], read_now, strict=False):
            if isinstance(count, KafkaError):
                errors.append(count)
            elif isinstance(fetched, KafkaError):
                errors.append(fetched)
            else:
                timestamp = fetched.first_timestamp
                age_ms = max(now_ms - timestamp, 0) if timestamp is not None and timestamp >= 0 else None
                lags.append(_lag(partition, bounds, count, age_ms))
    return lags, errors


def _lag(partition: Partition, bounds: Bounds, records: int, age_ms: int | None) -> LakeLag:
    return LakeLag(
        topic=partition.topic,
        partition=partition.index,
        archived_offset=bounds.archived,
        records=records,
        age_ms=age_ms,
    )
