"""Where scans begin and end: offsets by time, and by how many records are to be read, over both tiers.

Knows the log's index in Redis and the statistics of the table's files; changes nothing.
"""

from __future__ import annotations

import numpy as np

from korvet.errors import KafkaError
from korvet.lake.data_files import DataFiles
from korvet.lake.files import filesystem
from korvet.lake.reader import Place, Reader, TopicOfLake
from korvet.lake.scan import Log, Part, PartReading
from korvet.lake.schema import OFFSET, TIMESTAMP, TIMESTAMP_MS, milliseconds_of
from korvet.lake.source import Source, Stores
from korvet.lake.table import table_uri
from korvet.lake.tables import Lake
from korvet.lake.windows import Windows, apart
from korvet.log.index import LogPosition, Search
from korvet.log.types import Read
from korvet.topics.types import Partition


def first_from(stores: Stores, lake: Lake | None, source: Source, log: Log, timestamp: int) -> int | None:
    """Return the offset of the first record whose timestamp (ms) is not smaller, None without any.

    Raises LakeError, KafkaError and StorageUnavailableError.
    """
    if lake is not None and log.start < log.archived:
        place = Place(TopicOfLake(log.topic.name, log.topic.id), log.partition.index, log.start, log.archived)
        found = Reader(lake.path, lake.storage_options).first_from(place, timestamp)
        if found is not None:
            return found.offset
    at = max(log.start, log.archived)
    # Which of the records that are left is the first, whatever goes meanwhile.
    reading = PartReading(stores, lake, source, fail_on_data_loss=False)
    while at < log.end:
        [intervals] = stores.indexes.find([Search(log.partition, timestamp, at)])
        if isinstance(intervals, KafkaError):
            raise intervals
        for first, behind in intervals.intervals:
            part = Part(
                topic=log.topic,
                partition=log.partition,
                first=max(first, at),
                behind=min(behind, log.end),
                cold=False,
            )
            for rows in reading.rows(part) if part.first < part.behind else ():
                stamps = milliseconds_of(rows.column(TIMESTAMP), rows.column(TIMESTAMP_MS))
                places = np.flatnonzero(stamps >= timestamp)
                if len(places):
                    return int(rows.column(OFFSET)[int(places[0])].as_py())
        if intervals.looked <= at:
            break
        at = intervals.looked
    return None


def behind_records(stores: Stores, lake: Lake | None, log: Log, first: int, count: int) -> int:
    """Return an offset behind no more than `count` records from `first` on; it is beyond that where there are any.

    In format `record` it may be less than could be: what the log's index tells without reading all of them. Raises
    LakeError, KafkaError and StorageUnavailableError.
    """
    first = max(first, log.start)
    if log.partition.format == "batch":
        return min(first + count, log.end)
    at, left = first, count
    if lake is not None:
        at, left = _behind_archived(lake, log, first, count)
    if not left or at >= log.end:
        return min(at, log.end)
    return min(_behind_hot(stores, log.partition, at, left), log.end)


def _behind_archived(lake: Lake, log: Log, at: int, left: int) -> tuple[int, int]:
    """Return where `left` archived records end, or the archive before that, and how many are left then."""
    uri = table_uri(lake.path, log.topic.name, log.topic.id)
    for some in apart(log.files):
        last_offset, rows = max(each.last_offset for each in some), sum(each.rows for each in some)
        if last_offset < at or some[0].first_offset >= log.end:
            continue
        if at <= some[0].first_offset and rows <= left:
            at, left = last_offset + 1, left - rows
        else:
            windows = Windows(DataFiles(uri, filesystem(uri, lake.storage_options)))
            for window in windows.of(tuple(each.path for each in some)):
                if window.last_offset < at:
                    continue
                offsets = windows.stamps(window).column(OFFSET).to_numpy()
                taken = offsets[np.searchsorted(offsets, at) :][:left]
                at, left = int(taken[-1]) + 1, left - len(taken)
                if not left:
                    break
        if not left:
            return at, 0
    return max(at, log.archived), left


def _behind_hot(stores: Stores, partition: Partition, at: int, left: int) -> int:
    _, rows = stores.indexes.page(partition, at)
    if rows:
        # Asked for later, the first of them counts what came meanwhile, and not fewer than there are.
        to_row = _count(stores, partition, at, rows[0].offset)
        if to_row <= left:
            below = [row.offset for row in rows if row.records - rows[0].records <= left - to_row]
            return below[-1]
    while left:
        [found] = stores.logs.read([Read(partition, at, left)])
        if isinstance(found, KafkaError):
            raise found
        if not found.records:
            # Nothing lies there, unless what did has gone to the lake meanwhile, or is still to be looked at.
            moved = found.more or (found.remote is not None and at < found.remote.end)
            return at if moved else found.high_watermark
        at, left = found.next_offset, left - len(found.records)
    return at


def _count(stores: Stores, partition: Partition, first: int, behind: int) -> int:
    [rest] = stores.indexes.records_from([LogPosition(partition, behind)])
    [whole] = stores.indexes.records_from([LogPosition(partition, first)])
    if isinstance(rest, KafkaError):
        raise rest
    if isinstance(whole, KafkaError):
        raise whole
    return whole - rest
