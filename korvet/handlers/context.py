"""What a handler is given: who asks, and the services of its kind of requests.

Each handler takes one of these contexts. They are built once in each worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from korvet.clock import CLOCK, Clock
from korvet.cluster.brokers import ClusterView
from korvet.cluster.dynamic_settings import LiveSettings
from korvet.cluster.features import Features
from korvet.cluster.group_configs import GroupConfigs
from korvet.config.definition import INT32_MAX
from korvet.groups.consumer.coordinator import ConsumerGroups
from korvet.groups.consumer.store import ConsumerStore
from korvet.groups.listing import GroupAdmin
from korvet.groups.membership import GroupCoordinator
from korvet.groups.offsets import CommittedOffsets
from korvet.groups.pending import PendingOffsets
from korvet.groups.share.coordinator import ShareGroups
from korvet.groups.streams.coordinator import StreamsGroups
from korvet.log.appends import Appends
from korvet.log.epochs import LeaderEpochs
from korvet.log.fetches import Fetches
from korvet.log.markers import MarkerWriter
from korvet.log.offsets import OffsetLookup
from korvet.log.producers import ActiveProducers
from korvet.log.replication import Replicas
from korvet.log.stats import LogDirs
from korvet.log.trim import RecordDeletion
from korvet.log.types import UNLIMITED, FetchMemory
from korvet.protocol.types import UNKNOWN_OPERATIONS, AclOperation, AclResourceType
from korvet.security.acls import CLUSTER_NAME
from korvet.security.authorizer import ALL_RIGHTS, Authorizer, Rights
from korvet.security.client_quotas import ClientQuotas, Mutations
from korvet.security.credentials import UserCredentials
from korvet.security.session import Principal, Session
from korvet.share.acknowledge import Acknowledger
from korvet.share.deletion import ShareDeletion
from korvet.share.fetch import ShareFetcher
from korvet.share.offsets import ShareGroupOffsets
from korvet.share.policies import SharePolicies
from korvet.share.sessions import ShareSessions
from korvet.telemetry.request_timer import NO_TIMER, RequestTimer
from korvet.telemetry.topic_counters import TopicCounters
from korvet.topics.config_admin import ConfigAdmin
from korvet.topics.metadata_view import MetadataView
from korvet.topics.registry import TopicRegistry
from korvet.transactions.coordinator import TransactionCoordinator


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request, and in which version of its API.

    Responses carry the addresses that belong to the listener of its `session`.
    `timer` measures the stages of a request whose handler is `timed`. `fetched` is charged with fetched records until
    the response is sent. `not_after_ms` is set for a request that is late: it must not replace what was written after
    that time (ms, Redis' clock). `fetch_max_bytes` is what its quota lets a client fetch at once. `rights` are those of
    its principal. `is_gone` says whether its connection has ended meanwhile.
    """

    client_id: str | None
    session: Session
    version: int
    timer: RequestTimer = msgspec.field(default_factory=lambda: NO_TIMER)
    fetched: FetchMemory = UNLIMITED
    not_after_ms: int = 0
    fetch_max_bytes: int = INT32_MAX
    rights: Rights = ALL_RIGHTS
    is_gone: Callable[[], bool] = lambda: False

    @property
    def peer(self) -> str:
        """Address and port of its connection."""
        return self.session.peer

    @property
    def listener(self) -> str:
        """Name of the listener that its connection came in by."""
        return self.session.listener

    @property
    def principal(self) -> Principal:
        """As whom it has authenticated."""
        return self.session.principal

    @property
    def client_host(self) -> str:
        """The address of its connection, as Kafka writes that of a group's member."""
        return f"/{self.peer.rpartition(':')[0]}"

    def may(self, operation: AclOperation, topic: str, *, log: bool = True) -> bool:
        """Whether it has a right on a topic; with `log` the audit log says if not."""
        return self.rights.allows(operation, AclResourceType.TOPIC, topic, log=log)

    def operations(self, resource: AclResourceType, name: str, *, requested: bool) -> int:
        """Return what it may do with a resource, if the request asks for it (KIP-430)."""
        return self.rights.operations(resource, name) if requested else UNKNOWN_OPERATIONS

    def cluster_operations(self, *, requested: bool) -> int:
        """Return what it may do with the cluster, if the request asks; nothing if it may not describe it."""
        if requested and not self.rights.allows_cluster(AclOperation.DESCRIBE):
            return 0
        return self.operations(AclResourceType.CLUSTER, CLUSTER_NAME, requested=requested)

    def mutations(self, quotas: ClientQuotas, strict_from: int) -> Mutations:
        """Return the changes of topics that its quota lets it do; versions from `strict_from` on know its error."""
        strict = self.version >= strict_from
        return quotas.mutations(self.principal.name, self.client_id, strict=strict)


