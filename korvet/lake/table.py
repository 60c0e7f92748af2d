"""The Delta table of a topic: what of the topic is archived, and how rows come into it once; and the tables of a lake.

A topic's table lies at `<lake>/<topic>/<topic id>`, so a topic re-created under the same name begins an empty one. For
each partition Delta's log holds, as the version of an application's transaction ("Transaction Identifiers" in Delta's
protocol), the offset to archive next. A commit says from which offset it goes on, and is refused if that is not the one
in the table: files that no commit has added do not count, whatever process wrote them and however often.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from korvet import FORMAT
from korvet.config.values import key_values
from korvet.errors import LakeError
from korvet.lake import data_format
from korvet.lake.files import (
    DATA_COLUMNS,
    StorageOptions,
    TableFile,
    filesystem,
)
from korvet.lake.row_groups import DataFiles, RowCache
from korvet.lake.schema import DATE, DATED_SCHEMA, OFFSET, PARTITION, SCHEMA, TIMESTAMP, date_name

_PROPERTIES = {
    # Readers that skip files by statistics need no others, and a log without them stays small.
    "delta.dataSkippingStatsColumns": f"{OFFSET},{TIMESTAMP}",
    "delta.checkpointInterval": "50",
}


_READER_VERSION = 1
"""Of Delta's protocol; tables that require more have features such as deletion vectors."""

_DELETION_VECTORS = "deletionVectors"
_MAINTENANCE = "maintenance"
_MERGED = "merged"
_LEFT_OUT = "left-out"
_UNREADABLE = "unreadable"
_SEALED = "korvet.sealed"
"""The table's property that says up to which merge it is sealed."""

_CHECKED: set[tuple[str, int]] = set()
"""Paths of lakes that this process may use: to write data of this format, or with 0 to read."""

AsOf: TypeAlias = int | datetime
"""A table as it was after a commit, by its number, or at a time."""

COMMITS_MAX = 100
"""Tries of a commit, each of which lost against another one that concerned other partitions or files."""


class CommitConflictError(LakeError):
    """Another commit came first; nothing was added. Open the table again, and plan again."""


_FILE_COLUMNS = (
    "path",
    f"partition.{PARTITION}",
    "size_bytes",
    "num_records",
    f"min.{OFFSET}",
    f"max.{OFFSET}",
    f"min.{TIMESTAMP}",
    f"max.{TIMESTAMP}",
    f"null_count.{TIMESTAMP}",
    "modification_time",
)
"""Of get_add_actions, in the order of TableFile, which has the date after them."""


class Advance(NamedTuple):
    """What a commit adds for a partition: the rows from offset `expected` up to `next_offset`, which it excludes.

    Of these, markers of transactions and what was aborted are left out below `left_out`, 0 if there are none, and so
    are the records of `unreadable` batches.
    """

    partition: int
    expected: int
    next_offset: int
    left_out: int = 0
    unreadable: int = 0


class LakeTopic(NamedTuple):
    """A topic's name, and its id as the text of 22 characters that Kafka's tools print."""

    topic: str
    topic_id: str


@contextlib.contextmanager
def lake_errors(uri: str) -> Iterator[None]:
    """Raise errors of Delta and of the file system as LakeError."""
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        raise LakeError(f"{uri}: {error}") from error


