"""Forks, and the child's side of them: what it keeps of the supervisor, and how it reports what it is doing.

A child inherits a row of the process table, three standard streams, its ends of two pipes and the descriptors that its
main function needs. Everything else is closed, above all the data directory's lock and the supervisor's pipe ends.
Imports no gevent: the supervisor imports this module.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import korvet_core

from korvet import logs
from korvet.config.settings import Settings
from korvet.errors import ConfigError, KafkaError
from korvet.security.usage import UsageTable
from korvet.server.supervisor import signals
from korvet.telemetry import snapshot
from korvet.telemetry.process_table import NAMES, ProcessState, ProcessTable

if TYPE_CHECKING:
    from gevent.event import Event

_log = logs.Log(__name__)

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: a child must not have to import or open anything to be safe.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

READY_NOTE = struct.Struct("=q")
"""What a child writes to the ready pipe: its process id."""


@dataclass(frozen=True, slots=True)
class SupervisorLink:
    """What ties a child to its supervisor; no two living children have the same row.

    Nobody writes to the pipe of `life_fd`: it reads end-of-file once the supervisor is gone, however it ended, and then
    the child must end. `ready_fd` is the pipe on which a child reports that it is ready.
    """

    row: int
    name: str
    table: ProcessTable
    usage: UsageTable
    life_fd: int
    ready_fd: int

    def report_ready(self) -> None:
        """Report to supervisor and ops that this child works from now on; called once."""
        self.table.set(self.row, ProcessState.ACCEPTING)
        # Less than PIPE_BUF, so notes of several children never mix.
        os.write(self.ready_fd, READY_NOTE.pack(os.getpid()))

    def report_draining(self) -> None:
        self.table.set(self.row, ProcessState.DRAINING)

    def beat(self) -> None:
        """Show the supervisor that the event loop of this child runs; a child that has begun must go on."""
        self.table.beat(self.row)

    def stop_event(self) -> Event:
        """Return an event that is set on SIGTERM and when the supervisor is gone; for children that use gevent.

        A panic of korvet_core in a greenlet ends the child from now on: what else it left undone nobody knows.
        """
        import gevent.socket  # noqa: PLC0415 - not in the supervisor
        from gevent.event import Event  # noqa: PLC0415 - the same

        stop = Event()
        hub = gevent.get_hub()
        hub.SYSTEM_ERROR = (*hub.SYSTEM_ERROR, korvet_core.PanicException)

        def follow_supervisor() -> None:
            gevent.socket.wait_read(self.life_fd)
            stop.set()

        gevent.signal_handler(signal.SIGTERM, stop.set)
        gevent.spawn(follow_supervisor)
        return stop


def die_with_parent(number: int) -> Callable[[], None]:
    """Return what a child calls first: from then on the kernel sends it `number` when this process ends.

    The child ends at once if this process ended before it could ask. This process must have one thread: the signal is
    sent when the thread that forked ends. Only Linux has this; elsewhere children have the life pipe alone.
    """
    parent = os.getpid()

    def ask() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def name_of(row: int) -> str:
    return NAMES.get(row, f"worker-{row}")


def metrics_name_of(row: int) -> str:
    """Return the name in the metrics files of a row: prometheus_client finds the parts of it by their underscores."""
    return NAMES.get(row, f"worker{row}")


def fork(main: Callable[[], None], fds: Collection[int]) -> int:
    """Fork a child that runs `main` and keeps `fds` alone, and return its process id; raises OSError."""
    sys.stdout.flush()
    die = die_with_parent(signal.SIGKILL)
    # A signal between fork and reset would be written into the supervisor's own pipe by the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
    try:
        pid = os.fork()
        if pid == 0:
            die()
            _run(main, fds)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.HANDLED)
    return pid


def begin(
    main: Callable[[Settings, SupervisorLink], None],
    settings: Settings,
    link: SupervisorLink,
    metrics_directory: Path,
) -> None:
    """Be a process of the broker until `main` returns."""
    logs.configure(settings, link.name)
    snapshot.adopt(metrics_directory, metrics_name_of(link.row))
    link.table.started(link.row, os.getpid())
    main(settings, link)


def _run(main: Callable[[], None], fds: Collection[int]) -> NoReturn:
    """Be the child until `main` returns; nothing of the supervisor's stack runs again."""
    status = 1
    try:
        _close_all_but({0, 1, 2, *fds})
        signals.reset_in_child()
        main()
        status = 0
    except (ConfigError, KafkaError) as error:
        # A mistake in the settings or a Redis that is away: what it says is all there is to know.
        _log.error("cannot continue", reason=error)
    except BaseException:  # noqa: BLE001 - the boundary of a process: logged once, then it ends
        _log.exception("unexpected error")
    finally:
        os._exit(status)


def _close_all_but(kept: set[int]) -> None:
    """Close every other descriptor, opened by anything: the Python objects that own them are never used again."""
    for path in list(Path("/dev/fd").iterdir()):
        if int(path.name) not in kept:
            # The listing's own descriptor is in the list, and closed by now.
            with contextlib.suppress(OSError):
                os.close(int(path.name))