class LogApi(msgspec.Struct, frozen=True, kw_only=True):
    """For requests about records: produce, fetch, offsets by time or epoch, producers."""

    live: LiveSettings
    topics: TopicRegistry
    appends: Appends
    markers: MarkerWriter
    transactions: TransactionCoordinator
    fetches: Fetches
    offsets: OffsetLookup
    deletion: RecordDeletion
    active_producers: ActiveProducers
    replicas: Replicas
    traffic: TopicCounters


class GroupApi(msgspec.Struct, frozen=True, kw_only=True):
    """For requests about groups, and committed offsets."""

    coordinator: GroupCoordinator
    consumer_groups: ConsumerGroups
    share_groups: ShareGroups
    share_deletion: ShareDeletion
    streams_groups: StreamsGroups
    features: Features
    committed: CommittedOffsets
    pending: PendingOffsets
    admin: GroupAdmin
    topics: TopicRegistry
    replicas: Replicas

    def flush(self) -> None:
        """Send what follows requests a little later: this worker stops."""
        self.coordinator.flush()
        self.committed.flush()


class ShareApi(msgspec.Struct, frozen=True, kw_only=True):
    """For requests about records of share groups, and where these are."""

    live: LiveSettings
    topics: TopicRegistry
    features: Features
    policies: SharePolicies
    members: ConsumerStore
    sessions: ShareSessions
    fetcher: ShareFetcher
    acknowledger: Acknowledger
    offsets: ShareGroupOffsets
    traffic: TopicCounters


class TransactionApi(msgspec.Struct, frozen=True, kw_only=True):
    """For requests about transactions, and about the offsets and markers that belong to them."""

    coordinator: TransactionCoordinator
    topics: TopicRegistry
    markers: MarkerWriter
    pending: PendingOffsets
    cluster: ClusterView


class TopicApi(msgspec.Struct, frozen=True, kw_only=True):
    """For requests about topics: which there are, their partitions, and the brokers these are placed on."""

    live: LiveSettings
    topics: TopicRegistry
    cluster: ClusterView
    view: MetadataView
    replicas: Replicas
    epochs: LeaderEpochs
    quotas: ClientQuotas
    clock: Clock = CLOCK


class ClusterApi(msgspec.Struct, frozen=True, kw_only=True):
    """For requests about the brokers: who they are, how they and the topics are configured, what they store."""

    cluster: ClusterView
    features: Features
    group_configs: GroupConfigs
    configs: ConfigAdmin
    topics: TopicRegistry
    log_dirs: LogDirs


class SecurityApi(msgspec.Struct, frozen=True, kw_only=True):
    """For requests about who may connect, and what and how much each may do."""

    users: UserCredentials
    quotas: ClientQuotas
    authorizer: Authorizer | None


class Apis(NamedTuple):
    """The contexts of one worker."""

    log: LogApi
    groups: GroupApi
    share: ShareApi
    transactions: TransactionApi
    topics: TopicApi
    cluster: ClusterApi
    security: SecurityApi

    def flush(self) -> None:
        """Send what follows requests a little later: this worker stops."""
        self.groups.flush()
        self.transactions.coordinator.flush()
