"""korvet/lake/iceberg.py: Iceberg tables that are as Delta's are, whatever happened, in a catalog in SQLite."""

from __future__ import annotations

import gc
import os
import re
import sqlite3
import time
import traceback
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from korvet.errors import LakeError
from korvet.lake import iceberg
from korvet.lake.compaction import compact
from korvet.lake.expiry import Expiry, run_upkeep
from korvet.lake.files import filesystem, log_entry
from korvet.lake.iceberg import CATALOG, IcebergTables
from korvet.lake.schema import SCHEMA
from korvet.lake.table import Advance, Lake, LakeTopic
from tests.lake.archives import (
    OF,
    append,
    archive,
    files,
    opened,
    path_of,
    record,
    wait_for_a_later_time,
    write_file,
)
from tests.support.archives import Topics, all_kinds
from tests.support.docs import PAGES
from tests.support.iceberg import (
    NAMESPACE,
    READERS,
    beside,
    by_deltalake,
    by_pyiceberg,
    check,
    loaded,
    names,
    properties,
    tables,
)
from tests.support.iceberg_rest import rest_catalog

AGAIN = LakeTopic(OF.topic, "BBBBBBBBBBBBBBBBBBBBBB")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def operations(table: Table) -> list[tuple[str, str]]:
    """Return what each snapshot did, and the commit of Delta's log that it stands for."""
    summaries = [snapshot.summary for snapshot in table.snapshots() if snapshot.summary is not None]
    return [(summary.operation.value, str(summary["korvet.delta-version"])) for summary in summaries]


@pytest.mark.parametrize("reader", READERS)
def test_every_column_is_read_as_it_was_written(lake: Lake, reader: str) -> None:
    table = lake.create(OF)
    rows: list[dict[str, Any]] = [
        {"offset": 0, "timestamp_type": 0},
        {
            "offset": 1,
            "timestamp_type": 1,
            "timestamp": -1001,
            "key": b"",
            "value": b"\xff\x00",
            "headers": [],
        },
        {"offset": 2**62, "timestamp_type": 0, "timestamp_ms": 2**62, "value": b"v" * 3000},
        {
            "offset": 2**62 + 1,
            "timestamp_type": 0,
            "timestamp": 1_700_000_000_123_456,
            "key": b"k",
            "headers": [{"key": "a", "value": b"1"}, {"key": "\u00e4", "value": None}],
            "attributes": -32768,
            "producer_id": 2**62,
            "producer_epoch": 32767,
        },
    ]
    for partition in (0, 7):
        batch = pa.RecordBatch.from_pylist([{"partition": partition, **row} for row in rows], SCHEMA)
        file = write_file(filesystem(table.uri), partition, [batch], now_ms=7)
        assert file is not None
        table.append([file], [Advance(partition, 0, 2**62 + 2)])
    tables(lake).sync(OF)
    result = READERS[reader](check(lake, OF))
    assert result == by_deltalake(lake, OF)
    last = (7, 0, -32768, 2**62, 32767)
    assert result[-1][:5] == last
    assert result[-1][5] == (2**62 + 1, 1_700_000_000_123, b"k", None, [("a", b"1"), ("\u00e4", None)])


