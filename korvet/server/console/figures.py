"""What this broker's processes have counted, for the console: the same figures as in /metrics, without asking Redis.

Knows names of metrics and their labels. Counters only grow: whoever shows a rate takes the difference of two looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric

from korvet.admin import TopicPartition
from korvet.admin.metrics import GroupPartition
from korvet.server.counted import CountedByProcesses
from korvet.server.figures_file import LogCollector
from korvet.server.topic_metrics import TopicCollector

_TOPICS_MAX = 1000
_TOTALS = {
    "korvet_requests_total": "requests",
    "korvet_received_bytes_total": "received_bytes",
    "korvet_sent_bytes_total": "sent_bytes",
    "korvet_connections": "connections",
    "korvet_requests_in_flight": "in_flight",
    "korvet_produce_errors_total": "produce_errors",
    "korvet_redis_unavailable_total": "redis_unavailable",
    "korvet_throttled_requests_total": "throttled",
}
_OF_TOPICS = {
    "korvet_topic_received_records_total": "received_records",
    "korvet_topic_received_bytes_total": "received_bytes",
    "korvet_topic_sent_records_total": "sent_records",
    "korvet_topic_sent_bytes_total": "sent_bytes",
}
_LAG = "korvet_consumer_group_lag_records"


class Figures:
    """The counters and figures in one directory."""

    def __init__(self, directory: Path) -> None:
        self._counted = CountedByProcesses(directory)
        # Whether a topic is still there is known of those that are asked about.
        self._topics = TopicCollector(directory, _TOPICS_MAX, lambda _: True, lambda _: set())
        self._figures = LogCollector(directory)

    def totals(self) -> dict[str, float]:
        """Return the sums over all labels, by the names that the console has for them."""
        found = dict.fromkeys(_TOTALS.values(), 0.0)
        for name, _, value in _samples(self._counted.collect()):
            if name in _TOTALS:
                found[_TOTALS[name]] += value
        return found

    def traffic(self) -> dict[str, dict[str, float]]:
        """Return the traffic of each topic through this broker."""
        found: dict[str, dict[str, float]] = {}
        for name, labels, value in _samples(self._topics.collect()):
            if name in _OF_TOPICS:
                found.setdefault(labels["topic"], {})[_OF_TOPICS[name]] = value
        return found

    def lags(self) -> dict[GroupPartition, int]:
        """Return how far groups are behind in records, as the keeper has counted it; nothing where another one acts."""
        found = {}
        for name, labels, value in _samples(self._figures.collect()):
            if name == _LAG and labels["partition"]:
                place = TopicPartition(labels["topic"], int(labels["partition"]))
                found[labels["group"], place] = int(value)
        return found


def _samples(metrics: Any) -> Iterator[tuple[str, dict[str, str], float]]:  # noqa: ANN401 - partly untyped there
    metric: Metric
    for metric in metrics:
        for sample in metric.samples:
            yield sample.name, sample.labels, sample.value
