"""What came into each topic and what went out, counted by one worker.

Pure. Knows topics by name and id; nothing of who asks for the counts. Topics that are deleted leave with their counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from korvet.storage.log_types import Partition


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

    def received(self, partition: Partition, records: int, size_bytes: int) -> None:
        """Count what a producer sent and was appended; what was there already does not count again."""
        row = self._by_id.get(partition.topic_id) or self._new(partition)
        row.received_records += records
        row.received_bytes += size_bytes
        self.changed = True

    def sent(self, partition: Partition, records: int, size_bytes: int) -> None:
        """Count what a consumer is sent."""
        row = self._by_id.get(partition.topic_id) or self._new(partition)
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

    def _new(self, partition: Partition) -> TopicTraffic:
        row = self._by_id[partition.topic_id] = TopicTraffic(partition.topic, partition.topic_id)
        return row
