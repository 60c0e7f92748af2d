"""A broker in a thread of the test's own process, on a Redis that is there: listeners, dispatcher, handlers, keeper.

For tests of what stands in front of a broker: clients see no difference to `korvet serve`, and no process is started.
Its clients must not run on an event loop of the thread that asks. One in a process at a time: workers share state of
their module, and know of no other thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import Event

from korvet.config.listeners import Listener
from korvet.config.settings import Settings
from korvet.config.sources import load
from korvet.security.usage import UsageTable
from korvet.server import worker
from korvet.server.keeper import keeper
from korvet.server.supervisor import ports
from korvet.server.supervisor.child import SupervisorLink
from korvet.server.supervisor.ports import Bound
from korvet.telemetry.process_table import KEEPER_ROW, ProcessState, ProcessTable
from tests.support import redis_servers
from tests.support.processes import WAIT_SECONDS_MAX

CLUSTER_ID = "cluster-of-one-process"


@dataclass(frozen=True)
class InProcessBroker:
    """A running broker, with the names of tests/support/broker.py."""

    listeners: tuple[Bound, ...]
    redis_url: str

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, as sockets take it; its first listener."""
        return self.listeners[0].address

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of its first listener."""
        return str(self.listeners[0].address)

    def at(self, listener: str) -> tuple[str, int]:
        """Where it listens by a name, as sockets take it."""
        [address] = [bound.address for bound in self.listeners if bound.name == listener]
        return address


@dataclass(frozen=True)
class _Link(SupervisorLink):
    stop: Event
    ready: threading.Event

    def stop_event(self) -> Event:
        return self.stop

    def report_ready(self) -> None:
        self.table.set(self.row, ProcessState.ACCEPTING)
        self.ready.set()


class _Thread(threading.Thread):
    """Worker and keeper on an event loop of their own."""

    def __init__(self, settings: Settings, listeners: tuple[Bound, ...]) -> None:
        super().__init__(daemon=True)
        self._settings, self._listeners = settings, listeners
        self._stopping: Any = None
        self._table = ProcessTable()
        self.ready = (threading.Event(), threading.Event())
        self.error: BaseException | None = None

    def run(self) -> None:
        table, stop = self._table, Event()
        usage = UsageTable.of(self._settings, workers=1)
        # Thread-safe, as nothing else of a loop is.
        self._stopping = gevent.get_hub().loop.async_()
        self._stopping.start(stop.set)
        of_worker, of_keeper = (
            _Link(row, "in process", table, usage, -1, -1, stop, ready)
            for row, ready in zip((0, KEEPER_ROW), self.ready, strict=True)
        )
        keeping = gevent.spawn(keeper.main, self._settings, of_keeper, self._listeners, "one", None)
        try:
            worker.serve(self._settings, of_worker, self._listeners, None, None)
        except BaseException as error:  # noqa: BLE001 - the thread that waits reports it
            self.error = error
        finally:
            stop.set()
            keeping.join()
            for event in self.ready:
                event.set()
            gevent.get_hub().destroy()

    def end(self) -> None:
        """Drain, end the registration, and the thread."""
        self._table.set_draining()
        if self._stopping is not None:
            self._stopping.send()
        self.join()


@contextlib.contextmanager
def only_broker(redis_url: str, settings: Mapping[str, str] | None = None) -> Iterator[InProcessBroker]:
    """Empty a Redis, and run a broker on it with these settings, on a free port.

    Records are kept indefinitely unless the settings say otherwise.
    """
    with redis_servers.connected(redis_url) as client:
        client.flushall()
        client.script_flush()
    common = {
        "redis.url": redis_url,
        "workers": "1",
        "listen": "127.0.0.1:0",
        "log.retention.ms": "-1",
        "group.initial.rebalance.delay.ms": "0",
        "group.streams.initial.rebalance.delay.ms": "0",
    }
    given = common | dict(settings or {})
    if "listeners" in given:
        del given["listen"]
    loaded = dataclasses.replace(load(None, {}, given).settings, cluster_id=CLUSTER_ID)
    with contextlib.ExitStack() as cleanup:
        # A broker sets the level of the process; the tests after this one have their own.
        cleanup.callback(logging.getLogger().setLevel, logging.getLogger().level)
        reserved = ports.reserve_listeners(loaded, cleanup)
        addresses = [Listener(name, reservation.address) for name, reservation in reserved.items()]
        listeners = ports.bind_listeners(loaded, addresses)
        assert not any(isinstance(other, _Thread) for other in threading.enumerate()), "there is one already"
        thread = _Thread(loaded, listeners)
        thread.start()
        cleanup.callback(thread.end)
        for event in thread.ready:
            assert event.wait(WAIT_SECONDS_MAX)
        if thread.error is not None:
            raise thread.error
        yield InProcessBroker(listeners, redis_url)
