"""Share groups as values: what is asked of a group's part of a partition, and what comes of it.

Offsets are those of the log. A range goes from `first` to `last`, both included; an end is exclusive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from korvet.cluster.group_configs import SharePolicy
from korvet.topics.types import Partition

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
"""Types of acknowledgement, as on the wire (KIP-932, KIP-1222)."""

HELD_RANGES_MAX = 500
"""Ranges of a partition that a session remembers: each is what one fetch acquired, or several in a row."""


class Begin(NamedTuple):
    """Where a group is to begin in a partition if it has no part of it yet; None: ask only whether it has.

    `redis_group`: the group is to be a Redis consumer group of the stream. Only for format `record`, and only while
    every record stays in its stream until it is deleted: no cleanup.policy=compact, no remote tier.
    """

    partition: Partition
    group: str
    start: int | None
    redis_group: bool
    policy: SharePolicy


class Readable(NamedTuple):
    """What was read of a partition, from offset `start` on: all that is in the log from there up to `end`.

    `runs` are in order: in format `record` those of consecutive offsets, in format `batch` one for each batch. Nobody
    is to get what lies in `archived`, in order too: control records, records of aborted transactions. What lies in no
    run is passed over. The leader epoch of the last entry of `Fetched.epochs` is `epoch`, NO_EPOCH without one: without
    it nothing is passed over either. New records are acquired only if `start` is not past the first of them that nobody
    has had (`Acquired.read_next`), for what lies between may not have been read.
    """

    start: int
    end: int
    runs: Sequence[tuple[int, int]] = ()
    archived: Sequence[tuple[int, int]] = ()
    epoch: int = -1


class Acquire(NamedTuple):
    """A member asks for up to `records_max` of the records that were read for it.

    Of a batch in format `batch` it gets all, unless it wants no more than `records_max` (`exact`: acquire mode
    record_limit) or the batch has more than `policy.in_flight_max` records. `goes_on`: the fetch has acquired records
    of the partition before.
    """

    partition: Partition
    group: str
    member: str
    readable: Readable
    records_max: int
    exact: bool
    policy: SharePolicy
    goes_on: bool = False


class AcquiredRange(NamedTuple):
    """Records that a member has acquired, all delivered for the same time: 1 is the first."""

    first: int
    last: int
    delivery_count: int


class Acquired(NamedTuple):
    """What a member has acquired, in order.

    `read_next` is the lowest offset that may be acquired now, maybe one that was read already and exceeded
    `records_max`; where nothing is to be delivered again it is the first that nobody has had yet, be it in the log or
    not. None: so much is in flight that nothing else is delivered. `wake_ms` is how long until the first lock ends,
    None if there is none; it is known only if nothing was acquired, and is a second at most where something that may be
    acquired was not read.
    """

    ranges: Sequence[AcquiredRange] = ()
    read_next: int | None = None
    wake_ms: int | None = None


class HeldRanges:
    """What a session has acquired of a partition: the last ranges of offsets, HELD_RANGES_MAX at most.

    Some of it may have been acknowledged since, and locks may have ended.
    """

    __slots__ = ("partition", "ranges")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.ranges: list[tuple[int, int]] = []

    def add(self, acquired: Iterable[AcquiredRange]) -> None:
        """Add ranges; one that goes on where the last one ends is one with it."""
        for first, last, _ in acquired:
            start = self.ranges.pop()[0] if self.ranges and self.ranges[-1][1] == first - 1 else first
            self.ranges.append((start, last))
        del self.ranges[:-HELD_RANGES_MAX]

    def in_order(self) -> Iterator[tuple[int, int]]:
        end = 0
        for first, last in sorted(self.ranges):
            if last >= end:
                yield max(first, end), last
                end = last + 1


class AckRange(NamedTuple):
    """Acknowledged records: one type for all of them, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class Acknowledgement(NamedTuple):
    """What a member says of records of a partition; `ranges` are in order and do not overlap."""

    partition: Partition
    group: str
    member: str
    ranges: Sequence[AckRange]
    policy: SharePolicy


class Acknowledged(NamedTuple):
    """What came of it: whether some of it is there to be acquired again (`released`)."""

    released: bool


class ShareOffsets(NamedTuple):
    """A group's part of a partition: the first offset that is not done with, and the first that nobody has had yet.

    `in_flight` counts the records between the two that are not done with (KIP-1226). `leader_epoch` is that of
    `start`. `is_initial`: nothing was acknowledged, released or delivered again, so Kafka has stored no start.
    """

    start: int
    next: int
    in_flight: int
    leader_epoch: int
    is_initial: bool
