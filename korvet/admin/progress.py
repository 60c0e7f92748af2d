"""How far groups have come in each partition: committed offset, end of the log, lag, reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, UnknownTopicOrPartitionError
from korvet.admin.groups import GroupDescription, Member
from korvet.admin.lag import lag_of
from korvet.admin.offsets import EARLIEST, LATEST, CommittedOffset, LogOffset
from korvet.admin.topology import TopicPartition

Counted = Mapping[tuple[str, TopicPartition], int]


class Progress(msgspec.Struct, frozen=True):
    """One partition that a group has committed an offset of, or that a member reads; None is not there or not known.

    `end` is None where the partition is gone; `lag` is in records, `lag_seconds` the age of the first of them.
    """

    partition: TopicPartition
    committed: CommittedOffset | None
    end: int | None
    lag: int | None
    member: Member | None
    lag_seconds: float | None = None


def progress_of(
    admin: AdminClient,
    groups: Iterable[GroupDescription],
    counted: Counted,
    ages: Mapping[tuple[str, TopicPartition], float] | None = None,
) -> dict[str, list[Progress]]:
    """Return the partitions of each group, sorted. Raises AdminError.

    `counted` are lags from elsewhere (see metrics); they go before what offsets tell, but not before the 0 of a group
    that has come to the end, since they are older. `ages` are theirs, in seconds, of which the protocol tells nothing.
    """
    found = {}
    for group in groups:
        readers = {place: member for member in group.members for place in member.partitions or ()}
        found[group.group_id] = (readers, admin.offsets.committed(group.group_id))
    # Asked last, and at once for all: what is committed lies in the log as it is told afterwards.
    places = {place for readers, committed in found.values() for place in (*readers, *committed)}
    starts = _there(admin.offsets.at(dict.fromkeys(places, EARLIEST)))
    ends = _there(admin.offsets.at(dict.fromkeys(places, LATEST)))
    progress = {}
    for group_id, (readers, committed) in found.items():
        rows = []
        for place in sorted(readers.keys() | committed.keys()):
            offset, start, end = committed.get(place), starts.get(place), ends.get(place)
            lag = lag_of(offset.offset, start.offset, end.offset) if offset and start and end else None
            seconds: float | None = 0.0
            if lag != 0:
                lag = counted.get((group_id, place), lag)
                seconds = (ages or {}).get((group_id, place))
            at = end.offset if end else None
            rows.append(Progress(place, offset, at, lag, readers.get(place), seconds))
        progress[group_id] = rows
    return progress


def _there(outcomes: Mapping[TopicPartition, LogOffset | AdminError]) -> dict[TopicPartition, LogOffset]:
    """Leave out partitions that are gone, which keeps nobody from the others; raises any other error."""
    there = {}
    for place, outcome in outcomes.items():
        if isinstance(outcome, LogOffset):
            there[place] = outcome
        elif not isinstance(outcome, UnknownTopicOrPartitionError):
            raise outcome
    return there
