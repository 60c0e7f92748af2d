"""Questions about offsets: what a group has committed, and what the logs hold. Reached as `AdminClient.offsets`.

Knows OffsetFetch, OffsetCommit, OffsetDelete and ListOffsets; not where groups and partitions are kept, which the
client finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.types import TopicPartition, bad_group, bad_partition, by_topic, for_each
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from korvet.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from korvet.protocol.types import SpecialTimestamp

if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.connection import Address, Deadline

    Route = Callable[[list[TopicPartition], Deadline], dict[TopicPartition, Address | AdminError]]

EARLIEST = SpecialTimestamp.EARLIEST
"""In place of a timestamp: the first offset of a log."""

LATEST = SpecialTimestamp.LATEST
"""In place of a timestamp: the end of a log, where the next record will be."""

NO_OFFSET = -1

# Later versions name topics by id, or ask for many groups.
_COMMIT_VERSIONS = (2, 9)
_FETCH_VERSIONS = (2, 7)
_A_CONSUMER = -1


class CommittedOffset(msgspec.Struct, frozen=True):
    """What a group has committed: the offset of the next record to read; `leader_epoch` is -1 where it is not known."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


_Committed = dict[TopicPartition, CommittedOffset]


class LogOffset(msgspec.Struct, frozen=True):
    """An offset of a log; offset and timestamp are -1 where no record is at or behind the timestamp asked for."""

    offset: int
    timestamp: int
    leader_epoch: int


