"""Iceberg beside Delta: the table of a topic in an Iceberg catalog, over the same Parquet files.

Delta's table is the truth, and nothing flows back. Each commit of Delta's log that adds or removes files becomes a
snapshot of Iceberg's, which holds the number of the commit: the process that brings Iceberg into step reads the
number, and replays Delta's later commits. A catalog takes a commit only after the snapshot that it was planned for,
so a crash at any point, or two processes at once, cost nothing but another try.

The table is `<namespace>.<topic>`. That of a topic which was deleted and re-created since is renamed to
`<topic>@<topic id>`: one table never holds records of two. Data files have no field ids, so the table maps names to
them ("Column Projection" in Iceberg's specification); the partition is not in the files, but in Iceberg's metadata.

Iceberg's own files lie in the directory `_iceberg` of the table. Its snapshots expire long before the vacuum of Delta's
table deletes files that they name, and nobody but this vacuum may delete data files (gc.enabled).
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from pyarrow.fs import FileSelector, FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, TimestamptzType

from korvet import logs
from korvet.config.values import without_secrets
from korvet.errors import LakeError
from korvet.lake import schema
from korvet.lake.files import TableFile, log_entry, name_of
from korvet.lake.schema import OFFSET, PARTITION, TIMESTAMP
from korvet.lake.table import COMMITS_MAX, ArchiveTable, Lake, LakeTopic

CATALOG = "korvet"
"""The name by which SQL catalogs keep these tables apart from others."""

METADATA = "_iceberg"
"""Delta's vacuum passes directories with such a name."""

REPLAYED_MAX = 50
"""Commits of Delta's log that become snapshots of their own; what is more becomes one."""

SNAPSHOT_AGE_MS = 15 * 60_000
"""Default for a table: each commit reads and writes what Iceberg says of all snapshots, some 1 ms of CPU for each."""

_TOPIC_ID = "korvet.topic-id"
_CREATED = "korvet.created-ms"
_VERSION = "korvet.delta-version"
"""Of a snapshot: the commit of Delta's log that it ends with."""

_S3 = {
    "AWS_REGION": "s3.region",
    "AWS_ENDPOINT_URL": "s3.endpoint",
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
}
_SECRET = re.compile(r"secret|token|password|credential|key|connection-string|header\.", re.IGNORECASE)
"""In the names of properties with values that nobody may see; of URIs only the password is one."""

_HOUR_MS = 3_600_000
"""The part of the vacuum's delay that passes between a removal from Delta's table and its snapshot."""

_log = logs.Log(__name__)

# The partition is optional, for pyiceberg looks for what is required in the files; what has 16 bits is an integer.
SCHEMA = assign_fresh_schema_ids(
    _pyarrow_to_schema_without_ids(schema.SCHEMA.set(0, schema.SCHEMA.field(PARTITION).with_nullable(True)))  # noqa: FBT003 - Arrow takes no name
)
"""Ids rise from 1 on in the order of the columns, and then in the headers."""

_SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), PARTITION))


class _FileChange(NamedTuple):
    """What the files of a table have become by a commit of Delta's log, or by several up to `version`."""

    version: int
    added: list[DataFile]
    removed: list[DataFile]


