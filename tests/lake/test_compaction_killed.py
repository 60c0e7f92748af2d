"""Compactors that are killed at every point: the table holds each row once, and the next one finishes the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from korvet.lake.compaction import compact
from korvet.lake.table import Lake
from tests.lake.archives import OF, append, archive, files, offsets_in_files, opened, path_of, record

ROOT = Path(__file__).parent.parent.parent
ROWS = 100
HOURS = 24

PROGRAM = """
import os, signal, sys
from korvet.lake import compaction, files
from korvet.lake.table import ArchiveTable, Lake
from tests.lake.archives import OF

lake, point = sys.argv[1:]

def killed(*_arguments, **_named):
    os.kill(os.getpid(), signal.SIGKILL)

def killed_after(call):
    def both(*arguments, **named):
        call(*arguments, **named)
        killed()
    return both

match point:
    case "before a file is written":
        compaction.write_files = killed
    case "while a file is written":
        files._NewFile.add = killed
    case "after a file":
        compaction.write_files = killed_after(compaction.write_files)
    case "before the commit":
        ArchiveTable.replace = killed
    case "after the commit":
        ArchiveTable.replace = killed_after(ArchiveTable.replace)
list(compaction.compact(Lake(lake), OF))
"""


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("before a file is written", 0),
        ("while a file is written", 0),
        ("after a file", 1),
        ("before the commit", 1),
        ("after the commit", 0),
    ],
)
def test_a_killed_compactor_costs_a_file_at_most(tmp_path: Path, point: str, left: int) -> None:
    lake = Lake(str(tmp_path))
    archive(lake, ROWS)
    before = {each.path for each in files(lake)}
    line = [sys.executable, "-c", PROGRAM, lake.path, point]
    process = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert offsets_in_files(lake) == list(range(ROWS))
    assert (len(files(lake)) == 1) == (point == "after the commit")
    append(lake, [record(ROWS)], ROWS + 1)
    for each in compact(lake, OF):
        assert each.done
    assert offsets_in_files(lake) == list(range(ROWS + 1))
    # What nobody named goes once it is old enough; what was named until now stays.
    written = {f"partition=0/{each.name}" for each in path_of(lake, "partition=0").iterdir()}
    for path in written:
        then = time.time() - (HOURS + 1) * 3600
        os.utime(path_of(lake, path), (then, then))
    gone = opened(lake).vacuum(HOURS, dry_run=False)
    assert len(gone) == left
    assert not before & set(gone)
