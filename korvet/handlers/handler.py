"""What a handler is given: who asks, and the broker it may call.

Knows types only. `Broker` is what one worker is made of; it is built once, in the worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from korvet.config import DEFAULT_LISTENER, Settings
from korvet.domain.append import Appender
from korvet.domain.cluster import Cluster
from korvet.domain.configs import Configs
from korvet.domain.delete_records import RecordDeletion
from korvet.domain.failures import Failures
from korvet.domain.fetch import Fetcher
from korvet.domain.groups.committed import CommittedOffsets
from korvet.domain.groups.listing import GroupListing
from korvet.domain.groups.membership import Groups
from korvet.domain.laps import UNTIMED, Laps
from korvet.domain.live_settings import LiveSettings
from korvet.domain.log_dir import LogDir
from korvet.domain.offsets import Offsets
from korvet.domain.placement import Placement
from korvet.domain.pressure import Pressure
from korvet.domain.producers import ActiveProducers, ProducerIds
from korvet.domain.replicas import Replicas
from korvet.domain.topics import Topics
from korvet.domain.traffic import Traffic
from korvet.errors import KafkaError
from korvet.protocol.schema import Api, Message


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
    laps: Laps = msgspec.field(default_factory=lambda: UNTIMED)


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
    pressure: Pressure
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
