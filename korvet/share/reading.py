"""What was read of a log for a share group: which of it may be acquired, and the batches of what was.

Control records and records of aborted transactions are nobody's: the broker archives them, so that no member has to.
A batch is passed on whole, and a member takes of it what it has acquired.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby
from typing import NamedTuple

from korvet.log.epochs import NO_EPOCH
from korvet.log.record_format import DATA, ProducerRun
from korvet.log.types import AbortedTransaction, Fetched, StoredBatch
from korvet.protocol.records.batch import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    LENGTH_FROM,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.record import StoredRecord
from korvet.protocol.wire import Buffer
from korvet.share.batches import BatchCollector, RecordCollector
from korvet.share.types import AcquiredRange, Readable
from korvet.topics.registry import Topic
from korvet.turns import in_turns

_RECORD_BYTES = 20
"""What a record weighs in a batch besides key and value, about."""

Span = tuple[int, int]
"""The first and the last of some offsets."""


class _Produced(NamedTuple):
    """What one producer wrote in a transaction: records, or the marker at its end."""

    span: Span
    producer_id: int
    is_marker: bool


class SharePiece(NamedTuple):
    """What was read of a partition for a member: it acquires of it what is `readable`."""

    readable: Readable
    fetched: Fetched
    size_bytes: int = 0
    entries: int = 0
    acquirable: int = 0  # records


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
    fitting = _fitting(fetched, room, at_least_one=at_least_one)
    if fitting is None:
        return None
    fetched, size_bytes = fitting
    runs = _runs(fetched) if offsets is None else offsets
    end = max(start, fetched.visible_end)
    if fetched.more:
        end = fetched.next_offset if fetched.holds_any else start
    archived = _archived(fetched)
    epoch = fetched.epochs[-1].epoch if fetched.epochs else NO_EPOCH
    acquirable = sum(last - first + 1 for first, last in runs) - sum(
        last - first + 1 for first, last in archived
    )
    readable = Readable(start, end, runs, archived, epoch)
    return SharePiece(readable, fetched, size_bytes, len(fetched.batches) or len(fetched.records), acquirable)


def batches_of(data: bytes) -> list[StoredBatch]:
    """Return the batches of which the remote tier's answer is made."""
    found, at = [], 0
    while at < len(data):
        header = BatchHeader.read(data, at)
        found.append(
            StoredBatch(
                header.base_offset,
                header.base_offset + header.last_offset_delta + 1,
                header.size_bytes,
                header.record_count,
                data[at : at + header.batch_length + LENGTH_FROM],
            )
        )
        at += header.size_bytes
    return found


def offsets_in(batches: Sequence[StoredBatch], bytes_max: int) -> list[Span]:
    """Return the runs of consecutive offsets of the records in batches; raises KafkaError as `StoredBatch.records`."""
    records = chain.from_iterable(batch.records(bytes_max) for batch in batches)
    return _consecutive([record[0] for record in in_turns(records)])


def chunks(
    taken: Sequence[tuple[SharePiece, Sequence[AcquiredRange]]], topic: Topic, offset: int
) -> tuple[list[Buffer], int]:
    """Return batches with all that was acquired of some pieces, from an offset on, and how many records these have."""
    found: list[Buffer] = []
    count = 0
    for each, ranges in taken:
        fetched = each.fetched
        # Nothing may be left out: what a member has acquired and does not get, it takes for a gap.
        collector = BatchCollector() if fetched.batches else RecordCollector(topic, offset)
        for part in _covering(fetched, ranges):
            collector.take(part)
        found += collector.finish()
        count += collector.record_count
    return found, count


def joined(
    taken: Sequence[tuple[SharePiece, Sequence[AcquiredRange]]], batch_size: int | None
) -> list[AcquiredRange]:
    """Return what was acquired of some pieces; neighbours of one delivery count are one range.

    A range of at least `batch_size` records ends with a batch, in format `record` with any record; None: with none.
    """
    ranges: list[AcquiredRange] = []
    for acquired in chain.from_iterable(some for _, some in taken):
        last = ranges[-1] if ranges else None
        if last and (last.last + 1, last.delivery_count) == (acquired.first, acquired.delivery_count):
            ranges[-1] = last._replace(last=acquired.last)
        else:
            ranges.append(acquired)
    if batch_size is None:
        return ranges
    starts = [batch.base_offset for each, _ in taken for batch in each.fetched.batches]
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


