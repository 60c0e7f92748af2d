"""A worker: one process that serves clients, from its own accept queue to its own connections to Redis.

It binds a socket of its own with SO_REUSEPORT after the fork, so that the kernel gives each worker a queue of its own.
Then it builds the services that the handlers call, accepts until it has to stop, and drains. Nothing is
monkey-patched: greenlets use gevent's sockets and locks by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import resource
import signal
from collections.abc import Sequence
from pathlib import Path

import gevent

from korvet.clock import CLOCK
from korvet.cluster.backpressure import Backpressure
from korvet.config.settings import Settings
from korvet.handlers.registry import HANDLERS, Services
from korvet.logs import Log, set_level
from korvet.redis.keys import Keys
from korvet.security.credentials import UserCredentials
from korvet.security.sasl import SaslListener
from korvet.security.tls import listeners_tls, ops_tls
from korvet.server import registry_watcher
from korvet.server.net.dispatch import Dispatcher
from korvet.server.net.listener import Acceptor, BoundListener, listen, watch_certificates
from korvet.server.services import Storage, build_services
from korvet.server.serving import serve_clients
from korvet.server.serving_lease import ServingLease
from korvet.server.supervisor.child import SupervisorLink
from korvet.server.supervisor.ports import Bound
from korvet.telemetry.request_metrics import REQUEST_METRICS
from korvet.topics.registry import id_text

_log = Log(__name__)

_BEAT_SECONDS = 5.0
"""How often a worker shows the supervisor that its event loop runs."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc

MAPPED_BYTES_MIN = 32 * 1024 * 1024
"""Allocations from here on are mapped, and returned to the system when they are freed; glibc takes no larger number."""

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Free memory at the top of the heap beyond this is returned to the system."""

GC_THRESHOLD = 200_000
"""Containers allocated, beyond those freed, before the collector examines the young generation."""


def tune_process() -> None:
    """Make the most of a process that is a worker alone."""
    _raise_descriptor_limit()
    _collect_less()
    _keep_freed_memory()
    # By this signal the supervisor asks for the stack of a loop that hangs.
    faulthandler.register(signal.SIGUSR1)


def serve(
    settings: Settings,
    link: SupervisorLink,
    listeners: Sequence[Bound],
    data_dir: Path | None,
    lake: Path | None,
) -> None:
    """Serve clients at `listeners` until SIGTERM, or until the supervisor is gone; then drain and return.

    `data_dir` is the directory of the embedded server, `lake` the socket of the process that reads the lake.
    Raises StorageUnavailableError if Redis is away at the start.
    """
    stopping = link.stop_event()
    storage = Storage.of(settings, lake)
    pressure = Backpressure(storage.appends, settings, data_dir)
    services = build_services(settings, storage, listeners, data_dir, link.usage.worker(link.row))
    live = services.live
    for refresh in _copies(services):
        refresh()
    lease = ServingLease(storage.redis, settings.broker_lease_ms)
    lease.renew()
    dispatcher = Dispatcher(HANDLERS, services, lease)
    live.follow(pressure.use)
    serve_clients(dispatcher, pressure)
    acceptor = Acceptor(_bind(listeners, settings, services.users), dispatcher, settings)
    live.follow(acceptor.use)
    live.follow(set_level)
    acceptor.start()
    keeping = CLOCK.spawn(lease.keep)
    # That of ops too: what the process of ops would report is not among the metrics of workers.
    certificates = [*(listener.tls for listener in acceptor.listeners), ops_tls(settings)]
    CLOCK.spawn(watch_certificates, [listener for listener in certificates if listener])
    watching = CLOCK.spawn(_watch_registry, settings, storage, services)
    CLOCK.spawn(_beat, link)
    link.report_ready()
    stopping.wait()
    link.report_draining()
    if not link.table.draining:
        # Another worker runs or soon will. If the whole broker ends, there is none to leave connections to.
        acceptor.leave_to_others()
    acceptor.close()
    services.fetches.drain()
    services.share.fetcher.drain()
    services.groups.coordinator.drain()
    cut_off = acceptor.drain(settings.drain_timeout_ms / 1000)
    services.flush()
    if cut_off:
        _log.warning("connections cut off at the end of the drain", connections=cut_off)
    gevent.killall([keeping, watching])
    storage.close()
    REQUEST_METRICS.flush()
    services.traffic.flush(now=True)


def _copies(services: Services) -> list[registry_watcher.Refresh]:
    """Return what reads again the copies that this worker has of users, settings, topics, quotas and features."""
    copies: list[registry_watcher.Refresh] = [
        services.users.refresh,
        # Settings before topics, which are made of them.
        services.live.refresh,
        services.topics.refresh,
        services.quotas.refresh,
        services.features.refresh,
        services.group_configs.refresh,
    ]
    # First: nothing is as urgent as a right that was revoked.
    return copies if services.authorizer is None else [services.authorizer.refresh, *copies]


def _bind(listeners: Sequence[Bound], settings: Settings, users: UserCredentials) -> list[BoundListener]:
    tls = listeners_tls([listener.name for listener in listeners], settings)
    bound = []
    for name, address, _ in listeners:
        has_sasl = settings.security_protocol(name).sasl
        sasl = SaslListener.of(settings, name, users) if has_sasl else None
        bound.append(BoundListener(name, listen(address), sasl, tls.get(name)))
    return bound


def _beat(link: SupervisorLink) -> None:
    while True:
        link.beat()
        CLOCK.sleep(CLOCK.to_whole_second(_BEAT_SECONDS))


def _watch_registry(settings: Settings, storage: Storage, services: Services) -> None:
    """Refresh this worker's copies when others change what is in Redis."""
    topics = services.topics

    def ask_the_master() -> None:
        # A replica refuses it: a worker that only reads would stay with a replaced master and its
        # data. And a server may have been a replica for a while, and lost records, with all connections alive.
        for lane in (storage.redis, storage.appends, storage.reads):
            services.epochs.refresh_all(lane)

    def forget_deleted() -> None:
        rows = [(row, topics.get_cached(row.topic)) for row in services.traffic.rows()]
        services.traffic.forget(
            [row for row, topic in rows if topic is None or id_text(topic.id) != row.topic_id]
        )
        REQUEST_METRICS.flush_soon()

    refreshes = [ask_the_master, *_copies(services), forget_deleted]
    channel = Keys(settings.namespace).topics_channel
    registry_watcher.watch(storage.subscriptions, channel, refreshes)


def _collect_less() -> None:
    """Run the garbage collector less often: a fetch makes lists by the ten thousand, and none is garbage.

    With Python's own thresholds it takes two thirds of the CPU of a read. What was allocated before the fork is
    shared with the other workers and never collected.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 1000)


def _keep_freed_memory() -> None:
    """Keep what large requests and replies leave free for the next ones, up to a bound.

    By default glibc maps each buffer of 128 KiB and more, and unmaps it when it is freed; the page faults of that cost
    a fetch of 1 MiB a quarter of its CPU. Other C libraries have no mallopt and are left as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def _raise_descriptor_limit() -> None:
    """Every connection is a descriptor; the soft limit of most systems (1024) is for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # An unlimited hard limit may be more than the kernel takes.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
