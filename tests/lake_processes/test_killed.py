"""Archivers, compactors and syncs of Iceberg that are killed at every point: each record once, and no work lost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from korvet.lake.compaction import compact
from korvet.lake.table import Lake
from tests.lake.archives import OF, append, files, offsets_in_files, opened, path_of, record
from tests.lake.archives import archive as archive_numbers
from tests.support import iceberg
from tests.support.archives import FORMATS, Format, Topics, all_kinds
from tests.support.batches import MALFORMED
from tests.support.kill_points import (
    NOWHERE,
    archive,
    compact_orders,
    complete,
    killed,
    started,
    sync_iceberg,
)

TABLE = "korvet.lake.table:ArchiveTable"
COMMIT = "pyiceberg.catalog.sql:SqlCatalog commit_table 1"
ROWS = 100
HOURS = 24


WRITE = "korvet.lake.tasks archive_ranges 1"
DRIVER_POINTS = (
    f"before {TABLE} append 1",
    f"after {TABLE} append 1",
    "before korvet.log.remote.archived:RemoteOffsetStore mirror 1",
)
"""Of an archiver, wherever its tasks are done."""
POINTS = (f"before {WRITE}", f"after {WRITE}", *DRIVER_POINTS)


def where(topics: Topics) -> tuple[str, ...]:
    options = topics.source.lake.storage_options or {}
    return topics.source.redis_url, topics.lake, json.dumps(topics.source.iceberg), json.dumps(options)


def check_killed(topics: Topics, point: str, times: int, *more: str) -> None:
    """Kill an archiver at a point, and hold that the next one loses and repeats nothing."""
    result = [topics.make(item, item, partitions=2, number=at) for at, item in enumerate(FORMATS)]
    for topic in result:
        all_kinds(topics, topic)
    batch = result[FORMATS.index("batch")]
    topics.put(batch.partitions[0], MALFORMED["zeros"], MALFORMED["fewer records than it says"])
    for _ in range(times):
        killed(archive, point, *where(topics), *more)
        for topic in result:
            topics.produce(topic.partitions[0], b"produced after the crash")
    assert topics.archiver().round(topics.run).failures == []
    for topic in result:
        topics.check(topic)
    table = topics.source.lake.open(batch.of)
    assert table is not None
    assert table.unreadable == 2


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_archiver_loses_and_repeats_nothing(topics: Topics, point: str) -> None:
    # Once from nothing, and once where a table is there.
    check_killed(topics, point, 2)


# The commit that sets properties is before the first one.
@pytest.mark.parametrize("point", [f"after {TABLE} append 1", f"before {COMMIT}", f"after {COMMIT}"])
def test_a_killed_archiver_leaves_iceberg_to_the_next_one(topics: Topics, point: str) -> None:
    iceberg.beside(topics)
    topic = topics.make("orders", "batch", partitions=2)
    for _ in range(2):
        all_kinds(topics, topic)
        killed(archive, point, *where(topics))
    # In Redis there may be nothing left to archive.
    assert topics.archiver().round(topics.run).failures == []
    topics.check(topic)
    iceberg.check(topics.source.lake, topic.of)


@pytest.mark.parametrize("storage_format", FORMATS)
def test_archivers_side_by_side_archive_each_record_once(topics: Topics, storage_format: Format) -> None:
    topic = topics.make("orders", storage_format, partitions=2)
    all_kinds(topics, topic)
    with started(archive, NOWHERE, *where(topics)) as one, started(archive, NOWHERE, *where(topics)) as other:
        for at in range(200):
            topics.produce(topic.partitions[at % 2], b"%d" % at)
        complete(one, other)
    topics.archiver().round(topics.run)
    topics.check(topic)


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("before korvet.lake.compaction write_files 1", 0),
        ("before korvet.lake.files:_NewFile add 1", 0),
        ("after korvet.lake.compaction write_files 1", 1),
        (f"before {TABLE} replace 1", 1),
        (f"after {TABLE} replace 1", 0),
    ],
)
def test_a_killed_compactor_costs_a_file_at_most(tmp_path: Path, point: str, left: int) -> None:
    lake = Lake(str(tmp_path))
    archive_numbers(lake, ROWS)
    before = {item.path for item in files(lake)}
    killed(compact_orders, point, lake.path)
    assert offsets_in_files(lake) == list(range(ROWS))
    assert (len(files(lake)) == 1) == ("after korvet.lake.table" in point)
    append(lake, [record(ROWS)], ROWS + 1)
    for step in compact(lake, OF):
        assert step.done
    assert offsets_in_files(lake) == list(range(ROWS + 1))
    # What nobody named goes once it is old enough; what was named until now stays.
    then = time.time() - (HOURS + 1) * 3600
    for file in path_of(lake, "partition=0").iterdir():
        os.utime(file, (then, then))
    gone = opened(lake).vacuum(HOURS, dry_run=False)
    assert len(gone) == left
    assert not before & set(gone)


SYNC = "korvet.lake.iceberg:IcebergTables"
FIRST = (
    "before pyiceberg.catalog.sql:SqlCatalog create_table 1",
    "after pyiceberg.catalog.sql:SqlCatalog create_table 1",
)
LATER = (
    f"after {SYNC} _with_properties 1",
    "before pyiceberg.table.update.snapshot write_manifest_list 1",
    "after korvet.lake.iceberg _add_snapshot 1",
    "after pyiceberg.catalog:MetastoreCatalog _write_metadata 1",
    f"after {SYNC} _sync 1",
)


@pytest.mark.parametrize("point", [*FIRST, *LATER])
def test_a_killed_sync_of_iceberg_is_finished_by_the_next_one(tmp_path: Path, point: str) -> None:
    lake = Lake(str(tmp_path / "lake"))
    archive_numbers(lake, 20)
    if point in LATER:
        # A table is there, and rows of it have been rewritten.
        iceberg.tables(lake).sync(OF)
        archive_numbers(lake, 40)
        assert all(step.done for step in compact(lake, OF))
        append(lake, [record(40)], 41)
    killed(sync_iceberg, point, lake.path)
    iceberg.tables(lake).sync(OF)
    iceberg.check(lake, OF)
