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
import math
import resource
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gevent
import msgspec

from korvet.clock import CLOCK, Clock
from korvet.cluster.backpressure import Backpressure
from korvet.cluster.brokers import BrokerStore, ClusterView, LiveBroker
from korvet.cluster.dynamic_settings import BrokerConfigStore, LiveSettings
from korvet.cluster.features import Features
from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.groups.consumer.classic_members import ClassicMembers
from korvet.groups.consumer.coordinator import ConsumerGroups
from korvet.groups.consumer.migration import Migration
from korvet.groups.listing import GroupAdmin, GroupList
from korvet.groups.membership import GroupCoordinator
from korvet.groups.offsets import CommittedOffsets, OffsetStore
from korvet.groups.pending import PendingOffsets
from korvet.groups.share.coordinator import ShareGroups
from korvet.groups.store import GroupStore
from korvet.groups.streams.coordinator import StreamsGroups
from korvet.handlers.context import (
    Apis,
    ClusterApi,
    GroupApi,
    LogApi,
    SecurityApi,
    ShareApi,
    TopicApi,
    TransactionApi,
)
from korvet.handlers.registry import HANDLERS
from korvet.log.appends import APPEND_SCRIPTS
from korvet.log.epochs import LeaderEpochs
from korvet.log.fetches import Fetches
from korvet.log.index import IndexStore
from korvet.log.markers import MarkerWriter
from korvet.log.offsets import OffsetLookup
from korvet.log.producers import ActiveProducers, ProducerRows
from korvet.log.remote.archived import RemoteOffsetStore
from korvet.log.remote.client import RemoteClient
from korvet.log.remote.tier import RemoteTier
from korvet.log.replication import Replicas
from korvet.log.retention import Retention, SizeRetentionTrigger
from korvet.log.stats import LogDirs
from korvet.log.store import LogStore
from korvet.log.trim import BackgroundTrims, RecordDeletion, Trimmer, TrimStore
from korvet.log.types import LogLimits
from korvet.logs import Log, set_level
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.pubsub import Subscriptions
from korvet.redis.scripts import Script
from korvet.security.authorizer import AclStore, Authorizer
from korvet.security.client_quotas import ClientQuotas
from korvet.security.credentials import UserCredentials
from korvet.security.quotas import QuotaStore
from korvet.security.sasl import SaslListener
from korvet.security.tls import listeners_tls, ops_tls
from korvet.security.usage import Usage, Windows
from korvet.server import registry_watcher
from korvet.server.net.dispatch import Dispatcher
from korvet.server.net.listener import Acceptor, BoundListener, listen, watch_certificates
from korvet.server.serving import serve_clients
from korvet.server.serving_lease import ServingLease
from korvet.server.supervisor import ports
from korvet.server.supervisor.child import SupervisorLink
from korvet.server.supervisor.ports import Bound
from korvet.server.supervisor.startup import worker_count
from korvet.share.acknowledge import Acknowledger
from korvet.share.deletion import ShareDeletion
from korvet.share.fetch import ShareFetcher
from korvet.share.offsets import ShareGroupOffsets
from korvet.share.policies import SharePolicies
from korvet.share.positions import Positions
from korvet.share.sessions import ShareSessions
from korvet.share.store import SharePartitions
from korvet.telemetry import metrics
from korvet.telemetry.request_metrics import REDIS_METRICS, REQUEST_METRICS
from korvet.telemetry.snapshot import own_file
from korvet.telemetry.topic_counters import TopicCounters, TrafficSnapshot
from korvet.topics.config_admin import ConfigAdmin
from korvet.topics.metadata_view import MetadataView
from korvet.topics.registry import TopicRegistry, id_text
from korvet.topics.store import TopicStore
from korvet.transactions.coordinator import TransactionCoordinator
from korvet.transactions.store import TransactionStore

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


