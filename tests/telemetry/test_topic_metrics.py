"""The traffic of topics in /metrics: summed over the workers, bounded in number, without those that were deleted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from korvet.telemetry.topic_counters import Place, TopicCollector, TopicTraffic, Traffic, TrafficFile, name_of


class Bench:
    """A collector over files that a test writes; `alive` are the slots that are held, `gone` topics in no Redis."""

    def __init__(self, directory: Path, topics_max: int = 10) -> None:
        self.directory = directory
        self.alive: set[str] = set()
        self.gone: set[Place] = set()
        self.asked: list[Sequence[Place]] = []
        self.collector = TopicCollector(directory, topics_max, self.alive.__contains__, self._find_gone)

    def write(self, slot: str, *rows: TopicTraffic) -> None:
        """Let the holder of a slot publish."""
        (self.directory / name_of(slot)).unlink(missing_ok=True)
        traffic = Traffic()
        file = TrafficFile(self.directory / name_of(slot), traffic)
        traffic.go_on(rows)
        traffic.changed = True
        file.close()
        self.alive.add(slot)

    def told(self) -> dict[str, list[float]]:
        """Return the counters by topic: records and bytes in, records and bytes out."""
        found: dict[str, list[float]] = {}
        for family in self.collector.collect():
            for sample in family.samples:
                found.setdefault(sample.labels["topic"], []).append(sample.value)
        return found

    def received(self) -> dict[str, float]:
        """Return only the records that came in."""
        return {topic: values[0] for topic, values in self.told().items()}

    def _find_gone(self, places: Sequence[Place]) -> set[Place]:
        self.asked.append(places)
        return self.gone & set(places)


def topic(name: str, records: int, topic_id: str | None = None) -> TopicTraffic:
    return TopicTraffic(name, topic_id or f"id of {name}", records)


def test_a_file_that_was_written_half_way_counts_as_it_was_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write("worker0", topic("orders", 5))
    bench.write("worker1", topic("orders", 3))
    assert bench.received() == {"orders": 8}
    path = tmp_path / name_of("worker0")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert bench.received() == {"orders": 8}
    path.write_bytes(whole)
    assert bench.received() == {"orders": 8}


def test_workers_are_summed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.told() == {}
    bench.write("worker0", TopicTraffic("orders", "a", 1, 10, 2, 20), topic("bills", 5))
    bench.write("worker3", TopicTraffic("orders", "a", 3, 30, 4, 40))
    assert bench.told() == {"orders": [4, 40, 6, 60], "bills": [5, 0, 0, 0]}
    assert bench.asked == []


def test_topics_beyond_the_limit_are_told_together_the_largest_by_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2)
    bench.write("worker0", topic("a", 1), topic("b", 30), topic("c", 20), topic("d", 4))
    assert bench.received() == {"b": 30, "c": 20, "(other)": 5}


def test_who_is_told_by_name_stays_so_and_the_sum_only_grows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 1)
    bench.write("worker0", topic("a", 10), topic("b", 2))
    assert bench.received() == {"a": 10, "(other)": 2}
    bench.write("worker0", topic("a", 10), topic("b", 50), topic("c", 1))
    assert bench.received() == {"a": 10, "(other)": 51}
    # The largest of the others takes the place of one that is deleted; what it added to the sum stays there.
    bench.write("worker0", topic("b", 60), topic("c", 3))
    assert bench.received() == {"b": 60, "(other)": 53}
    bench.write("worker0", topic("b", 61))
    assert bench.received() == {"b": 61, "(other)": 53}


def test_a_limit_of_nothing_tells_only_the_sum(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 0)
    bench.write("worker0", topic("a", 10), topic("b", 2))
    assert bench.received() == {"(other)": 12}


def test_what_a_worker_that_is_gone_counted_stays_unless_its_topic_is_deleted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write("worker0", topic("orders", 4), topic("bills", 5))
    bench.write("worker1", topic("orders", 1))
    bench.alive.remove("worker0")
    assert bench.received() == {"orders": 5, "bills": 5}
    bench.gone.add(("bills", "id of bills"))
    assert bench.received() == {"orders": 5}
    # Only what no living worker vouches for is looked up, and never again once it is known to be gone.
    assert bench.asked == [[("bills", "id of bills")]] * 2
    assert bench.received() == {"orders": 5}
    assert len(bench.asked) == 2


def test_a_topic_made_anew_begins_with_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write("worker0", topic("orders", 4, "first"))
    bench.alive.remove("worker0")
    bench.gone.add(("orders", "first"))
    bench.write("worker1", topic("orders", 1, "second"))
    assert bench.received() == {"orders": 1}
