"""The Parquet files of a table: how one is written, and what the table is told of it.

Knows Parquet and the statistics of Delta's protocol ("Per-file Statistics"); nothing of commits. A file holds rows of
one partition of the topic, in the order of their offsets, in small row groups: a consumer's fetch reads one of them.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem, PyFileSystem

from korvet.lake.schema import OFFSET, PARTITION, SCHEMA, TIMESTAMP

ROW_GROUP_ROWS = 16_384
"""Rows that are read at once: a cold fetch takes some 5 ms, and larger groups would hardly be smaller per row."""

StorageOptions = dict[str, str] | None
"""What deltalake takes for object stores: credentials, region, endpoint."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = [each.name for each in SCHEMA if each.name != PARTITION]
_ENCODINGS = dict.fromkeys((OFFSET, TIMESTAMP), "DELTA_BINARY_PACKED")


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is there, and that no commit has added yet.

    `path` is relative to the table; timestamps are in microseconds since the epoch, None where no row has one.
    """

    path: str
    partition: int
    size_bytes: int
    rows: int
    first_offset: int
    last_offset: int
    first_timestamp: int | None
    last_timestamp: int | None
    rows_without_timestamp: int
    written_ms: int

    def add_action(self, *, data_change: bool = True) -> AddAction:
        """Return what the table's log says of the file; not `data_change`: its rows are in the table already."""
        statistics: dict[str, object] = {
            "numRecords": self.rows,
            "minValues": {OFFSET: self.first_offset},
            "maxValues": {OFFSET: self.last_offset},
            "nullCount": {OFFSET: 0, TIMESTAMP: self.rows_without_timestamp},
        }
        if self.first_timestamp is not None and self.last_timestamp is not None:
            # The protocol has milliseconds here: readers take the largest as one more than it says.
            statistics["minValues"] = {OFFSET: self.first_offset, TIMESTAMP: _text(self.first_timestamp)}
            statistics["maxValues"] = {OFFSET: self.last_offset, TIMESTAMP: _text(self.last_timestamp)}
        return AddAction(
            self.path,
            self.size_bytes,
            {PARTITION: str(self.partition)},
            self.written_ms,
            data_change,
            msgspec.json.encode(statistics).decode(),
        )


def filesystem(table_uri: str, storage_options: StorageOptions = None) -> FileSystem:
    """Return the files of a table, by paths relative to it."""
    return PyFileSystem(DeltaStorageHandler(table_uri, storage_options))


def write_file(
    files: FileSystem, partition: int, rows: Iterable[pa.RecordBatch], now_ms: int
) -> WrittenFile | None:
    """Write the rows of one partition, in the order of their offsets, to a new file; None where there is no row.

    The rows are of SCHEMA, or with views for its binaries. No one else's file is ever overwritten: the name is random.
    Raises OSError, and ValueError where the offsets do not rise.
    """
    path = f"{PARTITION}={partition}/part-{uuid.uuid4()}.parquet"
    try:
        told = _write(files, path, rows)
    except BaseException:
        # It is no whole file, and nobody will ever name it.
        with contextlib.suppress(OSError):
            files.delete_file(path)
        raise
    if not told:
        return None
    first = [each.first_timestamp for each in told if each.first_timestamp is not None]
    last = [each.last_timestamp for each in told if each.last_timestamp is not None]
    return WrittenFile(
        path=path,
        partition=partition,
        size_bytes=files.get_file_info(path).size,
        rows=sum(each.rows for each in told),
        first_offset=told[0].first_offset,
        last_offset=told[-1].last_offset,
        first_timestamp=min(first, default=None),
        last_timestamp=max(last, default=None),
        rows_without_timestamp=sum(each.without_timestamp for each in told),
        written_ms=now_ms,
    )


def _write(files: FileSystem, path: str, rows: Iterable[pa.RecordBatch]) -> list[_Told]:
    """Write rows to a file, which is none where there are no rows; returns what they are, batch by batch."""
    writer: pq.ParquetWriter | None = None
    told: list[_Told] = []
    try:
        for part in rows:
            if not part.num_rows:
                continue
            told.append(_Told(part))
            if len(told) > 1 and told[-2].last_offset >= told[-1].first_offset:
                raise ValueError(f"offset {told[-1].first_offset} follows {told[-2].last_offset}")
            data = part.select(_COLUMNS)
            if writer is None:
                writer = pq.ParquetWriter(
                    path,
                    data.schema,
                    filesystem=files,
                    compression="zstd",
                    use_dictionary=False,
                    column_encoding=_ENCODINGS,
                    store_schema=False,
                    write_statistics=[OFFSET, TIMESTAMP],
                    # Batches are built anew from rows, so nothing else would tell a consumer of a bit that flipped.
                    write_page_checksum=True,
                )
            writer.write_batch(data, row_group_size=ROW_GROUP_ROWS)
    finally:
        if writer is not None:
            writer.close()
    return told


class _Told:
    """What one batch of rows says for the statistics of its file."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        """Raise ValueError where the offsets do not rise."""
        offsets = rows.column(OFFSET).to_numpy()
        if (offsets[1:] <= offsets[:-1]).any():
            raise ValueError("the offsets of the rows do not rise")
        times = rows.column(TIMESTAMP)
        extremes = pc.min_max(times.view(pa.int64()))
        self.rows: int = rows.num_rows
        self.first_offset = int(offsets[0])
        self.last_offset = int(offsets[-1])
        self.first_timestamp: int | None = extremes["min"].as_py()
        self.last_timestamp: int | None = extremes["max"].as_py()
        self.without_timestamp: int = times.null_count


def _text(microseconds: int) -> str:
    """Return a timestamp as the statistics have it, cut to milliseconds."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="milliseconds")
