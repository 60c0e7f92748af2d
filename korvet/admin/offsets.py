"""Requests about offsets: what groups have committed, and how to reset it, and what logs have.

Reached as `AdminClient.offsets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from korvet.admin.errors import AdminError, GroupIdNotFoundError, error_in
from korvet.admin.groups import EMPTY, SHARE, Groups
from korvet.admin.routing import Attempt, Requests, Route
from korvet.admin.types import (
    Outcomes,
    Q,
    TopicPartition,
    errors_in,
    known,
    partitions_in,
    settled,
    topics_of,
)
from korvet.protocol.messages import alter_share_group_offsets as moving
from korvet.protocol.messages import describe_share_group_offsets as sharing
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


class ShareGroupOffset(msgspec.Struct, frozen=True):
    """Where a share group is in a partition. `lag` counts the records from `start` on that it is not done with.

    `lag` is None if the broker does not know it.
    """

    start: int
    leader_epoch: int
    lag: int | None


class LogOffset(msgspec.Struct, frozen=True):
    """An offset of a log. Offset and timestamp are -1 if no record is at or after the timestamp asked for."""

    offset: int
    timestamp: int
    leader_epoch: int


class ToTimestamp(msgspec.Struct, frozen=True):
    """The first record at or after a timestamp (ms), or EARLIEST or LATEST; the end if there is none."""

    timestamp: int


class ToOffset(msgspec.Struct, frozen=True):
    """One offset for all partitions."""

    offset: int


class ShiftBy(msgspec.Struct, frozen=True):
    """The committed offset plus this number, which may be negative."""

    offsets: int


Target = ToTimestamp | ToOffset | ShiftBy


class OffsetReset(msgspec.Struct, frozen=True):
    """The committed offset of a partition, of a share group its start, before and after.

    `before` is None if there was none.
    """

    before: int | None
    after: int


class ResetRefusedError(AdminError):
    """The offsets cannot be reset in this way; the message says why."""


_Committed = dict[TopicPartition, CommittedOffset]
_Errors = Outcomes[TopicPartition, None]
_Starts = dict[TopicPartition, ShareGroupOffset]


class Offsets(Requests):
    """The requests about offsets."""

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, stable: bool = False
    ) -> _Committed:
        """Return the committed offsets of a group, of these partitions or of all; partitions without are left out.

        `stable`: after the transactions that commit some of them have ended. An unknown group has none. Raises
        AdminError.

            >>> committed = admin.offsets.committed("billing")
        """
        topics = None
        if partitions is not None:
            topics = topics_of(offset_fetch.OffsetFetchRequestTopics, partitions)
        request = offset_fetch.OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=stable)

        def ask(attempt: Attempt, _: Sequence[str]) -> Outcomes[str, _Committed]:
            response = attempt.send(request, offset_fetch.OffsetFetchResponse, _FETCH_VERSIONS)
            return {group_id: _fetched(response)}

        return settled(self._client.for_each([group_id], Route.GROUP, ask))[group_id]

    def of_share_groups(
        self, groups: Mapping[str, Iterable[TopicPartition] | None]
    ) -> Outcomes[str, _Starts]:
        """Return where share groups are in these partitions, None for all, or an error; what was not begun is left out.

        An unknown group has none. UnsupportedError before Kafka 4.1.

            >>> shares = admin.offsets.of_share_groups({"jobs": None})
        """
        parts = {
            group_id: sharing.DescribeShareGroupOffsetsRequestGroup(
                group_id=group_id,
                topics=None
                if partitions is None
                else topics_of(sharing.DescribeShareGroupOffsetsRequestTopic, partitions),
            )
            for group_id, partitions in groups.items()
        }

        def ask(attempt: Attempt, keys: Sequence[str]) -> Outcomes[str, _Starts]:
            request = sharing.DescribeShareGroupOffsetsRequest(groups=[parts[key] for key in keys])
            response = attempt.send(request, sharing.DescribeShareGroupOffsetsResponse)
            return {group.group_id: _share_offsets(group) for group in response.groups}

        return self._client.for_each(groups, Route.GROUP, ask)

    def alter(self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]) -> _Errors:
        """Commit offsets for a group without members. Returns None or an error for each.

        A group with members answers UNKNOWN_MEMBER_ID: only its members may commit. An unknown group is created.

            >>> admin.offsets.alter("billing", {TopicPartition("orders", 0): 42})
            {TopicPartition(topic='orders', partition=0): None}
        """
        parts = commit_parts(offset_commit.OffsetCommitRequestPartition, offsets)

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> _Errors:
            topics = topics_of(offset_commit.OffsetCommitRequestTopic, keys, parts)
            request = offset_commit.OffsetCommitRequest(group_id=group_id, topics=topics)
            response = attempt.send(request, offset_commit.OffsetCommitResponse, _COMMIT_VERSIONS)
            return errors_in(response.topics)

        return self._client.for_each(offsets, Route.GROUP, ask, group=group_id)

    def alter_share_group(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> _Errors:
        """Move the starts of a share group without members. Returns None or an error for each.

        A group with members answers NON_EMPTY_GROUP, an unknown one GROUP_ID_NOT_FOUND.

            >>> altered = admin.offsets.alter_share_group("jobs", {TopicPartition("orders", 0): 42})
        """
        parts = {
            key: moving.AlterShareGroupOffsetsRequestPartition(
                partition_index=key.partition, start_offset=offset
            )
            for key, offset in offsets.items()
        }

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> _Errors:
            topics = topics_of(moving.AlterShareGroupOffsetsRequestTopic, keys, parts)
            request = moving.AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)
            response = attempt.send(request, moving.AlterShareGroupOffsetsResponse)
            return errors_in(response.responses)

        return self._client.for_each(offsets, Route.GROUP, ask, group=group_id)

    def delete(self, group_id: str, partitions: Iterable[TopicPartition]) -> _Errors:
        """Delete the committed offsets of partitions. Returns None or an error for each.

        Errors are GroupIdNotFoundError, UnknownTopicOrPartitionError, and GROUP_SUBSCRIBED_TO_TOPIC if members of the
        group read the topic.

            >>> deleted = admin.offsets.delete("billing", [TopicPartition("orders", 0)])
        """
        parts = {
            key: offset_delete.OffsetDeleteRequestPartition(partition_index=key.partition)
            for key in partitions
        }

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> _Errors:
            topics = topics_of(offset_delete.OffsetDeleteRequestTopic, keys, parts)
            request = offset_delete.OffsetDeleteRequest(group_id=group_id, topics=topics)
            response = attempt.send(request, offset_delete.OffsetDeleteResponse)
            return errors_in(response.topics)

        return self._client.for_each(parts, Route.GROUP, ask, group=group_id)

    def at(self, timestamps: Mapping[TopicPartition, int]) -> Outcomes[TopicPartition, LogOffset]:
        """Return for each partition the first offset at or after a timestamp (ms), or EARLIEST or LATEST, or an error.

        >>> ends = admin.offsets.at({TopicPartition("orders", 0): LATEST})
        """
        parts = {
            key: list_offsets.ListOffsetsPartition(partition_index=key.partition, timestamp=timestamp)
            for key, timestamp in timestamps.items()
        }

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> Outcomes[TopicPartition, LogOffset]:
            topics = topics_of(list_offsets.ListOffsetsTopic, keys, parts)
            request = list_offsets.ListOffsetsRequest(
                replica_id=_CONSUMER_REPLICA, topics=topics, timeout_ms=attempt.timeout_ms
            )
            response = attempt.send(request, list_offsets.ListOffsetsResponse)
            return {
                key: error_in(result.error_code, f"partition {key}")
                or LogOffset(result.offset, result.timestamp, result.leader_epoch)
                for key, result in partitions_in(response.topics)
            }

        return self._client.for_each(timestamps, Route.LEADER, ask)

    def plan_reset(
        self, group_id: str, topics: Mapping[str, Sequence[int]] | None, target: Target
    ) -> dict[TopicPartition, OffsetReset]:
        """Return what a reset of the committed offsets of a group would make of them; `reset` commits that.

        Of a share group it moves the starts. `topics` are the partitions of topics, all of a topic if none is given;
        None is all with a committed offset. The target is resolved against the present logs. An offset outside its log
        becomes the nearest one inside: a consumer would reset it by its own policy.

        Raises AdminError: ResetRefusedError if the group has members, which would continue from their own positions,
        or has no committed offset to find the partitions by or to shift; UnknownTopicOrPartitionError. The offsets of
        an unknown group can be reset: that creates it.
        """
        before: dict[TopicPartition, int | None]
        before = dict(self._present(group_id, is_share=self._is_share_without_members(group_id)))
        if topics is None and not before:
            raise ResetRefusedError(f"group {group_id!r} has committed no offsets: name the topics")
        partitions = sorted(before if topics is None else self._client.partitions_of(topics))
        before = {key: before.get(key) for key in partitions}
        starts = settled(self.at(dict.fromkeys(partitions, EARLIEST)))
        timed: Mapping[TopicPartition, LogOffset] = {}
        if isinstance(target, ToTimestamp):
            timed = settled(self.at(dict.fromkeys(partitions, target.timestamp)))
        # Last, so that a log that grows meanwhile does not end before an offset found in it.
        ends = settled(self.at(dict.fromkeys(partitions, LATEST)))
        resets = {}
        for key in partitions:
            if isinstance(target, ToTimestamp):
                wanted = timed[key].offset
                wanted = ends[key].offset if wanted == NO_OFFSET else wanted
            elif isinstance(target, ToOffset):
                wanted = target.offset
            else:
                wanted = _shifted(group_id, key, before[key], target.offsets)
            resets[key] = OffsetReset(before[key], min(max(wanted, starts[key].offset), ends[key].offset))
        return resets

    def reset(self, group_id: str, resets: Mapping[TopicPartition, OffsetReset]) -> _Errors:
        """Do what `plan_reset` returned, or a part of it. Returns None or an error for each; raises the same."""
        offsets = {key: reset.after for key, reset in resets.items()}
        if self._is_share_without_members(group_id):
            return self.alter_share_group(group_id, offsets)
        return self.alter(group_id, offsets)

    def _is_share_without_members(self, group_id: str) -> bool:
        """Return whether a group is a share group. Raises ResetRefusedError if it has members."""
        described = Groups(self._client).describe([group_id])[group_id]
        if isinstance(described, GroupIdNotFoundError):
            return False
        if isinstance(described, AdminError):
            raise described
        if described.state != EMPTY:
            raise ResetRefusedError(
                f"group {group_id!r} is {described.state}, members: {len(described.members)};"
                " stop all of them before a reset; one that is gone is removed when its session has ended"
            )
        return described.type == SHARE

    def _present(self, group_id: str, *, is_share: bool) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, of a share group its starts."""
        if is_share:
            shares = settled(self.of_share_groups({group_id: None}))[group_id]
            return {key: share.start for key, share in shares.items()}
        return {key: commit.offset for key, commit in self.committed(group_id).items()}


