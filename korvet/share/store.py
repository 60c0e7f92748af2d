"""The parts that share groups have of partitions, in Redis: read and changed by the scripts under lua/share.

A part is of one of two kinds. Of kind `redis` it is a Redis consumer group of the stream, which plain workers
(XREADGROUP) may share: what is in flight is pending there, and the idle time of an entry is its lock. Of kind `ranges`
it is a row with the ranges of offsets that are in flight. Callers need not know which.

Each change is one script in the slot of its partition; requests for several partitions go in one round trip. What is
stored and cannot be read is a KafkaError KAFKA_STORAGE_ERROR that names the key, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from korvet.cluster.group_configs import SharePolicy
from korvet.errors import KafkaError
from korvet.log.epochs import NO_EPOCH, epoch_at, parse_epochs
from korvet.log.share_parts import convert_redis_groups
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.replies import Arg, parsed
from korvet.redis.scripts import Script
from korvet.share.types import (
    RELEASE,
    Acknowledged,
    Acknowledgement,
    AckRange,
    Acquire,
    Acquired,
    AcquiredRange,
    Begin,
    HeldRanges,
    ShareOffsets,
)
from korvet.topics.types import Partition
from korvet.turns import in_turns

_ACQUIRE = scripts.get("share/acquire")
_ACKNOWLEDGE = scripts.get("share/acknowledge")
_ALTER = scripts.get("share/alter")
_DELETE = scripts.get("share/delete")
_LOOK = scripts.get("share/look")

_HEADER = b"h:"
"""Begins the field of a group's part; the rest is the group id."""

_TO_BE_CONVERTED = Acquired()

Parsed = TypeVar("Parsed")
_Call: TypeAlias = tuple[Partition, list[Arg]]


class SharePartitions:
    """The parts of share groups.

    What prevents one partition stands in its place: UNKNOWN_TOPIC_OR_PARTITION (of another topic id),
    KAFKA_STORAGE_ERROR, STALE_BROKER_EPOCH (the worker's lease has ended), StorageUnavailableError. With one Redis the
    last is raised.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def begin(self, asks: Sequence[Begin]) -> list[Acquired | KafkaError | None]:
        """Create what is not there, and return where each is to be read first, with no ranges.

        None: the group has no part of the partition, and no start was given. What is there keeps its position,
        whatever the start. A Redis group of the group's name that a plain worker has made is adopted with its position
        and what it has pending. A part that is a Redis group and is not to be one any more is converted.
        """
        result = self._begun(asks)
        places = [place for place, item in enumerate(result) if item is _TO_BE_CONVERTED]
        for place in places:
            partition, group, *_ = asks[place]
            try:
                convert_redis_groups(self._redis, partition, group)
                [result[place]] = self._begun([asks[place]])
            except KafkaError as error:
                result[place] = error.without_frames()
        return result

    def _begun(self, asks: Sequence[Begin]) -> list[Acquired | KafkaError | None]:
        calls: list[_Call] = []
        for ask in asks:
            args: list[Arg] = [
                ask.group,
                ask.partition.bits,
                "",
                "" if ask.start is None else ask.start,
            ]
            args += (_kind(ask), 0, "cut", *ask.policy, 0, 0, NO_EPOCH, 0, "", 0)
            calls.append((ask.partition, args))
        return self._run(_ACQUIRE, calls, _acquired)

    def acquire(self, asks: Sequence[Acquire]) -> list[Acquired | KafkaError | None]:
        """End the locks that are due, and give each member the available ones of the records read for it.

        None: the group has no part of the partition (any more): it is to begin. If records were read in another leader
        epoch than the log has by now, nothing is acquired, and `read_next` is where to read again.
        """
        return self._run(_ACQUIRE, [(ask.partition, _acquire_args(ask)) for ask in asks], _acquired)

    def acknowledge(self, given: Sequence[Acknowledgement]) -> list[Acknowledged | KafkaError]:
        """Take what members say of records that they have acquired: all of a partition or none of it.

        INVALID_RECORD_STATE: of one of them the lock has ended, or it was never this member's. INVALID_REQUEST: one of
        them is past all that was acquired. Records before the group's start are passed over. A record that is released
        after its last delivery is archived. Who waits for records is notified of those that are released, and when no
        more so much is in flight that nothing else is delivered, on the partition's channel.
        """
        return self._acknowledge(given, "")

    def release(
        self, group: str, member: str, held: Sequence[HeldRanges], policy: SharePolicy
    ) -> list[Acknowledged | KafkaError]:
        """Release what a member still has of what it acquired; nothing is no error."""
        given = [
            Acknowledgement(
                item.partition,
                group,
                member,
                [AckRange(first, last, [RELEASE]) for first, last in item.in_order()],
                policy,
            )
            for item in in_turns(held)
        ]
        return self._acknowledge(given, "session")

    def _acknowledge(
        self, given: Sequence[Acknowledgement], what: Literal["", "session"]
    ) -> list[Acknowledged | KafkaError]:
        calls: list[_Call] = []
        for partition, group, member, ranges, policy in given:
            args: list[Arg] = [group, partition.bits, member, partition.channel]
            args += (*policy, what)
            for run in _runs_of_a_type(ranges):
                args += run
            calls.append((partition, args))
        return self._run(_ACKNOWLEDGE, calls, lambda reply: Acknowledged(released=reply == 1))

    def offsets(self, group: str, partitions: Sequence[Partition]) -> list[ShareOffsets | KafkaError | None]:
        """Return where the group is in each partition; None: it has no part of it."""
        return self._run(_LOOK, _of_group(group, partitions), _offsets)

    def groups(self, partitions: Sequence[Partition]) -> list[set[str] | KafkaError]:
        """Return which groups have a part of each partition, in one round trip; it may be of a topic before."""
        replies = self._redis.pipeline(
            [("HKEYS", partition.share_groups) for partition in in_turns(partitions)]
        )
        return [
            parsed(of.share_groups, "a field", reply, _group_names)
            for of, reply in zip(partitions, replies, strict=True)
        ]

    def alter(self, asks: Sequence[Begin]) -> list[KafkaError | None]:
        """Have the group begin at a start (not None), whatever it has in flight; creates what is not there."""
        calls: list[_Call] = [
            (
                ask.partition,
                [ask.group, ask.partition.bits, ask.start or 0, _kind(ask), ask.policy.lock_ms],
            )
            for ask in in_turns(asks)
        ]
        return self._run(_ALTER, calls, lambda _: None)

    def delete(self, group: str, partitions: Sequence[Partition]) -> list[bool | KafkaError]:
        """Delete the group's parts, and its Redis groups; returns whether each was there."""
        return self._run(_DELETE, _of_group(group, partitions), lambda reply: reply == 1)

    def _run(
        self, script: Script, calls: Sequence[_Call], parse: Callable[[Any], Parsed]
    ) -> list[Parsed | KafkaError]:
        if not calls:
            return []
        replies = self._redis.scripts(
            [
                (script, (of.stream, of.state, of.share_groups), [of.topic_id, *args])
                for of, args in in_turns(calls)
            ]
        )
        what = f"the answer of {script.name}"
        return [
            parsed(of.share_groups, what, reply, parse) for (of, _), reply in zip(calls, replies, strict=True)
        ]