class ArchiveTable:
    """A topic's table at one moment: when it was opened, or read again for a commit."""

    def __init__(self, table: DeltaTable, topic: LakeTopic) -> None:
        self._table = table
        self._of = topic

    @property
    def version(self) -> int:
        """The number of the last commit."""
        return self._table.version()

    @property
    def is_archive(self) -> bool:
        """Whether it has the name and the columns that Korvet gives to a topic's table."""
        own = Schema.from_arrow(SCHEMA).fields
        return (
            self._table.metadata().name == self._of.topic and self._table.schema().fields[: len(own)] == own
        )

    @property
    def uri(self) -> str:
        """Where the table lies."""
        return self._table.table_uri

    @property
    def created_ms(self) -> int:
        """When the table was created; 0 if its log does not say."""
        return self._table.metadata().created_time or 0

    @property
    def by_date(self) -> bool:
        """Whether it is partitioned by date too, as it was created."""
        return DATE in self._table.metadata().partition_columns

    def next_offset(self, partition: int) -> int | None:
        """Return the offset to archive next of a partition; None if nothing was archived of it. Raises LakeError."""
        return self._transaction_version(self._app_id(partition))

    def left_out(self, partition: int) -> int:
        """Return the offset below which markers and what was aborted were left out of a partition, 0 without any.

        Raises LakeError.
        """
        return self._transaction_version(f"{self._app_id(partition)}:{_LEFT_OUT}") or 0

    @property
    def unreadable(self) -> int:
        """How many batches were ever passed because they do not decode (`unreadable`); raises LakeError."""
        return self._transaction_version(self._app_id(_UNREADABLE)) or 0

    def files_by_partition(self) -> dict[int, list[TableFile]]:
        """Return the files of each partition, in the order of their offsets; raises as `files`."""
        by_partition: dict[int, list[TableFile]] = defaultdict(list)
        for file in self.files():
            by_partition[file.partition].append(file)
        return by_partition

    def files(self) -> list[TableFile]:
        """Return the table's files, by partition and offset.

        Raises LakeError for one without statistics, and if rows were deleted that the files still hold.
        """
        self._check_for_hidden_rows()
        actions = pa.table(self._table.get_add_actions(flatten=True))
        try:
            columns = [_column(actions, column) for column in _FILE_COLUMNS]
            dates = map(date_name, actions.column(f"partition.{DATE}").to_pylist()) if self.by_date else ()
            columns.append([*dates] or [""] * actions.num_rows)
            rows = [TableFile(*row) for row in zip(*columns, strict=True)]
            if any(None in (row.rows, row.first_offset, row.last_offset) for row in rows):
                raise TypeError("it has no statistics")  # noqa: TRY301 - as of a column that is not there
            return sorted(rows, key=lambda row: (row.partition, row.first_offset))
        except (KeyError, TypeError, pa.ArrowInvalid) as error:
            raise LakeError(f"{self.uri}: a file is not as Korvet writes them: {error!r}") from error

    def append(self, written: Sequence[TableFile], advances: Sequence[Advance]) -> None:
        """Add files by one commit; `advances` are the partitions whose records they bring, with files or without.

        Commits since the table was opened are no conflict if they left these partitions at the expected offsets. Raises
        CommitConflictError if one of them is elsewhere; LakeError.
        """
        actions: list[AddAction | RemoveAction] = [file.add_action() for file in written]
        transactions = [
            Transaction(self._app_id(advance.partition), advance.next_offset) for advance in advances
        ]
        transactions += [
            Transaction(f"{self._app_id(advance.partition)}:{_LEFT_OUT}", advance.left_out)
            for advance in advances
            if advance.left_out
        ]
        unreadable = sum(advance.unreadable for advance in advances)
        for _ in range(COMMITS_MAX):
            if self._contradiction(advances) is not None:
                # It may be only this table's own last commit.
                self._refresh()
                if contradiction := self._contradiction(advances):
                    raise CommitConflictError(contradiction)
            try:
                # Of all partitions: as this commit is the next one, no other can have counted meanwhile.
                counted = (
                    [Transaction(self._app_id(_UNREADABLE), self.unreadable + unreadable)]
                    if unreadable
                    else []
                )
                # deltalake's own retries would take an append for one that has read all that a compaction removes.
                self._commit(actions, transactions + counted)
            except CommitConflictError:
                self._refresh()
            else:
                return
        raise CommitConflictError(f"{self.uri}: others committed before each of {COMMITS_MAX} tries")

    def _contradiction(self, advances: Sequence[Advance]) -> str | None:
        for advance in advances:
            at = self.next_offset(advance.partition)
            if at is not None and at != advance.expected:
                return f"{self.uri}: partition {advance.partition} is archived up to {at}, not {advance.expected}"
        return None

    def _refresh(self) -> None:
        with lake_errors(self.uri):
            self._table.update_incremental()

    def remove(self, removed: Sequence[TableFile], now_ms: int) -> None:
        """Remove files with their rows by one commit; raises as `replace`."""
        self._replace(removed, (), now_ms, data_change=True)

    def replace(self, removed: Sequence[TableFile], written: Sequence[TableFile], now_ms: int) -> None:
        """Remove files by one commit, the next one, and add those that hold their rows now; to be sealed then.

        Streams and change feeds ignore it, for no row changes. Raises CommitConflictError if one of the files is not in
        the table, or any other commit came first; LakeError.
        """
        self._replace(removed, written, now_ms, data_change=False)

    def rewind(
        self,
        removed: Sequence[TableFile],
        written: Sequence[TableFile],
        next_offsets: Mapping[int, int],
        now_ms: int,
    ) -> None:
        """Archive partitions again from `next_offsets` on: by one commit, the next one, rows from there on are removed.

        `written` hold the rows of removed files that stay. Raises as `replace`.
        """
        offsets = {self._app_id(partition): next_offset for partition, next_offset in next_offsets.items()}
        offsets |= {
            f"{self._app_id(partition)}:{_LEFT_OUT}": next_offset
            for partition, next_offset in next_offsets.items()
            if self.left_out(partition) > next_offset
        }
        transactions = [Transaction(name, next_offset) for name, next_offset in offsets.items()]
        self._replace(removed, written, now_ms, data_change=True, transactions=transactions)

    def _replace(
        self,
        removed: Sequence[TableFile],
        written: Sequence[TableFile],
        now_ms: int,
        *,
        data_change: bool,
        transactions: Sequence[Transaction] = (),
    ) -> None:
        self.check_rewritable()
        missing = {item.path for item in removed} - {file.path for file in self.files()}
        if missing:
            raise CommitConflictError(f"{self.uri}: {min(missing)} is not in the table any more")
        # Maintenance has a version of its own: of two at once, deltalake refuses one in any case.
        names = (_MAINTENANCE,) if data_change else (_MAINTENANCE, _MERGED)
        self._commit(
            [
                *(item.add_action(data_change=data_change) for item in written),
                *(item.remove_action(now_ms, data_change=data_change) for item in removed),
            ],
            [*transactions, *(Transaction(self._app_id(name), self.version + 1) for name in names)],
        )

    @property
    def unsealed(self) -> int | None:
        """The number of the last commit of `replace`, if nobody has sealed it."""
        sealed = int(self._table.metadata().configuration.get(_SEALED, 0))
        return self._merged if self._merged > sealed else None

    @property
    def _merged(self) -> int:
        return self._transaction_version(self._app_id(_MERGED)) or 0

    def _transaction_version(self, name: str) -> int | None:
        # Delta's log is read for it now, not when the table was opened.
        with lake_errors(self.uri):
            return self._table.transaction_version(name)

    def seal(self) -> int:
        """Let deltalake refuse the commits of writers that have read the table before the last `replace`.

        Returns the number of this commit, the next one. deltalake ignores removals that change no data when it checks
        for conflicts, so an OPTIMIZE that began before would add the rows of the removed files a second time. It is
        refused once metadata has changed. Raises CommitConflictError if another commit came first; LakeError.
        """
        number = self.version + 1
        with lake_errors(self.uri):
            try:
                self._table.alter.set_table_properties(
                    {_SEALED: str(self._merged)},
                    raise_if_not_exists=False,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except CommitFailedError as error:
                raise CommitConflictError(f"{self.uri}: {error}") from error
        return number

    def _check_for_hidden_rows(self) -> None:
        """Raise LakeError if the table has deletion vectors: rows that a user deleted must not be served."""
        if _DELETION_VECTORS not in (self._table.protocol().reader_features or ()):
            return
        with lake_errors(self.uri):
            hidden = any(deletion_vector.num_rows for deletion_vector in self._table.deletion_vectors())
        if hidden:
            raise LakeError(
                f"{self.uri}: it has deletion vectors, which hide rows that its files still hold; "
                "REORG TABLE ... APPLY (PURGE) of Delta Lake takes the rows out of the files"
            )

    def check_rewritable(self) -> None:
        """Raise LakeError if a user gave the table features by which its files do not define all of their rows."""
        protocol = self._table.protocol()
        if protocol.min_reader_version > _READER_VERSION:
            features = ", ".join(protocol.reader_features or ["column mapping"])
            raise LakeError(
                f"{self.uri}: its files cannot be rewritten, or be an Iceberg table's: a user enabled {features}"
            )

    def vacuum(self, hours: int, *, dry_run: bool) -> list[str]:
        """Delete the files that no commit has named for `hours`, or ever; returns their paths.

        A file that was written since stays: some commit may be about to name it. Raises LakeError.
        """
        with lake_errors(self.uri):
            return self._table.vacuum(hours, dry_run, enforce_retention_duration=False, full=True)

    def _commit(self, actions: list[AddAction | RemoveAction], transactions: list[Transaction]) -> None:
        # Without retries the commit is the next one after this very version, or there is none.
        properties = CommitProperties(max_commit_retries=0, app_transactions=transactions)
        with lake_errors(self.uri):
            try:
                self._table.create_write_transaction(
                    actions,
                    "append",
                    self._table.schema(),
                    self._table.metadata().partition_columns,
                    commit_properties=properties,
                )
            except CommitFailedError as error:
                raise CommitConflictError(f"{self.uri}: {error}") from error

    def _app_id(self, name: int | str) -> str:
        return f"korvet:{self._of.topic_id}:{name}"


def _column(actions: pa.Table, name: str) -> list[object]:
    """Return a column of the table's files; timestamps as numbers, null if no file has statistics of them."""
    if name not in actions.column_names and name.endswith(f".{TIMESTAMP}"):
        return [None] * actions.num_rows
    column = actions.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    values: list[object] = column.to_pylist()
    return values


_LOG = "_delta_log"
_STAGED = re.compile(r"#[0-9]+$")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


class StoredFiles(NamedTuple):
    """All files below a table, of any kind and age, and their bytes."""

    files: int
    bytes: int


class Lake(NamedTuple):
    """Where the tables are, and the options of their object store; without a path there are none.

    `level` is the highest format of data that may be written to them.
    """

    path: str = ""
    storage_options: StorageOptions = None
    level: int = FORMAT

    def __repr__(self) -> str:
        """Name the place; the options have the keys of a store."""
        return f"Lake({self.path!r})"

    @classmethod
    def of(cls, path: str, storage_options: str) -> Lake:
        """Return the lake that the settings lake.path and lake.storage.options name; raises ValueError."""
        if path and "://" not in path:
            # A task may run in another directory.
            path = str(Path(path).expanduser().absolute())
        return cls(path, key_values(storage_options) or None)

    def uri(self, topic: LakeTopic) -> str:
        """Return where the table of a topic lies."""
        return f"{self.path.rstrip('/')}/{topic.topic}/{topic.topic_id}"

    def filesystem(self, topic: LakeTopic) -> FileSystem:
        """Return the files of a topic's table, by paths relative to it."""
        return filesystem(self.uri(topic), self.storage_options)

    def data_files(
        self, topic: LakeTopic, cache: RowCache | None = None, columns: Iterable[str] = DATA_COLUMNS
    ) -> DataFiles:
        """Return the data files of a topic's table: see DataFiles."""
        return DataFiles(self.uri(topic), self.filesystem(topic), cache, columns)

    def open(self, topic: LakeTopic, as_of: AsOf | None = None) -> ArchiveTable | None:
        """Return the topic's table, as it is or was; None if nothing was ever archived of it. Raises LakeError."""
        if self.path:
            uri = self.uri(topic)
            with lake_errors(uri), contextlib.suppress(TableNotFoundError):
                self._check_format(to_write=False)
                version = as_of if isinstance(as_of, int) else None
                table = DeltaTable(uri, version=version, storage_options=self.storage_options)
                if isinstance(as_of, datetime):
                    table.load_as_version(as_of)
                return ArchiveTable(table, topic)
        return None

    def attempts(self, topic: LakeTopic) -> Iterator[ArchiveTable]:
        """Yield the topic's table as it is, for each try of a commit that loses against others; none if there is none.

        Raises LakeError, also after COMMITS_MAX tries.
        """
        for _ in range(COMMITS_MAX):
            table = self.open(topic)
            if table is None:
                return
            yield table
        raise LakeError(f"{self.uri(topic)}: others committed before each of {COMMITS_MAX} tries")

    def create(self, topic: LakeTopic, *, by_date: bool = False) -> ArchiveTable:
        """Return the topic's table, created if there is none, then partitioned `by_date` or not; raises LakeError."""
        uri = self.uri(topic)
        self.claim()
        with lake_errors(uri):
            DeltaTable.create(
                uri,
                Schema.from_arrow(DATED_SCHEMA if by_date else SCHEMA),
                mode="ignore",
                partition_by=[PARTITION, DATE] if by_date else [PARTITION],
                name=topic.topic,
                description=f"Records of the Kafka topic {topic.topic}, id {topic.topic_id}",
                configuration=_PROPERTIES,
                storage_options=self.storage_options,
            )
        self.claim()  # with the first table came the lake's root
        table = self.open(topic)
        if table is None:
            raise LakeError(f"{uri}: the table was removed while it was created")
        return table

    def claim(self) -> None:
        """Note in the lake, once it has a root, that this version writes to it; raises LakeError if it may not."""
        with lake_errors(self.path), contextlib.suppress(TableNotFoundError):
            self._check_format(to_write=True)

    def _check_format(self, *, to_write: bool) -> None:
        checked = self.path, self.level if to_write else 0
        if checked not in _CHECKED:
            files = filesystem(self.path, self.storage_options)
            data_format.check(self.path, files, to_write=to_write, level=self.level)
            _CHECKED.add(checked)

    def tables(self) -> list[LakeTopic]:
        """Return the tables whose place is that of a topic's, by name and id; raises LakeError.

        Others may have written one there: see `is_archive`.
        """
        # The directory is created when something is archived for the first time.
        with lake_errors(self.path), contextlib.suppress(TableNotFoundError):
            files = filesystem(self.path, self.storage_options)
            return sorted(
                LakeTopic(topic.base_name, directory.base_name)
                for topic in _directories(files, "")
                for directory in _directories(files, topic.path)
                if _TOPIC_ID.fullmatch(directory.base_name)
                and files.get_file_info(FileSelector(f"{directory.path}/{_LOG}", allow_not_found=True))
            )
        return []

    def is_archive(self, topic: LakeTopic) -> bool:
        """Return whether `create` made the table at a topic's place; raises LakeError if it cannot be read."""
        table = self.open(topic)
        return table is not None and table.is_archive

    def remove_staged(self, topic: LakeTopic, hours: int, *, dry_run: bool) -> list[str]:
        """Delete what deltalake had begun to write to a directory `hours` ago when it was killed; returns the paths.

        Such a file is named FILE#1 until it is whole. deltalake does not list it, so no vacuum deletes it. Raises
        LakeError.
        """
        if "://" in self.path:
            return []
        oldest = time.time() - hours * 3600
        with lake_errors(self.path):
            below = Path(self.uri(topic)).rglob("*#[0-9]*")
            staged = [file for file in below if _STAGED.search(file.name) and file.stat().st_mtime < oldest]
            for item in () if dry_run else staged:
                item.unlink(missing_ok=True)
        return [str(task) for task in staged]

    def stored_files(self, topic: LakeTopic) -> StoredFiles:
        """Return the files of a table, with all that lies below it; raises LakeError."""
        with lake_errors(self.path):
            infos = _below(self.filesystem(topic))
        return StoredFiles(len(infos), sum(info.size or 0 for info in infos))

    def remove_table(self, topic: LakeTopic) -> StoredFiles:
        """Delete a topic's table with all that lies below it; returns what was deleted.

        Raises LakeError, also for a table that Korvet did not write; then nothing is deleted.
        Its log goes last: after a crash it is still a table, and the next removal takes the rest.
        """
        if not self.is_archive(topic):
            raise LakeError(f"{self.uri(topic)}: this is no table of records that Korvet has archived")
        stored = self.stored_files(topic)
        with lake_errors(self.path):
            files = self.filesystem(topic)
            paths = [file.path for file in _below(files)]
            for path in sorted(paths, key=lambda item: (item.startswith(f"{_LOG}/"), item)):
                files.delete_file(path)
            if "://" not in self.path:
                # deltalake knows files only; here they are in directories.
                shutil.rmtree(Path(self.path, *topic))
        return stored

    def write_problem(self) -> str:
        """Return in one line why the lake cannot be written, "" if it can; creates a directory that is missing."""
        name = f".korvet-doctor-{uuid.uuid4().hex}"
        try:
            if not urlsplit(self.path).scheme:
                Path(self.path).mkdir(parents=True, exist_ok=True)
            files = filesystem(self.path, self.storage_options)
            # As data files are written.
            pq.write_table(pa.table({"probe": [1]}), name, filesystem=files)
            files.delete_file(name)
        except (OSError, ValueError, DeltaError) as error:
            return " ".join(str(error).split())[:300]
        return ""


def _below(files: FileSystem) -> list[FileInfo]:
    selector = FileSelector("", recursive=True, allow_not_found=True)
    return [info for info in files.get_file_info(selector) if info.type == FileType.File]


def _directories(files: FileSystem, path: str) -> Iterator[FileInfo]:
    selector = FileSelector(path, allow_not_found=True)
    return (info for info in files.get_file_info(selector) if info.type == FileType.Directory)
