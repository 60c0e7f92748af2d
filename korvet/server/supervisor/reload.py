"""Reloads: the configuration is read again, the workers get it one by one, and a failure restores the one before."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

from korvet import __version__, logs
from korvet.config.settings import SETTINGS, Settings
from korvet.config.sources import BrokerConfig
from korvet.errors import ConfigError
from korvet.server.supervisor import run_state
from korvet.server.supervisor.process_pool import Child, ProcessPool, Slot
from korvet.server.supervisor.rollout import Rollout
from korvet.server.supervisor.run_state import RunState
from korvet.server.supervisor.service_manager import ServiceManager
from korvet.server.supervisor.startup import Runtime

_log = logs.Log(__name__)


class Reloads:
    """The reloads of one broker, one at a time; none begins once the broker is `stopping`."""

    def __init__(
        self, configuration: BrokerConfig, runtime: Runtime, pool: ProcessPool, manager: ServiceManager
    ) -> None:
        self.stopping = False
        self._configuration, self._configured = configuration, configuration.settings
        self._runtime, self._pool, self._manager = runtime, pool, manager
        self._rollout: Rollout | None = None
        # What a reload that fails goes back to.
        self._previous: Settings | None = None
        self._wanted = False
        self._ended = 0
        self._failure = self._note = ""

    @property
    def deadline(self) -> float | None:
        """When something is due here, in monotonic seconds."""
        return self._rollout.deadline if self._rollout else None

    def ask(self) -> None:
        """Reload now, or after the reload under way."""
        self._wanted = True
        self._begin_if_wanted()

    def on_ready(self, child: Child) -> None:
        if self._rollout:
            self._rollout.on_ready(child)

    def on_exit(self, child: Child, how: str) -> bool:
        """Return whether the child was a successor, with which its reload has failed."""
        return self._rollout is not None and self._rollout.on_exit(child, how)

    def act_on_deadline(self) -> None:
        if self._rollout:
            self._rollout.act_on_deadline()
            if self._rollout.done:
                self._on_rollout_done(self._rollout)

    def publish(self, *, busy: bool = False) -> None:
        """Write for `korvet reload` and `korvet doctor` how this broker is."""
        message = self._failure or self._note
        listen = str(self._runtime.listen)
        state = RunState(os.getpid(), __version__, listen, self._ended, not self._failure, message, busy=busy)
        run_state.write(self._runtime.metrics_directory, state)

    def _begin_if_wanted(self) -> None:
        if not self._wanted or self._rollout is not None or self.stopping:
            return
        self._wanted = False
        self._failure = self._note = ""
        self._manager.reloading("reloading the configuration")
        self.publish(busy=True)
        former = self._configured
        try:
            loaded = self._configuration.read_again().settings
            fixed = [setting for setting in SETTINGS.values() if not setting.reload]
            kept = [setting for setting in fixed if setting.value(loaded) != setting.value(former)]
            former_values: dict[str, Any] = {setting.attribute: setting.value(former) for setting in kept}
            loaded = dataclasses.replace(loaded, **former_values)
            self._runtime.check(loaded)
        except ConfigError as error:
            self._fail("the configuration is kept as it was", reason=error)
            self._end()
            return
        for setting in kept:
            _log.warning("a new value needs a restart", setting=setting.name)
        if kept:
            self._note = f"these need a restart: {', '.join(setting.name for setting in kept)}"
        self._previous = former
        self._use(loaded)
        _log.info("replacing the workers")
        self._roll([slot for slot in self._pool.slots if slot.row is None])

    def _use(self, configured: Settings) -> None:
        """Let all that is started from now on have these settings."""
        self._configured = configured
        self._pool.settings = self._runtime.settle(configured)
        logs.configure(self._pool.settings, "supervisor")

    def _roll(self, slots: Iterable[Slot]) -> None:
        self._rollout = Rollout(self._pool, slots)
        self._rollout.start()

    def _on_rollout_done(self, rollout: Rollout) -> None:
        """After the last worker replace the other children; after a failure go back to the settings before."""
        self._rollout = None
        if rollout.failure:
            self._fail("a new worker does not start", how=rollout.failure)
            if self._previous is not None:
                self._use(self._previous)
                self._previous = None
                if rollout.replaced:
                    _log.info("restoring the previous configuration")
                    self._roll(rollout.replaced)
                    return
        else:
            for slot in self._pool.slots:
                if slot.row is not None:
                    self._pool.retire(slot.child)
            _log.info("the workers are replaced")
        self._end()

    def _fail(self, event: str, **fields: object) -> None:
        _log.error(event, **fields)
        self._failure = ": ".join([event, *(str(value) for value in fields.values())])

    def _end(self) -> None:
        self._ended += 1
        self._manager.ready(self._failure or self._runtime.status)
        self.publish(busy=self._wanted)
        self._begin_if_wanted()
