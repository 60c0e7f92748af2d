"""What the children of a broker are for: the slots of the pool, and what runs in the child of each.

A main function is imported in the child: the supervisor must never import gevent, nor what the other processes need.
The processes of the lake are new programs, for neither deltalake nor Arrow nor Spark survives a fork. Their
configuration goes through a file without a name and not through the command line, since it may hold secrets.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from korvet.backoff import Backoff
from korvet.config.settings import Settings
from korvet.config.values import nameless_file
from korvet.server.supervisor import startup
from korvet.server.supervisor.child import READY_NOTE, SupervisorLink
from korvet.server.supervisor.process_pool import Slot
from korvet.server.supervisor.startup import Runtime
from korvet.telemetry.process_table import ARCHIVER_ROW, KEEPER_ROW, LAKE_ROW, OPS_ROW, ProcessState

_LAKE_SOCKET = "lake.sock"
_ARCHIVED_SECONDS_MIN = 60.0


def slots(runtime: Runtime, settings: Settings) -> list[Slot]:
    """Return a slot for every process of a broker, the workers' first."""
    result = [Slot(partial(run_worker, runtime)) for _ in range(startup.worker_count(settings))]
    result.append(Slot(partial(_run_keeper, runtime), KEEPER_ROW))
    if runtime.ops_listener is not None:
        result.append(Slot(partial(_run_ops, runtime), OPS_ROW, (runtime.ops_listener.fileno(),)))
    if settings.lake_path:
        directory = runtime.metrics_directory
        result.append(Slot(partial(_become_lake_reader, directory), LAKE_ROW))
        # Spark takes seconds to start: an archiver that never does counts as ready for as long.
        backoff = Backoff(lived_s=_ARCHIVED_SECONDS_MIN)
        result.append(Slot(partial(_become_archiver, directory), ARCHIVER_ROW, backoff=backoff))
    return result


def run_worker(runtime: Runtime, settings: Settings, link: SupervisorLink) -> None:
    from korvet.server import worker  # noqa: PLC0415 - imports gevent, which the supervisor must not

    lake = runtime.metrics_directory / _LAKE_SOCKET if settings.lake_path else None
    worker.tune_process()
    worker.serve(settings, link, runtime.listeners(settings), _data_dir(runtime), lake)


def _data_dir(runtime: Runtime) -> Path | None:
    return runtime.embedded.data_dir.path if runtime.embedded else None


def _run_keeper(runtime: Runtime, settings: Settings, link: SupervisorLink) -> None:
    from korvet.server.keeper import keeper  # noqa: PLC0415 - as above

    # Without ops nobody reads metrics.
    metrics = runtime.metrics_directory if runtime.ops_listener else None
    keeper.main(settings, link, runtime.listeners(settings), runtime.incarnation, metrics)


def _run_ops(runtime: Runtime, settings: Settings, link: SupervisorLink) -> None:
    from korvet.server import ops  # noqa: PLC0415 - its threads and imports belong to the child

    if runtime.ops_listener is not None:
        listeners, data_dir = runtime.listeners(settings), _data_dir(runtime)
        ops.main(settings, link, runtime.ops_listener, runtime.metrics_directory, listeners, data_dir)


def _become_lake_reader(directory: Path, settings: Settings, link: SupervisorLink) -> NoReturn:
    """Go on as the program that reads the lake for the workers, and listen in `directory`."""
    _become("korvet.lake.service", settings, directory / _LAKE_SOCKET, link)


def _become_archiver(directory: Path, settings: Settings, link: SupervisorLink) -> None:
    """Go on as the program that archives and reports in `directory`; returns on SIGTERM if there is no work.

    There is none with both intervals 0; a reload may change that, and starts another child then.
    """
    if not settings.lake_interval_ms and not settings.lake_upkeep_interval_ms:
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        link.report_ready()
        link.table.set(link.row, ProcessState.OFF)
        signal.sigwait({signal.SIGTERM})
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        return
    _become("korvet.spark.service", settings, directory, link)


def _become(module: str, settings: Settings, path: Path, link: SupervisorLink) -> NoReturn:
    """Go on as `python -m MODULE FD`, FD being a file with its configuration as JSON (korvet/lake/child.py)."""
    # The process stays this one: what reports that it is ready can be written down here.
    configuration = {
        "settings": settings,
        "path": str(path),
        "life_fd": link.life_fd,
        "note_fd": link.ready_fd,
        "ready": READY_NOTE.pack(os.getpid()),
    }
    file = nameless_file()
    file.write(msgspec.json.encode(configuration))
    file.flush()
    for fd in (link.life_fd, link.ready_fd, file.fileno()):
        os.set_inheritable(fd, True)  # noqa: FBT003 - takes no keyword
    # An argument that is a number, and an interpreter that is this one.
    os.execv(sys.executable, [sys.executable, "-m", module, str(file.fileno())])  # noqa: S606 - as above
