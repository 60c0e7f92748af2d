"""The traffic of each topic for /metrics, summed over the workers, with a bounded number of topics.

Knows the workers' files, and how many topics are told by name; the others are told together as (other). Which are told
by name changes only where one of them is deleted: a counter that came and went would make nonsense of rates. A topic
that is deleted is told no more. Workers forget it by themselves; what one that is gone has left is looked up in Redis.

What came into each topic and what went out, counted by one worker.

Pure. Knows topics by name and id; nothing of who asks for the counts. Topics that are deleted leave with their counts.

A worker's counts of each topic's traffic on their way to /metrics: a file per slot, written over in place.

Knows the file; what is counted stands in telemetry/topic_counters.py, and who reads it in topic_metrics.py. Files of
prometheus_client never forget a label, these hold only topics that there are. Whoever takes a slot goes on with what
its file says.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from korvet.logs import Log
from korvet.telemetry import process_files as metrics_files
from korvet.telemetry.request_metrics import RequestMetrics
from korvet.telemetry.snapshot import OTHER_TOPICS


class TopicTraffic(msgspec.Struct, array_like=True):
    """The counts of one topic: records and bytes of batches, as producers sent and as consumers got them."""

    topic: str
    topic_id: str
    received_records: int = 0
    received_bytes: int = 0
    sent_records: int = 0
    sent_bytes: int = 0


class Traffic:
    """The counts of every topic that this worker had to do with; `changed`: since they were last taken."""

    def __init__(self) -> None:
        self._by_id: dict[str, TopicTraffic] = {}
        self.changed = False

    def received(self, topic: str, topic_id: str, records: int, size_bytes: int) -> None:
        """Count what a producer sent and was appended; what was there already does not count again."""
        row = self._by_id.get(topic_id) or self._new(topic, topic_id)
        row.received_records += records
        row.received_bytes += size_bytes
        self.changed = True

    def sent(self, topic: str, topic_id: str, records: int, size_bytes: int) -> None:
        """Count what a consumer is sent."""
        row = self._by_id.get(topic_id) or self._new(topic, topic_id)
        row.sent_records += records
        row.sent_bytes += size_bytes
        self.changed = True

    def keep(self, exists: Callable[[str, str], bool]) -> None:
        """Forget the topics that do not exist, by name and id."""
        gone = [each.topic_id for each in self._by_id.values() if not exists(each.topic, each.topic_id)]
        for topic_id in gone:
            del self._by_id[topic_id]
            self.changed = True

    def go_on(self, rows: Iterable[TopicTraffic]) -> None:
        """Go on from these counts, before anything was counted."""
        self._by_id = {row.topic_id: row for row in rows}

    def take(self) -> Sequence[TopicTraffic]:
        """Return all counts, which are `changed` no more."""
        self.changed = False
        return list(self._by_id.values())

    def _new(self, topic: str, topic_id: str) -> TopicTraffic:
        row = self._by_id[topic_id] = TopicTraffic(topic, topic_id)
        return row


_log = Log(__name__)

PATTERN = "traffic_*.rows"
"""The names of all files, in the directory of the metrics."""

_FRONT = struct.Struct("=II")  # length and CRC-32 of what follows
_READS_MAX = 5
_SHARE_MAX = 0.01
"""Of a worker's time: what writing takes at the most, however many topics there are."""


def name_of(slot: str) -> str:
    """Return the name of the file of a slot, such as "worker0"."""
    return PATTERN.replace("*", slot)


def slot_of(path: Path) -> str:
    """Return the slot that a file is named after."""
    return path.stem.partition("_")[2]


def read(path: Path) -> list[TopicTraffic]:
    """Return what a file holds; nothing where there is none, or its writer died in the middle of a line."""
    return read_whole(path) or []


def read_whole(path: Path) -> list[TopicTraffic] | None:
    """Return what a file holds; None where its writer came only half way, be it dead or the disk full."""
    data = b""
    for _ in range(_READS_MAX):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return []
        if len(data) < _FRONT.size:
            continue
        size, crc = _FRONT.unpack_from(data)
        rows = data[_FRONT.size : _FRONT.size + size]
        # A writer may be at work, which takes microseconds.
        if len(rows) == size and zlib.crc32(rows) == crc:
            return _decoded(rows)
    return None if data else []


def _decoded(rows: bytes) -> list[TopicTraffic]:
    try:
        return msgspec.msgpack.decode(rows, type=list[TopicTraffic])
    except msgspec.DecodeError:
        # Of another version: an upgrade in place leaves the files where they are.
        return []


class TrafficFile:
    """The file of one worker."""

    def __init__(self, path: Path, traffic: Traffic, clock: Callable[[], float] = time.monotonic) -> None:
        """Take over what the file says, for `traffic` to go on from there. Raises OSError."""
        self._failed = False
        self._traffic = traffic
        self._clock = clock
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._not_before = 0.0
        traffic.go_on(read(path))

    def publish(self) -> bool:
        """Write what has changed; False where it is too soon for that, and a later call is to do it."""
        if not self._traffic.changed:
            return True
        begun = self._clock()
        if begun < self._not_before:
            return False
        self._write(self._traffic.take())
        taken = self._clock() - begun
        self._not_before = begun + taken / _SHARE_MAX
        return True

    def fileno(self) -> int:
        """Return the descriptor of the open file."""
        return self._fd

    def close(self) -> None:
        """Write what is left, at once, and close the file, which stays."""
        if self._traffic.changed:
            self._write(self._traffic.take())
        os.close(self._fd)

    def _write(self, rows: Sequence[TopicTraffic]) -> None:
        data = msgspec.msgpack.encode(rows)
        try:
            # One call, and no new file each time: that would have the disk write what nobody needs after a restart.
            os.pwrite(self._fd, _FRONT.pack(len(data), zlib.crc32(data)) + data, 0)
        except OSError as error:
            # The next one brings all of it again: one line for as long as the disk is full.
            if not self._failed:
                _log.warning("counts of topics not published", reason=error)
            self._failed = True
        else:
            self._failed = False


def open_own(traffic: Traffic, tally: RequestMetrics) -> TrafficFile | None:
    """Publish `traffic` with each flush of `tally`, in the file of this process; None where it has no slot."""
    own = metrics_files.own()
    if own is None:
        return None
    directory, slot = own
    opened = TrafficFile(directory / name_of(slot), traffic)

    def publish() -> None:
        if not opened.publish():
            tally.flush_soon()

    tally.follow(publish)
    return opened


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
        for path in sorted(self._directory.glob(PATTERN)):
            rows = read_whole(path)
            if rows is None:
                rows = self._last.get(path.name, [])
            self._last[path.name] = rows
            for row in rows:
                place = (row.topic, row.topic_id)
                total[place] = _plus(total.get(place, _NONE), _counts(row))
            if self._is_alive(slot_of(path)):
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