def _kind(begin: Begin) -> str:
    return "redis" if begin.redis_group and begin.partition.format == "record" else "ranges"


def _of_group(group: str, partitions: Sequence[Partition]) -> list[_Call]:
    return [(partition, [group, partition.bits]) for partition in in_turns(partitions)]


def _acquire_args(asked: Acquire) -> list[Arg]:
    partition, group, member, readable, records_max, exact, policy, goes_on = asked
    runs = list(_without(readable.runs, readable.archived))
    may_cut = exact or partition.format == "record"
    args: list[Arg] = [group, partition.bits, member, "", "", records_max]
    args += ("cut" if may_cut else "whole", *policy, readable.start, readable.end, readable.epoch)
    args += (policy.throttled_from, "more" if goes_on else "", len(runs))
    for run in (*runs, *readable.archived):
        args += run
    return args


def _without(
    runs: Iterable[tuple[int, int]], archived: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield what of the runs is not archived; both are in order."""
    rest = iter(archived)
    hole = next(rest, None)
    for first, last in runs:
        at = first
        while hole is not None and hole[0] <= last:
            if at < hole[0]:
                yield at, hole[0] - 1
            at = max(at, hole[1] + 1)
            if hole[1] > last:
                break
            hole = next(rest, None)
        if at <= last:
            yield at, last


def _runs_of_a_type(ranges: Iterable[AckRange]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of offsets, one after the other, that have one type: first and last offset, type."""
    first = last = kind = -1  # none yet
    for begin, end, types in ranges:
        for at, result in enumerate(types):
            start = begin + at
            stop = end if len(types) == 1 else start
            if start == last + 1 and result == kind:
                last = stop
                continue
            if kind >= 0:
                yield first, last, kind
            first, last, kind = start, stop, result
    if kind >= 0:
        yield first, last, kind


def _acquired(reply: list[bytes] | bytes | None) -> Acquired | None:
    if reply is None:
        return None
    if isinstance(reply, bytes):  # the script says that it is to be converted
        return _TO_BE_CONVERTED
    read_next, wake_ms, *rest = reply
    numbers = [int(item) for item in rest]
    # What is new may come before what is delivered again, if a Redis client has set the group back (XGROUP SETID).
    ranges = sorted(AcquiredRange(*numbers[at : at + 3]) for at in range(0, len(numbers), 3))
    return Acquired(ranges, int(read_next) if read_next else None, int(wake_ms) if wake_ms else None)


def _group_names(fields: Iterable[bytes]) -> set[str]:
    return {field[len(_HEADER) :].decode() for field in fields if field.startswith(_HEADER)}


def _offsets(reply: list[bytes] | None) -> ShareOffsets | None:
    if reply is None:
        return None
    start, next_offset, in_flight, epochs, initial = reply
    leader_epoch = epoch_at(parse_epochs(epochs), int(start))
    return ShareOffsets(int(start), int(next_offset), int(in_flight), leader_epoch, is_initial=bool(initial))
