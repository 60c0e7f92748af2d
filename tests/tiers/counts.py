"""What a run of pytest came to: `--counts FILE` writes it, the runner of the tiers reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest


class Counts(msgspec.Struct):
    """How many tests passed and were skipped, and the names of the failed ones."""

    passed: int = 0
    skipped: int = 0
    failed: list[str] = []


def add_option(parser: pytest.Parser) -> None:
    """Add `--counts FILE`."""
    parser.addoption("--counts", metavar="FILE", help="write the counts of the run to this file, as JSON")


def write(terminalreporter: Any) -> None:
    """Write the counts, if a file for them is given."""
    file = terminalreporter.config.getoption("--counts")
    if file is None:
        return
    stats = terminalreporter.stats
    failed = sorted({report.nodeid for kind in ("failed", "error") for report in stats.get(kind, ())})
    counts = Counts(len(stats.get("passed", ())), len(stats.get("skipped", ())), failed)
    Path(file).write_bytes(msgspec.json.encode(counts))
