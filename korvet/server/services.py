"""The services of a worker: its connections to Redis, and what the handlers call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from korvet.clock import CLOCK, Clock
from korvet.cluster.brokers import BrokerStore, ClusterView, LiveBroker
from korvet.cluster.dynamic_settings import BrokerConfigStore, LiveSettings
from korvet.cluster.features import Features
from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.groups.consumer.assignment import GroupsContext
from korvet.groups.consumer.classic_members import ClassicMembers
from korvet.groups.consumer.coordinator import ConsumerGroups
from korvet.groups.consumer.migration import Migration
from korvet.groups.listing import GroupAdmin, GroupList
from korvet.groups.membership import GroupCoordinator
from korvet.groups.offsets import CommittedOffsets, OffsetStore
from korvet.groups.share.coordinator import ShareGroups
from korvet.groups.store import GroupStore
from korvet.groups.streams.coordinator import StreamsGroups
from korvet.handlers.registry import (
    GroupServices,
    Services,
    ShareServices,
)
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
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.pubsub import Subscriptions
from korvet.redis.scripts import Script
from korvet.security.authorizer import AclStore, Authorizer
from korvet.security.client_quotas import ClientQuotas
from korvet.security.credentials import UserCredentials
from korvet.security.quotas import QuotaStore
from korvet.security.usage import Usage, Windows
from korvet.server.supervisor import ports
from korvet.server.supervisor.ports import Bound
from korvet.server.supervisor.startup import worker_count
from korvet.share.acknowledge import Acknowledger
from korvet.share.fetch import ShareFetcher
from korvet.share.offsets import ShareGroupOffsets
from korvet.share.positions import Positions
from korvet.share.sessions import ShareSessions
from korvet.share.store import SharePartitions
from korvet.telemetry import metrics
from korvet.telemetry.request_metrics import REQUEST_METRICS
from korvet.telemetry.snapshot import own_file
from korvet.telemetry.topic_counters import TopicCounters, TrafficSnapshot
from korvet.topics.config_admin import ConfigAdmin
from korvet.topics.metadata_view import MetadataView
from korvet.topics.registry import TopicRegistry
from korvet.topics.store import TopicStore
from korvet.transactions.coordinator import TransactionCoordinator
from korvet.transactions.store import TransactionStore


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
            observer=REQUEST_METRICS,
            operation="commands",
        )
        lanes = [redis]

        def lane(operation: str, load: Sequence[Script] = ()) -> Redis:
            lanes.append(redis.lane(operation, load))
            return lanes[-1]

        def reconnect() -> None:
            # Neither ever writes, so neither gets an error from a replica.
            for connection in (reads, subscriptions):
                connection.reconnect("another Redis is the master now")

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
        self.subscriptions.close()
        if self.remote is not None:
            self.remote.close()
        for lane in self.lanes:
            lane.close()


def _observe_read(kind: str, seconds: float) -> None:
    metrics.LAKE_READ_DURATION.labels(kind).observe(seconds)


def build_services(
    settings: Settings,
    storage: Storage,
    listeners: Sequence[Bound],
    data_dir: Path | None,
    usage: Usage,
    *,
    clock: Clock = CLOCK,
) -> Services:
    """Build the services of a worker on `storage`; `usage` counts for the broker what its clients use."""
    keys, redis, replicas = Keys(settings.namespace), storage.redis, storage.replicas
    log = _log_store(settings, storage, keys)
    broker_configs, group_configs = BrokerConfigStore(redis, keys), GroupConfigs(redis, keys, settings)
    live = LiveSettings(settings, broker_configs)
    topics = TopicRegistry(TopicStore(redis, keys, clock=clock), settings, log.partition, clock=clock)
    live.follow(topics.apply_settings)
    remote = RemoteTier(storage.remote, settings)
    live.follow(remote.use)
    this = LiveBroker(settings.broker_id, ports.endpoints(listeners))
    cluster = ClusterView(settings.cluster_id, this, BrokerStore(redis, keys, clock=clock))
    groups = _group_services(settings, storage, topics, group_configs)
    offsets = OffsetLookup(log, IndexStore(redis), remote)
    markers = MarkerWriter(log, replicas)
    mutation_windows = Windows(
        settings.controller_quota_window_num, settings.controller_quota_window_size_seconds * 1000
    )
    return Services(
        live=live,
        topics=topics,
        cluster=cluster,
        view=MetadataView(cluster, topics),
        features=Features(redis, keys),
        configs=ConfigAdmin(topics, live, broker_configs, group_configs, ports.in_settings(listeners)),
        group_configs=group_configs,
        log_dirs=LogDirs(storage.reads, data_dir),
        appends=log.appends,
        fetches=Fetches(log, storage.subscriptions, remote),
        epochs=log.epochs,
        offsets=offsets,
        deletion=_record_deletion(log, topics, redis),
        markers=markers,
        active_producers=ActiveProducers(topics, ProducerRows(storage.reads)),
        replicas=replicas,
        transactions=TransactionCoordinator(
            TransactionStore(redis, keys), topics, markers, groups.committed, replicas, settings
        ),
        groups=groups,
        share=_share_services(settings, storage, log, remote, offsets, topics, groups, group_configs),
        users=UserCredentials(redis, keys),
        quotas=ClientQuotas(QuotaStore(redis, keys), usage, mutation_windows, clock=clock),
        authorizer=_authorizer(settings, redis, log.epochs),
        traffic=TopicCounters(own_file(TrafficSnapshot.FILE)),
        clock=clock,
    )


def _authorizer(settings: Settings, redis: Redis, epochs: LeaderEpochs) -> Authorizer | None:
    if not settings.authorizer_class_name:
        return None
    return Authorizer(AclStore(redis, Keys(settings.namespace), epochs), settings)


def _log_store(settings: Settings, storage: Storage, keys: Keys) -> LogStore:
    limits = LogLimits(
        settings.record_decompressed_max_bytes,
        settings.queued_max_request_bytes,
        # Kafka too divides them, among the shards of its cache (KAFKA-9401).
        math.ceil(settings.max_incremental_fetch_session_cache_slots / worker_count(settings)),
        None if settings.connections_max_idle_ms < 0 else settings.connections_max_idle_ms / 1000,
    )
    return LogStore(
        storage.appends,
        storage.reads,
        keys,
        limits=limits,
        replicas=storage.replicas,
        on_lost=metrics.LOGS_CUT.inc,
    )


def _record_deletion(log: LogStore, topics: TopicRegistry, redis: Redis) -> RecordDeletion:
    """Return the deletion of records; in the background it also shortens a log that appends have made too large."""
    store = TrimStore(redis)
    trimmer = Trimmer(
        log, store, lambda reason, records: metrics.LOG_TRIMMED_RECORDS.labels(reason).inc(records)
    )
    background = BackgroundTrims()
    growth = SizeRetentionTrigger(topics, Retention(log, store, trimmer), background)
    log.appends.on_row = growth.crossed
    return RecordDeletion(log, RemoteOffsetStore(redis), trimmer, background)


def _group_services(
    settings: Settings, storage: Storage, topics: TopicRegistry, configs: GroupConfigs
) -> GroupServices:
    keys, redis, subscriptions = Keys(settings.namespace), storage.redis, storage.subscriptions
    store = GroupStore(
        redis,
        keys,
        size_max=settings.group_max_size,
        initial_delay_ms=settings.group_initial_rebalance_delay_ms,
    )
    offsets = OffsetStore(redis, keys, mirror=settings.group_mirror)
    migration = Migration(store, topics, settings)
    context = GroupsContext(topics, configs, settings, subscriptions)
    consumer = ConsumerGroups(store.consumers, context, migration)
    return GroupServices(
        coordinator=GroupCoordinator(
            store, subscriptions, settings, ClassicMembers(consumer, migration, topics)
        ),
        consumer=consumer,
        share=ShareGroups(store.shares, context),
        streams=StreamsGroups(store.streams, context),
        committed=CommittedOffsets(offsets, topics, settings),
        offsets=offsets,
        admin=GroupAdmin(store, GroupList(redis, keys), offsets, topics),
    )


def _share_services(  # noqa: PLR0913, PLR0917 - of logs and of groups
    settings: Settings,
    storage: Storage,
    log: LogStore,
    remote: RemoteTier,
    log_offsets: OffsetLookup,
    topics: TopicRegistry,
    groups: GroupServices,
    configs: GroupConfigs,
) -> ShareServices:
    store = SharePartitions(storage.redis)
    offsets = ShareGroupOffsets(store, groups.share.store, IndexStore(storage.redis), topics, configs)
    positions = Positions(store, log_offsets, storage.replicas, offsets.reset)
    workers = worker_count(settings)
    return ShareServices(
        sessions=ShareSessions(
            storage.subscriptions,
            math.ceil(settings.group_share_max_share_sessions / workers),
            lambda group, member, chunk: store.release(group, member, chunk, configs.share_policy(group)),
            is_alone=workers == 1,
        ),
        fetcher=ShareFetcher(log, store, positions, remote, storage.replicas),
        acknowledger=Acknowledger(store, topics, storage.replicas),
        offsets=offsets,
    )
