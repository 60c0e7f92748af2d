"""Requests about offsets: what groups have committed, and what logs have. Reached as `AdminClient.offsets`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from korvet.admin.connection import Deadline
from korvet.admin.errors import AdminError, error_in, raise_error_in
from korvet.admin.routing import Attempt, ClusterClient, Routes
from korvet.admin.types import TopicPartition, by_topic, group_name_error, partition_name_error
from korvet.protocol.messages import list_offsets, offset_commit, offset_delete, offset_fetch
from korvet.protocol.types import SpecialTimestamp

EARLIEST = int(SpecialTimestamp.EARLIEST)
"""In place of a timestamp: the first offset of a log."""

LATEST = int(SpecialTimestamp.LATEST)
"""In place of a timestamp: the end of a log, the offset of its next record."""

NO_OFFSET = -1

# Later versions name topics by id, or take many groups.
_COMMIT_VERSIONS = (2, 9)
_FETCH_VERSIONS = (2, 7)
_CONSUMER_REPLICA = -1


class CommittedOffset(msgspec.Struct, frozen=True):
    """A committed offset: that of the next record to read. `leader_epoch` is -1 if it is not known."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class LogOffset(msgspec.Struct, frozen=True):
    """An offset of a log. Offset and timestamp are -1 if no record is at or after the timestamp asked for."""

    offset: int
    timestamp: int
    leader_epoch: int


_Committed = dict[TopicPartition, CommittedOffset]
_Errors = dict[TopicPartition, AdminError | None]


class Offsets:
    """The requests about offsets."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def committed(self, group_id: str, partitions: Iterable[TopicPartition] | None = None) -> _Committed:
        """Return the committed offsets of a group, of these partitions or of all; partitions without are left out.

        An unknown group has none. Raises AdminError.

            >>> committed = admin.offsets.committed("billing")
        """
        topics = None
        if partitions is not None:
            topics = [
                offset_fetch.OffsetFetchRequestTopics(
                    name=name, partition_indexes=[each.partition for each in some]
                )
                for name, some in by_topic(set(partitions))
            ]

        def ask(attempt: Attempt, groups: Sequence[str]) -> dict[str, _Committed | AdminError]:
            request = offset_fetch.OffsetFetchRequest(group_id=groups[0], topics=topics)
            return {
                groups[0]: _fetched(attempt.send(request, offset_fetch.OffsetFetchResponse, _FETCH_VERSIONS))
            }

        outcomes = self._client.for_each(
            [group_id], self._client.to_coordinators, ask, error_of=group_name_error
        )
        outcome = outcomes[group_id]
        if isinstance(outcome, AdminError):
            raise outcome
        return outcome

    def alter(self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]) -> _Errors:
        """Commit offsets for a group without members. Returns None or an error for each.

        A group with members answers UNKNOWN_MEMBER_ID: only its members may commit. An unknown group is created.

            >>> admin.offsets.alter("billing", {TopicPartition("orders", 0): 42})
            {TopicPartition(topic='orders', partition=0): None}
        """
        given = {
            key: CommittedOffset(offset) if isinstance(offset, int) else offset
            for key, offset in offsets.items()
        }

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> _Errors:
            topics = [
                offset_commit.OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        offset_commit.OffsetCommitRequestPartition(
                            partition_index=each.partition,
                            committed_offset=given[each].offset,
                            committed_leader_epoch=given[each].leader_epoch,
                            committed_metadata=given[each].metadata,
                        )
                        for each in some
                    ],
                )
                for name, some in by_topic(keys)
            ]
            request = offset_commit.OffsetCommitRequest(group_id=group_id, topics=topics)
            return _errors(attempt.send(request, offset_commit.OffsetCommitResponse, _COMMIT_VERSIONS))

        return self._client.for_each(given, self._to_coordinator(group_id), ask, error_of=_check(group_id))

    def delete(self, group_id: str, partitions: Iterable[TopicPartition]) -> _Errors:
        """Delete the committed offsets of partitions. Returns None or an error for each.

        Errors are GroupIdNotFoundError, UnknownTopicOrPartitionError, and GROUP_SUBSCRIBED_TO_TOPIC if members of the
        group read the topic.

            >>> deleted = admin.offsets.delete("billing", [TopicPartition("orders", 0)])
        """

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> _Errors:
            topics = [
                offset_delete.OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[
                        offset_delete.OffsetDeleteRequestPartition(partition_index=each.partition)
                        for each in some
                    ],
                )
                for name, some in by_topic(keys)
            ]
            request = offset_delete.OffsetDeleteRequest(group_id=group_id, topics=topics)
            response = attempt.send(request, offset_delete.OffsetDeleteResponse)
            raise_error_in(response.error_code)
            return _errors(response)

        route = self._to_coordinator(group_id)
        return self._client.for_each(partitions, route, ask, error_of=_check(group_id))

    def at(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogOffset | AdminError]:
        """Return for each partition the first offset at or after a timestamp (ms), or EARLIEST or LATEST, or an error.

        >>> ends = admin.offsets.at({TopicPartition("orders", 0): LATEST})
        """

        def ask(
            attempt: Attempt, keys: Sequence[TopicPartition]
        ) -> dict[TopicPartition, LogOffset | AdminError]:
            topics = [
                list_offsets.ListOffsetsTopic(
                    name=name,
                    partitions=[
                        list_offsets.ListOffsetsPartition(
                            partition_index=each.partition, timestamp=timestamps[each]
                        )
                        for each in some
                    ],
                )
                for name, some in by_topic(keys)
            ]
            request = list_offsets.ListOffsetsRequest(
                replica_id=_CONSUMER_REPLICA, topics=topics, timeout_ms=attempt.timeout_ms
            )
            return {
                (key := TopicPartition(topic.name, each.partition_index)): error_in(
                    each.error_code, f"partition {key}"
                )
                or LogOffset(each.offset, each.timestamp, each.leader_epoch)
                for topic in attempt.send(request, list_offsets.ListOffsetsResponse).topics
                for each in topic.partitions
            }

        return self._client.for_each(timestamps, self._client.to_leaders, ask, error_of=partition_name_error)

    def _to_coordinator(
        self, group_id: str
    ) -> Callable[[list[TopicPartition], Deadline], Routes[TopicPartition]]:
        return lambda keys, deadline: dict.fromkeys(
            keys, self._client.to_coordinators([group_id], deadline)[group_id]
        )


def _fetched(response: offset_fetch.OffsetFetchResponse) -> _Committed | AdminError:
    failed: AdminError | None = error_in(response.error_code)
    found: _Committed = {}
    for topic in response.topics:
        for each in topic.partitions:
            key = TopicPartition(topic.name, each.partition_index)
            failed = failed or error_in(each.error_code, f"partition {key}")
            if each.committed_offset != NO_OFFSET:
                found[key] = CommittedOffset(
                    each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                )
    return failed or found


def _errors(response: offset_commit.OffsetCommitResponse | offset_delete.OffsetDeleteResponse) -> _Errors:
    return {
        TopicPartition(topic.name, each.partition_index): error_in(each.error_code)
        for topic in response.topics
        for each in topic.partitions
    }


def _check(group_id: str) -> Callable[[TopicPartition], AdminError | None]:
    """Return the check of partitions: an invalid group is the error of all."""
    error = group_name_error(group_id)
    return lambda partition: error or partition_name_error(partition)
