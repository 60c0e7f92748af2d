"""The archive of topics: what its processes need, and whether it can be written.

Knows the settings of the lake; how one is written is known to who asks for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from korvet.config import Settings
from korvet.errors import ConfigError
from korvet.server import startup
from korvet.server.doctor.finding import Finding, error, ok

LakeProblem = Callable[[Settings], str]
"""Tries to write to the lake of the settings and says in one line why it cannot, "" where it can."""


def examine(settings: Settings, problem_of: LakeProblem) -> Iterator[Finding]:
    """Yield what is true of the lake; nothing where there is to be none."""
    if not settings.lake_path:
        return
    try:
        startup.check_lake(settings)
    except ConfigError as problem:
        yield error("lake", str(problem), "install what it names")
        return
    yield ok(
        "lake", "Spark, Java and deltalake are there" if settings.lake_interval_ms else "deltalake is there"
    )
    said = problem_of(settings)
    if said:
        advice = "let this user write there, or correct lake.path and lake.storage.options"
        yield error("lake.path", f"{settings.lake_path} cannot be written: {said}", advice)
    else:
        yield ok("lake.path", f"{settings.lake_path} can be written")
