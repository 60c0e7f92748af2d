"""The keeper process: the tasks that one broker of all that share a Redis does for all of them.

Every broker has a keeper; the one that holds the lease runs the tasks (keeper/__init__.py has their table). Each task
has a greenlet of its own, and one on logs or groups has one for each master of a cluster: so a long one does not delay
the others, and none runs beside itself. A keeper that loses the lease stops a task before its next step, so two keepers
never work side by side for longer than one step.

Besides, the keeper keeps its own broker registered.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import gevent
from gevent.event import Event

from korvet import logs
from korvet.clock import CLOCK, Clock
from korvet.cluster.brokers import BrokerStore
from korvet.cluster.leases import LeaseStore
from korvet.cluster.registration import Registration
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.server.keeper import Run, Task, every
from korvet.server.keeper.context import Context, LeaseLostError
from korvet.server.supervisor.child import SupervisorLink
from korvet.server.supervisor.ports import Bound, endpoints
from korvet.telemetry import metrics, snapshot
from korvet.telemetry.process_table import ProcessState

_log = logs.Log(__name__)

_RENEWALS_PER_LEASE = 3
_RETRIES_PER_LEASE = 12
"""More often, for when Redis was away the leases of all brokers may have run out meanwhile."""

_STARTING_SECONDS = 0.1
_LISTED_AFTER_MS = 3000
"""Clients read metadata when their connections end, which is after `drain.delay.ms`."""

_Loop = tuple[Task, str]
"""A task, and the node on whose logs or groups it runs; "": on none, or on all."""


class KeeperLease:
    """This process's claim to the keeper lease."""

    def __init__(self, store: LeaseStore, broker_id: int, ttl_ms: int, *, clock: Clock = CLOCK) -> None:
        self.token: int | None = None
        """The fencing token of the lease as it is held now, None while it is not."""
        self._store = store
        self._ttl_ms = ttl_ms
        self._clock = clock
        # A reader of the lease sees the broker; two keepers of one broker are distinct all the same.
        self._holder = f"{broker_id}:{uuid.uuid4().hex}"
        self._until = 0.0

    def renew(self) -> bool:
        """Take or keep the lease; returns whether it is held. Raises StorageUnavailableError."""
        # Counted from before the command: Redis starts the time to live later than that, never earlier.
        asked = self._clock.monotonic()
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
        return self.token is not None and self._clock.monotonic() < self._until

    def check(self, token: int) -> None:
        """Raise LeaseLostError unless the lease is still the one that came with `token`."""
        if self.token != token or not self.held:
            raise LeaseLostError

    def give_up(self) -> None:
        """Let another keeper take the lease at once. Raises StorageUnavailableError."""
        if self.token is not None:
            self.token = None
            self._store.release(self._holder)


