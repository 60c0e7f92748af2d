"""The parts of a worker's domain on a real Redis, in the test's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from korvet.config import Settings
from korvet.domain.append import Appender, Delivery
from korvet.domain.cold import ColdTier
from korvet.domain.collecting import Wanted
from korvet.domain.fetch import Fetcher, Limits
from korvet.domain.offsets import Offsets
from korvet.domain.reading import Found
from korvet.domain.topics import Topics
from korvet.storage.index_store import IndexStore
from korvet.storage.keys import Keys
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Appended
from korvet.storage.resp import Redis
from korvet.storage.subscriptions import Subscriptions
from korvet.storage.topic_store import TopicStore
from tests.support.batches import Record, batch

TIMEOUT_MS = 5000

NO_LAKE = ColdTier(None, wait_ms=0, timeout_ms=0)
"""What a worker has whose broker has no lake."""


class Domain:
    """One worker's view of a Redis."""

    def __init__(self, url: str, settings: Settings, cold: ColdTier) -> None:
        keys = Keys("korvet")
        self.redis = Redis(url, timeout_ms=TIMEOUT_MS, connect_timeout_ms=TIMEOUT_MS)
        self.subscriptions = Subscriptions(url, connect_timeout_ms=TIMEOUT_MS, linger_ms=100)
        log = LogStore(self.redis, self.redis, keys)
        self.topics = Topics(TopicStore(self.redis, keys), settings, log.partition)
        self.appender = Appender(log, settings, self.topics)
        self.fetcher = Fetcher(log, self.subscriptions, cold)
        self.offsets = Offsets(log, IndexStore(self.redis), cold, settings.record_decompressed_max_bytes)

    def append(self, topic: str, *records: Record | bytes | None, partition: int = 0) -> int:
        """Append a batch and return its offset."""
        delivery = Delivery(lambda: self.topics.find(topic), partition, batch(*records))
        [result] = self.appender.append([delivery], zstd_known=True)
        assert isinstance(result, Appended), result
        return result.base_offset

    def wanted(self, topic: str, partition: int = 0, offset: int = 0, bytes_max: int = 1 << 20) -> Wanted:
        """Say what to fetch."""
        found = self.topics.find(topic)
        return Wanted(topic=found, partition=found.partition(partition), offset=offset, bytes_max=bytes_max)

    def fetch(
        self, *wanted: Wanted, wait_ms: int = 0, bytes_min: int = 1, bytes_max: int = 50 << 20
    ) -> list[Found]:
        """Fetch within limits."""
        return self.fetcher.fetch(wanted, Limits(wait_ms, bytes_min, bytes_max))


@contextlib.contextmanager
def domain(url: str, settings: Settings | None = None, cold: ColdTier = NO_LAKE) -> Iterator[Domain]:
    """Give a worker's view, and close its connections."""
    made = Domain(url, settings or Settings(), cold)
    try:
        yield made
    finally:
        made.subscriptions.close()
        made.redis.close()
