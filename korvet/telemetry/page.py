"""The registry of /metrics: counters of processes, and values read for each page."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from korvet.config.settings import Settings
from korvet.redis import blocking
from korvet.redis.keys import Keys
from korvet.telemetry.gauges import SnapshotCollector
from korvet.telemetry.process_metrics import ProcessCollector
from korvet.telemetry.process_table import ProcessTable
from korvet.telemetry.redis_metrics import RedisCollector
from korvet.telemetry.topic_metrics import TopicCollector

REDIS_MS_MAX = 1000
"""Limit for connecting to Redis, and for each answer: a scrape has ten seconds for everything, a probe two."""


class CountedByProcesses(MultiProcessCollector):
    """The metrics that processes count themselves, summed over all of them."""

    def __init__(self, directory: Path) -> None:
        super().__init__(CollectorRegistry(), str(directory))  # type: ignore[no-untyped-call]  # untyped there

    def collect(self) -> Iterable[Metric]:
        """Return every metric. A file that was created a moment ago is empty, without even a header."""
        files = [str(path) for path in Path(self._path).glob("*.db") if _has_content(path)]
        merged: Iterable[Metric] = self.merge(files, accumulate=True)  # type: ignore[no-untyped-call]  # untyped there
        return merged


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False  # a live gauge of a process that has ended


def registry(settings: Settings, table: ProcessTable, directory: Path) -> CollectorRegistry:
    """Return the registry of the ops process, whose parent is the supervisor."""
    masters = blocking.Masters(hurried(settings))
    topics_key = Keys(settings.namespace).topics
    result = CollectorRegistry()
    result.register(CountedByProcesses(directory))
    result.register(ProcessCollector(table, os.getppid()))
    result.register(RedisCollector(masters, replicas_wanted=settings.replicas_wanted))
    result.register(TopicCollector(directory, settings.metrics_partitions_max, table, masters, topics_key))
    result.register(SnapshotCollector(directory))
    return result


def hurried(settings: Settings) -> Settings:
    """Return the settings for a process that asks Redis while a scrape or a probe waits."""
    return dataclasses.replace(
        settings,
        redis_timeout_ms=min(settings.redis_timeout_ms, REDIS_MS_MAX),
        redis_connect_timeout_ms=min(settings.redis_connect_timeout_ms, REDIS_MS_MAX),
    )
