"""Korvet's command, whose archiver does its tasks itself: it starts in a second, and a short run has many kills.

With rounds of some thousand records, as small_rounds has them.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import korvet.cli.lake
from korvet.cli.main import main
from korvet.lake.archiver import Archiver
from korvet.lake.source import LakeSource
from korvet.lake.tasks import archive_ranges
from korvet.spark import jobs
from tests.lake_kills import small_rounds  # noqa: F401 - it makes rounds small


def _runner(_: Any, source: LakeSource) -> Any:
    return partial(archive_ranges, source)


def _archiver(_: Any, source: LakeSource, *, names: tuple[str, ...] = ()) -> Archiver:
    return Archiver(source, names=names)


if __name__ == "__main__":
    korvet.cli.lake.started_spark = lambda *_, **__: contextlib.nullcontext()  # type: ignore[attr-defined,assignment]  # it has it
    jobs.archive_runner = _runner  # type: ignore[assignment]  # it needs no session
    jobs.make_archiver = _archiver  # type: ignore[assignment]  # names are a tuple here
    main()
