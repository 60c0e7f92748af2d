"""The traffic of each topic for /metrics, summed over the workers, with a bounded number of topics.

Knows the workers' files, and how many topics are told by name; the others are told together as (other). Which are told
by name changes only where one of them is deleted: a counter that came and went would make nonsense of rates. A topic
that is deleted is told no more. Workers forget it by themselves; what one that is gone has left is looked up in Redis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from korvet.domain.log_figures import OTHER_TOPICS
from korvet.domain.traffic import TopicTraffic
from korvet.server import topic_traffic

_Counts = tuple[int, int, int, int]
"""Records and bytes received, records and bytes sent."""

_NONE: _Counts = (0, 0, 0, 0)

Place = tuple[str, str]
"""Name and id of a topic."""


class _Counter(NamedTuple):
    name: str
    documentation: str


_COUNTERS = (
    _Counter(
        "korvet_topic_received_records",
        "Records of producers appended to the topic; beyond metrics.partitions.max topics the others as topic (other).",
    ),
    _Counter(
        "korvet_topic_received_bytes", "Bytes of the batches of these records, as the producers sent them."
    ),
    _Counter(
        "korvet_topic_sent_records",
        "Records of the topic sent to consumers; beyond metrics.partitions.max topics the others as topic (other).",
    ),
    _Counter("korvet_topic_sent_bytes", "Bytes of the batches of these records, as they were sent."),
)


class TopicCollector(Collector):
    """Reads the files anew for each page."""

    def __init__(
        self,
        directory: Path,
        topics_max: int,
        is_alive: Callable[[str], bool],
        find_gone: Callable[[Sequence[Place]], set[Place]],
    ) -> None:
        """`is_alive` tells whether a worker holds a slot ("worker0") now.

        `find_gone` returns those of some topics that were deleted, as far as that can be found out now.
        """
        self._directory = directory
        self._topics_max = topics_max
        self._is_alive = is_alive
        self._find_gone = find_gone
        # By file, for one that cannot be read: counters that go back and come again would make nonsense of rates.
        self._last: dict[str, list[TopicTraffic]] = {}
        self._named: set[Place] = set()
        self._gone: set[Place] = set()
        # Of topics without a name of their own: what was told of each as part of the sum, and the sum.
        self._summed: dict[Place, _Counts] = {}
        self._others = _NONE
        self._lock = threading.Lock()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counters, with a series for each topic that is told by name, and one for the others."""
        with self._lock:
            counts = self._limited(self._read())
        yield from families(counts)

    def _read(self) -> dict[Place, _Counts]:
        """Return the counts of every topic that is there."""
        total: dict[Place, _Counts] = {}
        lives: set[Place] = set()
        for path in sorted(self._directory.glob(topic_traffic.PATTERN)):
            rows = topic_traffic.read_whole(path)
            if rows is None:
                rows = self._last.get(path.name, [])
            self._last[path.name] = rows
            for row in rows:
                place = (row.topic, row.topic_id)
                total[place] = _plus(total.get(place, _NONE), _counts(row))
            if self._is_alive(topic_traffic.slot_of(path)):
                lives |= {(row.topic, row.topic_id) for row in rows}
        left = total.keys() - lives
        self._gone &= left
        unknown = left - self._gone
        if unknown:
            self._gone |= self._find_gone(sorted(unknown))
        return {place: counts for place, counts in total.items() if place not in self._gone}

    def _limited(self, counts: dict[Place, _Counts]) -> dict[str, _Counts]:
        """Return the counts by the name under which they are told."""
        self._named &= counts.keys()
        room = self._topics_max - len(self._named)
        waiting = sorted(counts.keys() - self._named, key=lambda place: (-sum(counts[place]), place))
        self._named |= set(waiting[: max(room, 0)])
        others = waiting[max(room, 0) :]
        for place in others:
            self._others = _plus(self._others, _minus(counts[place], self._summed.get(place, _NONE)))
        self._summed = {place: counts[place] for place in others}
        told: dict[str, _Counts] = {}
        for place in sorted(self._named):
            told[place[0]] = _plus(told.get(place[0], _NONE), counts[place])
        return told | ({OTHER_TOPICS: self._others} if any(self._others) else {})


def families(counts: dict[str, _Counts]) -> Iterator[CounterMetricFamily]:
    """Yield the counters of these topics."""
    for number, (name, documentation) in enumerate(_COUNTERS):
        family = CounterMetricFamily(name, documentation, labels=["topic"])
        for topic, values in counts.items():
            family.add_metric([topic], values[number])
        yield family


def _counts(row: TopicTraffic) -> _Counts:
    return row.received_records, row.received_bytes, row.sent_records, row.sent_bytes


def _plus(one: _Counts, other: _Counts) -> _Counts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def _minus(one: _Counts, other: _Counts) -> _Counts:
    # A worker that crashed may have taken the last of its counts with it.
    records_in, bytes_in, records_out, bytes_out = (max(a - b, 0) for a, b in zip(one, other, strict=True))
    return records_in, bytes_in, records_out, bytes_out
