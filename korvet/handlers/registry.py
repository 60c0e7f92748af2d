"""The arguments of handlers, and the registry of handlers by API key.

Each handler file registers itself. Dispatch finds the handler of a request here, and ApiVersions lists all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_type_hints

import msgspec

from korvet.clock import Clock
from korvet.cluster.brokers import ClusterView
from korvet.cluster.dynamic_settings import LiveSettings
from korvet.cluster.features import Features
from korvet.cluster.group_configs import GroupConfigs
from korvet.config.definition import INT32_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.coordinator import ConsumerGroups
from korvet.groups.listing import GroupAdmin
from korvet.groups.membership import GroupCoordinator
from korvet.groups.offsets import CommittedOffsets, OffsetStore
from korvet.groups.share.coordinator import ShareGroups
from korvet.groups.streams.coordinator import StreamsGroups
from korvet.handlers.rights import Rule
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
from korvet.protocol.schema import Message
from korvet.protocol.types import UNKNOWN_OPERATIONS, AclOperation, AclResourceType
from korvet.security.acls import CLUSTER_NAME
from korvet.security.authorizer import ALL_RIGHTS, Authorizer, Rights
from korvet.security.client_quotas import ClientQuotas, Mutations
from korvet.security.credentials import UserCredentials
from korvet.security.sasl import Authenticator
from korvet.security.session import Session
from korvet.share.acknowledge import Acknowledger
from korvet.share.fetch import ShareFetcher
from korvet.share.offsets import ShareGroupOffsets
from korvet.share.sessions import ShareSessions
from korvet.telemetry.request_timer import NO_TIMER, RequestTimer
from korvet.telemetry.topic_counters import TopicCounters
from korvet.topics.config_admin import ConfigAdmin
from korvet.topics.metadata_view import MetadataView
from korvet.topics.registry import TopicRegistry
from korvet.transactions.coordinator import TransactionCoordinator


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request, and in which version of its API.

    Responses carry the addresses of the `session`'s listener. `sasl`: the connection's logins, on a listener with SASL.
    `timer` measures the stages of a request whose handler is `timed`. `fetched` is charged with fetched records until
    the response is sent. `not_after_ms` (ms, Redis' clock; 0: not late): a late request must not replace later writes.
    `fetch_max_bytes`: most bytes of one fetch by the client's quota. `rights`: the rights of its principal. `is_gone`
    returns whether its connection has ended.
    """

    client_id: str | None
    session: Session
    version: int
    sasl: Authenticator | None = None
    timer: RequestTimer = msgspec.field(default_factory=lambda: NO_TIMER)
    fetched: FetchMemory = UNLIMITED
    not_after_ms: int = 0
    fetch_max_bytes: int = INT32_MAX
    rights: Rights = ALL_RIGHTS
    is_gone: Callable[[], bool] = lambda: False

    @property
    def client_host(self) -> str:
        """The address of its connection, as Kafka writes that of a group's member."""
        return f"/{self.session.host}"

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
        return Mutations(quotas, self.session.principal.name, self.client_id or "", strict=strict)


class GroupServices(msgspec.Struct, frozen=True, kw_only=True):
    """What serves groups of each protocol, and their committed offsets."""

    coordinator: GroupCoordinator
    consumer: ConsumerGroups
    share: ShareGroups
    streams: StreamsGroups
    committed: CommittedOffsets
    offsets: OffsetStore
    admin: GroupAdmin


class ShareServices(msgspec.Struct, frozen=True, kw_only=True):
    """What serves the records of share groups."""

    sessions: ShareSessions
    fetcher: ShareFetcher
    acknowledger: Acknowledger
    offsets: ShareGroupOffsets


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The services of one worker, which are the same for all requests."""

    live: LiveSettings
    topics: TopicRegistry
    cluster: ClusterView
    view: MetadataView
    features: Features
    configs: ConfigAdmin
    group_configs: GroupConfigs
    log_dirs: LogDirs
    appends: Appends
    fetches: Fetches
    epochs: LeaderEpochs
    offsets: OffsetLookup
    deletion: RecordDeletion
    markers: MarkerWriter
    active_producers: ActiveProducers
    replicas: Replicas
    transactions: TransactionCoordinator
    groups: GroupServices
    share: ShareServices
    users: UserCredentials
    quotas: ClientQuotas
    authorizer: Authorizer | None
    traffic: TopicCounters
    clock: Clock

    def flush(self) -> None:
        """Send what follows requests a little later: this worker stops."""
        self.groups.coordinator.flush()
        self.groups.offsets.flush()
        self.transactions.flush()


class Reply(NamedTuple):
    """A response, and for how long its client made too many changes: the connection takes no requests until then."""

    response: Message
    throttle_ms: int = 0


Answer: TypeAlias = Message | Reply
"""What a handler returns; a plain response throttles nobody."""

Outcome: TypeAlias = tuple[str, int]
"""What was to be changed, and the error code."""

R = TypeVar("R", bound=Message)


class Handler(msgspec.Struct, frozen=True):
    """How requests of one class are served.

    `refuse` makes the response that answers all of a request with an error. `rights` are the rules that are looked at
    first. `changes` reads from a response what an administrator has changed, for the audit log; None: nothing. `timed`:
    metrics show how long each stage takes. `unconfirmed` is the error that is answered if too few of Redis' replicas
    have what the request has changed; NONE asks for no replicas. `abandoned` gives the error, a retriable one, for a
    request that comes late and whose client has gone; NONE: it is begun. `confirms` says of a single request whether
    replicas are asked for.
    """

    request: type[Message]
    handle: Callable[[Any, Caller, Services], Any]
    refuse: Callable[[Any, Caller, KafkaError], Message]
    rights: tuple[Rule, ...] = ()
    changes: Callable[[Any, Any], Iterable[Outcome]] | None = None
    timed: bool = False
    unconfirmed: ErrorCode = ErrorCode.NONE
    abandoned: Callable[[Any], ErrorCode] = lambda _request: ErrorCode.NONE
    confirms: Callable[[Any], bool] = lambda _request: True

    @property
    def name(self) -> str:
        """Kafka's name of the API."""
        return self.request.__name__.removesuffix("Request")


HANDLERS: dict[int, Handler] = {}
"""By API key."""


def register(  # noqa: PLR0913 - what Handler has, each by its name
    handle: Callable[[R, Caller, Services], Answer],
    refuse: Callable[[R, Caller, KafkaError], Message],
    *,
    rights: Collection[Rule],
    changes: Callable[[R, Any], Iterable[Outcome]] | None = None,
    timed: bool = False,
    unconfirmed: ErrorCode = ErrorCode.NONE,
    abandoned: ErrorCode | Callable[[R], ErrorCode] | None = None,
    confirms: Callable[[R], bool] = lambda _request: True,
) -> None:
    """Serve the requests that `handle` takes, by its annotations.

    What is abandoned is answered with `unconfirmed` if nothing else is said.
    """
    request = next(iter(get_type_hints(handle).values()))
    code = unconfirmed if abandoned is None else abandoned
    HANDLERS[request.api.key] = Handler(
        request,
        handle,
        refuse,
        rights=tuple(rights),
        changes=changes,
        timed=timed,
        unconfirmed=unconfirmed,
        abandoned=code if callable(code) else lambda _request: code,
        confirms=confirms,
    )
