"""Forking, and keeping account of the forked: who lives, who is ready, who ended and how.

Knows processes, pipes and the table; not what children do nor when one is to be replaced. What a child inherits
is decided here: its slot, three standard streams, two pipe ends and the descriptors of its role. Everything else is
closed, above all the data directory's lock and the supervisor's ends of the pipes.

How children end when the broker does: each is asked, given its time, and then killed.

Knows signals and children; not in which order the processes of a broker may go.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from korvet import logs
from korvet.backoff import Backoff
from korvet.config.settings import Settings
from korvet.errors import ConfigError, KafkaError
from korvet.server.process import die_with_parent
from korvet.server.supervisor import signals
from korvet.server.supervisor.service_manager import ServiceManager
from korvet.server.supervisor.signals import Signals
from korvet.server.supervisor.slot import READY_NOTE, ChildSlot
from korvet.telemetry import snapshot
from korvet.telemetry.process_table import NAMES, WORKER_ROWS, ProcessState, ProcessTable

_log = logs.Log(__name__)


@dataclass(frozen=True, slots=True)
class Role:
    """What a child is for: its main function, called in the child, and the descriptors it needs."""

    main: Callable[[Settings, ChildSlot], None]
    fds: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Child:
    """A living child; times are monotonic seconds."""

    pid: int
    index: int
    name: str
    ready_at: float | None = None
    retiring: bool = False
    kill_at: float | None = None

    def worked_s(self) -> float:
        """Return for how many seconds it has been ready."""
        return 0.0 if self.ready_at is None else time.monotonic() - self.ready_at


@dataclass(eq=False, slots=True)
class Seat:
    """A place that is to be filled as long as the supervisor runs, and who fills it."""

    role: Role
    index: int | None = None
    """The fixed row of its child; None is any free worker row."""
    child: Child | None = None
    fallen_row: int | None = None
    """The row of the child that died here, as long as nobody has taken its place."""
    respawn_at: float | None = None
    backoff: Backoff = field(default_factory=Backoff)


class Children:
    """All children of this supervisor, by process id."""

    def __init__(
        self,
        table: ProcessTable,
        metrics_directory: Path,
    ) -> None:
        self.table = table
        self.living: dict[int, Child] = {}
        self._metrics_directory = metrics_directory
        # Never written: that its last writer is gone is what it tells. Only the supervisor keeps the writing end.
        self._life_fd, self._alive_fd = os.pipe()
        self.notes_fd, self._note_fd = os.pipe()
        os.set_blocking(self.notes_fd, False)

    def fork(self, seat: Seat, settings: Settings) -> Child:
        """Start a child for `seat` in a row of its own and return it, not ready yet; raises OSError without one."""
        index = self._free_row() if seat.index is None else seat.index
        name = NAMES.get(index, f"worker-{index}")
        slot = ChildSlot(index, name, self.table, self._life_fd, self._note_fd)
        self.table.start(index)
        sys.stdout.flush()
        die = die_with_parent(signal.SIGKILL)
        # A signal between fork and reset would be written into the supervisor's own pipe by the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                die()
                self._become(seat.role, settings, slot)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.HANDLED)
        child = Child(pid, index, name)
        self.living[pid] = child
        if seat.fallen_row not in (None, index):
            self.table.set(seat.fallen_row, ProcessState.EMPTY)
        seat.fallen_row = None
        return child

    def newly_ready(self) -> list[Child]:
        """Return the children that said since the last call that they are ready."""
        ready = []
        with contextlib.suppress(BlockingIOError):
            while True:
                (pid,) = READY_NOTE.unpack(os.read(self.notes_fd, READY_NOTE.size))
                child = self.living.get(pid)
                if child is not None:
                    child.ready_at = time.monotonic()
                    ready.append(child)
        return ready

    def reap(self) -> list[tuple[Child, str]]:
        """Return the children that ended since the last call, and how: "status 1" or "signal SIGKILL"."""
        ended = []
        for child in list(self.living.values()):
            # Each by its own id: the embedded server's status belongs to its Popen.
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid == 0:
                continue
            del self.living[pid]
            self.table.set(child.index, ProcessState.EMPTY)
            snapshot.forget_live(self._metrics_directory, _metrics_name(child.index))
            code = os.waitstatus_to_exitcode(status)
            ended.append((child, f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"))
        return ended

    def mark_dead(self, seat: Seat, child: Child) -> None:
        """Show the row of a child that was not to end as dead, until somebody takes its place in `seat`."""
        seat.fallen_row = child.index
        self.table.set(child.index, ProcessState.DEAD)

    def send(self, child: Child, number: signal.Signals) -> None:
        """Send a signal to a child; it is not reaped yet, so its process id is still its own."""
        if child.pid in self.living:
            os.kill(child.pid, number)

    def close(self) -> None:
        """Close the pipes."""
        for fd in (self._life_fd, self._alive_fd, self.notes_fd, self._note_fd):
            os.close(fd)

    def _free_row(self) -> int:
        taken = {child.index for child in self.living.values()}
        return next(index for index in range(WORKER_ROWS) if index not in taken)

    def _become(self, role: Role, settings: Settings, slot: ChildSlot) -> NoReturn:
        """Be the child until its main function returns; nothing of the supervisor's stack runs again."""
        status = 1
        try:
            _close_all_but({0, 1, 2, self._life_fd, self._note_fd, *role.fds})
            signals.reset_in_child()
            logs.configure(settings, slot.name)
            snapshot.adopt(self._metrics_directory, _metrics_name(slot.index))
            self.table.started(slot.index, os.getpid())
            role.main(settings, slot)
            status = 0
        except (ConfigError, KafkaError) as error:
            # A mistake in the settings or a Redis that is away: what it says is all there is to know.
            _log.error("cannot go on", reason=error)
        except BaseException:  # noqa: BLE001 - the boundary of a process: logged once, then it ends
            _log.exception("ended by a fault")
        finally:
            os._exit(status)


def _metrics_name(index: int) -> str:
    # prometheus_client finds the parts of a file name by its underscores.
    return NAMES.get(index, f"worker{index}")


def _close_all_but(kept: set[int]) -> None:
    """Close every other descriptor, whoever opened it: the Python objects that own them are never used again."""
    for path in list(Path("/dev/fd").iterdir()):
        if int(path.name) not in kept:
            # The listing's own descriptor is in the list, and closed by now.
            with contextlib.suppress(OSError):
                os.close(int(path.name))


def end(
    going: list[Child], seconds: float, children: Children, signals: Signals, manager: ServiceManager
) -> bool:
    """End `going` by SIGTERM, after `seconds` or a second Ctrl-C by SIGKILL; returns whether one was killed."""
    for child in going:
        children.send(child, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while _left(going, children) and (remaining := deadline - time.monotonic()) > 0:
        manager.alive()
        until_alive = manager.alive_at - time.monotonic() if manager.alive_at is not None else remaining
        numbers, _ = signals.wait(max(0.0, min(remaining, until_alive)))
        if signal.SIGINT in numbers:
            break
    left = _left(going, children)
    for child in left:
        _log.warning("killed: it did not end in time", child=child.name, pid=child.pid)
        children.send(child, signal.SIGKILL)
    while _left(going, children):
        signals.wait(None)
    return bool(left)


def _left(going: list[Child], children: Children) -> list[Child]:
    for child, how in children.reap():
        _log.info("ended", child=child.name, pid=child.pid, how=how)
    return [child for child in going if child.pid in children.living]