class Offsets:
    """The questions about offsets."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return what a group has committed, of these partitions or of all; those without a commit are left out.

        A group that is not there has committed nothing. Raises AdminError.

            >>> committed = admin.offsets.committed("billing")
        """
        wanted = None if partitions is None else sorted(set(partitions))

        def ask(
            address: Address, groups: list[str], deadline: Deadline
        ) -> dict[str, _Committed | AdminError]:
            return {group: self._committed(address, group, wanted, deadline) for group in groups}

        outcome = self._client.settle([group_id], self._client.coordinators, ask, refuse=bad_group)[group_id]
        if isinstance(outcome, AdminError):
            raise outcome
        return outcome

    def alter(
        self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> dict[TopicPartition, AdminError | None]:
        """Commit offsets for a group that has no members; returns for each what kept it from being committed.

        Members of a group commit themselves: with any there, each is an UnknownMemberIdError. A group that is not
        there is made.

            >>> admin.offsets.alter("billing", {TopicPartition("orders", 0): 42})
            {TopicPartition(topic='orders', partition=0): None}
        """
        given = {
            place: CommittedOffset(offset) if isinstance(offset, int) else offset
            for place, offset in offsets.items()
        }

        def ask(
            address: Address, keys: list[TopicPartition], deadline: Deadline
        ) -> dict[TopicPartition, AdminError | None]:
            return self._commit(address, group_id, {key: given[key] for key in keys}, deadline)

        return self._client.settle(
            given, self._to_coordinator_of(group_id), ask, refuse=_bad_partition_or(group_id)
        )

    def delete(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, AdminError | None]:
        """Delete what a group has committed of partitions; returns for each what kept it from being deleted.

        These are GroupIdNotFoundError, UnknownTopicOrPartitionError, and GroupSubscribedToTopicError where members
        read the topic.

            >>> deleted = admin.offsets.delete("billing", [TopicPartition("orders", 0)])
        """

        def ask(
            address: Address, keys: list[TopicPartition], deadline: Deadline
        ) -> dict[TopicPartition, AdminError | None]:
            return self._delete(address, group_id, keys, deadline)

        return self._client.settle(
            partitions, self._to_coordinator_of(group_id), ask, refuse=_bad_partition_or(group_id)
        )

    def at(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogOffset | AdminError]:
        """Return for each partition the first offset at or behind a timestamp (ms), or EARLIEST or LATEST.

        >>> ends = admin.offsets.at({TopicPartition("orders", 0): LATEST})
        """

        def ask(
            address: Address, keys: list[TopicPartition], deadline: Deadline
        ) -> dict[TopicPartition, LogOffset | AdminError]:
            return self._at(address, {key: timestamps[key] for key in keys}, deadline)

        return self._client.settle(timestamps, self._client.leaders, ask, refuse=bad_partition)

    def _to_coordinator_of(self, group_id: str) -> Route:
        def route(
            keys: list[TopicPartition], deadline: Deadline
        ) -> dict[TopicPartition, Address | AdminError]:
            return dict.fromkeys(keys, self._client.coordinators([group_id], deadline)[group_id])

        return route

    def _committed(
        self, address: Address, group_id: str, wanted: list[TopicPartition] | None, deadline: Deadline
    ) -> _Committed | AdminError:
        topics = None
        if wanted is not None:
            topics = [
                OffsetFetchRequestTopic(name=name, partition_indexes=[each.partition for each in some])
                for name, some in by_topic(wanted)
            ]
        request = OffsetFetchRequest(group_id=group_id, topics=topics)
        response = self._client.ask(address, request, OffsetFetchResponse, deadline, _FETCH_VERSIONS)
        failed: AdminError | None = BrokerError.of(response.error_code)
        found: _Committed = {}
        for topic in response.topics:
            for each in topic.partitions:
                failed = failed or BrokerError.of(
                    each.error_code, f"partition {topic.name}:{each.partition_index}"
                )
                if each.committed_offset != NO_OFFSET:
                    found[TopicPartition(topic.name, each.partition_index)] = CommittedOffset(
                        each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                    )
        return failed or found

    def _commit(
        self,
        address: Address,
        group_id: str,
        offsets: dict[TopicPartition, CommittedOffset],
        deadline: Deadline,
    ) -> dict[TopicPartition, AdminError | None]:
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=each.partition,
                        committed_offset=offsets[each].offset,
                        committed_leader_epoch=offsets[each].leader_epoch,
                        committed_metadata=offsets[each].metadata,
                    )
                    for each in some
                ],
            )
            for name, some in by_topic(offsets)
        ]
        request = OffsetCommitRequest(group_id=group_id, topics=topics)
        response = self._client.ask(address, request, OffsetCommitResponse, deadline, _COMMIT_VERSIONS)
        outcomes: dict[TopicPartition, AdminError | None] = {}
        for topic in response.topics:
            for each in topic.partitions:
                outcomes[TopicPartition(topic.name, each.partition_index)] = BrokerError.of(each.error_code)
        return for_each(address, offsets, outcomes)

    def _delete(
        self, address: Address, group_id: str, partitions: list[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, AdminError | None]:
        topics = [
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=each.partition) for each in some],
            )
            for name, some in by_topic(partitions)
        ]
        request = OffsetDeleteRequest(group_id=group_id, topics=topics)
        response = self._client.ask(address, request, OffsetDeleteResponse, deadline)
        error = BrokerError.of(response.error_code)
        if error is not None:
            raise error
        outcomes: dict[TopicPartition, AdminError | None] = {}
        for topic in response.topics:
            for each in topic.partitions:
                outcomes[TopicPartition(topic.name, each.partition_index)] = BrokerError.of(each.error_code)
        return for_each(address, partitions, outcomes)

    def _at(
        self, address: Address, timestamps: dict[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, LogOffset | AdminError]:
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=each.partition, timestamp=timestamps[each])
                    for each in some
                ],
            )
            for name, some in by_topic(timestamps)
        ]
        request = ListOffsetsRequest(replica_id=_A_CONSUMER, topics=topics, timeout_ms=deadline.broker_ms())
        response = self._client.ask(address, request, ListOffsetsResponse, deadline)
        outcomes: dict[TopicPartition, LogOffset | AdminError] = {}
        for topic in response.topics:
            for each in topic.partitions:
                place = TopicPartition(topic.name, each.partition_index)
                outcomes[place] = BrokerError.of(each.error_code, f"partition {place}") or LogOffset(
                    each.offset, each.timestamp, each.leader_epoch
                )
        return for_each(address, timestamps, outcomes)


def _bad_partition_or(group_id: str) -> Callable[[TopicPartition], AdminError | None]:
    """Return what refuses partitions: all of them where the group is none that can be asked about."""
    group = bad_group(group_id)
    return lambda partition: group or bad_partition(partition)
