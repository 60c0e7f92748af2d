"""What each child of a broker is for: the seats that are to be filled, and what runs in each.

Knows the main functions and what they are handed; not when a child is started, replaced or ended. A main function is
imported in the child: the supervisor must never import gevent, nor what the other processes need.
"""

from __future__ import annotations

from collections.abc import Callable

from korvet.config import Settings
from korvet.server import archive_process, lake_process, startup
from korvet.server.backoff import Backoff
from korvet.server.children import Role, Seat
from korvet.server.scoreboard import ARCHIVER_ROW, KEEPER_ROW, LAKE_ROW, OPS_ROW
from korvet.server.slot import ChildSlot, KeeperSlot, WorkerSlot
from korvet.server.startup import Foundation

_ARCHIVED_SECONDS_MIN = 60.0

WorkerMain = Callable[[Settings, WorkerSlot], None]


class Roles:
    """The roles of one broker on its foundation; `worker_main` is what a forked worker runs."""

    def __init__(self, foundation: Foundation, worker_main: WorkerMain | None) -> None:
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
        lake = self._foundation.metrics_directory / lake_process.SOCKET if settings.lake_path else None
        self._worker_main(settings, WorkerSlot.of(slot, listeners, data, lake))

    def _run_keeper(self, settings: Settings, slot: ChildSlot) -> None:
        from korvet.server import keeper  # noqa: PLC0415 - imports gevent, which the supervisor must not

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
        lake_process.become(settings, slot, self._foundation.metrics_directory)

    def _run_archiver(self, settings: Settings, slot: ChildSlot) -> None:
        archive_process.become(settings, slot, self._foundation.metrics_directory)


def _worker_main(settings: Settings, slot: WorkerSlot) -> None:
    from korvet.server import worker  # noqa: PLC0415 - imports gevent, which the supervisor must not

    worker.main(settings, slot)
