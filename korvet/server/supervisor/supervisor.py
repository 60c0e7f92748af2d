"""The supervisor: `korvet serve` starts here, and this process keeps the others running until it is told to stop.

It is one thread around one select loop: it never imports gevent, holds no connection to Redis while it runs, and
acts on a signal only in its loop.
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

from korvet import __version__, logs
from korvet import logs as streams
from korvet.config.settings import SETTINGS, Settings
from korvet.config.sources import BrokerConfig
from korvet.errors import ConfigError
from korvet.server.embedded import STOP_SECONDS_MAX, EmbeddedWatch
from korvet.server.supervisor import run_state as run_file
from korvet.server.supervisor import startup
from korvet.server.supervisor import startup as announce
from korvet.server.supervisor.children import Child, Children, end
from korvet.server.supervisor.process_pool import DRAIN_GRACE_SECONDS, ProcessPool, Rollout
from korvet.server.supervisor.roles import Roles, WorkerMain
from korvet.server.supervisor.run_state import RunState
from korvet.server.supervisor.service_manager import ServiceManager
from korvet.server.supervisor.signals import STOPPING, Signals, StoppedError
from korvet.telemetry.process_table import KEEPER_ROW, LAKE_ROW, OPS_ROW, WORKER_ROWS, ProcessTable

_log = logs.Log(__name__)

_LAST = (OPS_ROW, LAKE_ROW)
_LAST_SECONDS_MAX = 2.0


def run(configuration: BrokerConfig, reload: Callable[[], BrokerConfig]) -> int:
    """Serve until a signal ends it, and return the exit code: 0 when everything drained, 1 when a child was killed.

    `reload` reads the configuration anew, on SIGHUP. Raises ConfigError when Korvet cannot start as configured.
    """
    return Supervisor(configuration, reload).run()


class Supervisor:
    """One `korvet serve`; `worker_main` is what a forked worker runs."""

    def __init__(
        self,
        configuration: BrokerConfig,
        reload: Callable[[], BrokerConfig],
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
        # What is to be done when the change under way has ended.
        self._wanted: list[Callable[[], None]] = []
        self._changes = 0
        self._failure = ""
        self._notes = ""
        self._stop_at: float | None = None

    def run(self) -> int:
        """See `run`."""
        logs.configure(self._configured, "supervisor")
        self._manager = ServiceManager.out_of(os.environ)
        with ExitStack() as cleanup:
            self._signals.install()
            cleanup.callback(self._signals.uninstall)
            try:
                self._foundation = startup.prepare(self._configured, self._signals, self._tell_start, cleanup)
            except StoppedError as stopped:
                _log.info("stopped while starting", signal=stopped)
                return 0
            self._children = Children(ProcessTable(), self._foundation.metrics_directory)
            self._settings = self._foundation.settle(self._configured)
            self._embedded = EmbeddedWatch(self._foundation.embedded)
            cleanup.callback(self._children.close)
            seats = Roles(self._foundation, self._worker_main).seats(self._configured)
            self._crew = ProcessPool(seats, self._children, self._settings)
            # What is there now stays shared with the children: the collector must not touch its pages.
            gc.collect()
            gc.freeze()
            self._crew.fill_all()
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
        for number in STOPPING.intersection(numbers):
            return self._begin_to_stop(signal.Signals(number).name)
        if signal.SIGHUP in numbers:
            if self._terminal and not _has_terminal():
                # The terminal that started this was closed: that is no wish for a new configuration.
                return self._begin_to_stop("the terminal is gone")
            self._ask_for(self._read_anew)
        return False

    def _begin_to_stop(self, why: str) -> bool:
        """Be ready no more; returns whether the end may begin at once, as it may where no load balancer looks."""
        delay_s = self._settings.drain_delay_ms / 1000
        drain_s = self._settings.drain_timeout_ms / 1000
        _log.info("stopping", why=why, after_s=delay_s)
        self._children.table.set_draining()
        rest_s = DRAIN_GRACE_SECONDS + _LAST_SECONDS_MAX + STOP_SECONDS_MAX
        self._manager.stopping("draining", delay_s + drain_s + rest_s)
        if not delay_s:
            return True
        # The keeper takes this broker off the list that clients are told, and nobody is to take the keeper's place.
        self._crew.close(KEEPER_ROW)
        self._stop_at = time.monotonic() + delay_s
        return False

    def _timeout_s(self) -> float | None:
        moments = self._crew.deadlines()
        moments += [self._embedded.restart_at, self._manager.alive_at, self._stop_at]
        if self._rollout:
            moments.append(self._rollout.deadline)
        due = [moment for moment in moments if moment is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _act_on_deadlines(self) -> None:
        self._crew.act_on_deadlines()
        rollout = self._rollout
        if (
            rollout
            and rollout.successor
            and rollout.deadline is not None
            and rollout.deadline <= time.monotonic()
        ):
            # Its end is then the rollout's failure, as for a successor that ends by itself.
            rollout.deadline = None
            self._children.send(rollout.successor, signal.SIGKILL)

    def _on_ready(self, child: Child) -> None:
        _log.debug("ready", child=child.name, pid=child.pid)
        if not self._served and child.index < WORKER_ROWS:
            self._served = True
            self._manager.ready(self._serving())
            self._publish()
        if self._rollout and child is self._rollout.successor:
            self._crew.retire(self._rollout.succeed())
            self._roll_on()
        if not self._announced and all(seat.child and seat.child.ready_at for seat in self._crew.seats):
            self._announced = True
            self._announce()

    def _on_end(self, child: Child, how: str) -> None:
        if self._rollout and child is self._rollout.successor:
            self._rollout_failed(how)
            return
        self._crew.ended(child, how)

    def _serving(self) -> str:
        """Say in a few words what goes on while nothing happens."""
        return f"serving clients at {self._foundation.listen}"

    def _announce(self) -> None:
        foundation = self._foundation
        text = announce.ready(
            settings=self._settings,
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

    def _ask_for(self, change: Callable[[], None]) -> None:
        """Make a change now, or when the one under way has ended; being asked for twice by then is once."""
        if change not in self._wanted:
            self._wanted.append(change)
        if self._rollout is None:
            self._next_change()

    def _next_change(self) -> None:
        if self._wanted and self._stop_at is None:
            change = self._wanted.pop(0)
            self._failure = self._notes = ""
            self._manager.reloading("a change is under way")
            self._publish(busy=True)
            change()

    def _end_change(self) -> None:
        """Tell how the change under way went, and go on with the next one."""
        self._changes += 1
        self._manager.ready(self._failure or self._serving())
        self._publish(busy=bool(self._wanted))
        self._next_change()

    def _publish(self, *, busy: bool = False) -> None:
        said = self._failure or self._notes
        state = RunState(
            os.getpid(),
            __version__,
            str(self._foundation.listen),
            self._changes,
            not self._failure,
            said,
            busy,
        )
        run_file.write(self._foundation.metrics_directory, state)

    def _fail(self, event: str, **fields: object) -> None:
        _log.error(event, **fields)
        self._failure = ": ".join([event, *(str(value) for value in fields.values())])

    def _read_anew(self) -> None:
        """Apply what the configuration says now, as far as it can be without a restart."""
        try:
            loaded = self._reload().settings
        except ConfigError as error:
            self._fail("the configuration is kept as it was", reason=error)
            self._end_change()
            return
        kept = {}
        for setting in SETTINGS.values():
            if setting.value(loaded) != setting.value(self._configured) and not setting.reload:
                _log.warning("a new value needs a restart", setting=setting.name)
                kept[setting.name] = setting.value(self._configured)
        self._notes = f"these need a restart: {', '.join(kept)}" if kept else ""
        previous = self._configured
        attributes = {name.replace(".", "_"): value for name, value in kept.items()}
        self._configured = msgspec.structs.replace(loaded, **attributes)
        self._replace_all(previous)

    def _replace_all(self, previous: Settings | None) -> None:
        """Replace every child by one with the settings of now; `previous` are those to go back to."""
        try:
            self._foundation.listeners(self._configured)
        except ConfigError as error:
            self._fail("the configuration is kept as it was", reason=error)
            self._configured = previous or self._configured
            self._end_change()
            return
        self._settle()
        _log.info("replacing the workers")
        workers = [seat for seat in self._crew.seats if seat.index is None]
        self._rollout = Rollout(workers, previous)
        self._roll_on()

    def _settle(self) -> None:
        """Let all that is started from now on have the settings of now."""
        self._settings = self._crew.settings = self._foundation.settle(self._configured)
        logs.configure(self._settings, "supervisor")

    def _roll_on(self) -> None:
        """Start the next successor; after the last worker, replace keeper and ops."""
        rollout = self._rollout
        assert rollout is not None  # noqa: S101 - called during one
        seat = rollout.next_seat()
        if seat is not None:
            successor = self._crew.start(seat)
            if successor:
                rollout.begin(seat, successor)
            else:
                self._rollout_failed("no process could be started")
            return
        self._rollout = None
        for other in self._crew.seats:
            if other.index is not None:
                self._crew.retire(other.child)
        _log.info("the workers are replaced")
        self._end_change()

    def _rollout_failed(self, how: str) -> None:
        rollout = self._rollout
        assert rollout is not None  # noqa: S101 - called during one
        self._rollout = None
        self._fail("a new worker does not start", how=how)
        if rollout.previous is not None:
            self._configured = rollout.previous
            self._settle()
            if rollout.replaced:
                _log.info("going back to the configuration before")
                self._rollout = Rollout(rollout.replaced, None)
                self._roll_on()
                return
        self._end_change()

    def _stop(self) -> int:
        """Drain: workers and keeper, then who they ask and ops, which tells of it; the embedded server last of all."""
        living = list(self._children.living.values())
        seconds = self._settings.drain_timeout_ms / 1000 + DRAIN_GRACE_SECONDS
        first = [child for child in living if child.index not in _LAST]
        last = [child for child in living if child.index in _LAST]
        how = (self._children, self._signals, self._manager)
        killed = end(first, seconds, *how)
        killed |= end(last, _LAST_SECONDS_MAX, *how)
        _log.info("stopped")
        return 1 if killed else 0


def _has_terminal() -> bool:
    """Return whether this process still belongs to a terminal: opening /dev/tty fails once that is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
