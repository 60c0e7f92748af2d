"""The Parquet files of a table, and how they are written and discarded.

A file holds rows of one partition of the topic, in the order of their offsets, in small row groups: a consumer's fetch
reads one of them (row_groups.py). If the table is partitioned by date too, it holds those of one date, and records that
are late make files overlap: each row group of offsets becomes one of each date, so a fetch reads as many as there are.
What the table's log says of a file are the statistics of Delta's protocol ("Per-file Statistics"). A file that no table
took is deleted if that is certain; vacuum deletes the rest a day later.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSystem, PyFileSystem

from korvet.errors import LakeError
from korvet.lake.schema import (
    DATE,
    KEY,
    NO_DATE,
    OFFSET,
    PARTITION,
    SCHEMA,
    TIMESTAMP,
    VALUE,
    by_date_of,
)

ROW_GROUP_ROWS = 16_384
"""Rows that are read at once: a remote fetch takes some 5 ms, and larger groups would hardly be smaller per row."""

ROW_GROUP_BYTES_MAX = 4 * 1024 * 1024
"""Of rows in memory: a group has fewer rows if they are large, or a fetch of one would read all the others."""

StorageOptions = dict[str, str] | None
"""What deltalake takes for object stores: credentials, region, endpoint."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DATA_COLUMNS = [field.name for field in SCHEMA if field.name != PARTITION]
"""The columns in a file; the partition is in its path."""

_OFFSET_AT, _TIMESTAMP_AT = DATA_COLUMNS.index(OFFSET), DATA_COLUMNS.index(TIMESTAMP)
_ENCODINGS = dict.fromkeys((OFFSET, TIMESTAMP), "DELTA_BINARY_PACKED")
_REPEATED_MIN = 2
"""How often values occur in a row group, on average, if they are written by a dictionary."""

DATES_MAX = 100
"""Files that are written at once; the rows of more dates wait in a file: memory would not hold those of a task."""