class Keeper:
    """Runs every task at its interval while the lease is held."""

    def __init__(
        self, settings: Settings, metrics_directory: Path | None = None, *, clock: Clock = CLOCK
    ) -> None:
        """`metrics_directory` is where ops looks for stats of the logs; None: nothing reads them."""
        self._clock = clock
        self.context = Context(settings, clock=clock)
        self.lease = KeeperLease(
            self.context.lease_store, settings.broker_id, settings.keeper_lease_ms, clock=clock
        )
        self._tasks = every(settings, metrics_directory, clock=clock)
        self._runs: dict[_Loop, Run] = {}
        self._done: dict[_Loop, float] = {}  # when the last run was done, or the loop began
        self._metrics_directory = metrics_directory
        self._renewal_s = settings.keeper_lease_ms / 1000 / _RENEWALS_PER_LEASE
        # The token of the lease under which the settings were read, None once that has failed.
        self._read_under: int | None = None

    def run(self, stop: Event) -> None:
        """Keep the lease, or try to get it, and run each task at its interval until `stop` is set."""
        loops: dict[_Loop, gevent.Greenlet[[Task, str, Event], None]] = {}
        away = False
        while not stop.is_set():
            try:
                self._begin_loops(loops, stop)
                if self.lease.renew():
                    self._read_settings()
                elif self._metrics_directory is not None:
                    snapshot.withdraw(self._metrics_directory, "keeper")
                away = False
            except KafkaError as error:
                self._read_under = None
                if not away:
                    _log.warning("cannot reach Redis, or read settings and topics there", reason=error)
                away = True
            self._clock.wait(stop, self._clock.to_whole_second(self._renewal_s))
        gevent.killall(list(loops.values()))
        try:
            self.lease.give_up()
        except StorageUnavailableError as error:
            _log.info("could not release the lease", reason=error)
        self.context.close()

    def round(self) -> None:
        """Run every task once, on all nodes at once; one that fails does not keep the others from running.

        Raises KafkaError if the settings cannot be read.
        """
        self._read_settings()
        for task in self._tasks:
            gevent.joinall([self._clock.spawn(self._run_task, task, node) for node in self._nodes(task)])

    def _read_settings(self) -> None:
        self.context.live.refresh()
        self._read_under = self.lease.token

    def _nodes(self, task: Task) -> list[str]:
        return self.context.nodes() if task.on_nodes else [""]

    def _begin_loops(
        self, loops: dict[_Loop, gevent.Greenlet[[Task, str, Event], None]], stop: Event
    ) -> None:
        """Begin the loops of new masters, and end the loops of former ones."""
        wanted = [(task, node) for task in self._tasks for node in self._nodes(task)]
        for task, node in wanted:
            if (task, node) not in loops:
                loops[task, node] = self._clock.spawn(self._repeat, task, node, stop)
                self._done[task, node] = self._clock.time()
        for loop in loops.keys() - wanted:
            loops.pop(loop).kill(block=False)
            self._runs.pop(loop, None)
            self._done.pop(loop, None)

    def _repeat(self, task: Task, node: str, stop: Event) -> None:
        while not self._clock.wait(stop, self._pause_s(task)):
            self._run_task(task, node)

    def _pause_s(self, task: Task) -> float:
        return self._clock.to_whole_second(task.interval_ms(self.context) / 1000)

    def _run_task(self, task: Task, node: str) -> None:
        token = self.lease.token
        if token is None or not self.lease.held:
            return
        outcome = "done"
        begun = self._clock.monotonic()
        run = self._runs.get((task, node)) or self._runs.setdefault((task, node), task.make())
        where = {"node": node} if node else {}
        try:
            if self._read_under != token:
                self._read_settings()
            run(self.context.of_node(node), partial(self.lease.check, token))
        except LeaseLostError:
            _log.warning("lost the lease during a task", task=task.name, **where)
            outcome = "lease lost"
        except KafkaError as error:
            _log.warning("task failed", task=task.name, reason=error, **where)
            outcome = "failed"
        else:
            self._done[task, node] = self._clock.time()
            oldest = min(done for (other, _), done in self._done.items() if other == task)
            metrics.KEEPER_TURN_DONE.labels(task.name).set(oldest)
        metrics.KEEPER_TURN_DURATION.labels(task.name).observe(self._clock.monotonic() - begun)
        metrics.KEEPER_TURNS.labels(task.name, outcome).inc()


def keep_registered(
    settings: Settings,
    bound: Sequence[Bound],
    incarnation: str,
    stop: Event,
    link: SupervisorLink,
    *,
    clock: Clock = CLOCK,
) -> None:
    """Renew this broker's registration until `stop` is set; then, if the broker is leaving, end it.

    The supervisor has registered it before, as starting: the keeper is ready when it has registered a broker of which a
    worker accepts connections. What a registration means is in lua/broker/register.lua. This has a
    connection of its own: no task of the keeper delays a renewal. If only this process is replaced, the registration
    stays for the next one.
    """
    registration = Registration(
        broker_id=settings.broker_id, listeners=endpoints(bound), incarnation=incarnation
    )
    lease_ms = settings.broker_lease_ms
    redis = Redis(
        settings.redis_url,
        timeout_ms=settings.redis_timeout_ms,
        connect_timeout_ms=settings.redis_connect_timeout_ms,
    )
    store = BrokerStore(redis, Keys(settings.namespace))
    failing = serving = False
    while not stop.is_set():
        starting = not any(worker.state is ProcessState.ACCEPTING for worker in link.table.workers())
        try:
            store.register(registration, lease_ms, starting=starting and not serving)
            failing = False
        except KafkaError as error:
            if error.code == ErrorCode.UNSUPPORTED_VERSION:
                _log.error("this broker stops: a later version has written data", reason=error)
                os.kill(os.getppid(), signal.SIGTERM)
                break
            # Clients of this broker are served all the same: it always lists itself.
            if not failing:
                _log.warning("cannot register this broker", reason=error)
            failing = True
        metrics.BROKER_REGISTERED.set(int(not failing))
        if not (starting or serving):
            serving = True
            link.report_ready()
        pause_s = lease_ms / 1000 / (_RETRIES_PER_LEASE if failing else _RENEWALS_PER_LEASE)
        clock.wait(stop, clock.to_whole_second(pause_s) if serving else _STARTING_SECONDS)
    if link.table.draining:
        try:
            store.unregister(registration, settings.drain_delay_ms + _LISTED_AFTER_MS)
        except KafkaError as error:
            _log.info("could not end this broker's registration", reason=error)
    redis.close()


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
    registering = CLOCK.spawn(keep_registered, settings, listeners, incarnation, stop, link)
    keeper = Keeper(settings, metrics_directory)
    keeper.context.live.follow(logs.set_level)
    keeper.run(stop)
    registering.join()
