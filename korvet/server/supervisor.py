"""The supervisor: `korvet serve` starts here, and this process keeps the others running until it is told to stop.

Knows signals, deadlines and which children there are to be. It is one thread around one select loop: it never imports
gevent, holds no connection to Redis while it runs, and acts on a signal only in its loop. What stands before the
first fork is startup.py, what the children are for is roles.py, how one is forked is children.py, and how workers are
replaced on SIGHUP is rollout.py.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from korvet import logs, streams
from korvet.config import Configuration, Settings, rows
from korvet.errors import ConfigError
from korvet.server import announce, startup
from korvet.server.children import Child, Children, Seat
from korvet.server.embedded import STOP_SECONDS_MAX
from korvet.server.embedded_watch import EmbeddedWatch
from korvet.server.roles import Roles, WorkerMain
from korvet.server.rollout import Rollout
from korvet.server.scoreboard import KEEPER_ROW, LAKE_ROW, OPS_ROW, WORKER_ROWS, Scoreboard
from korvet.server.sd_notify import ServiceManager
from korvet.server.signals import STOPPING, Signals, StoppedError

_log = logs.Log(__name__)

# A worker that uses all of its drain time still ends by itself.
_DRAIN_GRACE_SECONDS = 1.0
_LAST = (OPS_ROW, LAKE_ROW)
_LAST_SECONDS_MAX = 2.0
_LOOP_FAILURES_MIN = 5


def run(configuration: Configuration, reload: Callable[[], Configuration]) -> int:
    """Serve until a signal ends it, and return the exit code: 0 when everything drained, 1 when a child was killed.

    `reload` reads the configuration anew, on SIGHUP. Raises ConfigError when Korvet cannot start as configured.
    """
    return Supervisor(configuration, reload).run()


class Supervisor:
    """One `korvet serve`; `worker_main` is what a forked worker runs."""

    def __init__(
        self,
        configuration: Configuration,
        reload: Callable[[], Configuration],
        worker_main: WorkerMain | None = None,
    ) -> None:
        self._configured = configuration.settings
        self._reload = reload
        self._worker_main = worker_main
        self._signals = Signals()
        self._terminal = _has_terminal()
        self._served = False
        self._announced = False
        self._rollout: Rollout | None = None
        self._reload_again = False
        self._stop_at: float | None = None

    def run(self) -> int:
        """See `run`."""
        logs.configure(self._configured, "supervisor")
        self._manager = ServiceManager.out_of(os.environ)
        with ExitStack() as cleanup:
            self._signals.install()
            cleanup.callback(self._signals.uninstall)
            try:
                self._foundation = startup.lay(self._configured, self._signals, self._tell_start, cleanup)
            except StoppedError as stopped:
                _log.info("stopped while starting", signal=stopped)
                return 0
            self._settings = self._foundation.settle(self._configured)
            self._embedded = EmbeddedWatch(self._foundation.embedded)
            self._children = Children(Scoreboard(), self._foundation.metrics_directory)
            cleanup.callback(self._children.close)
            self._seats = Roles(self._foundation, self._worker_main).seats(self._configured)
            # What is there now stays shared with the children: the collector must not touch its pages.
            gc.collect()
            gc.freeze()
            for seat in self._seats:
                self._fill(seat)
            while not self._step():
                pass
            return self._stop()

    def _tell_start(self, progress: str) -> None:
        _log.info(progress)
        self._manager.starting(progress)

    def _step(self) -> bool:
        """Wait for one thing to happen and act on it; returns True when the process is to stop."""
        numbers, _ = self._signals.wait(self._timeout_s(), [self._children.notes_fd])
        for child in self._children.newly_ready():
            self._on_ready(child)
        for child, how in self._children.reap():
            self._on_end(child, how)
        self._embedded.look()
        self._act_on_deadlines()
        self._manager.alive()
        if self._stop_at is not None:
            return self._stop_at <= time.monotonic() or not STOPPING.isdisjoint(numbers)
        if signal.SIGHUP in numbers:
            if self._terminal and not _has_terminal():
                # The terminal that started this was closed: that is no wish for a new configuration.
                return self._begin_to_stop("the terminal is gone")
            self._on_hangup()
        for number in STOPPING.intersection(numbers):
            return self._begin_to_stop(signal.Signals(number).name)
        return False

    def _begin_to_stop(self, why: str) -> bool:
        """Be ready no more; returns whether the end may begin at once, as it may where no load balancer looks."""
        delay_s = self._settings.drain_delay_ms / 1000
        drain_s = self._settings.drain_timeout_ms / 1000
        _log.info("stopping", why=why, after_s=delay_s)
        self._children.scoreboard.set_draining()
        rest_s = _DRAIN_GRACE_SECONDS + _LAST_SECONDS_MAX + STOP_SECONDS_MAX
        self._manager.stopping("draining", delay_s + drain_s + rest_s)
        if not delay_s:
            return True
        # The keeper takes this broker off the list that clients are told, and nobody is to take the keeper's place.
        for seat in [seat for seat in self._seats if seat.index == KEEPER_ROW]:
            self._seats.remove(seat)
            self._retire(seat.child)
        self._stop_at = time.monotonic() + delay_s
        return False

    def _timeout_s(self) -> float | None:
        moments = [seat.respawn_at for seat in self._seats]
        moments += [child.kill_at for child in self._children.living.values()]
        moments += [self._embedded.restart_at, self._manager.alive_at, self._stop_at]
        if self._rollout:
            moments.append(self._rollout.deadline)
        due = [moment for moment in moments if moment is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _act_on_deadlines(self) -> None:
        now = time.monotonic()
        for seat in self._seats:
            if seat.respawn_at is not None and seat.respawn_at <= now:
                self._fill(seat)
        for child in list(self._children.living.values()):
            if child.kill_at is not None and child.kill_at <= now:
                _log.warning("killed: it did not end in time", child=child.name, pid=child.pid)
                child.kill_at = None
                self._children.send(child, signal.SIGKILL)
        rollout = self._rollout
        if rollout and rollout.successor and rollout.deadline is not None and rollout.deadline <= now:
            # Its end is then the rollout's failure, as for a successor that ends by itself.
            rollout.deadline = None
            self._children.send(rollout.successor, signal.SIGKILL)

    def _fill(self, seat: Seat) -> None:
        seat.child = self._start(seat)
        delay_s = None if seat.child else seat.backoff.delay_s(0.0)
        seat.respawn_at = None if delay_s is None else time.monotonic() + delay_s

    def _start(self, seat: Seat) -> Child | None:
        """Fork a child; None when the system has no process or memory left for one."""
        try:
            child = self._children.fork(seat, self._settings)
        except OSError as error:
            _log.error("no process could be started", reason=error)
            return None
        _log.info("started", child=child.name, pid=child.pid)
        return child

    def _on_ready(self, child: Child) -> None:
        _log.debug("ready", child=child.name, pid=child.pid)
        if not self._served and child.index < WORKER_ROWS:
            self._served = True
            self._manager.ready(self._serving())
        if self._rollout and child is self._rollout.successor:
            self._retire(self._rollout.succeed())
            self._roll_on()
        if not self._announced and all(seat.child and seat.child.ready_at for seat in self._seats):
            self._announced = True
            self._announce()

    def _on_end(self, child: Child, how: str) -> None:
        if self._rollout and child is self._rollout.successor:
            self._rollout_failed(how)
            return
        seat = next((seat for seat in self._seats if seat.child is child), None)
        if seat is None or child.retiring:
            _log.info("ended", child=child.name, pid=child.pid, how=how)
        if seat is None:
            return
        seat.child = None
        delay_s = 0.0 if child.retiring else seat.backoff.delay_s(child.worked_s())
        seat.respawn_at = time.monotonic() + delay_s
        if not child.retiring:
            self._children.mark_dead(seat, child)
            self._children.scoreboard.count_restart()
            failures = seat.backoff.failures
            write = _log.error if failures >= _LOOP_FAILURES_MIN else _log.warning
            write("died", child=child.name, pid=child.pid, how=how, in_a_row=failures, again_in_s=delay_s)

    def _retire(self, child: Child | None) -> None:
        """Let a child end in its own time, and not longer than its drain may take."""
        if child is None:
            return
        child.retiring = True
        child.kill_at = time.monotonic() + self._settings.drain_timeout_ms / 1000 + _DRAIN_GRACE_SECONDS
        self._children.send(child, signal.SIGTERM)

    def _serving(self) -> str:
        """Say in a few words what goes on while nothing happens."""
        return f"serving clients at {self._foundation.listen}"

    def _announce(self) -> None:
        foundation = self._foundation
        text = announce.ready(
            broker=f"{self._settings.broker_id} of cluster {self._settings.cluster_id}",
            listeners=foundation.listeners(self._settings),
            workers=startup.worker_count(self._configured),
            data=foundation.data,
            facts=foundation.facts,
            ops=foundation.ops,
        )
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            # Whoever read stdout is gone; that is no reason to stop serving.
            streams.forget_output()
            _log.warning("nobody reads stdout", reason=error)

    def _on_hangup(self) -> None:
        if self._rollout:
            self._reload_again = True
            return
        try:
            loaded = self._reload().settings
        except ConfigError as error:
            _log.error("the configuration is kept as it was", reason=error)
            return
        kept = {}
        for row in rows():
            if row.of(loaded) != row.of(self._configured) and not row.about.reload:
                _log.warning("a new value needs a restart", setting=row.name)
                kept[row.attribute] = row.of(self._configured)
        previous, self._configured = self._configured, msgspec.structs.replace(loaded, **kept)
        self._roll_out(previous)

    def _roll_out(self, previous: Settings | None) -> None:
        """Replace every child by one with the settings of now; `previous` are those to go back to."""
        try:
            self._foundation.listeners(self._configured)
        except ConfigError as error:
            _log.error("the configuration is kept as it was", reason=error)
            self._configured = previous or self._configured
            return
        self._settings = self._foundation.settle(self._configured)
        logs.configure(self._settings, "supervisor")
        _log.info("replacing the workers")
        self._manager.reloading("replacing the workers")
        workers = [seat for seat in self._seats if seat.index is None]
        self._rollout = Rollout(workers, previous)
        self._roll_on()

    def _roll_on(self) -> None:
        """Start the next successor; after the last worker, replace keeper and ops."""
        rollout = self._rollout
        assert rollout is not None  # noqa: S101 - called during one
        seat = rollout.next_seat()
        if seat is not None:
            successor = self._start(seat)
            if successor:
                rollout.begin(seat, successor)
            else:
                self._rollout_failed("no process could be started")
            return
        self._rollout = None
        for other in self._seats:
            if other.index is not None:
                self._retire(other.child)
        _log.info("the workers are replaced")
        self._manager.ready(self._serving())
        if self._reload_again:
            self._reload_again = False
            self._on_hangup()

    def _rollout_failed(self, how: str) -> None:
        rollout = self._rollout
        assert rollout is not None  # noqa: S101 - called during one
        self._rollout = None
        _log.error("a worker with the new configuration does not start", how=how)
        if rollout.previous is None:
            return
        self._configured = rollout.previous
        self._settings = self._foundation.settle(self._configured)
        logs.configure(self._settings, "supervisor")
        if rollout.replaced:
            _log.info("going back to the configuration before")
            self._rollout = Rollout(rollout.replaced, None)
            self._roll_on()

    def _stop(self) -> int:
        """Drain: workers and keeper, then who they ask and ops, which tells of it; the embedded server last of all."""
        living = list(self._children.living.values())
        seconds = self._settings.drain_timeout_ms / 1000 + _DRAIN_GRACE_SECONDS
        killed = self._end([child for child in living if child.index not in _LAST], seconds)
        killed |= self._end([child for child in living if child.index in _LAST], _LAST_SECONDS_MAX)
        _log.info("stopped")
        return 1 if killed else 0

    def _end(self, children: list[Child], seconds: float) -> bool:
        """End children by SIGTERM, after `seconds` or a second Ctrl-C by SIGKILL; returns whether one was killed."""
        for child in children:
            self._children.send(child, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while self._left(children) and time.monotonic() < deadline:
            numbers, _ = self._signals.wait(max(0.0, deadline - time.monotonic()))
            if signal.SIGINT in numbers:
                deadline = time.monotonic()
        left = self._left(children)
        for child in left:
            _log.warning("killed: it did not end in time", child=child.name, pid=child.pid)
            self._children.send(child, signal.SIGKILL)
        while self._left(children):
            self._signals.wait(None)
        return bool(left)

    def _left(self, children: list[Child]) -> list[Child]:
        for child, how in self._children.reap():
            _log.info("ended", child=child.name, pid=child.pid, how=how)
        return [child for child in children if child.pid in self._children.living]


def _has_terminal() -> bool:
    """Return whether this process still belongs to a terminal: opening /dev/tty fails once that is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
