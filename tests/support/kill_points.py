"""Work of the lake in a process of its own that kills itself at a point, as a crash there would.

`python -m tests.support.kill_points PROGRAM POINT ARGUMENTS` calls a function of this module. A point is `before` or
`after`, the module or class, the function, and which of its calls ends the process. With the point `none` the program
works to its end.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from korvet.lake.archiver import Archiver, RunTasks
from korvet.lake.compaction import compact
from korvet.lake.source import LakeSource
from korvet.lake.table import Lake
from tests.support.processes import dying_with_tests

NOWHERE = "none"
_SECONDS_MAX = 240
_ROOT = Path(__file__).parents[2]


def main(program: str, point: str, *arguments: str) -> None:
    """Work up to the point."""
    if point != NOWHERE:
        when, owner, name, number = point.split()
        calls = itertools.count(1)

        def here() -> None:
            if next(calls) == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

        surround(_named(owner), name, **{when: here})
    PROGRAMS[program](*arguments)


def _named(owner: str) -> Any:
    module, _, name = owner.partition(":")
    result = importlib.import_module(module)
    return getattr(result, name) if name else result


def _nothing() -> None:
    pass


def surround(
    owner: Any, name: str, before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing
) -> None:
    """Let a function or a method call something before and after its work."""
    call = getattr(owner, name)

    @functools.wraps(call)
    def surrounded(*args: Any, **named: Any) -> Any:
        before()
        result = call(*args, **named)
        after()
        return result

    is_static = isinstance(vars(owner)[name], staticmethod)
    setattr(owner, name, staticmethod(surrounded) if is_static else surrounded)


def archive(url: str, lake: str, catalog: str = "{}", options: str = "{}", master: str = "") -> None:
    """Archive until nothing more is found, on Spark if there is a master.

    `catalog` has the properties of Iceberg's, and `options` those of an object store, as JSON.
    """
    from korvet.lake import tasks

    tables = Lake(lake, json.loads(options) or None)
    source = LakeSource(redis_url=url, lake=tables, iceberg=json.loads(catalog))
    archiver = Archiver(source)
    run: RunTasks = functools.partial(tasks.archive_ranges, source)
    with contextlib.ExitStack() as running:
        if master:
            from korvet.spark import jobs
            from korvet.spark.session import session

            spark = running.enter_context(session("driver", master=master))
            archiver = Archiver(source, cores=spark.sparkContext.defaultParallelism)
            run = functools.partial(jobs.run_tasks, spark, source)
        while archiver.round(run).moved:
            pass


def compact_orders(lake: str) -> None:
    """Compact the table of the tests."""
    from tests.lake.archives import OF

    list(compact(Lake(lake), OF))


def sync_iceberg(lake: str) -> None:
    """Bring the Iceberg table of the tests into step."""
    from tests.lake.archives import OF
    from tests.support.iceberg import tables

    tables(Lake(lake)).sync(OF)


def replay(bootstrap: str, url: str, lake: str, spec: str, transactional: str) -> None:
    """Replay what there is."""
    from korvet.admin.client import AdminClient
    from korvet.lake.replay import RecordRate, Replay
    from korvet.lake.replay_state import ReplaySpec

    wanted = msgspec.json.decode(spec, type=ReplaySpec)
    with AdminClient(bootstrap) as admin, LakeSource(redis_url=url, lake=Lake(lake)).opened() as stores:
        running = Replay(admin, stores, wanted, transactional=bool(transactional))
        running.run(RecordRate(None), 0, lambda _records, _bytes: None)


def commit_batch(options: str, staged: str) -> None:
    """Commit what tasks of an exactly-once sink have staged; `options` are those of the sink, as JSON."""
    from korvet.spark.options import sink_options
    from korvet.spark.sink import BatchSink

    tasks = pickle.loads(Path(staged).read_bytes())  # noqa: S301 - our own
    BatchSink(sink_options(json.loads(options))).commit(tasks)


PROGRAMS: dict[str, Callable[..., None]] = {
    item.__name__: item for item in (archive, compact_orders, sync_iceberg, replay, commit_batch)
}


@contextlib.contextmanager
def started(program: Callable[..., None], point: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process; kill it after the block."""
    with subprocess.Popen(
        dying_with_tests(
            [sys.executable, "-m", "tests.support.kill_points", program.__name__, point, *arguments]
        ),
        stderr=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def killed(program: Callable[..., None], point: str, *arguments: str) -> None:
    """Let a process work until it kills itself at the point."""
    with started(program, point, *arguments) as process:
        _, errors = process.communicate(timeout=_SECONDS_MAX)
    assert process.returncode == -signal.SIGKILL, errors


def complete(*running: subprocess.Popen[str]) -> None:
    """Wait until processes have done their work."""
    for process in running:
        _, errors = process.communicate(timeout=_SECONDS_MAX)
        assert process.returncode == 0, errors


if __name__ == "__main__":
    main(*sys.argv[1:])
