"""Moving a group's committed offsets: which partitions, from where, to where. Nothing is committed here.

Knows what each target comes to on the logs as they are now. An offset outside its log becomes the nearest one inside:
a consumer would reset it by rules of its own.
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
    """The first record at or behind a timestamp (ms), or EARLIEST or LATEST; the end where there is none."""

    timestamp: int


class ToOffset(msgspec.Struct, frozen=True):
    """One offset for all partitions."""

    offset: int


class ShiftBy(msgspec.Struct, frozen=True):
    """So many offsets forth, or back where it is negative, from what is committed."""

    offsets: int


Target = ToTimestamp | ToOffset | ShiftBy


class OffsetReset(msgspec.Struct, frozen=True):
    """What becomes of one committed offset; `before` is None where nothing was committed."""

    before: int | None
    after: int


class ResetRefusedError(AdminError):
    """The offsets cannot be moved as wished; the message says why."""


def check_resettable(admin: AdminClient, group_id: str) -> None:
    """Raise ResetRefusedError where the group has members, which would go on from their own offsets.

    A group that is not there may be given offsets: it is made by them.
    """
    described = admin.groups.describe([group_id])[group_id]
    if isinstance(described, GroupIdNotFoundError):
        return
    if isinstance(described, AdminError):
        raise described
    if described.state != EMPTY:
        raise ResetRefusedError(
            f"group {group_id!r} is {described.state}, members: {len(described.members)};"
            " offsets are moved while all of them are stopped"
        )


def partitions_in_scope(
    admin: AdminClient, group_id: str, topics: Mapping[str, Sequence[int]] | None
) -> list[TopicPartition]:
    """Return the partitions meant by topics; no partitions are all of a topic, None is all that is committed.

    Raises AdminError: ResetRefusedError where the group has committed nothing, UnknownTopicOrPartitionError for a topic
    that is not there.
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
    """Return what the target comes to for each partition.

    Raises AdminError: of a partition that is not there, and ResetRefusedError for a shift from nothing.
    """
    committed = admin.offsets.committed(group_id, partitions)
    before = {place: committed[place].offset if place in committed else None for place in partitions}
    starts = settled(admin.offsets.at(dict.fromkeys(partitions, EARLIEST)))
    found: Mapping[TopicPartition, LogOffset] = {}
    if isinstance(target, ToTimestamp):
        found = settled(admin.offsets.at(dict.fromkeys(partitions, target.timestamp)))
    # Asked last: a log that grows meanwhile does not end before an offset found in it.
    ends = settled(admin.offsets.at(dict.fromkeys(partitions, LATEST)))
    moves = {}
    for place in partitions:
        if isinstance(target, ToTimestamp):
            wanted = found[place].offset
            wanted = ends[place].offset if wanted == NO_OFFSET else wanted
        elif isinstance(target, ToOffset):
            wanted = target.offset
        else:
            wanted = _shifted(group_id, place, before[place], target.offsets)
        moves[place] = OffsetReset(before[place], min(max(wanted, starts[place].offset), ends[place].offset))
    return moves


def _shifted(group_id: str, place: TopicPartition, before: int | None, offsets: int) -> int:
    if before is None:
        raise ResetRefusedError(
            f"group {group_id!r} has committed no offset of {place} that could be shifted"
        )
    return before + offsets
