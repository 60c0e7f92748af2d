"""What each child of a broker is for: the seats that are to be filled, and what runs in each.

Knows the main functions and what they are handed; not when a child is started, replaced or ended. A main function is
imported in the child: the supervisor must never import gevent, nor what the other processes need.

The child that archives: how the process that the supervisor forked becomes another program.

Knows what that program is told (korvet.spark.service); imports nothing of it, for neither deltalake nor Arrow nor Spark
is to be in any process that forks. Secrets go through a file without a name, not through its command line.

The child that reads the lake: how the process that the supervisor forked becomes another program.

Knows what that program is told (korvet.lake.service); imports nothing of it, for deltalake and Arrow are not to be in
any process that forks. Secrets go through a file without a name, not through its command line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from korvet.backoff import Backoff
from korvet.config.settings import Settings
from korvet.config.values import key_values
from korvet.server.supervisor import startup
from korvet.server.supervisor.children import Role, Seat
from korvet.server.supervisor.slot import READY_NOTE, ChildSlot, KeeperSlot, WorkerSlot
from korvet.server.supervisor.startup import Runtime
from korvet.telemetry.process_table import ARCHIVER_ROW, KEEPER_ROW, LAKE_ROW, OPS_ROW


def become(settings: Settings, slot: ChildSlot, directory: Path) -> None:
    """Go on as the program that archives, and tell of it in `directory`; returns on SIGTERM where there is no work.

    There is none with both intervals 0; a reload may change that, and takes another child then.
    """
    if not settings.lake_interval_ms and not settings.lake_upkeep_interval_ms:
        told = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        slot.ready()
        signal.sigwait({signal.SIGTERM})
        signal.pthread_sigmask(signal.SIG_SETMASK, told)
        return
    path = settings.lake_path
    if "://" not in path:
        # A task of Spark may run in another directory.
        path = str(Path(path).expanduser().absolute())
    configuration = {
        "settings": msgspec.structs.replace(settings, lake_path=path),
        "directory": str(directory),
        "life_fd": slot.life_fd,
        "note_fd": slot.note_fd,
        # Its process is this one still.
        "ready": READY_NOTE.pack(os.getpid()),
    }
    told_fd = os.memfd_create("korvet-archiver", 0)
    os.write(told_fd, msgspec.json.encode(configuration))
    for fd in (slot.life_fd, slot.note_fd):
        os.set_inheritable(fd, True)  # noqa: FBT003 - takes no keyword
    # An argument that is a number, and an interpreter that is this one.
    os.execv(sys.executable, [sys.executable, "-m", "korvet.spark.service", str(told_fd)])  # noqa: S606 - as above


SOCKET = "lake.sock"


def lake_process_become(settings: Settings, slot: ChildSlot, directory: Path) -> NoReturn:
    """Go on as the program that reads the lake, and listen in `directory`; never returns."""
    configuration = {
        "lake": settings.lake_path,
        "storage_options": key_values(settings.lake_storage_options) or None,
        "socket": str(directory / SOCKET),
        "life_fd": slot.life_fd,
        "note_fd": slot.note_fd,
        # Its process is this one still.
        "ready": READY_NOTE.pack(os.getpid()),
        "log_format": settings.log_format,
        "log_level": settings.log_level,
    }
    told = os.memfd_create("korvet-lake", 0)
    os.write(told, msgspec.json.encode(configuration))
    os.lseek(told, 0, os.SEEK_SET)
    for fd in (slot.life_fd, slot.note_fd):
        os.set_inheritable(fd, True)  # noqa: FBT003 - takes no keyword
    # An argument that is a number, and an interpreter that is this one.
    os.execv(sys.executable, [sys.executable, "-m", "korvet.lake.service", str(told)])  # noqa: S606 - as above


_ARCHIVED_SECONDS_MIN = 60.0

WorkerMain = Callable[[Settings, WorkerSlot], None]


class Roles:
    """The roles of one broker on its foundation; `worker_main` is what a forked worker runs."""

    def __init__(self, foundation: Runtime, worker_main: WorkerMain | None) -> None:
        self._foundation = foundation
        self._worker_main = worker_main or _worker_main

    def seats(self, settings: Settings) -> list[Seat]:
        """Return a seat for every process that there is to be, the workers' first; all are empty."""
        listener = self._foundation.ops_listener
        worker = Role(self._run_worker)
        seats = [Seat(worker) for _ in range(startup.worker_count(settings))]
        seats.append(Seat(Role(self._run_keeper), index=KEEPER_ROW))
        if listener is not None:
            seats.append(Seat(Role(self._run_ops, (listener.fileno(),)), index=OPS_ROW))
        if settings.lake_path:
            seats.append(Seat(Role(self._run_lake), index=LAKE_ROW))
            # Spark takes seconds to start: one that never does counts as ready for as long.
            backoff = Backoff(lived_s=_ARCHIVED_SECONDS_MIN)
            seats.append(Seat(Role(self._run_archiver), index=ARCHIVER_ROW, backoff=backoff))
        return seats

    def _run_worker(self, settings: Settings, slot: ChildSlot) -> None:
        listeners = self._foundation.listeners(settings)
        embedded = self._foundation.embedded
        data = embedded.data_dir.path if embedded else None
        lake = self._foundation.metrics_directory / SOCKET if settings.lake_path else None
        self._worker_main(settings, WorkerSlot.of(slot, listeners, data, lake))

    def _run_keeper(self, settings: Settings, slot: ChildSlot) -> None:
        from korvet.server.keeper import keeper  # noqa: PLC0415 - imports gevent, which the supervisor must not

        # Without ops nobody asks for figures.
        told = self._foundation.ops_listener is not None
        figures = self._foundation.metrics_directory if told else None
        listeners = self._foundation.listeners(settings)
        keeper.main(settings, KeeperSlot.of(slot, listeners, self._foundation.incarnation, figures))

    def _run_ops(self, settings: Settings, slot: ChildSlot) -> None:
        from korvet.server import ops  # noqa: PLC0415 - its threads and imports belong to the child

        listener = self._foundation.ops_listener
        assert listener is not None  # noqa: S101 - no listener, no seat for ops
        ops.main(settings, slot, listener, self._foundation.metrics_directory, self._foundation.listen)

    def _run_lake(self, settings: Settings, slot: ChildSlot) -> None:
        lake_process_become(settings, slot, self._foundation.metrics_directory)

    def _run_archiver(self, settings: Settings, slot: ChildSlot) -> None:
        become(settings, slot, self._foundation.metrics_directory)


def _worker_main(settings: Settings, slot: WorkerSlot) -> None:
    from korvet.server import worker  # noqa: PLC0415 - imports gevent, which the supervisor must not

    worker.main(settings, slot)
