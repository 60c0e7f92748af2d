"""What the processes of a broker have counted, as the console reads it."""

from __future__ import annotations

import time
from pathlib import Path

from korvet.admin.types import TopicPartition
from korvet.console.pages import ConsoleMetrics
from korvet.telemetry import snapshot as figures_file
from korvet.telemetry import topic_counters as topic_traffic
from korvet.telemetry.snapshot import GroupLag, Snapshot
from korvet.telemetry.topic_counters import TopicTraffic, Traffic, TrafficFile


def test_traffic_is_summed_over_the_workers(tmp_path: Path) -> None:
    for slot in ("worker0", "worker1"):
        traffic = Traffic()
        file = TrafficFile(tmp_path / topic_traffic.name_of(slot), traffic)
        traffic.go_on([TopicTraffic("orders", "A" * 22, 3, 500, 2, 400)])
        traffic.changed = True
        file.close()
    assert ConsoleMetrics(tmp_path).traffic() == {
        "orders": {"received_records": 6, "received_bytes": 1000, "sent_records": 4, "sent_bytes": 800}
    }


def test_lags_are_those_of_partitions_while_they_are_valid(tmp_path: Path) -> None:
    lags = [
        GroupLag(group="a", topic="t", partition=1, records=7),
        GroupLag(group="b", topic="t", partition=None, records=9),
    ]
    now = time.time()
    figures_file.publish_log_snapshot(tmp_path, Snapshot(now, now + 3600, [], lags))
    assert ConsoleMetrics(tmp_path).lags() == {("a", TopicPartition("t", 1)): 7}
    figures_file.publish_log_snapshot(tmp_path, Snapshot(now, now - 1, [], lags))
    assert ConsoleMetrics(tmp_path).lags() == {}


def test_where_nothing_was_counted_yet_there_is_nothing(tmp_path: Path) -> None:
    figures = ConsoleMetrics(tmp_path)
    assert set(figures.totals().values()) == {0.0}
    assert figures.traffic() == {}
    assert figures.lags() == {}
