"""The child processes of a broker: every slot of the pool has a child, and a child that ends is replaced.

What a `kill -9` of a worker costs, and where that is handled:

- Its connections are reset and its requests under way stay unanswered. Clients connect again, to any worker, and retry;
  an idempotent producer's retry is appended once (lua/log/append*.lua keep each producer's last sequences in Redis),
  any other producer's may be appended twice.
- What it had answered is in Redis: no acknowledged record, committed offset or group membership was in its memory. A
  member of a group that connects again within its session timeout causes no rebalance.
- Other workers go on: each has a socket of its own on the port (SO_REUSEPORT), and the kernel leads new connections to
  them. Connections that the dead worker had not accepted yet are reset too.
- SIGCHLD wakes the supervisor, `reap` frees the row of the process table and removes what the worker reported of the
  present, and `on_exit` decides when the slot gets another child: at once if the worker had served for half a second,
  else after 0.1 s, twice as long after each failure, 10 s at most. `korvet_child_restarts_total` counts it.

A worker whose event loop hangs for half a minute is killed (`HangWatch`), and is then such a case; its stack is logged
first. When the supervisor itself is killed, the kernel kills its children (`die_with_parent`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from korvet import logs
from korvet.backoff import Backoff
from korvet.config.settings import Settings
from korvet.security.usage import UsageTable
from korvet.server.supervisor import child as child_process
from korvet.server.supervisor.child import READY_NOTE, SupervisorLink
from korvet.telemetry import snapshot
from korvet.telemetry.process_table import WORKER_ROWS, ProcessState, ProcessTable

_log = logs.Log(__name__)

HANG_CHECK_SECONDS = 10.0
"""How often heartbeats of workers are compared."""

HANG_CHECKS = 3
"""Checks in a row without a heartbeat after which an event loop hangs: no request keeps one for so long."""

DRAIN_GRACE_SECONDS = 1.0
"""A worker that uses all of its drain time still ends by itself."""

_LOOP_FAILURES_MIN = 5
_STACK_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class Child:
    """A living child; times are monotonic seconds."""

    pid: int
    row: int
    name: str
    ready_at: float | None = None
    retiring: bool = False
    kill_at: float | None = None

    def worked_s(self) -> float:
        return 0.0 if self.ready_at is None else time.monotonic() - self.ready_at


@dataclass(eq=False, slots=True)
class Slot:
    """A place in the pool that has a child as long as the supervisor runs; its child runs `main` and keeps `fds`."""

    main: Callable[[Settings, SupervisorLink], None]
    row: int | None = None
    """The fixed row of its child in the process table; None is any free worker row."""
    fds: tuple[int, ...] = ()
    backoff: Backoff = field(default_factory=Backoff)
    child: Child | None = None
    dead_row: int | None = None
    """The row of the child that died here, until another takes its place."""
    respawn_at: float | None = None


class HangWatch:
    """Compares heartbeats of workers from time to time; `now` is in monotonic seconds."""

    def __init__(self, table: ProcessTable, now: float) -> None:
        self._table = table
        self._seen: dict[int, tuple[int, int]] = {}
        self.check_at = now + HANG_CHECK_SECONDS

    def hung(self, children: Iterable[Child], now: float) -> list[Child]:
        """Return those whose event loop hangs, each once; none before the next check is due."""
        if now < self.check_at:
            return []
        # If this process did not run either, as with a stopped terminal or machine, no worker had a chance to beat.
        late = now > self.check_at + HANG_CHECK_SECONDS
        self.check_at = now + HANG_CHECK_SECONDS
        former, self._seen = self._seen, {}
        result = []
        for child in children:
            beats = self._table.beats(child.row)
            before, checks = former.get(child.pid, (0, 0))
            # Without a single beat it is only starting.
            checks = checks + 1 if beats and beats == before and not late else 0
            self._seen[child.pid] = (beats, checks)
            if checks == HANG_CHECKS:
                result.append(child)
        return result


class ProcessPool:
    """All slots and all living children; `settings` are what a child that is started from now on gets."""

    def __init__(self, slots: list[Slot], settings: Settings, metrics_directory: Path) -> None:
        self.slots = slots
        self.settings = settings
        self.table = ProcessTable()
        workers = sum(slot.row is None for slot in slots)
        self._usage = UsageTable.of(settings, workers)
        self.living: dict[int, Child] = {}
        self._metrics_directory = metrics_directory
        # Only the supervisor keeps the writing end, and never writes: children see when it is gone.
        self._life_fd, self._alive_fd = os.pipe()
        self.ready_fd, self._note_fd = os.pipe()
        os.set_blocking(self.ready_fd, False)
        self._hangs = HangWatch(self.table, time.monotonic())

    def close(self) -> None:
        for fd in (self._life_fd, self._alive_fd, self.ready_fd, self._note_fd):
            os.close(fd)

    def fill(self) -> None:
        for slot in self.slots:
            if slot.child is None:
                self._fill(slot)

    def start(self, slot: Slot) -> Child | None:
        """Fork a child for `slot`, not ready yet; None if the system has no process or memory left for one."""
        try:
            child = self._fork(slot)
        except OSError as error:
            _log.error("cannot start a process", reason=error)
            return None
        _log.info("started", child=child.name, pid=child.pid)
        return child

    def assign(self, slot: Slot, child: Child) -> None:
        """Make a child that was started for `slot` its child, in the place of one that died."""
        slot.child, slot.respawn_at = child, None
        if slot.dead_row not in (None, child.row):
            self.table.set(slot.dead_row, ProcessState.EMPTY)
        slot.dead_row = None

    def newly_ready(self) -> list[Child]:
        """Return the children that have reported since the last call that they are ready."""
        ready = []
        with contextlib.suppress(BlockingIOError):
            while True:
                (pid,) = READY_NOTE.unpack(os.read(self.ready_fd, READY_NOTE.size))
                child = self.living.get(pid)
                if child is not None:
                    child.ready_at = time.monotonic()
                    # The programs of the lake do not have the table.
                    if self.table.row(child.row).state is ProcessState.STARTING:
                        self.table.set(child.row, ProcessState.ACCEPTING)
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
            self.table.set(child.row, ProcessState.EMPTY)
            self._usage.end(child.row)
            snapshot.forget_live(self._metrics_directory, child_process.metrics_name_of(child.row))
            code = os.waitstatus_to_exitcode(status)
            ended.append((child, f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"))
        return ended

    def on_exit(self, child: Child, how: str) -> None:
        slot = next((slot for slot in self.slots if slot.child is child), None)
        if slot is None or child.retiring:
            _log.info("ended", child=child.name, pid=child.pid, how=how)
        if slot is None:
            return
        slot.child = None
        slot.respawn_at = time.monotonic()
        if child.retiring:
            return
        delay_s = slot.backoff.delay_s(child.worked_s())
        slot.respawn_at += delay_s
        slot.dead_row = child.row
        self.table.set(child.row, ProcessState.DEAD)
        self.table.count_restart()
        failures = slot.backoff.failures
        write = _log.error if failures >= _LOOP_FAILURES_MIN else _log.warning
        write("died", child=child.name, pid=child.pid, how=how, in_a_row=failures, again_in_s=delay_s)

    def send(self, child: Child, number: signal.Signals) -> None:
        """Send a signal to a child; it is not reaped yet, so its process id is still its own."""
        if child.pid in self.living:
            os.kill(child.pid, number)

    def retire(self, child: Child | None) -> None:
        """Let a child drain and end, and kill it if that takes longer than its drain may."""
        if child is None:
            return
        child.retiring = True
        child.kill_at = time.monotonic() + self.settings.drain_timeout_ms / 1000 + DRAIN_GRACE_SECONDS
        self.send(child, signal.SIGTERM)

    def remove(self, row: int) -> None:
        for slot in [slot for slot in self.slots if slot.row == row]:
            self.slots.remove(slot)
            self.retire(slot.child)

    def deadlines(self) -> list[float | None]:
        """Return when something is due here, in monotonic seconds."""
        moments = [self._hangs.check_at, *(slot.respawn_at for slot in self.slots)]
        return moments + [child.kill_at for child in self.living.values()]

    def act_on_deadlines(self) -> None:
        now = time.monotonic()
        for slot in self.slots:
            if slot.respawn_at is not None and slot.respawn_at <= now:
                self._fill(slot)
        workers = [child for child in self.living.values() if child.row < WORKER_ROWS]
        for child in self._hangs.hung(workers, now):
            _log.error(
                "event loop hung, killing worker: its stack is on stderr", child=child.name, pid=child.pid
            )
            self.send(child, signal.SIGUSR1)
            child.kill_at = now + _STACK_SECONDS
        for child in list(self.living.values()):
            if child.kill_at is not None and child.kill_at <= now:
                self.kill(child)

    def kill(self, child: Child) -> None:
        _log.warning("killed: it did not end in time", child=child.name, pid=child.pid)
        child.kill_at = None
        self.send(child, signal.SIGKILL)

    def _fill(self, slot: Slot) -> None:
        child = self.start(slot)
        if child is None:
            slot.respawn_at = time.monotonic() + slot.backoff.next_s()
        else:
            self.assign(slot, child)

    def _fork(self, slot: Slot) -> Child:
        row = self._free_row(slot) if slot.row is None else slot.row
        link = SupervisorLink(
            row, child_process.name_of(row), self.table, self._usage, self._life_fd, self._note_fd
        )
        self.table.start(row)
        self._usage.start(row)
        main = partial(child_process.begin, slot.main, self.settings, link, self._metrics_directory)
        pid = child_process.fork(main, (link.life_fd, link.ready_fd, *slot.fds))
        child = self.living[pid] = Child(pid, row, link.name)
        if slot.dead_row == row:
            slot.dead_row = None
        return child

    def _free_row(self, slot: Slot) -> int:
        taken = {child.row for child in self.living.values()}
        # Each slot clears its own dead row, so no child of another may be in it.
        taken |= {other.dead_row for other in self.slots if other is not slot and other.dead_row is not None}
        return next(row for row in range(WORKER_ROWS) if row not in taken)