class Storage(msgspec.Struct, frozen=True):
    """A worker's connections: for small commands, appends, large replies, waits and notifications, and to the lake.

    Each has its own: neither an append nor a reply of a MiB holds up a heartbeat.
    """

    redis: Redis
    appends: Redis
    reads: Redis
    replicas: Replicas
    subscriptions: Subscriptions
    remote: RemoteClient | None
    lanes: list[Redis]

    @classmethod
    def of(cls, settings: Settings, lake: Path | None) -> Storage:
        """Prepare the connections; each is made at its first use. `lake`: the socket of the lake's process."""
        redis = Redis(
            settings.redis_url,
            timeout_ms=settings.redis_timeout_ms,
            connect_timeout_ms=settings.redis_connect_timeout_ms,
            reply_bytes_max=settings.redis_read_max_bytes,
            observer=REDIS_METRICS,
            operation="commands",
        )
        lanes = [redis]

        def lane(operation: str, load: Sequence[Script] = ()) -> Redis:
            lanes.append(redis.lane(operation, load))
            return lanes[-1]

        def reconnect() -> None:
            # Neither ever writes, so neither gets an error from a replica.
            for each in (reads, subscriptions):
                each.reconnect("another Redis is the master now")

        subscriptions = Subscriptions(redis, linger_ms=settings.subscription_linger_ms)
        appends, reads = lane("appends", APPEND_SCRIPTS), lane("reads")
        redis.on_failover(reconnect)
        remote = RemoteClient(lake, _observe_read) if lake else None
        replicas = Replicas(
            partial(lane, "wait"),
            appends,
            Keys(settings.namespace),
            replicas=settings.replicas,
            timeout_ms=settings.redis_timeout_ms,
        )
        return cls(redis, appends, reads, replicas, subscriptions, remote, lanes)

    def close(self) -> None:
        """Close all of them."""
        self.subscriptions.close()
        if self.remote is not None:
            self.remote.close()
        for lane in self.lanes:
            lane.close()


