"""The traffic of topics in /metrics: summed over the workers, bounded in number, without deleted topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from korvet.config.settings import Settings
from korvet.redis.blocking import Masters
from korvet.telemetry.process_table import ProcessTable
from korvet.telemetry.snapshot import publish
from korvet.telemetry.topic_counters import TopicTraffic, TrafficSnapshot
from korvet.telemetry.topic_metrics import TopicCollector

KEY = "topics"


class Bench:
    """A collector over files that a test writes, with the topics of a Redis."""

    def __init__(self, directory: Path, url: str, topics_max: int = 10) -> None:
        self.directory = directory
        self.table = ProcessTable()
        masters = Masters(Settings(redis_url=url))
        self.client: Any = masters.of(KEY)
        self.collector = TopicCollector(directory, topics_max, self.table, masters, KEY)

    def write(self, worker: int, *rows: TopicTraffic, lives: bool = True) -> None:
        if lives:
            self.table.start(worker)
        publish(
            self.directory / TrafficSnapshot.FILE.format(f"worker{worker}"), TrafficSnapshot(topics=[*rows])
        )

    def create(self, name: str, topic_id: str | None = None, state: str = "live") -> None:
        row = {"id": topic_id or f"id of {name}", "partitions": 1, "state": state}
        self.client.hset(KEY, name, msgspec.json.encode(row))

    def shown(self) -> dict[str, list[float]]:
        """Return the counters by topic: records and bytes in, records and bytes out."""
        result: dict[str, list[float]] = {}
        for family in self.collector.collect():
            for sample in family.samples:
                result.setdefault(sample.labels["topic"], []).append(sample.value)
        return result

    def received(self) -> dict[str, float]:
        return {topic: values[0] for topic, values in self.shown().items()}


def topic(name: str, records: int, topic_id: str | None = None) -> TopicTraffic:
    return TopicTraffic(name, topic_id or f"id of {name}", records)


AWAY = "redis://127.0.0.1:1"


def test_workers_are_summed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, AWAY)
    assert bench.shown() == {}
    bench.write(0, TopicTraffic("orders", "a", 1, 10, 2, 20), topic("bills", 5))
    bench.write(3, TopicTraffic("orders", "a", 3, 30, 4, 40))
    assert bench.shown() == {"orders": [4, 40, 6, 60], "bills": [5, 0, 0, 0]}


def test_topics_above_the_limit_are_summed_and_the_largest_shown_by_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path, AWAY, 2)
    bench.write(0, topic("a", 1), topic("b", 30), topic("c", 20), topic("d", 4))
    assert bench.received() == {"b": 30, "c": 20, "(other)": 5}


def test_a_topic_shown_by_name_stays_so_and_the_sum_only_grows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, AWAY, 1)
    bench.write(0, topic("a", 10), topic("b", 2))
    assert bench.received() == {"a": 10, "(other)": 2}
    bench.write(0, topic("a", 10), topic("b", 50), topic("c", 1))
    assert bench.received() == {"a": 10, "(other)": 51}
    # The largest of the others takes the place of one that is deleted; what it added to the sum stays there.
    bench.write(0, topic("b", 60), topic("c", 3))
    assert bench.received() == {"b": 60, "(other)": 53}
    bench.write(0, topic("b", 61))
    assert bench.received() == {"b": 61, "(other)": 53}


def test_a_limit_of_none_shows_only_the_sum(tmp_path: Path) -> None:
    bench = Bench(tmp_path, AWAY, 0)
    bench.write(0, topic("a", 10), topic("b", 2))
    assert bench.received() == {"(other)": 12}


def test_counts_of_ended_workers_stay_until_their_topic_is_deleted(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    bench = Bench(tmp_path, redis_url)
    bench.create("orders")
    bench.create("bills")
    bench.write(0, topic("orders", 4), topic("bills", 5), lives=False)
    bench.write(1, topic("orders", 1))
    assert bench.received() == {"orders": 5, "bills": 5}
    # What a living worker has counted is not looked up.
    raw_redis.hdel(KEY, "orders", "bills")
    assert bench.received() == {"orders": 5}
    # Nor is a topic that was found to be deleted.
    bench.create("bills")
    assert bench.received() == {"orders": 5}


@pytest.mark.parametrize(
    "result", ['{"id": "other"}', '{"id": "id of orders", "state": "deleting"}', "damaged"]
)
def test_a_topic_whose_row_is_of_another_is_deleted(
    tmp_path: Path, redis_url: str, raw_redis: Any, result: str
) -> None:
    bench = Bench(tmp_path, redis_url)
    bench.write(0, topic("orders", 4), lives=False)
    raw_redis.hset(KEY, "orders", result)
    assert bench.received() == {}


def test_without_redis_topics_count_as_existing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, AWAY)
    bench.write(0, topic("orders", 4), lives=False)
    assert bench.received() == {"orders": 4}


def test_a_topic_that_was_created_again_starts_at_zero(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    bench = Bench(tmp_path, redis_url)
    bench.create("orders", "second")
    bench.write(0, topic("orders", 4, "first"), lives=False)
    bench.write(1, topic("orders", 1, "second"))
    assert bench.received() == {"orders": 1}
