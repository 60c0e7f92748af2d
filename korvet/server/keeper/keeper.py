"""The keeper process: what has to be done now and then, and by one broker of all that share a Redis.

Beside that it keeps its own broker registered, as every broker's does (registered.py).
Knows the lease and when a task has its turn; what a task does stands in keeper_tasks. Each task has a greenlet of its
own, so a long one keeps none of the others waiting, and never runs beside itself. Losing the lease stops a task before
its next step, so two keepers never work side by side for longer than one step.

The lease that makes one keeper the acting one, of all that share a Redis.

Knows the lease's script, the clock and the fencing token; nothing of what an acting keeper does.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gevent
from gevent.event import Event

from korvet import logs
from korvet.cluster.leases import LeaseStore
from korvet.config.settings import Settings
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.server import keeper as keeper_tasks
from korvet.server.keeper import Task
from korvet.server.keeper.context import Context
from korvet.server.registration import Registered
from korvet.server.supervisor.child import SupervisorLink
from korvet.server.supervisor.ports import Bound
from korvet.telemetry import metrics, snapshot

_log = logs.Log(__name__)


class LeaseLostError(Exception):
    """The task must stop: another keeper may be acting."""


class Lease:
    """This process's claim to be the acting keeper."""

    def __init__(
        self,
        store: LeaseStore,
        broker_id: int,
        ttl_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.token: int | None = None
        """The fencing token of the present holding, None while there is none."""
        self._store = store
        self._ttl_ms = ttl_ms
        self._clock = clock
        # Whoever reads the lease sees whose keeper acts; two keepers of one broker are told apart all the same.
        self._holder = f"{broker_id}:{uuid.uuid4().hex}"
        self._until = 0.0

    def renew(self) -> bool:
        """Take or keep the lease; returns whether it is held. Raises StorageUnavailableError."""
        # Counted from before the question: Redis starts the time to live later than that, never earlier.
        asked = self._clock()
        token = self._store.acquire(self._holder, self._ttl_ms)
        if token is not None:
            self._until = asked + self._ttl_ms / 1000
        if token != self.token:
            if token is not None:
                metrics.KEEPER_LEASES.inc()
            self.token = token
            metrics.KEEPER_LEADER.set(int(token is not None))
            _log.info("lease", held=token is not None, token=token)
        return token is not None

    @property
    def held(self) -> bool:
        """Whether no other keeper can hold the lease now."""
        return self.token is not None and self._clock() < self._until

    def check(self, token: int) -> None:
        """Raise LeaseLostError unless the lease is still the one that came with `token`."""
        if self.token != token or not self.held:
            raise LeaseLostError

    def give_up(self) -> None:
        """Let another keeper act at once. Raises StorageUnavailableError."""
        if self.token is not None:
            self.token = None
            self._store.release(self._holder)


_RENEWALS_PER_LEASE = 3


class Keeper:
    """Gives every task its turns while the lease is held."""

    def __init__(self, settings: Settings, figures_directory: Path | None = None) -> None:
        """`figures_directory` is where ops looks for figures of the logs; None: nobody asks for them."""
        self.context = Context(settings)
        self.lease = Lease(self.context.keeper_store, settings.broker_id, settings.keeper_lease_ms)
        self._tasks = keeper_tasks.every(settings, figures_directory)
        self._figures_directory = figures_directory
        self._renewal_s = settings.keeper_lease_ms / 1000 / _RENEWALS_PER_LEASE

    def run(self, stop: Event) -> None:
        """Keep the lease, or try to get it, and give each task its turns until `stop` is set."""
        turns = [gevent.spawn(self._turns, task, stop) for task in self._tasks]
        away = False
        while not stop.is_set():
            try:
                if not self.lease.renew() and self._figures_directory is not None:
                    snapshot.withdraw(self._figures_directory, "keeper")
                away = False
            except StorageUnavailableError as error:
                if not away:
                    _log.warning("cannot reach Redis", reason=error)
                away = True
            stop.wait(self._renewal_s)
        gevent.killall(turns)
        try:
            self.lease.give_up()
        except StorageUnavailableError as error:
            _log.info("could not give up its lease", reason=error)
        self.context.close()

    def round(self) -> None:
        """Give every task one turn; one that fails does not keep the others from theirs."""
        for task in self._tasks:
            self._turn(task)

    def _turn(self, task: Task) -> None:
        token = self.lease.token
        if token is None or not self.lease.held:
            return
        outcome = "done"
        begun = time.monotonic()
        try:
            self.context.live.refresh()
            task.run(self.context, partial(self.lease.check, token))
        except LeaseLostError:
            _log.warning("lost its lease in the middle of a task", task=task.name)
            outcome = "lease lost"
        except KafkaError as error:
            _log.warning("task failed", task=task.name, reason=error)
            outcome = "failed"
        else:
            metrics.KEEPER_TURN_DONE.labels(task.name).set(time.time())
        metrics.KEEPER_TURN_DURATION.labels(task.name).observe(time.monotonic() - begun)
        metrics.KEEPER_TURNS.labels(task.name, outcome).inc()

    def _turns(self, task: Task, stop: Event) -> None:
        while not stop.wait(task.interval_ms(self.context.settings) / 1000):
            self._turn(task)


def main(
    settings: Settings,
    link: SupervisorLink,
    listeners: Sequence[Bound],
    incarnation: str,
    metrics_directory: Path | None,
) -> None:
    """Be the keeper until SIGTERM or the end of the supervisor; runs in a child that was forked for it.

    `incarnation` distinguishes this start of the broker from all others.
    """
    stop = link.stop_event()
    registered = Registered(settings, listeners, incarnation)
    registering = gevent.spawn(registered.run, stop, lambda: link.table.draining)
    keeper = Keeper(settings, metrics_directory)
    keeper.context.live.follow(logs.set_level)
    link.report_ready()
    keeper.run(stop)
    registering.join()
