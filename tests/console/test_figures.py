"""What the processes of a broker have published, as the console reads it."""

from __future__ import annotations

import time
from pathlib import Path

from korvet.admin.types import TopicPartition
from korvet.console.pages import ConsoleMetrics
from korvet.telemetry.snapshot import LogSnapshot, publish
from korvet.telemetry.stats import GroupLag
from korvet.telemetry.topic_counters import TopicTraffic, TrafficSnapshot


def test_traffic_is_summed_over_the_workers(tmp_path: Path) -> None:
    for process in ("worker0", "worker1"):
        rows = [TopicTraffic("orders", "A" * 22, 3, 500, 2, 400)]
        publish(tmp_path / TrafficSnapshot.FILE.format(process), TrafficSnapshot(topics=rows))
    assert ConsoleMetrics(tmp_path).traffic() == {
        "orders": {"received_records": 6, "received_bytes": 1000, "sent_records": 4, "sent_bytes": 800}
    }


def test_lags_are_those_of_partitions_while_they_are_valid(tmp_path: Path) -> None:
    lags = [
        GroupLag(group="a", topic="t", partition=1, records=7),
        GroupLag(group="b", topic="t", partition=None, records=9),
    ]
    now = time.time()
    snapshot = LogSnapshot(valid_until=now + 3600, taken_at=now, logs=[], lags=lags)
    publish(tmp_path / LogSnapshot.FILE, snapshot)
    assert ConsoleMetrics(tmp_path).lags() == {("a", TopicPartition("t", 1)): 7}
    snapshot.valid_until = now - 1
    publish(tmp_path / LogSnapshot.FILE, snapshot)
    assert ConsoleMetrics(tmp_path).lags() == {}


def test_without_files_everything_is_empty(tmp_path: Path) -> None:
    metrics = ConsoleMetrics(tmp_path)
    assert set(metrics.totals().values()) == {0.0}
    assert metrics.traffic() == {}
    assert metrics.lags() == {}