class IcebergTables:
    """The tables of a lake in an Iceberg catalog, connected to by the first call; for one thread."""

    def __init__(self, lake: Lake, namespace: str, properties: Mapping[str, str]) -> None:
        """`properties` are pyiceberg's of a catalog; an S3 is reached by the lake's options, unless they say how."""
        self._lake = lake
        self._namespace = namespace
        options = {name.upper(): value for name, value in (lake.storage_options or {}).items()}
        of_store = {name: options[option] for option, name in _S3.items() if option in options}
        # A database may close a connection that was idle between two rounds.
        self._properties = {"pool_pre_ping": "true"} | of_store | {**properties}
        # Of topics, the snapshot that is as Delta's table was at a later version: commits may change no files.
        self._passed: dict[str, tuple[int, int]] = {}

    @functools.cached_property
    def _catalog(self) -> Catalog:
        return load_catalog(CATALOG, **self._properties)

    def close(self) -> None:
        """Close the connections to the catalog; the next call connects again."""
        catalog: Catalog | None = self.__dict__.pop("_catalog", None)
        if catalog is not None:
            catalog.close()

    def sync(self, topic: LakeTopic) -> None:
        """Bring the Iceberg table of a topic into step with Delta's, if it has one; raises LakeError."""
        with self._errors(topic):
            for _ in range(COMMITS_MAX):
                # Another process may have brought it here, or to an earlier commit.
                with contextlib.suppress(CommitFailedException):
                    return self._sync(topic)
        raise LakeError(
            f"Iceberg table of {topic.topic}: others committed before each of {COMMITS_MAX} tries"
        )

    def maintain(self, topic: LakeTopic, hours: int) -> None:
        """Sync, so that Delta's table may be vacuumed of what it did not name for `hours`; expire, and tidy up.

        Snapshots expire at the age that the table sets, but before files are vacuumed. Files of
        Iceberg's that no snapshot names are deleted if they are so old. Raises LakeError.
        """
        self.sync(topic)
        with self._errors(topic):
            table = self._find(topic)
            if table is None:
                return
            chosen = table.properties.get(TableProperties.MAX_SNAPSHOT_AGE_MS, SNAPSHOT_AGE_MS)
            age_ms = min(int(chosen), (hours - 1) * _HOUR_MS)
            before = datetime.fromtimestamp(time.time() - age_ms / 1000, UTC)
            expired = table.maintenance.expire_snapshots().older_than(before)
            if expired._snapshot_ids_to_expire:  # noqa: SLF001 - without any it would commit nothing, as a version
                # The next round expires what another commit came before.
                with contextlib.suppress(CommitFailedException):
                    expired.commit()
            self._tidy(table, self._lake.filesystem(topic), hours)

    def drop(self, topic: LakeTopic) -> None:
        """Drop the table of a topic from the catalog, before Delta's is deleted with all files; raises LakeError."""
        with self._errors(topic):
            table = self._find(topic)
            if table is not None:
                self._catalog.drop_table(table.name())

    @contextlib.contextmanager
    def _errors(self, topic: LakeTopic) -> Iterator[None]:
        """Raise errors of the catalog, and of its files, as LakeError, in one line and without secrets."""
        try:
            yield
        except LakeError as error:
            raise LakeError(f"Iceberg table of {topic.topic}: {error}") from error
        except Exception as error:  # noqa: BLE001 - the boundary: catalogs have errors of their own, and users may name any
            text = without_secrets(" ".join(str(error).split()))
            for name, value in self._properties.items():
                text = text.replace(value, "***") if value and _SECRET.search(name) else text
            # A traceback would show the message as it was.
            raise LakeError(f"Iceberg table of {topic.topic}: {type(error).__name__}: {text}") from None

    def _sync(self, topic: LakeTopic) -> None:
        # Iceberg first: what it has reached is then in Delta's log, unless an older copy of that was restored.
        known = self._find(topic)
        delta = self._lake.open(topic)
        if delta is None:
            return
        delta.check_rewritable()
        table = self._with_properties(known or self._found_or_created(topic, delta))
        own = _own_snapshot(table)
        changes = self._changes(topic, delta, table, own)
        with table.transaction() as transaction:
            if own is not None and own != table.current_snapshot():
                _log.warning("others wrote to an Iceberg table, and it is rolled back", topic=topic.topic)
                ManageSnapshots(transaction).set_current_snapshot(own.snapshot_id)
            for change in changes:
                _add_snapshot(transaction, change)
        if own is not None and not changes:
            self._passed[topic.topic_id] = own.snapshot_id, delta.version

    def _changes(
        self, topic: LakeTopic, delta: ArchiveTable, table: Table, own: Snapshot | None
    ) -> list[_FileChange]:
        """Return what Delta's table has become since the snapshot."""
        reached = -1
        if own is not None and own.summary is not None:
            snapshot, passed = self._passed.get(topic.topic_id, (-1, -1))
            reached = passed if snapshot == own.snapshot_id else int(own.summary[_VERSION] or -1)
        if 0 <= delta.version - reached <= REPLAYED_MAX and reached >= 0:
            # Delta's log is deleted after 30 days.
            with contextlib.suppress(FileNotFoundError):
                replayed = self._replayed(topic, range(reached + 1, delta.version + 1), table, own)
                if replayed is not None:
                    return replayed
        known = _files(table, own)
        active = {item.file_path: item for item in (self._converted(topic, file) for file in delta.files())}
        added = [item for path, item in active.items() if path not in known]
        removed = [item for path, item in known.items() if path not in active]
        return [_FileChange(delta.version, added, removed)] if added or removed else []

    def _replayed(
        self, topic: LakeTopic, numbers: Iterable[int], table: Table, own: Snapshot | None
    ) -> list[_FileChange] | None:
        """Return the changes by these commits of Delta's log; None if files that they removed may be deleted soon.

        Raises FileNotFoundError if the log lacks one.
        """
        files = self._lake.filesystem(topic)
        entries = [
            (number, [*map(msgspec.json.decode, log_entry(files, number).splitlines())]) for number in numbers
        ]
        # A snapshot expires by its own age: one that is made now would outlive the files that left Delta's so long ago.
        removals = (action["remove"] for _, actions in entries for action in actions if "remove" in action)
        before_ms = time.time() * 1000 - _HOUR_MS
        if any((removal.get("deletionTimestamp") or 0) < before_ms for removal in removals):
            return None
        # What others have not rewritten nobody has to look for.
        plain = all(_is_append(action) for _, actions in entries for action in actions)
        known = {} if plain else _files(table, own)
        changes = []
        for number, actions in entries:
            written = (TableFile.of_action(action["add"]) for action in actions if "add" in action)
            added = {item.file_path: item for item in (self._converted(topic, one) for one in written)}
            gone = {
                self._path(topic, unquote(action["remove"]["path"]))
                for action in actions
                if "remove" in action
            }
            removed = [known.pop(item) for item in gone - added.keys() if item in known]
            # An action may only add statistics of a file that is there.
            new = [item for path, item in added.items() if path not in known]
            known |= added
            if new or removed:
                changes.append(_FileChange(number, new, removed))
        return changes

    def _find(self, topic: LakeTopic) -> Table | None:
        """Return the table of a topic; of one that was re-created it has another name."""
        for name in (topic.topic, _former(topic.topic, topic.topic_id)):
            table = self._load(name)
            if table is not None and table.properties.get(_TOPIC_ID) == topic.topic_id:
                if table.location() != self._uri(topic):
                    raise LakeError(f"{table.location()}: the catalog has the table at another place")
                return table
        return None

    def _load(self, name: str) -> Table | None:
        with contextlib.suppress(NoSuchTableError, NoSuchNamespaceError):
            return self._catalog.load_table((self._namespace, name))
        return None

    def _found_or_created(self, topic: LakeTopic, delta: ArchiveTable) -> Table:
        """Create the table of a topic; what another process has done at the same time is found by a second try."""
        with contextlib.suppress(TableAlreadyExistsError, NoSuchTableError):
            return self._create(topic, delta)
        return self._find(topic) or self._create(topic, delta)

    def _create(self, topic: LakeTopic, delta: ArchiveTable) -> Table:
        """Create the table of a topic, to which that of an earlier topic of this name leaves the name.

        Raises TableAlreadyExistsError and NoSuchTableError if another process comes first.
        """
        self._catalog.create_namespace_if_not_exists((self._namespace,))
        name, other = topic.topic, self._load(topic.topic)
        if other is not None:
            other_id = other.properties.get(_TOPIC_ID)
            if other_id is None:
                raise LakeError(f"the catalog has a table {self._namespace}.{name} of somebody else")
            if other_id == topic.topic_id:
                raise TableAlreadyExistsError(name)
            if int(other.properties[_CREATED]) > delta.created_ms:
                name = _former(topic.topic, topic.topic_id)
            else:
                self._catalog.rename_table(other.name(), (self._namespace, _former(topic.topic, other_id)))
        uri = self._uri(topic)
        return self._catalog.create_table(
            (self._namespace, name),
            SCHEMA,
            location=uri,
            partition_spec=_SPEC,
            properties={
                _TOPIC_ID: topic.topic_id,
                _CREATED: str(delta.created_ms),
                TableProperties.WRITE_METADATA_PATH: f"{uri}/{METADATA}",
                TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
                TableProperties.MAX_SNAPSHOT_AGE_MS: str(SNAPSHOT_AGE_MS),
                # Each commit adds one; of a hundred pyiceberg makes one then.
                TableProperties.MANIFEST_MERGE_ENABLED: "true",
            },
        )

    def _with_properties(self, table: Table) -> Table:
        """Return the table with the properties that it needs, which others may have altered."""
        mapping = table.schema().name_mapping.model_dump_json()
        needed = {
            TableProperties.DEFAULT_NAME_MAPPING: mapping,
            # pyiceberg would repeat a commit after that of another process, which may have added the same files.
            TableProperties.COMMIT_NUM_RETRIES: "0",
            "gc.enabled": "false",
        }
        if any(table.properties.get(name) != value for name, value in needed.items()):
            with table.transaction() as transaction:
                transaction.set_properties(needed)
        return table

    def _uri(self, topic: LakeTopic) -> str:
        uri = self._lake.uri(topic)
        return uri if "://" in uri else f"file://{uri}"

    def _path(self, topic: LakeTopic, path: str) -> str:
        return f"{self._uri(topic)}/{path}"

    def _converted(self, topic: LakeTopic, file: TableFile) -> DataFile:
        """Return a file as Iceberg's manifests describe it."""
        least, most = {OFFSET: file.first_offset}, {OFFSET: file.last_offset}
        if file.first_timestamp is not None and file.last_timestamp is not None:
            # Delta's log truncates timestamps to milliseconds.
            least[TIMESTAMP], most[TIMESTAMP] = file.first_timestamp, file.last_timestamp + 999
        made = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._path(topic, file.path),
            file_format=FileFormat.PARQUET,
            partition=Record(file.partition),
            record_count=file.rows,
            file_size_in_bytes=file.size_bytes,
            value_counts={_id(OFFSET): file.rows, _id(TIMESTAMP): file.rows},
            null_value_counts={_id(OFFSET): 0, _id(TIMESTAMP): file.rows_without_timestamp},
            lower_bounds={_id(name): _bound(name, value) for name, value in least.items()},
            upper_bounds={_id(name): _bound(name, value) for name, value in most.items()},
        )
        # A manifest does not have it, but one that is written without the file asks.
        made.spec_id = _SPEC.spec_id
        return made

    def _tidy(self, table: Table, files: FileSystem, hours: int) -> None:
        """Delete the files below METADATA that are older than `hours` and that no snapshot names."""
        before = datetime.fromtimestamp(time.time() - hours * 3600, UTC)
        infos = files.get_file_info(FileSelector(METADATA, recursive=True, allow_not_found=True))
        old = [info.path for info in infos if info.is_file and info.mtime < before]
        if not old:
            return
        table.refresh()
        named = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        for snapshot in table.metadata.snapshots:
            named |= {
                snapshot.manifest_list,
                *(manifest.manifest_path for manifest in snapshot.manifests(table.io)),
            }
        names = {name_of(name) for name in named}
        for path in old:
            if name_of(path) not in names:
                files.delete_file(path)


