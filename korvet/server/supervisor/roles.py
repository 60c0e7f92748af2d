"""What the children of a broker are for: the slots of the pool, and what runs in the child of each.

A main function is imported in the child: the supervisor must never import gevent, nor what the other processes need.
The processes of the lake are new programs, for neither deltalake nor Arrow nor Spark survives a fork. Their
configuration goes through a file without a name and not through the command line, since it may hold secrets.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from korvet.backoff import Backoff
from korvet.config.settings import Settings
from korvet.config.values import key_values
from korvet.server.supervisor import startup
from korvet.server.supervisor.child import READY_NOTE, SupervisorLink
from korvet.server.supervisor.ports import Bound
from korvet.server.supervisor.process_pool import Slot
from korvet.server.supervisor.startup import Runtime
from korvet.telemetry.process_table import ARCHIVER_ROW, KEEPER_ROW, LAKE_ROW, OPS_ROW

_LAKE_SOCKET = "lake.sock"
_ARCHIVED_SECONDS_MIN = 60.0

WorkerMain = Callable[[Settings, SupervisorLink, Sequence[Bound], Path | None, Path | None], None]
"""As `worker.main`: settings, link, listeners, directory of the embedded server, socket of the remote tier's reader."""


def slots(runtime: Runtime, settings: Settings, worker_main: WorkerMain | None) -> list[Slot]:
    """Return a slot for every process of a broker, the workers' first; `worker_main` stands in for `worker.main`."""
    directory, embedded, ops_listener = runtime.metrics_directory, runtime.embedded, runtime.ops_listener

    def run_worker(settings: Settings, link: SupervisorLink) -> None:
        data_dir = embedded.data_dir.path if embedded else None
        lake = directory / _LAKE_SOCKET if settings.lake_path else None
        (worker_main or _worker_main)(settings, link, runtime.listeners(settings), data_dir, lake)

    def run_keeper(settings: Settings, link: SupervisorLink) -> None:
        from korvet.server.keeper import keeper  # noqa: PLC0415 - imports gevent, which the supervisor must not

        # Without ops nobody reads metrics.
        metrics = directory if ops_listener else None
        keeper.main(settings, link, runtime.listeners(settings), runtime.incarnation, metrics)

    found = [Slot(run_worker) for _ in range(startup.worker_count(settings))]
    found.append(Slot(run_keeper, KEEPER_ROW))
    if ops_listener is not None:

        def run_ops(settings: Settings, link: SupervisorLink) -> None:
            from korvet.server import ops  # noqa: PLC0415 - its threads and imports belong to the child

            ops.main(settings, link, ops_listener, directory, runtime.listen)

        found.append(Slot(run_ops, OPS_ROW, (ops_listener.fileno(),)))
    if settings.lake_path:
        found.append(Slot(lambda settings, link: _become_lake_reader(settings, link, directory), LAKE_ROW))
        # Spark takes seconds to start: an archiver that never does counts as ready for as long.
        backoff = Backoff(lived_s=_ARCHIVED_SECONDS_MIN)
        run_archiver = Slot(lambda settings, link: _become_archiver(settings, link, directory), ARCHIVER_ROW)
        run_archiver.backoff = backoff
        found.append(run_archiver)
    return found


def _worker_main(
    settings: Settings,
    link: SupervisorLink,
    listeners: Sequence[Bound],
    data_dir: Path | None,
    lake: Path | None,
) -> None:
    from korvet.server import worker  # noqa: PLC0415 - imports gevent, which the supervisor must not

    worker.main(settings, link, listeners, data_dir, lake)


def _become_lake_reader(settings: Settings, link: SupervisorLink, directory: Path) -> NoReturn:
    """Go on as the program that reads the lake for the workers, and listen in `directory`."""
    configuration = {
        "lake": settings.lake_path,
        "storage_options": key_values(settings.lake_storage_options) or None,
        "socket": str(directory / _LAKE_SOCKET),
        "log_format": settings.log_format,
        "log_level": settings.log_level,
    }
    _become("korvet.lake.service", configuration, link)


def _become_archiver(settings: Settings, link: SupervisorLink, directory: Path) -> None:
    """Go on as the program that archives and reports in `directory`; returns on SIGTERM if there is no work.

    There is none with both intervals 0; a reload may change that, and starts another child then.
    """
    if not settings.lake_interval_ms and not settings.lake_upkeep_interval_ms:
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        link.report_ready()
        signal.sigwait({signal.SIGTERM})
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        return
    path = settings.lake_path
    if "://" not in path:
        # A task of Spark may run in another directory.
        path = str(Path(path).expanduser().absolute())
    configuration = {
        "settings": msgspec.structs.replace(settings, lake_path=path),
        "directory": str(directory),
    }
    _become("korvet.spark.service", configuration, link)


def _become(module: str, configuration: Mapping[str, object], link: SupervisorLink) -> NoReturn:
    """Go on as `python -m MODULE FD`, FD being a file with `configuration` and the pipes to the supervisor as JSON."""
    # The process stays this one: what reports that it is ready can be written down here.
    pipes = {"life_fd": link.life_fd, "note_fd": link.ready_fd, "ready": READY_NOTE.pack(os.getpid())}
    fd = os.memfd_create(module, 0)
    os.write(fd, msgspec.json.encode({**configuration, **pipes}))
    os.lseek(fd, 0, os.SEEK_SET)
    for each in (link.life_fd, link.ready_fd):
        os.set_inheritable(each, True)  # noqa: FBT003 - takes no keyword
    # An argument that is a number, and an interpreter that is this one.
    os.execv(sys.executable, [sys.executable, "-m", module, str(fd)])  # noqa: S606 - as above
