"""What a worker counts by topic: in memory, and in the file that /metrics and its successor read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from korvet.telemetry.snapshot import read
from korvet.telemetry.topic_counters import TopicCounters, TopicTraffic, TrafficSnapshot
from tests.support.virtual_clock import VirtualClock


class SteppingClock(VirtualClock):
    """Goes on by `step` seconds each time that it is asked."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self._step = step

    def monotonic(self) -> float:
        self._now += self._step
        return self._now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / TrafficSnapshot.FILE.format("worker0")


def published(path: Path) -> list[TopicTraffic]:
    snapshot = read(path, TrafficSnapshot)
    return snapshot.topics if snapshot else []


def test_partitions_of_a_topic_are_counted_together_by_direction() -> None:
    counters = TopicCounters()
    counters.received("orders", "one", 2, 100)
    counters.received("orders", "one", 3, 50)
    counters.sent("orders", "one", 7, 1000)
    counters.sent("bills", "two", 1, 10)
    assert counters.rows() == [
        TopicTraffic("orders", "one", 5, 150, 7, 1000),
        TopicTraffic("bills", "two", 0, 0, 1, 10),
    ]


def test_a_topic_that_was_created_again_is_another_one() -> None:
    counters = TopicCounters()
    counters.received("orders", "first", 2, 100)
    counters.received("orders", "second", 1, 30)
    counters.forget(counters.rows()[:1])
    assert counters.rows() == [TopicTraffic("orders", "second", 1, 30)]


def test_the_next_worker_in_the_slot_continues_the_counts(path: Path) -> None:
    for turn in (1, 2):
        counters = TopicCounters(path)
        counters.received("orders", "one", 2, 100)
        assert counters.flush()
        assert published(path) == [TopicTraffic("orders", "one", 2 * turn, 100 * turn)]


def test_deleted_topics_leave_the_file(path: Path) -> None:
    counters = TopicCounters(path, clock=VirtualClock())
    counters.received("orders", "one", 1, 1)
    counters.received("bills", "two", 1, 1)
    counters.flush()
    counters.forget(counters.rows()[:1])
    counters.flush()
    assert published(path) == [TopicTraffic("bills", "two", 1, 1)]


def test_publishing_takes_no_more_than_a_thousandth_of_the_time(path: Path) -> None:
    clock = SteppingClock(0.002)
    counters = TopicCounters(path, clock=clock)
    counters.received("orders", "one", 1, 1)
    assert counters.flush()
    counters.received("orders", "one", 1, 1)
    assert not counters.flush()
    assert published(path) == [TopicTraffic("orders", "one", 1, 1)]
    clock.advance(2)
    assert counters.flush()
    counters.received("orders", "one", 1, 1)
    assert counters.flush(now=True)
    assert published(path) == [TopicTraffic("orders", "one", 3, 3)]


def test_a_write_that_was_interrupted_delays_the_next_one_by_seconds_only(path: Path) -> None:
    clock = SteppingClock(60)
    counters = TopicCounters(path, clock=clock)
    for records in (1, 2):
        counters.received("orders", "one", 1, 1)
        assert counters.flush()
        assert published(path) == [TopicTraffic("orders", "one", records, records)]


def test_nothing_is_written_without_a_change(path: Path) -> None:
    counters = TopicCounters(path)
    assert counters.flush()
    counters.forget(counters.rows())
    assert counters.flush()
    assert not path.exists()


def test_a_file_of_a_version_that_counts_more_is_read(path: Path) -> None:
    path.write_bytes(msgspec.msgpack.encode({"topics": [["orders", "one", 1, 2, 3, 4, 5, 6]]}))
    assert published(path) == [TopicTraffic("orders", "one", 1, 2, 3, 4)]


def test_a_failed_write_is_logged_once_and_loses_no_count(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counters = TopicCounters(path.parent / "missing" / path.name, clock=VirtualClock())
    for _ in range(2):
        counters.received("orders", "one", 1, 1)
        counters.flush()
    assert sum("cannot publish" in record.getMessage() for record in caplog.records) == 1
    (path.parent / "missing").mkdir()
    counters.received("orders", "one", 1, 1)
    counters.flush()
    assert published(path.parent / "missing" / path.name) == [TopicTraffic("orders", "one", 3, 3)]
