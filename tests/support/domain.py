"""The parts of a worker's domain on a real Redis, in the test's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import gevent

from korvet.config.settings import Settings
from korvet.log.fetches import Fetches
from korvet.log.index import IndexStore
from korvet.log.offsets import OffsetLookup
from korvet.log.remote.tier import RemoteTier
from korvet.log.replication import Replicas
from korvet.log.store import LogStore
from korvet.log.types import Appended
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.pubsub import Subscriptions
from korvet.topics.registry import TopicRegistry
from korvet.topics.store import TopicStore
from tests.support.appends import append_of, put_batch
from tests.support.batches import NONE, Record
from tests.support.fetching import Decisions, Fetching, FetchPartitionSpec, FetchResult
from tests.support.proxy import until

TIMEOUT_MS = 5000
LONG_MS = 600_000

NO_LAKE = RemoteTier(None, Settings())
"""What a worker has whose broker has no lake."""


class Domain:
    """One worker's view of a Redis."""

    def __init__(self, url: str, settings: Settings, cold: RemoteTier) -> None:
        self.url = url
        keys = Keys("korvet")
        self.redis = Redis(url, timeout_ms=TIMEOUT_MS, connect_timeout_ms=TIMEOUT_MS)
        self.subscriptions = Subscriptions(self.redis, linger_ms=100)
        self.replicas = Replicas(
            partial(self.redis.lane, "wait"),
            self.redis,
            keys,
            replicas=settings.replicas,
            timeout_ms=TIMEOUT_MS,
        )
        self.log = log = LogStore(self.redis, self.redis, keys, replicas=self.replicas)
        self.topics = TopicRegistry(TopicStore(self.redis, keys), settings, log.partition)
        self.remote = cold
        self.fetches = Fetches(log, self.subscriptions, cold)
        self.fetches.clients = Decisions(self.topics, log.appends)
        self.fetching = Fetching(log.appends)
        self.offsets = OffsetLookup(log, IndexStore(self.redis), cold)

    def append(
        self, topic: str, *records: Record | bytes | None, partition: int = 0, codec: int = NONE
    ) -> int:
        """Append a batch and return its offset."""
        results = self.topics.get(topic)
        append = append_of(results.partition(partition), *records, config=results.config, codec=codec)
        [result] = self.log.append([append])
        assert isinstance(result, Appended), result
        return result.base_offset

    def put(self, topic: str, data: bytes) -> int:
        """Append a batch past the checks of Produce, as an earlier version took it; returns its offset."""
        return put_batch(self.redis, self.topics.get(topic).partition(0), data)

    def wanted(
        self, topic: str, partition: int = 0, offset: int = 0, bytes_max: int = 1 << 20
    ) -> FetchPartitionSpec:
        """Say what to fetch."""
        result = self.topics.get(topic)
        return FetchPartitionSpec(
            topic=result, partition=result.partition(partition), offset=offset, bytes_max=bytes_max
        )

    def fetch(
        self, *wanted: FetchPartitionSpec, wait_ms: int = 0, bytes_min: int = 1, bytes_max: int = 50 << 20
    ) -> list[FetchResult]:
        """Fetch within limits."""
        return self.fetching.fetch(wanted, wait_ms=wait_ms, bytes_min=bytes_min, bytes_max=bytes_max)

    def begin_fetch(self, *wanted: FetchPartitionSpec) -> gevent.Greenlet[..., list[FetchResult]]:
        """Fetch in a greenlet of its own, for a long time; returns when it waits for records, or is done."""
        core = self.log.appends.core
        before = core.parked
        fetching = gevent.spawn(self.fetch, *wanted, wait_ms=LONG_MS)
        until(lambda: fetching.dead or core.parked > before)
        return fetching


@contextlib.contextmanager
def domain(url: str, settings: Settings | None = None, cold: RemoteTier = NO_LAKE) -> Iterator[Domain]:
    """Give a worker's view, and close its connections."""
    made = Domain(url, settings or Settings(), cold)
    try:
        yield made
    finally:
        made.fetching.close()
        made.subscriptions.close()
        made.redis.close()