def test_a_table_is_read_as_its_page_says(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the program of docs/lake/iceberg.md; the settings for Spark are those of tests/jvm/iceberg."""
    # Here a warning would be an error.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    clicks = LakeTopic("clicks", OF.topic_id)
    append(lake, [record(at) for at in range(990, 1007)], 1007, of=clicks)
    tables(lake).sync(clicks)
    [program] = re.findall(r"```python\n(.*?)```", PAGES["docs/lake/iceberg.md"], re.DOTALL)
    uri = properties(Path(lake.path).parent)["uri"]
    assert "sqlite:////srv/iceberg.db" in program
    exec(program.replace("sqlite:////srv/iceberg.db", uri), {})  # noqa: S102 - what a reader would run
    printed = capsys.readouterr().out
    assert "1006" in printed
    assert re.search(r"\W 7 \W*$", printed)


def test_files_are_skipped_by_partition_offset_and_time(lake: Lake) -> None:
    archive(lake, 30)
    archive(lake, 10, partition=1)
    tables(lake).sync(OF)
    table = check(lake, OF)
    for where, count in (
        ("partition = 1", 1),
        ("partition = 0", 3),
        ("offset >= 25", 1),
        ("timestamp < '1970-01-01T00:00:01.010+00:00'", 2),
        ("timestamp >= '1970-01-01T00:00:01.029+00:00'", 1),
        ("timestamp >= '1970-01-01T00:00:01.031+00:00'", 0),
    ):
        assert len(list(table.scan(row_filter=where).plan_files())) == count, where


def test_each_commit_of_delta_becomes_a_snapshot_once(lake: Lake) -> None:
    archive(lake, 20)
    synced = tables(lake)
    synced.sync(OF)
    archive(lake, 40)
    # What Delta has before Iceberg for the first time is one snapshot.
    synced.sync(OF)
    assert operations(check(lake, OF)) == [("append", "2"), ("append", "3"), ("append", "4")]
    assert all(step.done for step in compact(lake, OF))
    opened(lake).append([], [Advance(0, 40, 50)])
    append(lake, [record(50)], 51)
    synced.sync(OF)
    snapshots = [("append", "2"), ("append", "3"), ("append", "4"), ("overwrite", "5"), ("append", "8")]
    assert operations(check(lake, OF)) == snapshots
    opened(lake).remove(files(lake)[:1], now_ms=9)
    tables(lake).sync(OF)
    assert operations(check(lake, OF)) == [*snapshots, ("overwrite", "9")]
    # Again there is nothing to do, for the same process and for another.
    location = loaded(lake, OF.topic).metadata_location
    for item in (synced, tables(lake)):
        item.sync(OF)
    assert loaded(lake, OF.topic).metadata_location == location


def test_manifests_are_merged_and_files_removed_from_them(lake: Lake) -> None:
    archive(lake, 10)
    synced = tables(lake)
    synced.sync(OF)
    with loaded(lake, OF.topic).transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "3"})
    for stop in range(20, 60, 10):
        archive(lake, stop)
        archive(lake, stop, partition=1)
        synced.sync(OF)
    table = check(lake, OF)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 3
    opened(lake).remove(files(lake)[1:4], now_ms=9)
    synced.sync(OF)
    assert len(by_pyiceberg(check(lake, OF))) == 70
    assert all(step.done for step in compact(lake, OF))
    append(lake, [record(60)], 61)
    synced.sync(OF)
    assert len(by_pyiceberg(check(lake, OF))) == 71


def test_commits_that_change_no_files_are_read_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(lake, 10)
    synced = tables(lake)
    synced.sync(OF)
    opened(lake).append([], [Advance(0, 10, 20)])
    synced.sync(OF)
    read: list[int] = []

    def counted(of: Any, number: int) -> bytes:
        read.append(number)
        return log_entry(of, number)

    monkeypatch.setattr(iceberg, "log_entry", counted)
    opened(lake).append([], [Advance(0, 20, 30)])
    synced.sync(OF)
    assert read == [3]
    append(lake, [record(30)], 31)
    synced.sync(OF)
    assert operations(check(lake, OF)) == [("append", "1"), ("append", "4")]


@pytest.mark.parametrize("gone", [False, True])
def test_what_is_not_in_the_log_any_more_becomes_one_snapshot(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    archive(lake, 20)
    synced = tables(lake)
    synced.sync(OF)
    archive(lake, 50)
    assert all(step.done for step in compact(lake, OF))
    if gone:
        delta = DeltaTable(opened(lake).uri)
        delta.create_checkpoint()
        for number in range(delta.version()):
            path_of(lake, f"_delta_log/{number:020}.json").unlink()
    else:
        monkeypatch.setattr(iceberg, "REPLAYED_MAX", 3)
    synced.sync(OF)
    assert operations(check(lake, OF)) == [("append", "2"), ("overwrite", "7")]


def test_of_two_processes_the_second_goes_on_from_the_first(lake: Lake) -> None:
    archive(lake, 20)
    tables(lake).sync(OF)
    archive(lake, 40)

    class Late(IcebergTables):
        """Another process commits the same, three times, before this one does."""

        tries = 0

        def _sync(self, of: LakeTopic) -> None:
            append(lake, [record(40 + self.tries)], 41 + self.tries)
            self.tries += 1
            super()._sync(of)

        def _changes(self, *given: Any) -> Any:
            changes = super()._changes(*given)
            if self.tries <= 3:
                tables(lake).sync(OF)
            return changes

    late = Late(lake, NAMESPACE, properties(Path(lake.path).parent))
    late.sync(OF)
    assert late.tries == 4
    assert [item for item, _ in operations(check(lake, OF))] == ["append"] * 7


@pytest.mark.parametrize("of", [OF, AGAIN])
@pytest.mark.parametrize("loads", [2, 3])
def test_two_processes_that_create_a_table_have_one(lake: Lake, loads: int, of: LakeTopic) -> None:
    archive(lake, 20)
    if of == AGAIN:
        tables(lake).sync(OF)
        wait_for_a_later_time(lake)
        append(lake, [record(3)], 4, of=AGAIN)

    class Late(IcebergTables):
        """Another process creates the table after this one has looked for it, or for one that has the name."""

        loaded = 0

        def _load(self, name: str) -> Table | None:
            result = super()._load(name)
            self.loaded += 1
            if self.loaded == loads:
                tables(lake).sync(of)
            return result

    Late(lake, NAMESPACE, properties(Path(lake.path).parent)).sync(of)
    assert names(lake) == [OF.topic, *([f"{OF.topic}@{OF.topic_id}"] if of == AGAIN else [])]
    assert len(operations(check(lake, of))) == 1


def test_a_topic_that_was_created_again_has_a_table_of_its_own(lake: Lake) -> None:
    archive(lake, 20)
    tables(lake).sync(OF)
    wait_for_a_later_time(lake)
    append(lake, [record(3)], 4, of=AGAIN)
    tables(lake).sync(AGAIN)
    former = f"{OF.topic}@{OF.topic_id}"
    assert names(lake) == [OF.topic, former]
    # An archiver that is late goes on with the former one.
    append(lake, [record(20)], 21)
    for of in (OF, AGAIN, OF):
        tables(lake).sync(of)
    assert len(by_pyiceberg(check(lake, OF, former))) == 21
    assert len(by_pyiceberg(check(lake, AGAIN))) == 1
    tables(lake).drop(OF)
    assert names(lake) == [OF.topic]
    # Its name is taken by a topic that was created later.
    tables(lake).sync(OF)
    assert len(by_pyiceberg(check(lake, OF, former))) == 21


def test_a_rest_catalog_is_kept_in_step(lake: Lake) -> None:
    with rest_catalog(Path(lake.path).parent) as catalog_properties:
        synced = IcebergTables(lake, NAMESPACE, catalog_properties)
        other = IcebergTables(lake, NAMESPACE, catalog_properties)
        for stop in (10, 30):
            archive(lake, stop)
            synced.sync(OF)
        assert all(step.done for step in compact(lake, OF))
        other.sync(OF)
        append(lake, [record(30)], 31)
        synced.maintain(OF, 24)
        wait_for_a_later_time(lake)
        append(lake, [record(3)], 4, of=AGAIN)
        synced.sync(AGAIN)
        catalog = load_catalog("any", **catalog_properties)
        former = catalog.load_table((NAMESPACE, f"{OF.topic}@{OF.topic_id}"))
        done = [("append", "1"), ("append", "2"), ("append", "3"), ("overwrite", "4"), ("append", "6")]
        assert operations(former) == done
        assert by_pyiceberg(former) == by_deltalake(lake, OF)
        assert by_pyiceberg(catalog.load_table((NAMESPACE, OF.topic))) == by_deltalake(lake, AGAIN)
        synced.drop(OF)
        with pytest.raises(NoSuchTableError):
            catalog.load_table(former.name())


def test_what_others_write_is_rolled_back(lake: Lake) -> None:
    archive(lake, 20)
    tables(lake).sync(OF)
    table = loaded(lake, OF.topic)
    table.delete("offset < 10")
    schema = pa.schema([pa.field("partition", pa.int32()), pa.field("offset", pa.int64(), nullable=False)])
    schema = schema.append(pa.field("timestamp_type", pa.int32(), nullable=False))
    table.append(pa.Table.from_pylist([{"partition": 0, "offset": 7, "timestamp_type": 0}], schema))
    append(lake, [record(20)], 21)
    tables(lake).sync(OF)
    check(lake, OF)


def test_properties_that_others_have_removed_come_back(lake: Lake) -> None:
    archive(lake, 20)
    tables(lake).sync(OF)
    before = loaded(lake, OF.topic).properties
    with loaded(lake, OF.topic).transaction() as transaction:
        transaction.remove_properties("gc.enabled", "schema.name-mapping.default", "commit.retry.num-retries")
    append(lake, [record(20)], 21)
    tables(lake).sync(OF)
    assert check(lake, OF).properties == before


def test_a_table_of_somebody_else_is_left_alone(lake: Lake) -> None:
    archive(lake, 20)
    with load_catalog(CATALOG, **properties(Path(lake.path).parent)) as catalog:
        catalog.create_namespace(NAMESPACE)
        catalog.create_table((NAMESPACE, OF.topic), iceberg.SCHEMA, location=f"file://{lake.path}/other")
    with pytest.raises(LakeError, match="orders of somebody else"):
        tables(lake).sync(OF)


def test_a_table_that_hides_rows_is_refused(lake: Lake) -> None:
    archive(lake, 20)
    tables(lake).sync(OF)
    DeltaTable(opened(lake).uri).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    with pytest.raises(LakeError, match="a user enabled"):
        tables(lake).sync(OF)


def test_a_catalog_that_cannot_be_reached_is_one_clear_error(lake: Lake) -> None:
    archive(lake, 20)
    away = {"type": "sql", "uri": f"sqlite:///{lake.path}/missing/catalog.db"}
    with pytest.raises(LakeError, match=r"Iceberg table of orders: .*unable to open database"):
        IcebergTables(lake, NAMESPACE, away).sync(OF)
    with pytest.raises(LakeError, match="URI"):
        IcebergTables(lake, NAMESPACE, {"type": "rest"}).sync(OF)
    with pytest.raises(LakeError, match="AttributeError"):
        IcebergTables(lake, NAMESPACE, {"py-catalog-impl": "pyiceberg.catalog.Missing"}).sync(OF)
    # SQLAlchemy's message has several lines.
    with load_catalog(CATALOG, **properties(Path(lake.path).parent)) as catalog:
        catalog.create_namespace(NAMESPACE)
    with closing(sqlite3.connect(Path(lake.path).parent / "catalog.db")) as connection:
        connection.execute("ALTER TABLE iceberg_tables RENAME COLUMN metadata_location TO gone")
    with pytest.raises(LakeError, match=r"OperationalError.*metadata_location") as raised:
        tables(lake).sync(OF)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "given",
    [
        {"uri": "mysql+pymysql://user:HIDDEN@host/db"},
        {"uri": "mysql+pymysql://host/db?password=HIDDEN"},
        {"type": "in-memory", "uri": "HIDDEN://host", "s3.secret-access-key": "HIDDEN"},
    ],
)
def test_errors_of_a_catalog_show_no_secret(lake: Lake, given: dict[str, str]) -> None:
    archive(lake, 20)
    with pytest.raises(LakeError, match="Iceberg table of orders") as raised:
        IcebergTables(lake, NAMESPACE, given).sync(OF)
    assert "HIDDEN" not in "".join(traceback.format_exception(raised.value))


def aged(lake: Lake, hours: float) -> None:
    """Let all files of Iceberg's be so old."""
    then = time.time() - hours * 3600
    for file in path_of(lake, iceberg.METADATA).iterdir():
        os.utime(file, (then, then))


def test_snapshots_expire_and_the_files_that_only_they_named_are_deleted(lake: Lake) -> None:
    synced = tables(lake)
    for stop in (10, 20, 30):
        archive(lake, stop)
        synced.sync(OF)
    assert all(step.done for step in compact(lake, OF))
    # A commit that a crash has cut short.
    left = path_of(lake, f"{iceberg.METADATA}/left-m0.avro")
    left.write_bytes(b"")
    synced.maintain(OF, 24)
    assert [item for item, _ in operations(check(lake, OF))] == ["append", "append", "append", "overwrite"]
    assert left.exists()
    with loaded(lake, OF.topic).transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "0"})
    synced.maintain(OF, 24)
    assert operations(check(lake, OF)) == [("overwrite", "4")]
    # Without the property it is a quarter of an hour.
    with loaded(lake, OF.topic).transaction() as transaction:
        transaction.remove_properties("history.expire.max-snapshot-age-ms")
    synced.maintain(OF, 24)
    before = {file.name for file in path_of(lake, iceberg.METADATA).iterdir()}
    aged(lake, 23)
    synced.maintain(OF, 24)
    assert {file.name for file in path_of(lake, iceberg.METADATA).iterdir()} == before
    aged(lake, 25)
    synced.maintain(OF, 24)
    after = {file.name for file in path_of(lake, iceberg.METADATA).iterdir()}
    # The list of the snapshot, its two manifests, and the versions of the metadata.
    assert len([item for item in after if item.endswith(".avro")]) == 3
    assert not left.exists()
    check(lake, OF)


