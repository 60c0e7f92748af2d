"""Plans a reset of the committed offsets of a group. Nothing is committed here.

A target is resolved against the present logs. An offset outside its log becomes the nearest one inside: a consumer
would reset it by its own policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, GroupIdNotFoundError
from korvet.admin.groups import EMPTY
from korvet.admin.offsets import EARLIEST, LATEST, NO_OFFSET, LogOffset
from korvet.admin.types import TopicPartition, settled


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
    """The committed offset of a partition before and after; `before` is None if there was none."""

    before: int | None
    after: int


class ResetRefusedError(AdminError):
    """The offsets cannot be reset in this way; the message says why."""


def check_resettable(admin: AdminClient, group_id: str) -> None:
    """Raise ResetRefusedError if the group has members, which would continue from their own positions.

    The offsets of an unknown group can be reset: that creates it.
    """
    described = admin.groups.describe([group_id])[group_id]
    if isinstance(described, GroupIdNotFoundError):
        return
    if isinstance(described, AdminError):
        raise described
    if described.state != EMPTY:
        raise ResetRefusedError(
            f"group {group_id!r} is {described.state}, members: {len(described.members)};"
            " stop all of them before a reset"
        )


def partitions_in_scope(
    admin: AdminClient, group_id: str, topics: Mapping[str, Sequence[int]] | None
) -> list[TopicPartition]:
    """Return these partitions of topics, all of a topic if none is given; None is all with a committed offset.

    Raises AdminError: ResetRefusedError if the group has no committed offset, UnknownTopicOrPartitionError.
    """
    if topics is None:
        committed = sorted(admin.offsets.committed(group_id))
        if not committed:
            raise ResetRefusedError(f"group {group_id!r} has committed no offsets: name the topics")
        return committed
    topology = admin.topology(topics)
    for error in topology.failed.values():
        raise error
    return sorted(
        TopicPartition(topic, index)
        for topic, indexes in topics.items()
        for index in dict.fromkeys(indexes or topology.partitions.get(topic, ()))
    )


def plan(
    admin: AdminClient, group_id: str, partitions: Sequence[TopicPartition], target: Target
) -> dict[TopicPartition, OffsetReset]:
    """Return the reset of each partition.

    Raises AdminError: of an unknown partition, and ResetRefusedError for a shift without a committed offset.
    """
    committed = admin.offsets.committed(group_id, partitions)
    before = {key: committed[key].offset if key in committed else None for key in partitions}
    starts = settled(admin.offsets.at(dict.fromkeys(partitions, EARLIEST)))
    timed: Mapping[TopicPartition, LogOffset] = {}
    if isinstance(target, ToTimestamp):
        timed = settled(admin.offsets.at(dict.fromkeys(partitions, target.timestamp)))
    # Last, so that a log that grows meanwhile does not end before an offset found in it.
    ends = settled(admin.offsets.at(dict.fromkeys(partitions, LATEST)))
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


def _shifted(group_id: str, key: TopicPartition, before: int | None, offsets: int) -> int:
    if before is None:
        raise ResetRefusedError(f"group {group_id!r} has committed no offset of {key} to shift")
    return before + offsets
