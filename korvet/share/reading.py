"""Records read from a log for a share group: which may be acquired, and the batches of the acquired ones.

Control records and records of aborted transactions are nobody's: the broker archives them, so that no member has to.
A batch is passed on whole, and a member takes of it what it has acquired.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from korvet_core import Fetched

from korvet.log.epochs import NO_EPOCH
from korvet.protocol.wire import Buffer
from korvet.share.types import AcquiredRange, Readable
from korvet.topics.registry import Topic

Span = tuple[int, int]
"""The first and the last of some offsets."""


class SharePiece(NamedTuple):
    """What was read of a partition for a member: it acquires of it what is `readable`, below `visible_end`."""

    readable: Readable
    fetched: Fetched | None = None
    size_bytes: int = 0
    entries: int = 0
    acquirable: int = 0  # records
    visible_end: int = 0


def piece(
    start: int,
    fetched: Fetched,
    room: int,
    *,
    at_least_one: bool = True,
    offsets: Sequence[Span] | None = None,
) -> SharePiece | None:
    """Return what was read from `start` on, as much as fits into `room`; None if something is there and does not fit.

    `offsets` are those of the records in batches of a topic of format `record`.
    """
    fitting = fetched.fitting(room, at_least_one)
    if fitting is None:
        return None
    fetched, size_bytes = fitting
    runs = fetched.spans() if offsets is None else offsets
    end = max(start, fetched.visible_end)
    if fetched.more:
        end = start if fetched.next_offset is None else fetched.next_offset
    archived = fetched.archived()
    readable = Readable(start, end, runs, archived, last_epoch(fetched))
    acquirable = _count(runs) - _count(archived)
    return SharePiece(readable, fetched, size_bytes, len(fetched), acquirable, fetched.visible_end)


def last_epoch(fetched: Fetched) -> int:
    """Return the last leader epoch of a log, NO_EPOCH if none is known."""
    return fetched.epochs[-1][0] if fetched.epochs else NO_EPOCH


def _count(spans: Sequence[Span]) -> int:
    return sum(last - first + 1 for first, last in spans)


def chunks(
    taken: Sequence[tuple[SharePiece, Sequence[AcquiredRange]]], topic: Topic
) -> tuple[list[Buffer], int]:
    """Return batches with all that was acquired of some pieces, and how many records these have."""
    result: list[Buffer] = []
    count = 0
    codec, log_append_time = topic.config.codec, topic.config.log_append_time
    for item, ranges in taken:
        if item.fetched is not None:
            spans = [(acquired.first, acquired.last) for acquired in ranges]
            batches, records = item.fetched.collect(spans, codec=codec, log_append_time=log_append_time)
            result += batches
            count += records
    return result, count


def joined(
    taken: Sequence[tuple[SharePiece, Sequence[AcquiredRange]]], batch_size: int | None
) -> list[AcquiredRange]:
    """Return what was acquired of some pieces; neighbours of one delivery count are one range.

    A range of at least `batch_size` records ends with a batch, in format `record` with any record; None: with none.
    """
    ranges: list[AcquiredRange] = []
    for acquired in chain.from_iterable(chunk for _, chunk in taken):
        last = ranges[-1] if ranges else None
        if last and (last.last + 1, last.delivery_count) == (acquired.first, acquired.delivery_count):
            ranges[-1] = last._replace(last=acquired.last)
        else:
            ranges.append(acquired)
    if batch_size is None:
        return ranges
    starts = [
        first
        for item, _ in taken
        if item.fetched and item.fetched.size_bytes
        for first, _ in item.fetched.spans()
    ]
    return [part for whole in ranges for part in _cut(whole, starts, batch_size)]


def _cut(whole: AcquiredRange, starts: Sequence[int], size: int) -> Iterator[AcquiredRange]:
    while whole.last - whole.first >= size:
        start = whole.first + size
        if starts:
            at = bisect_left(starts, start)
            start = starts[at] if at < len(starts) else whole.last + 1
        if start > whole.last:
            break
        yield whole._replace(last=start - 1)
        whole = whole._replace(first=start)
    yield whole
