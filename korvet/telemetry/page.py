"""All that /metrics tells, in one registry: what processes count, and what is read for each page.

Knows which collectors there are, and what they need; nothing of HTTP, and nothing of what they tell.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import redis
from prometheus_client import CollectorRegistry

from korvet.config.settings import Settings
from korvet.redis import blocking
from korvet.redis.keys import Keys
from korvet.telemetry.counters import CountedByProcesses
from korvet.telemetry.lake_metrics import LakeCollector
from korvet.telemetry.process_metrics import ProcessCollector
from korvet.telemetry.process_table import WORKER_ROWS, ProcessTable
from korvet.telemetry.redis_metrics import RedisCollector
from korvet.telemetry.snapshot import LogCollector
from korvet.telemetry.topic_counters import Place, TopicCollector
from korvet.topics import types as topic_rows

REDIS_MS_MAX = 1000
"""What connecting to Redis, and each answer, may take: a scrape has ten seconds for everything, a probe two."""


def registry(settings: Settings, table: ProcessTable, directory: Path) -> CollectorRegistry:
    """Return the registry of the ops process, whose parent is the supervisor."""
    made = CollectorRegistry()
    hurry = hurried(settings)
    for collector in (
        CountedByProcesses(directory),
        ProcessCollector(table, os.getppid()),
        RedisCollector(blocking.connect(hurry)),
        TopicCollector(
            directory, settings.metrics_partitions_max, _Workers(table).hold, _Registry(hurry).gone
        ),
        LogCollector(directory),
        LakeCollector(directory),
    ):
        made.register(collector)
    return made


def hurried(settings: Settings) -> Settings:
    """Return the settings for whoever asks Redis while a scrape or a probe waits."""
    return msgspec.structs.replace(
        settings,
        redis_timeout_ms=min(settings.redis_timeout_ms, REDIS_MS_MAX),
        redis_connect_timeout_ms=min(settings.redis_connect_timeout_ms, REDIS_MS_MAX),
    )


class _Workers:
    """The workers' slots, by the names of their files."""

    def __init__(self, table: ProcessTable) -> None:
        self._table = table

    def hold(self, slot: str) -> bool:
        """Tell whether a worker holds the slot of this name."""
        number = slot.removeprefix("worker")
        if not number.isdecimal() or int(number) >= WORKER_ROWS:
            return False
        return self._table.row(int(number)).lives


class _Registry:
    """The topics in Redis."""

    def __init__(self, settings: Settings) -> None:
        self._redis = blocking.connect(settings)
        self._key = Keys(settings.namespace).topics

    def gone(self, places: Sequence[Place]) -> set[Place]:
        """Return which of some topics there are no more; none where Redis does not say."""
        try:
            found = self._redis.hmget(self._key, [name for name, _ in places])
        except redis.RedisError:
            return set()
        return {place for place, text in zip(places, found, strict=True) if not self._is(place, text)}

    def _is(self, place: Place, text: object) -> bool:
        name, topic_id = place
        row = topic_rows.decode(self._key, name.encode(), text) if isinstance(text, bytes) else None
        return row is not None and row.id == topic_id and row.state == "live"
