"""The supervisor: `korvet serve` starts here, and this process keeps the others running until a signal ends it.

It is one thread around one poll: it never imports gevent, holds no connection to Redis while it runs, and acts on a
signal only in its loop, by `on_<signal>`. What a child's end costs and how it is replaced is in process_pool.py.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from contextlib import ExitStack, closing

from korvet import __version__, logs
from korvet.config.dynamic import merge_valid, overridden
from korvet.config.settings import Settings
from korvet.config.sources import BrokerConfig
from korvet.server.embedded import STOP_SECONDS_MAX, EmbeddedWatch
from korvet.server.supervisor import announcement, roles, startup
from korvet.server.supervisor.process_pool import DRAIN_GRACE_SECONDS, Child, ProcessPool
from korvet.server.supervisor.reload import Reloads
from korvet.server.supervisor.service_manager import ServiceManager
from korvet.server.supervisor.signals import Signals, StoppedError
from korvet.telemetry.process_table import KEEPER_ROW, LAKE_ROW, OPS_ROW, WORKER_ROWS

_log = logs.Log(__name__)

_LAST = (OPS_ROW, LAKE_ROW)
_LAST_SECONDS_MAX = 2.0


class Supervisor:
    """One `korvet serve`."""

    def __init__(self, configuration: BrokerConfig) -> None:
        self._configuration = configuration
        self._configured = configuration.settings
        self._on_signal = {
            signal.SIGTERM: self.on_sigterm,
            signal.SIGINT: self.on_sigint,
            signal.SIGHUP: self.on_sighup,
            signal.SIGCHLD: self.on_sigchld,
        }
        self._terminal = _has_terminal()
        self._served = False
        self._announced = False
        self._stop_at: float | None = None

    def run(self) -> int:
        """Serve until a signal ends it, and return the exit code: 0 when everything drained, 1 when a child was killed.

        Raises ConfigError when Korvet cannot start as configured.
        """
        logs.configure(self._configured, "supervisor")
        # A core would hold the password of Redis, the keys of TLS and records. The limit of a process may be raised.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        self._manager = ServiceManager(os.environ)
        with ExitStack() as cleanup:
            self._signals = cleanup.enter_context(closing(Signals()))
            try:
                self._runtime = startup.prepare(self._configured, self._signals, self._on_progress, cleanup)
            except StoppedError as stopped:
                _log.info("stopped while starting", signal=stopped)
                return 0
            slots = roles.slots(self._runtime, self._configured)
            settings = self._runtime.settle(self._configured)
            self._warn_of_altered(settings)
            self._pool = ProcessPool(slots, settings, self._runtime.metrics_directory)
            cleanup.callback(self._pool.close)
            self._reloads = Reloads(self._configuration, self._runtime, self._pool, self._manager)
            self._embedded = EmbeddedWatch(self._runtime.embedded)
            # What is there now stays shared with the children: the collector must not touch its pages.
            gc.collect()
            gc.freeze()
            self._pool.fill()
            while self._stop_at is None or time.monotonic() < self._stop_at:
                self._step()
            return self._drain()

    def _warn_of_altered(self, settings: Settings) -> None:
        layers, _ = merge_valid(settings, *self._runtime.prepared.altered)
        for definition, layer in overridden(layers, self._configuration.origins):
            _log.warning(
                "a setting was altered by clients, so its value at the start does not count",
                setting=definition.name,
                start=definition.format(definition.value(settings)),
                origin=self._configuration.origins[definition.name],
                in_effect=definition.format(definition.value(layers.settings)),
                layer=layer,
            )

    def _step(self) -> None:
        received = self._signals.wait(self._timeout_s(), self._pool.ready_fd)
        for child in self._pool.newly_ready():
            self._on_ready(child)
        for number in received:
            self._on_signal[signal.Signals(number)]()
        self._embedded.check()
        self._pool.act_on_deadlines()
        self._manager.ping()
        self._reloads.act_on_deadline()

    def _timeout_s(self) -> float:
        moments = [*self._pool.deadlines(), self._embedded.restart_at, self._manager.ping_at]
        moments += [self._stop_at, self._reloads.deadline]
        return max(0.0, min(moment for moment in moments if moment is not None) - time.monotonic())

    def on_sigterm(self) -> None:
        """Drain and end; the second one skips `drain.delay.ms`."""
        self._stop("SIGTERM")

    def on_sigint(self) -> None:
        """Do as on SIGTERM: somebody pressed Ctrl-C."""
        self._stop("SIGINT")

    def on_sighup(self) -> None:
        """Read the configuration again and replace the children; after the reload under way, if there is one."""
        if self._terminal and not _has_terminal():
            # The terminal that started this was closed: nobody asks for a new configuration.
            self._stop("the terminal is gone")
            return
        self._reloads.ask()

    def on_sigchld(self) -> None:
        for child, how in self._pool.reap():
            if not self._reloads.on_exit(child, how):
                self._pool.on_exit(child, how)

    def _on_progress(self, progress: str) -> None:
        _log.info(progress)
        self._manager.starting(progress)

    def _on_ready(self, child: Child) -> None:
        _log.debug("ready", child=child.name, pid=child.pid)
        if child.row < WORKER_ROWS and not self._served:
            self._served = True
            self._manager.ready(self._runtime.status)
            self._reloads.publish()
        self._reloads.on_ready(child)
        if not self._announced and all(slot.child and slot.child.ready_at for slot in self._pool.slots):
            self._announced = True
            self._announce()

    def _announce(self) -> None:
        about = (self._runtime, self._pool.settings, startup.worker_count(self._configured))
        if self._pool.settings.log_format == "json":
            _log.info("the broker is ready", version=__version__, **announcement.facts(*about))
            return
        text = announcement.of(*about)
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            # The reader of stdout is gone; that is no reason to stop serving.
            logs.discard_stdout()
            _log.warning("cannot write to stdout", reason=error)

    def _stop(self, why: str) -> None:
        """Report that this broker is not ready any more, and end it after `drain.delay.ms`; at once if asked again."""
        now = time.monotonic()
        if self._stop_at is not None:
            self._stop_at = now
            return
        delay_s = self._pool.settings.drain_delay_ms / 1000
        drain_s = self._pool.settings.drain_timeout_ms / 1000
        _log.info("stopping", why=why, after_s=delay_s)
        self._pool.table.set_draining()
        rest_s = DRAIN_GRACE_SECONDS + _LAST_SECONDS_MAX + STOP_SECONDS_MAX
        self._manager.stopping("draining", delay_s + drain_s + rest_s)
        self._stop_at = now + delay_s
        self._reloads.stopping = True
        if delay_s:
            # The keeper takes this broker off the list that clients get, and nobody is to take the keeper's place.
            self._pool.remove(KEEPER_ROW)

    def _drain(self) -> int:
        """End all children: workers and keeper first, then the lake process that serves them, and ops, which reports.

        The embedded server ends after that, by the cleanup of `run`.
        """
        living = list(self._pool.living.values())
        seconds = self._pool.settings.drain_timeout_ms / 1000 + DRAIN_GRACE_SECONDS
        killed = self._end([child for child in living if child.row not in _LAST], seconds)
        killed |= self._end([child for child in living if child.row in _LAST], _LAST_SECONDS_MAX)
        _log.info("stopped")
        return 1 if killed else 0

    def _end(self, children: list[Child], seconds: float) -> bool:
        """End them by SIGTERM, after `seconds` or a second Ctrl-C by SIGKILL; returns whether one was killed."""
        for child in children:
            self._pool.send(child, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while self._left(children) and (remaining := deadline - time.monotonic()) > 0:
            self._manager.ping()
            ping_s = remaining if self._manager.ping_at is None else self._manager.ping_at - time.monotonic()
            if signal.SIGINT in self._signals.wait(max(0.0, min(remaining, ping_s))):
                break
        left = self._left(children)
        for child in left:
            self._pool.kill(child)
        while self._left(children):
            self._signals.wait(None)
        return bool(left)

    def _left(self, children: list[Child]) -> list[Child]:
        for child, how in self._pool.reap():
            _log.info("ended", child=child.name, pid=child.pid, how=how)
        return [child for child in children if child.pid in self._pool.living]


def _has_terminal() -> bool:
    """Return whether this process still belongs to a terminal: opening /dev/tty fails once that is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
