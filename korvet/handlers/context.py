"""What a handler is given: who asks, and the broker it may call.

Knows types only. `Broker` is what one worker is made of; it is built once, in the worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from korvet.cluster.backpressure import Backpressure
from korvet.cluster.brokers import Cluster
from korvet.cluster.dynamic_settings import LiveSettings
from korvet.config.listeners import DEFAULT_LISTENER
from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.groups.listing import GroupListing
from korvet.groups.membership import Groups
from korvet.groups.offsets import CommittedOffsets
from korvet.log.append import Appender
from korvet.log.failures import Failures
from korvet.log.fetch import Fetcher
from korvet.log.offsets import Offsets
from korvet.log.producers import ActiveProducers, ProducerIds
from korvet.log.replication import Replicas
from korvet.log.stats import LogDir
from korvet.log.trim import RecordDeletion
from korvet.protocol.schema import Api, Message
from korvet.telemetry.request_timer import NO_TIMER, RequestTimer
from korvet.telemetry.topic_counters import Traffic
from korvet.topics.config_admin import Configs
from korvet.topics.placement import Placement
from korvet.topics.registry import Topics


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request, and in which version of its API.

    `listener` is the name of the one that its connection came in by: it is told the addresses that belong to that.
    `hold` is told of the bytes that serving it takes beyond its frame, and, negative, of those no longer needed.
    `mute` is told for how many milliseconds its connection is to take no requests once those begun are answered.
    `laps` is to be told of each stage's end, where the handler's row says `staged`.
    """

    client_id: str | None
    peer: str
    version: int
    hold: Callable[[int], None] = lambda _size: None
    mute: Callable[[int], None] = lambda _ms: None
    listener: str = DEFAULT_LISTENER
    laps: RequestTimer = msgspec.field(default_factory=lambda: NO_TIMER)


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a broker that handlers call; `apis` are those it serves."""

    live: LiveSettings
    configs: Configs
    apis: tuple[Api, ...]
    cluster: Cluster
    topics: Topics
    placement: Placement
    appender: Appender
    fetcher: Fetcher
    offsets: Offsets
    deletion: RecordDeletion
    producer_ids: ProducerIds
    active_producers: ActiveProducers
    log_dir: LogDir
    groups: Groups
    committed: CommittedOffsets
    group_listing: GroupListing
    replicas: Replicas
    pressure: Backpressure
    failures: Failures
    traffic: Traffic

    @property
    def settings(self) -> Settings:
        """The settings as they are now: to be asked for anew by every request."""
        return self.live.settings


class Begun(Protocol):
    """A request under way."""

    @property
    def in_order(self) -> bool:
        """Whether what begins from now on takes effect after this. Once it does not, finish all that has begun."""

    @property
    def ready(self) -> bool:
        """Whether `finish` has nothing to wait for, as far as is known."""

    def finish(self) -> Message | None:
        """Wait, and return the response; to be called once."""


class Handler(msgspec.Struct, frozen=True):
    """One row of the dispatch table; the functions take the request class of their own module.

    `begin`, where there is one, does all but wait for Redis: the next request of the connection may begin meanwhile.
    A handler without it begins when it is its turn to answer. `staged`: metrics tell how long each stage takes.
    """

    request: type[Message]
    handle: Callable[[Any, Caller, Broker], Message | None]
    refuse: Callable[[Any, Caller, KafkaError], Message | None]
    begin: Callable[[Any, Caller, Broker], Begun] | None = None
    staged: bool = False
