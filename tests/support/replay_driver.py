"""A replay in a process of its own that comes to a point and stays there, to be killed.

Run as `python -m tests.support.replay_driver BOOTSTRAP URL LAKE SPEC 'POINT TIMES' [--transactional]`; writes the
point's name to stdout when it is there for the TIMES-th time. `none` is no point: it replays what there is, and ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.producer import IdempotentProducer, TransactionalProducer
from korvet.lake.replay import RecordRate, Replay
from korvet.lake.replay_state import ReplaySpec
from korvet.lake.source import LakeSource
from korvet.lake.table import Lake
from tests.support.archive_driver import stop, surround
from tests.support.archives import Topics
from tests.support.processes import die_with_tests

POINTS = (
    ("before the beginning", 1),
    ("after the beginning", 1),
    ("before a note", 2),
    ("before a batch", 3),
    ("after a batch", 1),
    ("after a batch", 4),
)
"""Points, and how often a replay is to have come there before it is killed."""

TRANSACTIONAL_POINTS = (
    ("before the beginning", 1),
    ("before an end", 2),
    ("after the beginning", 1),
    ("before a batch", 2),
    ("after a batch", 1),
    ("after a batch", 4),
    ("before an end", 4),
    ("after an end", 4),
)
"""The same of a transactional replay: its first end is that of the run before, and its second one begins it."""


def main(bootstrap: str, url: str, lake: str, spec: str, point: str, transactional: str = "") -> None:
    """Replay up to the point."""
    surround(Replay, "_begin", _at("before the beginning", point), _at("after the beginning", point))
    surround(Replay, "commit", _at("before a note", point), lambda: None)
    surround(IdempotentProducer, "send", _at("before a batch", point), _at("after a batch", point))
    surround(TransactionalProducer, "_renew", _at("before an end", point), _at("after an end", point))
    source = LakeSource(redis_url=url, lake=Lake(lake))
    with AdminClient(bootstrap) as admin, source.opened() as stores:
        wanted = msgspec.json.decode(spec, type=ReplaySpec)
        replay = Replay(admin, stores, wanted, transactional=bool(transactional))
        replay.run(RecordRate(None), 0, lambda _records, _bytes: None)


def _at(name: str, point: str) -> Callable[[], None]:
    numbers = count(1)

    def here() -> None:
        if f"{name} {next(numbers)}" == point:
            stop(name)

    return here


@contextmanager
def driver(
    topics: Topics,
    bootstrap: str,
    spec: ReplaySpec,
    point: str = "none",
    times: int = 1,
    *,
    transactional: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """Start a replay that comes to a point; kill it after the block."""
    program = [sys.executable, "-m", "tests.support.replay_driver"]
    encoded = msgspec.json.encode(spec).decode()
    command = [*program, bootstrap, topics.source.redis_url, topics.lake, encoded, f"{point} {times}"]
    command += ["--transactional"] * transactional
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_tests, cwd=root
    ) as process:
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
