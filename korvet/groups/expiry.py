"""Committed offsets past their retention, and groups that have nothing left.

Kafka's rules for offsets.retention.minutes, counted from when
    the end of the last membership, or the commit if that is later   in an empty group that had members
    the commit                                                       in a group that never had members
    the commit                                                       in a stable group of consumers, or any one of the
                                                                     consumer protocol, for topics that no member is
                                                                     subscribed to
A client may set a retention of its own (OffsetCommit 2 to 4), which counts from its commit. Offsets of a deleted topic
expire at once. While a transaction is to commit an offset, that of its partition stays, and the group. A share group
has no offsets, and stays until it is deleted, as in Kafka: what it has read is stored with the partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.errors import KafkaError, or_raise
from korvet.groups.consumer.subscriptions import subscribed_among
from korvet.groups.listing import subscribed_topics
from korvet.groups.offset_reads import StoredOffset
from korvet.groups.offsets import DeletedOffsets, GroupVersion, OffsetStore
from korvet.groups.store import GroupStore
from korvet.groups.types import CONSUMER, SHARE, STABLE
from korvet.protocol.types import TopicPartition


class ExpiredOffsets(NamedTuple):
    """How many offsets and groups were deleted."""

    offsets: int
    groups: int


class OffsetExpiry:
    """Every method raises StorageUnavailableError if Redis is away."""

    def __init__(
        self, offsets: OffsetStore, groups: GroupStore, retention_ms: int, producer_silence_ms: int
    ) -> None:
        """`producer_silence_ms` is producer.id.expiration.ms: for how long ended transactions are remembered."""
        self._offsets = offsets
        self._groups = groups
        self._retention_ms = retention_ms
        self._producer_silence_ms = producer_silence_ms

    def expire(self, groups: Sequence[str]) -> tuple[ExpiredOffsets, list[KafkaError]]:
        """Delete expired offsets of these groups, and empty groups; returns also the errors of single groups.

        A group that changes meanwhile is left for the next time.
        """
        now_ms = self._offsets.now_ms()
        offsets = deleted_groups = 0
        errors = []
        versions, have_pending = self._offsets.versions(groups), self._offsets.have_transactions(groups)
        for group, version, has_pending in zip(groups, versions, have_pending, strict=True):
            try:
                pending = self._pending(group) if has_pending else set()
                deleted = self._expire(group, version, pending, now_ms)
            except KafkaError as error:
                errors.append(error)
            else:
                offsets += deleted.offsets
                deleted_groups += deleted.group
        return ExpiredOffsets(offsets, deleted_groups), errors

    def _pending(self, group: str) -> set[TopicPartition]:
        self._offsets.expire_transactions(group, self._producer_silence_ms)
        return or_raise(*self._offsets.unstable([group]))

    def _expire(
        self, group: str, version: GroupVersion | KafkaError, pending: set[TopicPartition], now_ms: int
    ) -> DeletedOffsets:
        version = or_raise(version)
        stored = [item for item in self._offsets.stored(group) if item.at not in pending]
        if version.protocol_type == SHARE.encode():
            return DeletedOffsets(done=True, offsets=0, group=False)
        if version.is_empty:
            # Former members may come back: the time counts from when the last one left, or committed.
            empty_since_ms = int(version.since) if version.protocol_type and version.since.isdigit() else 0
            expired = [item for item in stored if self._is_expired(item, empty_since_ms, now_ms)]
        else:
            expired = self._not_subscribed(
                group, version, [item for item in stored if self._is_expired(item, 0, now_ms)]
            )
        rows = {item.at: item.row for item in [*expired, *(item for item in stored if not item.counts)]}
        # A name without a group is the business of the task that ends sessions: somebody may be about to create it.
        if not rows and (stored or pending or not version.since or not version.is_empty):
            return DeletedOffsets(done=True, offsets=0, group=False)
        return self._offsets.delete(group, version, rows, delete_empty_group=True)

    def _is_expired(self, stored: StoredOffset, empty_since_ms: int, now_ms: int) -> bool:
        if stored.ms is None:
            return False
        if stored.retention_ms is not None:
            return now_ms - stored.ms >= stored.retention_ms
        return now_ms - max(stored.ms, empty_since_ms) >= self._retention_ms

    def _not_subscribed(
        self, group: str, version: GroupVersion, stored: list[StoredOffset]
    ) -> list[StoredOffset]:
        """Return the topics without a subscribed member; empty if subscriptions are unknown or about to change."""
        if not stored or version.protocol_type != CONSUMER.encode():
            return []
        described = or_raise(*self._groups.describe([group]))
        if described.kind:
            members = self._groups.consumers.all_members(group)
            subscribed = subscribed_among(members, {item.at.topic for item in stored})
            return [item for item in stored if item.at.topic not in subscribed]
        if described.state != STABLE:
            return []
        topics = subscribed_topics(described)
        return [] if topics is None else [item for item in stored if item.at.topic not in topics]
