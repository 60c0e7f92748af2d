"""Where share groups are in partitions, as administrators see and change it.

Nothing lists the partitions of a group: those of all topics are asked for it, in pipelines. A start may be moved, or
forgotten, only while the group has no members: what these have acquired would be lost to them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from korvet.cluster.group_configs import GroupConfigs
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.store import ConsumerStore
from korvet.groups.consumer.types import LEAVE_EPOCH, MemberChange, Progress, SubscriberRow
from korvet.groups.types import SHARE
from korvet.log.index import IndexStore, Lag
from korvet.log.types import LogPosition
from korvet.share.positions import begin_ask
from korvet.share.store import SharePartitions
from korvet.share.types import ShareOffsets
from korvet.topics.registry import PARTITIONS_AT_ONCE, Topic, TopicRegistry
from korvet.topics.types import Partition
from korvet.turns import in_parts, in_turns

LAGS_AT_ONCE = 10
"""Lags counted at once: in format `record` each may have Redis count some thousand entries (groups/lag.py)."""

UNKNOWN_START = UNKNOWN_LAG = -1

_GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

_SESSION_MS = 45_000
"""Of the member that creates a group, should it not come to leave."""


class GroupPosition(NamedTuple):
    """Where a group begins in a partition, and how many records it is not done with (KIP-1226)."""

    start: int
    leader_epoch: int
    lag: int = UNKNOWN_LAG


class ShareGroupOffsets:
    """Every method raises StorageUnavailableError if Redis is away."""

    def __init__(
        self,
        store: SharePartitions,
        groups: ConsumerStore,
        index: IndexStore,
        topics: TopicRegistry,
        configs: GroupConfigs,
    ) -> None:
        self._store = store
        self._groups = groups
        self._index = index
        self._topics = topics
        self._configs = configs

    def check_group(self, group: str, *, empty: bool = False) -> None:
        """Raise KafkaError GROUP_ID_NOT_FOUND if there is no such share group, NON_EMPTY_GROUP if it is not `empty`."""
        fields = self._groups.fields(group)
        if fields.kind != SHARE:
            what = f"Group {group} is not a share group." if fields.state else f"Group {group} not found."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, what)
        if empty and fields.size:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {group} is not empty.")

    def reset(self, group: str) -> str | int:
        """Return where a group begins in a partition (GroupConfigs.share_reset).

        Kafka serves a ShareFetch for a group that nobody has joined: it is created, so administrators see its offsets.
        Raises KafkaError GROUP_ID_NOT_FOUND for a group of another type.
        """
        self._ensure_group(group)
        return self._configs.share_reset(group)

    def describe(
        self, group: str, partitions: Sequence[Partition], *, lags: bool
    ) -> list[GroupPosition | KafkaError | None]:
        """Return where a group is, with its lag if that is asked for; None: it has not been there.

        UNKNOWN_START, without a lag: it has begun, and nothing was acknowledged, released or delivered again.
        """
        results: list[ShareOffsets | KafkaError | None] = []
        for asked in in_parts(partitions, PARTITIONS_AT_ONCE) if partitions else ():
            results += self._store.offsets(group, asked)
        positions = [_position(result) if isinstance(result, ShareOffsets) else result for result in results]
        if not lags:
            return positions
        begun = [
            place
            for place, item in enumerate(results)
            if isinstance(item, ShareOffsets) and not item.is_initial
        ]
        for chunk in in_parts(begun, LAGS_AT_ONCE) if begun else ():
            nexts = [
                LogPosition(partitions[place], item.next)
                for place in chunk
                if isinstance(item := results[place], ShareOffsets)
            ]
            for place, lag in zip(chunk, self._index.lags(nexts), strict=True):
                at, item = positions[place], results[place]
                if isinstance(lag, Lag) and isinstance(at, GroupPosition) and isinstance(item, ShareOffsets):
                    positions[place] = at._replace(lag=item.in_flight + lag.records)
        return positions

    def alter(self, group: str, starts: Sequence[tuple[Topic, Partition, int]]) -> list[KafkaError | None]:
        """Have a group without members begin elsewhere; returns errors. Raises KafkaError as `check_group` does.

        A group that does not exist is created, as in Kafka.
        """
        self._ensure_group(group, empty=True)
        policy = self._configs.share_policy(group)
        return self._store.alter(
            [begin_ask(topic, partition, group, start, policy) for topic, partition, start in starts]
        )

    def _ensure_group(self, group: str, *, empty: bool = False) -> None:
        if not self._groups.fields(group).state:
            self._create(group)
        self.check_group(group, empty=empty)

    def _create(self, group: str) -> None:
        """Create an empty group: what a member that joins and leaves leaves behind."""
        member = str(uuid.uuid4())
        row = SubscriberRow(session_ms=_SESSION_MS, rebalance_ms=0, instance="", client_id="", client_host="")
        change = MemberChange(member_id=member, instance="", before=None, progress=Progress(), row=row)
        fields = self._groups.fields(group)
        if self._groups.update(group, fields, change, _SESSION_MS, 1) is not None:
            self._groups.leave(group, [(member, "", LEAVE_EPOCH)])

    def delete(self, group: str, topics: Sequence[Topic]) -> list[KafkaError | None]:
        """Have a group without members forget topics; returns errors. Raises KafkaError as `check_group` does."""
        self.check_group(group, empty=True)
        return [self._delete(group, topic) for topic in topics]

    def delete_all(self, group: str) -> None:
        """Delete all that a group has of partitions, before the group; raises KafkaError if a part could not be.

        A topic that is deleted meanwhile takes its parts with it.
        """
        self._topics.refresh()
        partitions = [
            partition for topic in in_turns(self._topics.list_cached()) for partition in topic.partitions
        ]
        for chunk in in_parts(partitions, PARTITIONS_AT_ONCE) if partitions else ():
            for outcome in self._store.delete(group, chunk):
                if isinstance(outcome, KafkaError) and outcome.code is not _GONE:
                    raise outcome

    def _delete(self, group: str, topic: Topic) -> KafkaError | None:
        deleted = False
        for chunk in in_parts(topic.partitions, PARTITIONS_AT_ONCE):
            for item in self._store.delete(group, chunk):
                if isinstance(item, KafkaError):
                    return item
                deleted = deleted or item
        if deleted:
            return None
        message = "There is no offset information to delete."
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _position(offsets: ShareOffsets) -> GroupPosition:
    return (
        GroupPosition(UNKNOWN_START, 0)
        if offsets.is_initial
        else GroupPosition(offsets.start, offsets.leader_epoch)
    )
