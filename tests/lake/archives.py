"""Tables with known records, and what is read of them in each way there is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from korvet.lake.files import TableFile, filesystem, write_files
from korvet.lake.reader import LakeReader, RecordTimestamp
from korvet.lake.table import Advance, ArchiveTable, Lake, LakeTopic
from korvet.log.remote.client import Kind, RemoteRequest
from korvet.protocol.records.record import StoredRecord
from tests.lake.rows import records_to_arrow
from tests.support.batches import read
from tests.support.processes import wait_until

OF = LakeTopic("orders", "AAAAAAAAAAAAAAAAAAAAAA")


def record(offset: int, timestamp: int | None = None, value_bytes: int = 40) -> StoredRecord:
    """Return a record with its offset as value; its time is 1000 ms later than that, if none is given."""
    value = b"%d " % offset
    return offset, 1000 + offset if timestamp is None else timestamp, b"k", value.ljust(value_bytes, b"v"), []


def write_file(
    files: FileSystem, partition: int, rows: Iterable[pa.RecordBatch], now_ms: int
) -> TableFile | None:
    """Write rows to a file of a table that is not partitioned by date; None if there is no row."""
    written = write_files(files, partition, rows, now_ms)
    return written[0] if written else None


def append(
    lake: Lake, records: Sequence[StoredRecord], next_offset: int, partition: int = 0, of: LakeTopic = OF
) -> str:
    """Archive records as one file, up to an offset; returns its path below the table, empty without any."""
    table = lake.create(of)
    at = table.next_offset(partition) or 0
    now_ms = time.time_ns() // 1_000_000
    file = write_file(filesystem(table.uri), partition, [records_to_arrow(partition, records)], now_ms)
    table.append([file] if file else [], [Advance(partition, at, next_offset)])
    return file.path if file else ""


def archive(lake: Lake, stop: int, per_file: int = 10, partition: int = 0) -> None:
    """Archive records up to `stop`, `per_file` in each."""
    table = lake.create(OF)
    for first in range(table.next_offset(partition) or 0, stop, per_file):
        end = min(first + per_file, stop)
        append(lake, [record(at) for at in range(first, end)], end, partition)


def committed_in_the_past(uri: str) -> datetime:
    """Let all commits be an hour older, as their files say; return a time after them, and before any that follows."""
    for entry in Path(uri.removeprefix("file://"), "_delta_log").glob("*.json"):
        older = entry.stat().st_mtime - 3600
        os.utime(entry, (older, older))
    return datetime.now(UTC) - timedelta(minutes=1)


def wait_for_a_later_time(lake: Lake) -> None:
    """Wait until a table that is created now is later than the one that is there: times are in milliseconds."""
    created_ms = opened(lake).created_ms
    wait_until(lambda: time.time_ns() // 1_000_000 > created_ms, "the next millisecond")


def opened(lake: Lake) -> ArchiveTable:
    """Return the table as it is now."""
    table = lake.open(OF)
    assert table is not None
    return table


def files(lake: Lake) -> list[TableFile]:
    """Return the table's files as they are now."""
    return opened(lake).files()


def path_of(lake: Lake, file: str) -> Path:
    """Return where a file lies."""
    return Path(lake.path) / OF.topic / OF.topic_id / file


def offsets_in_files(lake: Lake, partition: int = 0) -> list[int]:
    """Return the offsets of all rows as they lie, file after file."""
    result: list[int] = []
    for file in files(lake):
        if file.partition == partition:
            with pq.ParquetFile(path_of(lake, file.path)) as opened_file:
                result += opened_file.read(["offset"], use_threads=False).column(0).to_pylist()
    return result


def request(
    offset: int, archived: int, partition: int = 0, of: LakeTopic = OF, bytes_max: int = 1 << 30
) -> RemoteRequest:
    """Return the request of a consumer for what is archived from an offset on."""
    return RemoteRequest(0, "read", *of, partition, offset, archived, bytes_max)


def by_time(reader: LakeReader, place: RemoteRequest, timestamp: int | None = None) -> RecordTimestamp | None:
    """Return the first record with this time or a later one, None: with the largest one."""
    kind: Kind = "largest" if timestamp is None else "first_from"
    answer = reader.answer(msgspec.structs.replace(place, kind=kind, timestamp=timestamp or 0))
    return RecordTimestamp(answer.offset, answer.timestamp) if answer.offset >= 0 else None


def read_all(
    reader: LakeReader, end: int, first: int = 0, bytes_max: int = 1 << 30, partition: int = 0
) -> list[StoredRecord]:
    """Return what a consumer gets who reads a partition from an offset on, step by step."""
    result: list[StoredRecord] = []
    while first < end:
        answer = reader.answer(request(first, end, partition, bytes_max=bytes_max))
        assert answer.next_offset > first
        result += [
            (item.offset, item.timestamp, item.key, item.value, list(item.headers))
            for item in read(answer.data)
        ]
        first = answer.next_offset
    return result