def main(
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
    _raise_descriptor_limit()
    _collect_less()
    _keep_freed_memory()
    # By this signal the supervisor asks for the stack of a loop that hangs.
    faulthandler.register(signal.SIGUSR1)
    serve(settings, link, listeners, data_dir, lake)


def serve(
    settings: Settings,
    link: SupervisorLink,
    listeners: Sequence[Bound],
    data_dir: Path | None,
    lake: Path | None,
) -> None:
    """Do the same in any process, on the event loop of the calling thread."""
    stopping = link.stop_event()
    storage = Storage.of(settings, lake)
    pressure = Backpressure(storage.appends, settings, data_dir)
    apis = build_apis(settings, storage, listeners, data_dir, link.usage.worker(link.row))
    live = apis.log.live
    _read_registry(apis)
    lease = ServingLease(storage.redis, settings.broker_lease_ms)
    lease.renew()
    dispatcher = Dispatcher(
        HANDLERS, apis, apis.log.replicas, lease, apis.security.quotas, apis.security.authorizer
    )
    live.follow(pressure.use)
    serve_clients(apis, pressure, lease, dispatcher.throttle)
    bound = _bind(listeners, settings, apis)
    acceptor = Acceptor(
        bound,
        dispatcher,
        settings,
        apis.security.quotas,
        path=apis.log.appends.core,
        may_all=apis.security.authorizer is None,
    )
    live.follow(acceptor.use)
    live.follow(set_level)
    acceptor.start()
    keeping = CLOCK.spawn(lease.keep)
    # That of ops too: what the process of ops would report is not among the metrics of workers.
    certificates = [*(each.tls for each in bound), ops_tls(settings)]
    CLOCK.spawn(watch_certificates, [listener for listener in certificates if listener])
    watching = CLOCK.spawn(_watch_registry, settings, storage, apis)
    REQUEST_METRICS.on_flush(apis.log.traffic.publish)
    CLOCK.spawn(_beat, link)
    link.report_ready()
    stopping.wait()
    link.report_draining()
    if not link.table.draining:
        # Another worker runs or soon will. If the whole broker ends, there is none to leave connections to.
        acceptor.leave_to_others()
    acceptor.close()
    apis.log.fetches.drain()
    apis.share.fetcher.drain()
    apis.groups.coordinator.drain()
    cut_off = acceptor.drain(settings.drain_timeout_ms / 1000)
    apis.flush()
    if cut_off:
        _log.warning("connections cut off at the end of the drain", connections=cut_off)
    gevent.killall([keeping, watching])
    storage.close()
    REQUEST_METRICS.flush()
    apis.log.traffic.publish(now=True)


def _read_registry(apis: Apis) -> None:
    """Read what this worker follows from then on. Raises StorageUnavailableError."""
    security, cluster = apis.security, apis.cluster
    for each in (apis.log.live, apis.log.topics, security.users, security.quotas, cluster.features):
        each.refresh()
    cluster.group_configs.refresh()
    if security.authorizer is not None:
        security.authorizer.refresh()


def _bind(listeners: Sequence[Bound], settings: Settings, apis: Apis) -> list[BoundListener]:
    tls = listeners_tls([each.name for each in listeners], settings)
    return [
        BoundListener(
            each.name, listen(each.address), _sasl_of(each.name, settings, apis), tls.get(each.name)
        )
        for each in listeners
    ]


def _sasl_of(listener: str, settings: Settings, apis: Apis) -> SaslListener | None:
    has_sasl = settings.security_protocol(listener).sasl
    return SaslListener.of(settings, listener, apis.security.users) if has_sasl else None


def _observe_read(kind: str, seconds: float) -> None:
    metrics.LAKE_READ_DURATION.labels(kind).observe(seconds)


def _beat(link: SupervisorLink) -> None:
    while True:
        link.beat()
        CLOCK.sleep(CLOCK.to_whole_second(_BEAT_SECONDS))


def build_apis(
    settings: Settings,
    storage: Storage,
    listeners: Sequence[Bound],
    data_dir: Path | None,
    usage: Usage,
    *,
    clock: Clock = CLOCK,
) -> Apis:
    """Build the services of a worker on `storage`, and from them the contexts of its handlers.

    `usage` counts for the broker what its clients use.
    """
    keys = Keys(settings.namespace)
    logs = _logs(settings, storage, keys)
    broker_configs = BrokerConfigStore(storage.redis, keys)
    live = LiveSettings(settings, broker_configs)
    topic_store = TopicStore(storage.redis, keys, clock=clock)
    topics = TopicRegistry(topic_store, settings, logs.store.partition, clock=clock)
    live.follow(topics.apply_settings)
    this = LiveBroker(settings.broker_id, ports.endpoints(listeners))
    cluster = ClusterView(settings.cluster_id, this, BrokerStore(storage.redis, keys, clock=clock))
    log_dirs = LogDirs(storage.reads, data_dir)
    live.follow(logs.remote.use)
    quotas = ClientQuotas(QuotaStore(storage.redis, keys), usage, _mutation_windows(settings), clock=clock)
    features = Features(storage.redis, keys)
    group_configs = GroupConfigs(storage.redis, keys, settings)
    group_api = _group_api(settings, storage, topics, features, group_configs)
    log_api = _log_api(settings, storage, logs, topics, live, pending=group_api.pending)
    return Apis(
        log=log_api,
        groups=group_api,
        share=_share_api(settings, storage, logs, log_api, group_api, group_configs),
        transactions=_transaction_api(log_api, group_api, cluster),
        topics=TopicApi(
            live=live,
            topics=topics,
            cluster=cluster,
            view=MetadataView(cluster, topics),
            replicas=storage.replicas,
            epochs=logs.store.epochs,
            quotas=quotas,
        ),
        cluster=ClusterApi(
            cluster=cluster,
            features=features,
            configs=ConfigAdmin(topics, live, broker_configs, group_configs, ports.in_settings(listeners)),
            group_configs=group_configs,
            topics=topics,
            log_dirs=log_dirs,
        ),
        security=SecurityApi(
            users=UserCredentials(storage.redis, keys),
            quotas=quotas,
            authorizer=_authorizer(settings, storage, logs.store.epochs),
        ),
    )


class _Logs(NamedTuple):
    """The logs in Redis, and the part of them that the remote tier holds."""

    store: LogStore
    remote: RemoteTier


def _logs(settings: Settings, storage: Storage, keys: Keys) -> _Logs:
    store = LogStore(
        storage.appends,
        storage.reads,
        keys,
        limits=LogLimits(
            settings.record_decompressed_max_bytes,
            settings.queued_max_request_bytes,
            # Kafka too divides them, among the shards of its cache (KAFKA-9401).
            math.ceil(settings.max_incremental_fetch_session_cache_slots / worker_count(settings)),
            None if settings.connections_max_idle_ms < 0 else settings.connections_max_idle_ms / 1000,
        ),
        replicas=storage.replicas,
        on_lost=metrics.LOGS_CUT.inc,
    )
    remote = RemoteTier(storage.remote, settings, count_error=metrics.LAKE_READ_ERRORS.inc)
    return _Logs(store, remote)


def _authorizer(settings: Settings, storage: Storage, epochs: LeaderEpochs) -> Authorizer | None:
    if not settings.authorizer_class_name:
        return None
    keys = Keys(settings.namespace)
    return Authorizer(AclStore(storage.redis, keys), settings, partial(epochs.current, keys.topics))


def _log_api(
    settings: Settings,
    storage: Storage,
    logs: _Logs,
    topics: TopicRegistry,
    live: LiveSettings,
    *,
    pending: PendingOffsets,
) -> LogApi:
    log, remote = logs
    trim_store = TrimStore(storage.redis)
    trimmer = Trimmer(
        log, trim_store, lambda reason, records: metrics.LOG_TRIMMED_RECORDS.labels(reason).inc(records)
    )
    background = BackgroundTrims()
    traffic = TopicCounters(own_file(TrafficSnapshot.FILE))
    growth = SizeRetentionTrigger(topics, Retention(log, trim_store, trimmer), background)
    log.appends.on_row = growth.crossed
    markers = MarkerWriter(log, storage.replicas)
    transactions = TransactionStore(storage.redis, Keys(settings.namespace))
    return LogApi(
        live=live,
        topics=topics,
        appends=log.appends,
        markers=markers,
        transactions=TransactionCoordinator(
            transactions,
            topics,
            markers,
            pending,
            storage.replicas,
            settings,
            count=lambda result, reason: metrics.TRANSACTIONS_COMPLETED.labels(result, reason).inc(),
        ),
        fetches=Fetches(log, storage.subscriptions, remote),
        offsets=OffsetLookup(log, IndexStore(storage.redis), remote),
        deletion=RecordDeletion(log, RemoteOffsetStore(storage.redis), trimmer, background),
        active_producers=ActiveProducers(topics, ProducerRows(storage.reads)),
        replicas=storage.replicas,
        traffic=traffic,
    )


def _mutation_windows(settings: Settings) -> Windows:
    size_ms = settings.controller_quota_window_size_seconds * 1000
    return Windows(settings.controller_quota_window_num, size_ms)


def _group_api(
    settings: Settings, storage: Storage, topics: TopicRegistry, features: Features, configs: GroupConfigs
) -> GroupApi:
    keys = Keys(settings.namespace)
    store = GroupStore(
        storage.redis,
        keys,
        size_max=settings.group_max_size,
        initial_delay_ms=settings.group_initial_rebalance_delay_ms,
    )
    offsets = OffsetStore(storage.redis, keys, mirror=settings.group_mirror)
    migration = Migration(store, topics, settings)
    consumer_groups = ConsumerGroups(
        store.consumers, topics, configs, migration, settings, storage.subscriptions
    )
    classic_members = ClassicMembers(consumer_groups, migration, topics)
    return GroupApi(
        coordinator=GroupCoordinator(
            store,
            storage.subscriptions,
            settings,
            classic_members,
            REQUEST_METRICS.parked,
        ),
        consumer_groups=consumer_groups,
        share_groups=ShareGroups(store.shares, topics, configs, settings, storage.subscriptions),
        share_deletion=ShareDeletion(SharePartitions(storage.redis), topics),
        streams_groups=StreamsGroups(store.streams, topics, configs, settings, storage.subscriptions),
        features=features,
        committed=CommittedOffsets(offsets, topics, settings),
        pending=PendingOffsets(offsets, topics, settings),
        admin=GroupAdmin(store, GroupList(storage.redis, keys), offsets, topics),
        topics=topics,
        replicas=storage.replicas,
    )


def _share_api(
    settings: Settings,
    storage: Storage,
    logs: _Logs,
    of: LogApi,
    groups: GroupApi,
    configs: GroupConfigs,
) -> ShareApi:
    store = SharePartitions(storage.redis)
    policies = SharePolicies(configs, settings)
    members = groups.share_groups.store
    offsets = ShareGroupOffsets(store, members, IndexStore(storage.redis), of.topics, policies)
    positions = Positions(store, of.offsets, storage.replicas, offsets.reset)
    workers = worker_count(settings)
    slots = math.ceil(settings.group_share_max_share_sessions / workers)
    return ShareApi(
        live=of.live,
        topics=of.topics,
        features=groups.features,
        policies=policies,
        members=members,
        sessions=ShareSessions(
            storage.subscriptions,
            slots,
            lambda group, member, some: store.release(group, member, some, policies.of(group)),
            is_alone=workers == 1,
        ),
        fetcher=ShareFetcher(
            logs.store,
            store,
            positions,
            logs.remote,
            storage.replicas,
            on_park=partial(REQUEST_METRICS.parked, "ShareFetch"),
        ),
        acknowledger=Acknowledger(store, of.topics, storage.replicas),
        offsets=offsets,
        traffic=of.traffic,
    )


def _transaction_api(log: LogApi, groups: GroupApi, cluster: ClusterView) -> TransactionApi:
    return TransactionApi(
        coordinator=log.transactions,
        topics=log.topics,
        markers=log.markers,
        pending=groups.pending,
        cluster=cluster,
    )


def _watch_registry(settings: Settings, storage: Storage, apis: Apis) -> None:
    """Refresh this worker's copies of settings, topics, features, users and rights when others change them."""
    keys = Keys(settings.namespace)
    api = apis.log

    def ask_the_master() -> None:
        # A replica refuses it: a worker that only reads would stay with a master that was replaced, and with what that
        # knew. And a server may have been a replica for a while, and lost records, with all connections alive.
        for lane in (storage.redis, storage.appends, storage.reads):
            apis.topics.epochs.refresh_all(lane)

    def exists(name: str, topic_id: str) -> bool:
        topic = api.topics.get_cached(name)
        return topic is not None and id_text(topic.id) == topic_id

    def forget_deleted() -> None:
        api.traffic.keep(exists)
        REQUEST_METRICS.flush_soon()

    # Settings before topics, which are made of them.
    refreshes: list[registry_watcher.Refresh] = [
        ask_the_master,
        apis.security.users.refresh,
        api.live.refresh,
        api.topics.refresh,
        forget_deleted,
        apis.security.quotas.refresh,
        apis.cluster.features.refresh,
        apis.cluster.group_configs.refresh,
    ]
    if apis.security.authorizer is not None:
        # As soon as the epoch is known: nothing is as urgent as a right that was revoked.
        refreshes.insert(1, apis.security.authorizer.refresh)
    registry_watcher.watch(storage.subscriptions, keys.topics_channel, refreshes)


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
