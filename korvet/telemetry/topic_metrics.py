"""The traffic of each topic in /metrics: the snapshots of all workers summed, with a bounded number of topics.

The topics that are shown by name stay the same until one of them is deleted, because a counter that comes and goes
makes nonsense of rates; all others are summed as (other). The counts of a deleted topic are not shown: living workers
drop them by themselves, and topics that only ended workers have counted are looked up in Redis.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import msgspec
import redis
from prometheus_client.registry import Collector

from korvet.redis.blocking import Masters
from korvet.telemetry.gauges import Family, MetricTable, counter
from korvet.telemetry.process_table import ProcessTable
from korvet.telemetry.snapshot import read
from korvet.telemetry.stats import OTHER
from korvet.telemetry.topic_counters import TopicTraffic, TrafficSnapshot

Topic = tuple[str, str]
"""Name and id of a topic."""


Counts = Counter[str]
"""Records and bytes received and sent, by their names in TopicTraffic."""

TOPICS = MetricTable(
    ("topic",),
    counter("korvet_topic_received_records", itemgetter("received_records")),
    counter("korvet_topic_received_bytes", itemgetter("received_bytes")),
    counter("korvet_topic_sent_records", itemgetter("sent_records")),
    counter("korvet_topic_sent_bytes", itemgetter("sent_bytes")),
)


class _StoredTopic(msgspec.Struct):
    """What is needed of a topic's row in the registry."""

    id: str
    state: str = "live"


def traffic(directory: Path) -> dict[str, list[TopicTraffic]]:
    """Return what each worker, living or not, has counted, by the name of its process."""
    counts = {}
    for path in sorted(directory.glob(TrafficSnapshot.FILE.format("*"))):
        snapshot = read(path, TrafficSnapshot)
        if snapshot is not None:
            counts[path.stem.partition("_")[2]] = snapshot.topics
    return counts


class TopicCollector(Collector):
    """Reads the snapshots for each page; `key` is that of the topics in Redis."""

    def __init__(
        self, directory: Path, topics_max: int, table: ProcessTable, masters: Masters, key: str
    ) -> None:
        self._directory = directory
        self._topics_max = topics_max
        self._table = table
        self._masters = masters
        self._key = key
        self._named: set[Topic] = set()
        self._deleted: set[Topic] = set()
        # Of topics without a name of their own: what of each is part of the sum, and the sum.
        self._summed: dict[Topic, Counts] = {}
        self._others = Counts()
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Family]:
        """Yield the counters, with a series for each topic that is shown by name, and one for the others."""
        with self._lock:
            counts = self._limited(self._existing())
        yield from TOPICS.families(counts.items())

    def _existing(self) -> dict[Topic, Counts]:
        living = {f"worker{row.index}" for row in self._table.workers() if row.lives}
        total: dict[Topic, Counts] = {}
        confirmed: set[Topic] = set()
        for process, rows in traffic(self._directory).items():
            for row in rows:
                counts = msgspec.structs.asdict(row)
                topic = (counts.pop("topic"), counts.pop("topic_id"))
                total.setdefault(topic, Counts()).update(counts)
                if process in living:
                    confirmed.add(topic)
        unconfirmed = total.keys() - confirmed
        self._deleted &= unconfirmed
        self._deleted |= self._find_deleted(sorted(unconfirmed - self._deleted))
        return {topic: counts for topic, counts in total.items() if topic not in self._deleted}

    def _find_deleted(self, topics: Sequence[Topic]) -> set[Topic]:
        """Return which of `topics` do not exist; none if Redis does not answer."""
        if not topics:
            return set()
        try:
            rows = self._masters.of(self._key).hmget(self._key, [name for name, _ in topics])
        except redis.RedisError:
            return set()
        return {topic for topic, row in zip(topics, rows, strict=True) if not _exists(topic, row)}

    def _limited(self, counts: Mapping[Topic, Counts]) -> dict[str, Counts]:
        """Return the counts by the name under which they are shown."""
        self._named &= counts.keys()
        waiting = sorted(counts.keys() - self._named, key=lambda topic: (-counts[topic].total(), topic))
        room = max(self._topics_max - len(self._named), 0)
        self._named |= set(waiting[:room])
        for topic in waiting[room:]:
            # Only what has grown: a worker that crashed may have lost the last of its counts.
            self._others.update(counts[topic] - self._summed.get(topic, Counts()))
        self._summed = {topic: counts[topic] for topic in waiting[room:]}
        shown: dict[str, Counts] = {}
        for topic in sorted(self._named):
            shown.setdefault(topic[0], Counts()).update(counts[topic])
        return shown | ({OTHER: self._others} if self._others.total() else {})


def _exists(topic: Topic, row: object) -> bool:
    try:
        stored = msgspec.json.decode(row, type=_StoredTopic) if isinstance(row, bytes) else None
    except msgspec.DecodeError:
        return False
    return stored is not None and stored.id == topic[1] and stored.state == "live"