def _former(topic: str, topic_id: str) -> str:
    """Return the name of the table of a topic that was re-created since; no topic can have it."""
    return f"{topic}@{topic_id}"


def _own_snapshot(table: Table) -> Snapshot | None:
    """Return the newest snapshot that is as Delta's table was; raises LakeError if there are only others."""
    for ancestor in ancestors_of(table.current_snapshot(), table.metadata):
        if ancestor.summary is not None and ancestor.summary[_VERSION] is not None:
            return ancestor
    if table.current_snapshot() is not None:
        raise LakeError("others wrote to it, and Korvet's snapshots have expired: drop it from the catalog")
    return None


def _files(table: Table, snapshot: Snapshot | None) -> dict[str, DataFile]:
    """Return the files of a snapshot by their paths."""
    if snapshot is None:
        return {}
    tasks = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
    return {task.file.file_path: task.file for task in tasks}


def _is_append(action: dict[str, Any]) -> bool:
    """Return whether an action of Delta's log leaves the files that were there."""
    return "remove" not in action and action.get("add", {}).get("dataChange", True)


def _add_snapshot(transaction: Transaction, change: _FileChange) -> None:
    update = transaction.update_snapshot(snapshot_properties={_VERSION: str(change.version)})
    with update.overwrite() if change.removed else update.merge_append() as snapshot:
        for file in change.added:
            snapshot.append_data_file(file)
        for file in change.removed:
            snapshot.delete_data_file(file)


def _id(name: str) -> int:
    return SCHEMA.find_field(name).field_id


def _bound(name: str, value: int) -> bytes:
    return to_bytes(TimestamptzType() if name == TIMESTAMP else LongType(), value)