def _runs(fetched: Fetched) -> Sequence[Span]:
    if fetched.batches:
        return [(each.base_offset, each.next_offset - 1) for each in fetched.batches]
    if isinstance(fetched.records, Columns):
        return [(run.start, run.stop - 1) for run in fetched.records.runs]
    return _consecutive([record[0] for record in fetched.records])


def _consecutive(offsets: Sequence[int]) -> list[Span]:
    groups = groupby(enumerate(offsets), key=lambda each: each[1] - each[0])
    runs = [[offset for _, offset in run] for _, run in groups]
    return [(run[0], run[-1]) for run in runs]


def _fitting(fetched: Fetched, room: int, *, at_least_one: bool) -> tuple[Fetched, int] | None:
    """Return what fits into `room`, and what it weighs; None if there is something, and nothing fits."""
    if fetched.batches:
        sizes = [each.size_bytes for each in fetched.batches]
    elif isinstance(fetched.records, Columns):
        sizes = [len(value) + _RECORD_BYTES for value in fetched.records.values]
    else:
        sizes = [len(each[2] or b"") + len(each[3] or b"") + _RECORD_BYTES for each in fetched.records]
    total = sum(sizes)
    if total <= room:
        return fetched, total
    sums = list(accumulate(sizes))
    fits = max(int(at_least_one), bisect_right(sums, room))
    if not fits:
        return None
    if fits == len(sizes):
        return fetched, total
    cut = fetched.batches[fits].base_offset if fetched.batches else _offset(fetched.records, fits)
    return fetched.until(cut)._replace(more=True), sums[fits - 1]


def _offset(records: Sequence[StoredRecord], position: int) -> int:
    if not isinstance(records, Columns):
        return records[position][0]
    for run in records.runs:
        if position < len(run):
            return run[position]
        position -= len(run)
    raise IndexError(position)


def _archived(fetched: Fetched) -> list[Span]:
    """Return what nobody is to get of what was read, in order (Kafka's SharePartition, as consumers do for Fetch)."""
    begun = sorted(fetched.aborted or (), key=lambda each: each.first_offset, reverse=True)
    aborted: set[int] = set()
    archived: list[Span] = []
    for each in _produced(fetched):
        _begin_until(each.span[1], begun, aborted)
        if each.is_marker:
            archived.append(each.span)
            # Of a producer that is among them it is that of the abort.
            aborted.discard(each.producer_id)
        elif each.producer_id in aborted:
            archived.append(each.span)
    return archived


def _begin_until(last: int, begun: list[AbortedTransaction], aborted: set[int]) -> None:
    while begun and begun[-1].first_offset <= last:
        aborted.add(begun.pop().producer_id)


def _produced(fetched: Fetched) -> Iterator[_Produced]:
    """Yield what transactional producers wrote, and the markers."""
    for batch in fetched.batches:
        attributes = batch.stored[ATTRIBUTES_AT + 1]
        if attributes & TRANSACTIONAL_BIT:
            span = batch.base_offset, batch.next_offset - 1
            yield _Produced(span, batch.header.producer_id, bool(attributes & CONTROL_BIT))
    if fetched.producers:
        offsets = [record[0] for record in fetched.records]
        for run in fetched.producers:
            for span in _consecutive(offsets[run.start : run.stop]):
                yield _Produced(span, run.producer_id, run.control != DATA)


def _covering(fetched: Fetched, ranges: Sequence[AcquiredRange]) -> Iterator[Fetched]:
    """Yield what was read without that of which nothing was acquired."""
    if fetched.batches:
        lasts = [each.last for each in ranges]
        yield fetched._replace(
            batches=[
                each
                for each in fetched.batches
                if (at := bisect_left(lasts, each.base_offset)) < len(ranges)
                and ranges[at].first < each.next_offset
            ]
        )
        return
    if sum(each.last - each.first + 1 for each in ranges) == len(fetched.records):
        yield fetched
        return
    records = list(fetched.records)
    offsets = [record[0] for record in records]
    spans: list[Span] = []
    for each in ranges:
        start, stop = bisect_left(offsets, each.first), bisect_right(offsets, each.last)
        if spans and spans[-1][1] == start:
            spans[-1] = spans[-1][0], stop
        else:
            spans.append((start, stop))
    if not fetched.producers:
        yield fetched._replace(records=[record for start, stop in spans for record in records[start:stop]])
        return
    for start, stop in spans:
        producers = [
            ProducerRun(max(run.start, start) - start, min(run.stop, stop) - start, *run[2:])
            for run in fetched.producers
            if run.start < stop and run.stop > start
        ]
        yield fetched._replace(records=records[start:stop], producers=producers)
