"""What every task of the keeper gets: the settings, the stores, and the partitions of all topics."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from korvet.clock import CLOCK, Clock
from korvet.cluster.dynamic_settings import BrokerConfigStore, LiveSettings
from korvet.cluster.leases import LeaseStore
from korvet.config.settings import Settings
from korvet.errors import StorageUnavailableError
from korvet.log.replication import Replicas
from korvet.log.store import LogStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.telemetry.request_metrics import REQUEST_METRICS
from korvet.topics.registry import Topic, TopicRegistry
from korvet.topics.store import TopicStore
from korvet.topics.types import Partition

PARTITIONS_PER_STEP = 100
"""Partitions per round trip of a task: far below what would keep Redis from its other clients."""


class LeaseLostError(Exception):
    """The task must stop: another keeper may hold the lease."""


CheckLease = Callable[[], None]
"""Raises LeaseLostError if another keeper may hold the lease: called before every step."""

T = TypeVar("T")


def in_steps(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """Yield as many items at a time as one round trip may ask for."""
    rest = iter(items)
    while chunk := tuple(islice(rest, PARTITIONS_PER_STEP)):
        yield chunk


class Context:
    """The keeper's connection, and the stores and the registry of topics on it."""

    def __init__(self, settings: Settings, *, clock: Clock = CLOCK) -> None:
        self.clock = clock
        self.node = ""
        """The master of a cluster on whose logs and groups the run is; "": on all."""
        self.keys = Keys(settings.namespace)
        self.redis = Redis(
            settings.redis_url,
            timeout_ms=settings.redis_timeout_ms,
            connect_timeout_ms=settings.redis_connect_timeout_ms,
            observer=REQUEST_METRICS,
        )
        self.lease_store = LeaseStore(self.redis, self.keys.keeper_lease, self.keys.keeper_fence)
        self.log_store = LogStore(self.redis, self.redis, self.keys)
        self.topics = TopicRegistry(TopicStore(self.redis, self.keys), settings, self.log_store.partition)
        self._waits: list[Redis] = []
        self.replicas = Replicas(
            self._connection,
            self.redis,
            self.keys,
            replicas=settings.replicas,
            timeout_ms=settings.redis_timeout_ms,
        )
        self.live = LiveSettings(settings, BrokerConfigStore(self.redis, self.keys))
        self.live.follow(self.topics.apply_settings)

    def _connection(self) -> Redis:
        """Return another lane, by which it waits for replicas."""
        self._waits.append(self.redis.lane("wait"))
        return self._waits[-1]

    @property
    def settings(self) -> Settings:
        """The settings as they were at the last renewal of the lease, a few seconds ago."""
        return self.live.settings

    def nodes(self) -> list[str]:
        """Return the names of the masters of a cluster, "" for the one Redis; raises StorageUnavailableError."""
        return [node.name for node in self.redis.nodes()] if self.redis.is_cluster else [""]

    def of_node(self, name: str) -> Context:
        """Return this context for a run on the logs and groups that one master of a cluster has; "": on all."""
        part = copy.copy(self)
        part.node = name
        return part

    def partitions_of(self, topic: Topic) -> list[Partition]:
        """Return the partitions of a topic that the run is for."""
        return [partition for partition in topic.partitions if self.has(partition.stream)]

    def partitions(self) -> Iterator[tuple[Partition, ...]]:
        topics = self.topics.list_all()
        return in_steps(partition for topic in topics for partition in self.partitions_of(topic))

    def has(self, key: str) -> bool:
        """Whether the run is for what lies at a key."""
        return not self.node or self.node_of_key(key) == self.node

    def node_of_key(self, key: str) -> str:
        """Return the name of the node that has a key, "" if none has its slot."""
        with contextlib.suppress(StorageUnavailableError):
            return self.redis.node_of(key).name
        return ""

    def close(self) -> None:
        for item in (self.redis, *self._waits):
            item.close()
