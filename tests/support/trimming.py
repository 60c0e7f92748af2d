"""Archiving what topics hold, and letting Redis forget it."""

from __future__ import annotations

from korvet.storage.log_types import Partition
from korvet.storage.resp import Redis
from korvet.storage.trim_store import Trim, TrimStore
from tests.support.archives import Topics


def archive(topics: Topics) -> None:
    """Archive all there is."""
    done = topics.archiver().round(topics.run)
    assert (done.failures, done.more) == ([], False)


def trim(topics: Topics, partition: Partition) -> None:
    """Let Redis hold nothing of what is archived any more."""
    start = topics.bounds(partition).archived
    redis = Redis(topics.source.redis_url, timeout_ms=5000, connect_timeout_ms=5000)
    while TrimStore(redis).trim([Trim(partition, start, start)])[0].more:  # type: ignore[union-attr]
        pass
    redis.close()
    assert topics.bounds(partition).local_start == start
