"""What one worker receives and sends by topic, published for /metrics in a snapshot of its own.

Topics that are deleted leave with their counts. The next worker in the slot continues with what the file says.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from korvet.clock import CLOCK, Clock
from korvet.logs import Log
from korvet.telemetry import snapshot
from korvet.telemetry.snapshot import Snapshot

_TIME_SHARE_MAX = 0.001
"""The share of a worker's time that publishing may take; once takes 25 us in tmpfs and 200 on a disk."""
_PAUSE_SECONDS_MAX = 5.0
"""The longest pause that follows from it: a busy machine may stop a worker in the middle of a write."""

_log = Log(__name__)


class TopicTraffic(msgspec.Struct, array_like=True):
    """The counts of one topic: records and bytes of batches, as producers sent and as consumers got them."""

    topic: str
    topic_id: str
    received_records: int = 0
    received_bytes: int = 0
    sent_records: int = 0
    sent_bytes: int = 0


class TrafficSnapshot(Snapshot, kw_only=True):
    """The counts of one worker."""

    FILE = "traffic_{}.kept"
    topics: list[TopicTraffic]


class TopicCounters:
    """The counts of one worker, by topic id; `path` is its file, None if nobody reads it."""

    def __init__(self, path: Path | None = None, *, clock: Clock = CLOCK) -> None:
        self._path = path
        self._clock = clock
        before = snapshot.read(path, TrafficSnapshot) if path else None
        self._by_id = {row.topic_id: row for row in before.topics} if before else {}
        self._changed = self._failed = False
        self._not_before = 0.0

    def received(self, topic: str, topic_id: str, records: int, size_bytes: int) -> None:
        """Count appended records; duplicates are not counted."""
        row = self._by_id.get(topic_id) or self._new(topic, topic_id)
        row.received_records += records
        row.received_bytes += size_bytes
        self._changed = True

    def sent(self, topic: str, topic_id: str, records: int, size_bytes: int) -> None:
        row = self._by_id.get(topic_id) or self._new(topic, topic_id)
        row.sent_records += records
        row.sent_bytes += size_bytes
        self._changed = True

    def forget(self, topics: Collection[TopicTraffic]) -> None:
        """Drop rows, of topics that were deleted."""
        for row in topics:
            del self._by_id[row.topic_id]
            self._changed = True

    def rows(self) -> list[TopicTraffic]:
        return list(self._by_id.values())

    def flush(self, *, now: bool = False) -> bool:
        """Publish what has changed; False if it is too soon for that unless `now`, and a later call must do it."""
        if self._path is None or not self._changed:
            return True
        begun = self._clock.monotonic()
        if begun < self._not_before and not now:
            return False
        try:
            snapshot.publish(self._path, TrafficSnapshot(topics=self.rows()))
            self._changed = self._failed = False
        except OSError as error:
            # A later call writes all of it again: one line for as long as the disk is full.
            if not self._failed:
                _log.warning("cannot publish topic counters", reason=error)
            self._failed = True
        self._not_before = begun + min(
            (self._clock.monotonic() - begun) / _TIME_SHARE_MAX, _PAUSE_SECONDS_MAX
        )
        return True

    def _new(self, topic: str, topic_id: str) -> TopicTraffic:
        row = self._by_id[topic_id] = TopicTraffic(topic, topic_id)
        return row