def test_snapshots_expire_before_files_that_a_vacuum_deletes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = tables(lake)
    archive(lake, 10)
    synced.sync(OF)
    with loaded(lake, OF.topic).transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": str(10**12)})
    archive(lake, 20)
    for hours, snapshots in ((22.9, 2), (23.1, 1)):
        now = time.time() + hours * 3600
        with monkeypatch.context() as later:
            later.setattr("time.time", partial(float, now))
            synced.maintain(OF, 24)
        assert len(check(lake, OF).snapshots()) == snapshots


def test_no_snapshot_names_files_that_are_vacuumed_after_the_catalog_was_away(lake: Lake) -> None:
    synced = tables(lake)
    archive(lake, 10)
    synced.sync(OF)
    archive(lake, 20)
    then = time.time() - 30 * 3600
    [gone] = [file for file in files(lake) if file.first_offset == 10]
    opened(lake).remove([gone], now_ms=int(then * 1000))
    os.utime(path_of(lake, gone.path), (then, then))
    append(lake, [record(20)], 21)
    synced.maintain(OF, 24)
    assert opened(lake).vacuum(24, dry_run=False) == [gone.path]
    table = check(lake, OF)
    named = [
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows for snapshot in table.snapshots()
    ]
    assert named == [10, 11]