class TableFile(NamedTuple):
    """A data file of a table, its path relative to it; it belongs to the table once a commit has added it.

    Timestamps are in microseconds since the epoch, None if no row has one. Without a `date` the table is not
    partitioned by date.
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
    date: str = ""

    @property
    def partition_values(self) -> dict[str, str | None]:
        """The values of the table's partition columns."""
        values: dict[str, str | None] = {PARTITION: str(self.partition)}
        if self.date:
            values[DATE] = None if self.date == NO_DATE else self.date
        return values

    def add_action(self, *, data_change: bool = True) -> AddAction:
        """Return the file as an action of Delta's log; not `data_change`: its rows are in the table already."""
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
            self.partition_values,
            self.written_ms,
            data_change,
            msgspec.json.encode(statistics).decode(),
        )

    @classmethod
    def of_action(cls, add: dict[str, Any]) -> TableFile:
        """Return the file that an action of Delta's log has added; raises LakeError for one without statistics."""
        path = unquote(add["path"])
        try:
            values, statistics = add["partitionValues"], msgspec.json.decode(add["stats"])
            least, most = statistics["minValues"], statistics["maxValues"]
            return cls(
                path=path,
                partition=int(values[PARTITION]),
                size_bytes=add["size"],
                rows=statistics["numRecords"],
                first_offset=least[OFFSET],
                last_offset=most[OFFSET],
                first_timestamp=_microseconds(least.get(TIMESTAMP)),
                last_timestamp=_microseconds(most.get(TIMESTAMP)),
                rows_without_timestamp=statistics["nullCount"].get(TIMESTAMP, 0),
                written_ms=add["modificationTime"],
                date=(values[DATE] or NO_DATE) if DATE in values else "",
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LakeError(f"{path}: the file is not as Korvet writes them: {error!r}") from error

    def remove_action(self, now_ms: int, *, data_change: bool) -> RemoveAction:
        """Return the removal of the file as an action of Delta's log; not `data_change`: its rows stay in the table."""
        return RemoveAction(self.path, data_change, now_ms, self.size_bytes, self.partition_values)


def filesystem(table_uri: str, storage_options: StorageOptions = None) -> FileSystem:
    """Return the files of a table, by paths relative to it."""
    return PyFileSystem(DeltaStorageHandler(table_uri, storage_options))


def write_files(
    files: FileSystem,
    partition: int,
    rows: Iterable[pa.RecordBatch | pa.Table],
    now_ms: int,
    *,
    by_date: bool = False,
) -> list[TableFile]:
    """Write the rows of one partition, in the order of their offsets, to a new file, or to one for each date.

    The rows are of SCHEMA. No other file is ever overwritten: the name is random.
    Raises OSError, and ValueError if the offsets do not rise.
    """
    made: list[_NewFile] = []
    groups: Iterable[pa.Table] | None = _rising(row_groups(rows))
    try:
        with contextlib.ExitStack() as spills:
            while groups is not None:
                groups = _write(files, partition, groups, made, spills, by_date=by_date)
        return [file.finished(now_ms) for file in made]
    except BaseException:
        # No file counts, and no commit will ever name one.
        for file in made:
            with contextlib.suppress(OSError, ValueError):
                file.close()
            with contextlib.suppress(OSError):
                files.delete_file(file.path)
        raise


def _rising(groups: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the row groups; raises ValueError if the offsets do not rise."""
    last = -1
    for group in groups:
        offsets = group.column(OFFSET).to_numpy()
        steps = np.diff(offsets, prepend=last)
        if (steps <= 0).any():
            raise ValueError(f"offset {offsets[steps <= 0][0]} follows {(offsets - steps)[steps <= 0][0]}")
        last = int(offsets[-1])
        yield group


def _write(
    files: FileSystem,
    partition: int,
    groups: Iterable[pa.Table],
    made: list[_NewFile],
    spills: contextlib.ExitStack,
    *,
    by_date: bool,
) -> Iterator[pa.Table] | None:
    """Write row groups to new files, which `made` gets; returns what is left of them if there are too many dates."""
    current: dict[str, _NewFile] = {}
    spill: IO[bytes] | None = None
    spilled: pa.RecordBatchStreamWriter | None = None
    for group in groups:
        parts, left = by_date_of(group, current, DATES_MAX - len(current)) if by_date else ({"": group}, None)
        for name, part in parts.items():
            if name not in current:
                current[name] = _NewFile(files, partition, name, part)
                made.append(current[name])
            current[name].add(part)
        if left is not None:
            if spill is None or spilled is None:
                spill = spills.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed by `spills`
                spilled = pa.ipc.new_stream(spill, left.schema)
            spilled.write_table(left.combine_chunks())  # as one batch, for it stays a row group
    for file in current.values():
        file.close()
    if spill is None or spilled is None:
        return None
    spilled.close()
    return _spilled(spill)


def _spilled(file: IO[bytes]) -> Iterator[pa.Table]:
    with file:
        file.seek(0)
        yield from (pa.Table.from_batches([batch]) for batch in pa.ipc.open_stream(file))


def row_groups(rows: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows in tables that become one row group each."""
    pending: list[pa.Table] = []
    count = size = 0
    for part in rows:
        table = part if isinstance(part, pa.Table) else pa.Table.from_batches([part])
        row_bytes = max(table.nbytes // max(table.num_rows, 1), 1)
        at = 0
        while at < table.num_rows:
            room = min(
                ROW_GROUP_ROWS - count, max((ROW_GROUP_BYTES_MAX - size) // row_bytes, 1 - bool(count))
            )
            if room:
                taken = table.slice(at, room)
                pending.append(taken)
                count, size = count + taken.num_rows, size + taken.num_rows * row_bytes
                at += taken.num_rows
            if not room or count == ROW_GROUP_ROWS:
                yield pa.concat_tables(pending)
                pending, count, size = [], 0, 0
    if pending:
        yield pa.concat_tables(pending)


class _NewFile:
    """A file that is being written."""

    def __init__(self, files: FileSystem, partition: int, date: str, rows: pa.Table) -> None:
        """Create it for rows as these."""
        directory = f"{PARTITION}={partition}" + (f"/{DATE}={date}" if date else "")
        self.path = f"{directory}/part-{uuid.uuid4()}.parquet"
        self._files = files
        self._partition = partition
        self._date = date
        self._written: list[pq.FileMetaData] = []
        data = rows.select(DATA_COLUMNS)
        self._writer = pq.ParquetWriter(
            self.path,
            data.schema,
            filesystem=files,
            compression="zstd",
            use_dictionary=[name for name in (KEY, VALUE) if _repeats(data.column(name))],
            dictionary_pagesize_limit=ROW_GROUP_BYTES_MAX // _REPEATED_MIN,
            column_encoding=_ENCODINGS,
            store_schema=False,
            write_statistics=[OFFSET, TIMESTAMP],
            # Batches are rebuilt from rows, so nothing else would tell a consumer of a bit that flipped.
            write_page_checksum=True,
            metadata_collector=self._written,
        )

    def add(self, rows: pa.Table) -> None:
        self._writer.write_table(rows.select(DATA_COLUMNS), row_group_size=rows.num_rows)

    def close(self) -> None:
        """Complete it."""
        self._writer.close()

    def finished(self, now_ms: int) -> TableFile:
        """Return it as a table takes it, once it is complete."""
        [metadata] = self._written
        groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        offsets, times = (
            [group.column(at).statistics for group in groups] for at in (_OFFSET_AT, _TIMESTAMP_AT)
        )
        known = [time for time in times if time.has_min_max]
        return TableFile(
            path=self.path,
            partition=self._partition,
            size_bytes=self._files.get_file_info(self.path).size,
            rows=metadata.num_rows,
            first_offset=offsets[0].min,
            last_offset=offsets[-1].max,
            first_timestamp=min((statistic.min_raw for statistic in known), default=None),
            last_timestamp=max((statistic.max_raw for statistic in known), default=None),
            rows_without_timestamp=sum(time.null_count for time in times),
            written_ms=now_ms,
            date=self._date,
        )


def _repeats(values: pa.ChunkedArray) -> bool:
    """Return whether a dictionary takes less than the values, in bytes and in time.

    It is one for each row group. If fewer repeat, it takes a fifth more time and no fewer bytes.
    """
    count = len(values) - values.null_count
    return bool(count >= _REPEATED_MIN * pc.count_distinct(values.cast(pa.binary())).as_py() > 0)


def _text(microseconds: int) -> str:
    """Return a timestamp as the statistics have it, truncated to milliseconds."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="milliseconds")


def _microseconds(text: str | None) -> int | None:
    """Return a timestamp of the statistics; raises ValueError."""
    return None if text is None else (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def discard(files: FileSystem, written: Iterable[TableFile]) -> None:
    """Delete files that no commit names, nor ever will, as far as that is possible; vacuum deletes the rest."""
    for file in written:
        with contextlib.suppress(OSError):
            files.delete_file(file.path)


def discard_refused(files: FileSystem, written: Iterable[TableFile], commits: Iterable[int]) -> None:
    """Delete the files of a commit that was refused, unless one of `commits` names them.

    These are the numbers at which it was tried. An object store may have taken a commit that it then reported as
    another writer's: a write is repeated if its answer was lost.
    """
    try:
        named = b"".join(log_entry(files, number) for number in commits)
    except OSError:
        return
    discard(files, [file for file in written if name_of(file.path).encode() not in named])


def log_entry(files: FileSystem, number: int) -> bytes:
    """Return a commit of a table as Delta's log has it, an action a line; raises OSError."""
    with files.open_input_stream(f"_delta_log/{number:020}.json") as log:
        content: bytes = log.readall()
    return content


def name_of(path: str) -> str:
    """Return the last part of a path: the log spells paths its own way, and this part is the same in each."""
    return path.rsplit("/", 1)[-1]
