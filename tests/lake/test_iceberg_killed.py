"""Processes that are killed while they bring Iceberg into step: the next one finishes, and no row is there twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from korvet.lake.compaction import compact
from korvet.lake.table import Lake
from tests.lake.archives import OF, append, archive, record
from tests.support.iceberg import check, tables

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import os, signal, sys
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import snapshot
from korvet.lake import iceberg
from korvet.lake.table import Lake
from tests.lake.archives import OF
from tests.support.iceberg import tables

lake, point = sys.argv[1:]

def killed(*_arguments, **_named):
    os.kill(os.getpid(), signal.SIGKILL)

def killed_after(call):
    def both(*arguments, **named):
        call(*arguments, **named)
        killed()
    return both

match point:
    case "before the table":
        SqlCatalog.create_table = killed
    case "after the table":
        SqlCatalog.create_table = killed_after(SqlCatalog.create_table)
    case "after its properties":
        iceberg.IcebergTables._with_properties = killed_after(iceberg.IcebergTables._with_properties)
    case "after the manifests":
        snapshot.write_manifest_list = killed
    case "before the commit":
        iceberg._add_snapshot = killed_after(iceberg._add_snapshot)
    case "after the metadata":
        write = SqlCatalog._write_metadata
        def write_metadata(metadata, io, metadata_path, *more):
            write(metadata, io, metadata_path, *more)
            if metadata.current_snapshot_id != current:
                killed()
        current = None
        table = tables(Lake(lake))._find(OF)
        if table is not None:
            current = table.metadata.current_snapshot_id
        SqlCatalog._write_metadata = staticmethod(write_metadata)
    case "after the commit":
        iceberg.IcebergTables._sync = killed_after(iceberg.IcebergTables._sync)
tables(Lake(lake)).sync(OF)
"""

FIRST = ("before the table", "after the table")
EACH = (
    "after its properties",
    "after the manifests",
    "before the commit",
    "after the metadata",
    "after the commit",
)


def killed(lake: Lake, point: str) -> None:
    line = [sys.executable, "-c", PROGRAM, lake.path, point]
    process = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr


@pytest.mark.parametrize("point", [*FIRST, *EACH])
def test_a_killed_process_leaves_what_the_next_one_finishes(tmp_path: Path, point: str) -> None:
    lake = Lake(str(tmp_path / "lake"))
    archive(lake, 20)
    if point in EACH:
        # A table is there, and rows of it have been rewritten.
        tables(lake).sync(OF)
        archive(lake, 40)
        assert all(each.done for each in compact(lake, OF))
        append(lake, [record(40)], 41)
    killed(lake, point)
    tables(lake).sync(OF)
    check(lake, OF)
