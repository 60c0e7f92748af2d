"""The data files of one table as they are read: footers and row groups, kept while they are asked for again.

Knows Parquet. Files never change, so what is known of one stays true until it is gone. For one thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from korvet.errors import LakeError
from korvet.lake.schema import OFFSET, PARTITION, SCHEMA, TIMESTAMP, TIMESTAMP_MS

FOOTERS_MAX = 1024
"""Files whose footers are kept: some kilobytes each."""

GROUPS_BYTES_MAX = 32 * 1024 * 1024
"""Rows kept as they were read, of all tables: a consumer takes a row group in several fetches, and others follow."""

STAMPS = (OFFSET, TIMESTAMP, TIMESTAMP_MS)
_DATA = tuple(each.name for each in SCHEMA if each.name != PARTITION)
_TIMESTAMP_TYPE = SCHEMA.field(TIMESTAMP).type


class Group(msgspec.Struct, frozen=True):
    """A row group: its place in the file, the offsets of its first and last row, and its largest timestamp (us).

    `largest` is None where some row has a timestamp that the statistics do not tell, or none.
    """

    index: int
    first_offset: int
    last_offset: int
    largest: int | None


class _Footer(NamedTuple):
    metadata: pq.FileMetaData
    groups: list[Group]


class KeptRows:
    """Rows of any number of tables, each under what names them; those that were wanted last stay."""

    def __init__(self) -> None:
        self._rows: OrderedDict[Hashable, pa.RecordBatch] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> pa.RecordBatch | None:
        """Return the rows, None where they are not kept."""
        found = self._rows.get(key)
        if found is not None:
            self._rows.move_to_end(key)
        return found

    def keep(self, key: Hashable, rows: pa.RecordBatch) -> None:
        """Keep rows that are not kept yet, and let others go if that is too much; these stay whatever they weigh."""
        self._rows[key] = rows
        self._bytes += rows.nbytes
        while self._bytes > GROUPS_BYTES_MAX and len(self._rows) > 1:
            _, dropped = self._rows.popitem(last=False)
            self._bytes -= dropped.nbytes


class DataFiles:
    """The files below one table; `kept` are the rows that it shares with others."""

    def __init__(self, uri: str, files: FileSystem, kept: KeptRows | None = None) -> None:
        self.uri = uri
        self.kept = KeptRows() if kept is None else kept
        self._files = files
        self._footers: OrderedDict[str, _Footer] = OrderedDict()

    def groups(self, path: str) -> Sequence[Group]:
        """Return the row groups of a file, in the order of their offsets; raises LakeError."""
        return self._footer(path).groups

    def rows(self, path: str, group: Group) -> pa.RecordBatch:
        """Return the rows of a group with all columns but the partition; raises LakeError."""
        key = (self.uri, path, group.index)
        found = self.kept.get(key)
        if found is None:
            found = self._read(path, group, _DATA)
            self.kept.keep(key, found)
        return found

    def stamps(self, path: str, group: Group) -> pa.RecordBatch:
        """Return offsets and timestamps of the rows of a group; raises LakeError."""
        return self.kept.get((self.uri, path, group.index)) or self._read(path, group, STAMPS)

    def _read(self, path: str, group: Group, columns: Sequence[str]) -> pa.RecordBatch:
        metadata = self._footer(path).metadata
        try:
            # Others write timestamps in other units: INT96 is Spark's own.
            with pq.ParquetFile(
                path,
                metadata=metadata,
                filesystem=self._files,
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=True,
            ) as file:
                # By this thread alone: threads of Arrow's that outlive the interpreter abort it.
                table = file.read_row_group(group.index, columns=list(columns), use_threads=False)
            at = table.column_names.index(TIMESTAMP)
            table = table.set_column(at, TIMESTAMP, table.column(at).cast(_TIMESTAMP_TYPE))
        except (OSError, pa.ArrowException) as error:
            self._footers.pop(path, None)
            raise self._damaged(path, error) from error
        return table.combine_chunks().to_batches()[0]

    def _footer(self, path: str) -> _Footer:
        found = self._footers.get(path)
        if found is None:
            try:
                with pq.ParquetFile(path, filesystem=self._files) as file:
                    metadata = file.metadata
                found = self._footers[path] = _Footer(metadata, _groups(metadata))
            except (OSError, pa.ArrowException, ValueError) as error:
                raise self._damaged(path, error) from error
            while len(self._footers) > FOOTERS_MAX:
                self._footers.popitem(last=False)
        self._footers.move_to_end(path)
        return found

    def _damaged(self, path: str, error: Exception) -> LakeError:
        return LakeError(f"{self.uri}/{path} cannot be read: {error}")


def _groups(metadata: pq.FileMetaData) -> list[Group]:
    """Return the row groups that have rows; raises ValueError where one has no statistics of its offsets."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    offset_at, timestamp_at = names.index(OFFSET), names.index(TIMESTAMP)
    in_microseconds = metadata.schema.to_arrow_schema().field(TIMESTAMP).type == _TIMESTAMP_TYPE
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if not group.num_rows:
            continue
        offsets, timestamps = (group.column(at).statistics for at in (offset_at, timestamp_at))
        if offsets is None or not offsets.has_min_max:
            raise ValueError("a row group has no statistics of its offsets")
        known = timestamps is not None and timestamps.has_min_max and not timestamps.null_count
        largest = timestamps.max_raw if known and in_microseconds else None
        groups.append(Group(index, offsets.min, offsets.max, largest))
    return groups
