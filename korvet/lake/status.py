"""How far topics are archived: what the tables hold, and what of the logs they do not hold yet.

Knows logs and tables; changes nothing, and needs no Spark.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from korvet.errors import KafkaError, LakeError
from korvet.lake.files import StorageOptions
from korvet.lake.plan import another_lake
from korvet.lake.source import Source, SourceTopic, Stores
from korvet.lake.table import ArchiveTable, TableFile
from korvet.log.index import LogPosition
from korvet.log.types import Bounds, Fetched, Read
from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT
from korvet.topics.types import Partition


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: the log's `start` in lake and Redis together, and its `end`; None where something cannot be told.

    The table holds it up to `archived`, None for nothing yet, and Redis was told `mirrored`, 0 for nothing: trimming
    goes no further. `lag_records` are not in the table, the oldest of them `lag_ms` old by its timestamp. `error` says
    why the rest is missing, or that the table is not the one which Redis was told of.
    """

    topic: str
    partition: int
    start: int | None = None
    local_start: int | None = None
    archived: int | None = None
    mirrored: int | None = None
    end: int | None = None
    lag_records: int | None = None
    lag_ms: int | None = None
    files: int = 0
    rows: int = 0
    bytes: int = 0
    error: str | None = None


def status(
    source: Source, lake: str, storage_options: StorageOptions = None, names: Sequence[str] = ()
) -> list[PartitionStatus]:
    """Return the status of every partition with a cold tier, or of those of the topics named.

    Raises KafkaError and StorageUnavailableError; ValueError for a name of no topic with a cold tier.
    """
    with source.opened() as stores:
        found = []
        for topic in source.topics(stores, names):
            # Before the table is: Redis is told after a commit, so what it says now any later look finds there.
            known = stores.logs.bounds(topic.partitions)
            try:
                table = ArchiveTable.open(lake, topic.name, topic.id, storage_options)
                found += _of_topic(stores, topic, table, known)
            except LakeError as error:
                found += [_failed(partition, error) for partition in topic.partitions]
        return found


def _of_topic(
    stores: Stores, topic: SourceTopic, table: ArchiveTable | None, known: Sequence[Bounds | KafkaError]
) -> list[PartitionStatus]:
    files: dict[int, list[TableFile]] = defaultdict(list)
    for file in table.files() if table is not None else ():
        files[file.partition].append(file)
    found = []
    now = stores.logs.bounds(topic.partitions)
    for partition, before, bounds in zip(topic.partitions, known, now, strict=True):
        next_offset = None if table is None else table.next_offset(partition.index)
        if isinstance(bounds, KafkaError):
            found.append(_failed(partition, bounds))
            continue
        first = max(next_offset or 0, bounds.log_start if bounds.remote is None else bounds.remote.end)
        lag_records, lag_ms = _lag(stores, partition, first, bounds)
        found.append(
            PartitionStatus(
                topic=topic.name,
                partition=partition.index,
                start=bounds.log_start,
                local_start=bounds.log_start if bounds.remote is None else bounds.remote.end,
                archived=next_offset,
                mirrored=bounds.archived,
                end=bounds.high_watermark,
                lag_records=lag_records,
                lag_ms=lag_ms,
                files=len(files[partition.index]),
                rows=sum(file.rows for file in files[partition.index]),
                bytes=sum(file.size_bytes for file in files[partition.index]),
                error=None if isinstance(before, KafkaError) else another_lake(before.archived, next_offset),
            )
        )
    return found


def _lag(stores: Stores, partition: Partition, first: int, bounds: Bounds) -> tuple[int | None, int | None]:
    """Return how many records lie from `first` on, and how old (ms) the first of them is; None where unknown."""
    if first >= bounds.high_watermark:
        return 0, 0
    [count] = stores.indexes.records_from([LogPosition(partition, first)])
    [read] = stores.logs.read([Read(partition, first, 1)])
    timestamp = -1 if isinstance(read, KafkaError) else _first_timestamp(read)
    lag_ms = max(time.time_ns() // 1_000_000 - timestamp, 0) if timestamp >= 0 else None
    return None if isinstance(count, KafkaError) else count, lag_ms


def _first_timestamp(read: Fetched) -> int:
    if read.batches:
        header = read.batches[0].header
        appended = header.attributes & LOG_APPEND_TIME_BIT
        return header.max_timestamp if appended else header.base_timestamp
    return read.records[0][1] if read.records else -1


def _failed(partition: Partition, error: Exception) -> PartitionStatus:
    message = error.message if isinstance(error, KafkaError) else str(error)
    return PartitionStatus(topic=partition.topic, partition=partition.index, error=message)