def test_the_vacuum_of_a_table_leaves_the_files_of_iceberg(lake: Lake) -> None:
    archive(lake, 20)
    tables(lake).sync(OF)
    aged(lake, 100)
    assert opened(lake).vacuum(24, dry_run=False) == []
    check(lake, OF)
    assert lake.tables() == [OF]


def test_archiving_and_upkeep_keep_iceberg_in_step(topics: Topics) -> None:
    beside(topics)
    topic = topics.make("orders", "batch", partitions=2, retention_ms="-1")
    archives = topics.archiver()
    for _ in range(2):
        all_kinds(topics, topic)
        assert archives.round(topics.run).failures == []
        topics.check(topic)
        assert operations(check(topics.source.lake, topic.of))[-1][0] == "append"
    done = run_upkeep(topics.source, time.time_ns() // 1_000_000)
    assert (done.compacted, done.failures) == (4, 0)
    assert operations(check(topics.source.lake, topic.of))[-1][0] == "overwrite"
    # All that is archived expires.
    topics.stores.topics.alter(
        "orders",
        topic.id,
        lambda row: msgspec.structs.replace(row, configs=row.configs | {"retention.ms": "1"}),
    )
    done = run_upkeep(topics.source, time.time_ns() // 1_000_000)
    assert (done.expired, done.failures) == (2, 0)
    assert by_pyiceberg(check(topics.source.lake, topic.of)) == []
    topics.produce(topic.partitions[0], b"after it")
    archives.round(topics.run)
    assert len(by_pyiceberg(check(topics.source.lake, topic.of))) == 1


def test_a_round_of_upkeep_leaves_no_connection_to_a_catalog(topics: Topics) -> None:
    beside(topics)
    topic = topics.make("orders", "batch", retention_ms="-1")
    all_kinds(topics, topic)
    # It has no tables in the catalog yet: only the upkeep connects.
    topics.source, given = msgspec.structs.replace(topics.source, iceberg={}), topics.source
    assert topics.archiver().round(topics.run).failures == []
    gc.disable()
    try:
        assert run_upkeep(given, time.time_ns() // 1_000_000).failures == 0
        open_files = [os.path.realpath(item) for item in Path("/proc/self/fd").iterdir()]
    finally:
        gc.enable()
    assert os.path.realpath(Path(topics.lake).parent / "catalog.db") not in open_files
    assert loaded(given.lake, "orders").snapshots()


def test_a_catalog_that_is_away_holds_up_no_archiving_but_the_vacuum(topics: Topics, tmp_path: Path) -> None:
    away = tmp_path / "away"
    topics.source = msgspec.structs.replace(topics.source, iceberg=properties(away))
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1")
    archives = topics.archiver()
    for _ in range(2):
        done = archives.round(topics.run)
        [failure] = done.failures
        assert failure.error.startswith("Iceberg table of orders: OperationalError")
        topics.check(topic)
    [vacuumed] = Expiry(topics.source).round((), 24, 0).vacuumed
    assert (vacuumed.error or "").startswith("Iceberg table of orders")
    away.mkdir()
    assert archives.round(topics.run).failures == []
    # The catalog is not where these tests have it.
    with load_catalog(CATALOG, **properties(away)) as catalog:
        assert len(by_pyiceberg(catalog.load_table((NAMESPACE, "orders")))) == 1