def commit_parts(
    kind: type[Q], offsets: Mapping[TopicPartition, int | CommittedOffset]
) -> dict[TopicPartition, Q]:
    """Return the part of each partition in a request that commits offsets."""
    commits = {
        key: CommittedOffset(given) if isinstance(given, int) else given for key, given in offsets.items()
    }
    return {
        key: kind(
            partition_index=key.partition,
            committed_offset=commit.offset,
            committed_leader_epoch=commit.leader_epoch,
            committed_metadata=commit.metadata,
        )
        for key, commit in commits.items()
    }


def _fetched(response: offset_fetch.OffsetFetchResponse) -> _Committed | AdminError:
    committed: _Committed = {}
    for key, offset in partitions_in(response.topics):
        error = error_in(offset.error_code, f"partition {key}")
        if error is not None:
            return error
        if offset.committed_offset != NO_OFFSET:
            committed[key] = CommittedOffset(
                offset.committed_offset, offset.committed_leader_epoch, offset.metadata or ""
            )
    return committed


def _share_offsets(group: sharing.DescribeShareGroupOffsetsResponseGroup) -> _Starts | AdminError:
    error = error_in(group.error_code, group.error_message)
    if error is not None:
        return {} if isinstance(error, GroupIdNotFoundError) else error  # what Kafka answers
    starts: _Starts = {}
    for key, offset in partitions_in(group.topics):
        error = error_in(offset.error_code, offset.error_message or f"partition {key}")
        if error is not None:
            return error
        if offset.start_offset != NO_OFFSET:
            starts[key] = ShareGroupOffset(offset.start_offset, offset.leader_epoch, known(offset.lag))
    return starts


def _shifted(group_id: str, key: TopicPartition, before: int | None, offsets: int) -> int:
    if before is None:
        raise ResetRefusedError(f"group {group_id!r} has committed no offset of {key} to shift")
    return before + offsets
