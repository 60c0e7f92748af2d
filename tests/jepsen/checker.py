"""What must never be in a history. It knows clients' rules and nothing of brokers: it reads events and the final log.

| kind | what was found |
|--|--|
| lost | an acknowledged value is nowhere in the log |
| moved | an acknowledged value is in the log, but not at its offset |
| doubled | a value of an idempotent producer or a transaction is in the log twice |
| reordered | two values of such a producer are in one partition in another order than sent |
| two values | one offset was acknowledged, read or found with different values |
| unsent | the log holds, or a reader got, a value that nobody sent to that partition |
| gap | offsets that count records do not |
| went back | a reader got an offset that is not above the one before |
| skipped | a reader went past a record that is in the log |
| not delivered | no member of a group got a record that is in the log, or not at its offset |
| commit went back | a committed offset was read, or a member began at one, that is below one acknowledged before |
| two owners | two members of a group owned a partition at a time (see `_spans`) |
| same generation | two members of a group owned a partition in one generation |
| aborted read | a value of a transaction that is not committed is in the log, or was read before |
| lost commit | a transaction's commit was acknowledged, and nothing of it is in the log |
| torn commit | some of a transaction's values are in the log, others are not |
| two ends | a transaction's commit was acknowledged, and an abort of it too |
| hanging | a transaction is open when no client is left |
| not copied | no committed transaction has the copy of a value that is in the log |
| copied twice | committed transactions have two copies of a value |
| not accepted | no member of a share group accepted a record that is in the log |
| accepted again | a member of a share group was given a record whose acceptance had been answered |
| same count | two members of a share group were given a record for the same time: its delivery count fell |
| taken | a member of a share group was given a record that another one had not released, and still had |
| failed | a client ended with an error, where none may (an upgrade) |

A log is what is committed: transactions' values are judged by the same rules, by their order within a transaction.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple, TypeAlias, TypeVar

from tests.jepsen.history import (
    Acknowledged,
    Acquisition,
    Began,
    Committed,
    Committing,
    Delivered,
    Departed,
    Ended,
    Event,
    Failed,
    Fetched,
    Log,
    Owned,
    Put,
    Revoked,
    Seen,
    Sent,
    Settled,
    Settling,
    place_of,
    value_of,
)

Kind = TypeVar("Kind", bound=Event)
# librdkafka waits for a coordinator that has left the metadata (its issue 5511): docs/durability.md.
_HUNG = "TimeoutError('send_offsets_to_transaction "
Share = TypeVar("Share", Acquisition, Settling)
Record: TypeAlias = tuple[str, int, int]
"""A record of a share group: the group, partition and offset."""


class Violation(NamedTuple):
    """What was found; `at` is when it was done that did not hold, as near as it is known (0: not at all)."""

    kind: str
    text: str
    at: float = 0.0


def check(events: Sequence[Event], log: Log) -> list[Violation]:
    """Return all violations, in order of their kinds."""
    acknowledged = _of(events, Acknowledged)
    seen = _of(events, Seen)
    put = _of(events, Put)
    ordered = {offset.producer for offset in acknowledged if offset.ordered} | {
        record.transaction for record in put
    }
    return [
        *_lost(acknowledged, log),
        *_doubled(acknowledged, ordered, log),
        *_reordered(ordered, log),
        *_two_values(acknowledged, seen, log),
        *_unsent(_of(events, Sent), put, seen, log),
        *_readers(_of(events, Began), seen, log),
        *not_delivered(events, log),
        *_commits(_of(events, Committed), _of(events, Fetched)),
        *_owners(_of(events, Owned)),
        *_overlaps(events),
        *_transactions(events, put, log),
        *_aborted_reads(put, seen, log),
    ]


def check_dense(log: Log) -> list[Violation]:
    """Return where the offsets of a log do not count its records."""
    return [
        Violation("gap", f"record {number} of partition {partition} has offset {offset}")
        for partition, records in log.items()
        for number, (offset, _) in enumerate(records)
        if offset != number
    ][:1]


def check_failures(events: Sequence[Event]) -> list[Violation]:
    """Return the clients that ended with an error; not librdkafka's that hung in a call after a broker had gone."""
    return [
        Violation("failed", f"{failed.client}: {failed.error}", failed.at)
        for failed in _of(events, Failed)
        if not failed.error.startswith(_HUNG)
    ]


def check_copies(events: Sequence[Event], log: Log, sources: Log) -> list[Violation]:
    """Return where a log does not have one copy of each value of another one, whose log is `sources`."""
    put = {value_of(item.transaction, item.number): item for item in _of(events, Put)}
    wanted = {(partition, *record): 0 for partition, records in sources.items() for record in records}
    result: list[Violation] = []
    for partition, records in log.items():
        for offset, value in records:
            source = put[value].source if value in put else None
            if source is None:
                continue  # `check` finds what nobody sent
            text = f"{source}, copied to offset {offset} of partition {partition} as {value}"
            if source not in wanted:
                result.append(Violation("aborted read", text, put[value].at))
                continue
            wanted[source] += 1
            if wanted[source] > 1:
                # Of offsets that were lost, the next one who reads them finds out, which may be much later.
                result.append(Violation("copied twice", text))
    result += [Violation("not copied", f"{source}") for source, times in wanted.items() if not times]
    return result


def check_shares(
    events: Sequence[Event], log: Log, lock_seconds: float, deliveries_max: int
) -> list[Violation]:
    """Return what must not be in the history of share groups whose locks end and whose records are archived so."""
    acquired = _by_record(_of(events, Acquisition))
    settling = _by_record(_of(events, Settling))
    departed = {item.member: item.at for item in _of(events, Departed)}
    answered = {item[:-1] for item in _of(events, Settled)}
    # What was not answered may be done.
    returned = {
        item[1:5]: item.at for item in _of(events, Settling) if not (item.accept and item[:-1] in answered)
    }
    result = [
        *_not_accepted(acquired, settling, log, deliveries_max),
        *_accepted_again(_of(events, Settled), acquired, settling),
    ]
    for record, deliveries in acquired.items():
        deliveries.sort(key=lambda delivery: delivery.delivery)
        for before, after in pairwise(deliveries):
            text = f"{_name(record)} came to {before.member} as {before.delivery}, {after.member} as {after.delivery}"
            ends = (
                before.began + lock_seconds,
                departed.get(before.member, inf),
                returned.get(before[1:5], inf),
            )
            if before.delivery == after.delivery:
                result.append(Violation("same count", text, max(before.at, after.at)))
            elif after.at < min(ends):
                result.append(Violation("taken", text, after.at))
    return result


def _of(events: Iterable[Event], kind: type[Kind]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]


def _lost(acknowledged: list[Acknowledged], log: Log) -> Iterator[Violation]:
    held = {partition: set(records) for partition, records in log.items()}
    values = {partition: {value for _, value in records} for partition, records in log.items()}
    for offset in acknowledged:
        value = value_of(offset.producer, offset.number)
        if (offset.offset, value) not in held[offset.partition]:
            if offset.offset < 0 and value in values[offset.partition]:
                continue
            kind = "moved" if value in values[offset.partition] else "lost"
            text = f"{value}, acknowledged at offset {offset.offset} of partition {offset.partition}"
            yield Violation(kind, text, offset.at)


def _doubled(acknowledged: list[Acknowledged], ordered: set[str], log: Log) -> Iterator[Violation]:
    times = {value_of(item.producer, item.number): item.at for item in acknowledged}
    for partition, records in log.items():
        offsets = defaultdict[str, list[int]](list)
        for offset, value in records:
            offsets[value].append(offset)
        for value, places in offsets.items():
            if len(places) > 1 and value.rpartition("/")[0] in ordered:
                text = f"{value} at the offsets {places} of partition {partition}"
                yield Violation("doubled", text, times.get(value, 0.0))


def _reordered(ordered: set[str], log: Log) -> Iterator[Violation]:
    for partition, records in log.items():
        last: dict[str, int] = {}
        for offset, value in records:
            producer, _, number = value.rpartition("/")
            if producer not in ordered:
                continue
            if int(number) < last.get(producer, -1):
                text = (
                    f"{value} at offset {offset} of partition {partition} comes after number {last[producer]}"
                )
                yield Violation("reordered", text)
            last[producer] = int(number)


def _two_values(acknowledged: list[Acknowledged], seen: list[Seen], log: Log) -> Iterator[Violation]:
    values: dict[tuple[int, int], tuple[str, str]] = {}
    for partition, records in log.items():
        for offset, value in records:
            values[partition, offset] = value, "the log"
    claims = [
        *((record.partition, record.offset, record.value, record.reader, record.at) for record in seen),
        *(
            (item.partition, item.offset, value_of(item.producer, item.number), "its producer", item.at)
            for item in acknowledged
            if item.offset >= 0
        ),
    ]
    for partition, offset, value, whom, at in claims:
        other, by = values.setdefault((partition, offset), (value, whom))
        if other != value:
            text = f"offset {offset} of partition {partition} is {value} for {whom}, {other} for {by}"
            yield Violation("two values", text, at)


def _unsent(sent: list[Sent], put: list[Put], seen: list[Seen], log: Log) -> Iterator[Violation]:
    values = {(item.partition, value_of(item.producer, item.number)) for item in sent}
    values |= {(item.partition, value_of(item.transaction, item.number)) for item in put}
    records = {(partition, *record) for partition, records in log.items() for record in records}
    records |= {(record.partition, record.offset, record.value) for record in seen}
    for partition, offset, value in sorted(records):
        if (partition, value) not in values:
            yield Violation("unsent", f"{value!r} at offset {offset} of partition {partition}")


def _readers(began: list[Began], seen: list[Seen], log: Log) -> Iterator[Violation]:
    offsets = {partition: [offset for offset, _ in records] for partition, records in log.items()}
    positions = {(item.reader, item.partition): item.offset - 1 for item in began}
    ways = defaultdict[tuple[str, int], list[Seen]](list)
    for record in seen:
        ways[record.reader, record.partition].append(record)
    for (reader, partition), way in ways.items():
        there = offsets[partition]
        passed_before = [positions[reader, partition], *(item.offset for item in way)]
        for from_, after in zip(passed_before, way, strict=False):
            if after.offset <= from_:
                text = f"{reader} got offset {after.offset} of partition {partition} after {from_}"
                yield Violation("went back", text, after.at)
                continue
            passed = there[bisect_right(there, from_) : bisect_left(there, after.offset)]
            if passed:
                text = (
                    f"{reader} got offset {after.offset} of partition {partition} after {from_}: {passed[:5]}"
                )
                yield Violation("skipped", text, after.at)


def not_delivered(events: Sequence[Event], log: Log) -> Iterator[Violation]:
    """Find records that no member of a group got."""
    groups = defaultdict[str, set[tuple[int, int, str | None]]](set)
    for record in _of(events, Delivered):
        groups[record.group].add((record.partition, record.offset, record.value))
    for group, got in sorted(groups.items()):
        for partition, records in log.items():
            missing = [
                offset
                for offset, value in records
                if got.isdisjoint({(partition, offset, None), (partition, offset, value)})
            ]
            if missing:
                text = f"{group} did not get the offsets {missing[:5]} of partition {partition}, {len(missing)} in all"
                yield Violation("not delivered", text)


def _commits(committed: list[Committed], fetched: list[Fetched]) -> Iterator[Violation]:
    for group in sorted({item.group for item in committed}):
        mine = sorted((item for item in committed if item.group == group), key=lambda item: item.at)
        times = [file.at for file in mine]
        highest = [(-1, 0.0), *accumulate(((file.offset, file.at) for file in mine), max)]
        for item in fetched:
            promised, at = highest[bisect_left(times, item.began)]
            if item.group == group and item.offset < promised:
                text = f"{group} has {item.offset}, after {promised} had been acknowledged"
                yield Violation("commit went back", text, at)


def _owners(owned: list[Owned]) -> Iterator[Violation]:
    owners: dict[tuple[str, int, int], str] = {}
    for item in owned:
        for partition in item.partitions if item.generation >= 0 else ():
            other = owners.setdefault((item.group, item.generation, partition), item.member)
            if other != item.member:
                text = f"partition {partition} in generation {item.generation} of {item.group}: {other}, {item.member}"
                yield Violation("same generation", text, item.at)


class _Span(NamedTuple):
    """The time in which a member had a partition for sure: until it gave it up, or else began its last good commit."""

    member: str
    begin: float
    end: float


def _spans(events: Sequence[Event]) -> dict[str, list[_Span]]:
    """Return the spans of each partition of a group.

    Who loses a partition, or is killed, learns too late, or never, when its session has ended. But the broker takes no
    commit of it after that.
    """
    commits = defaultdict[tuple[str, str], list[float]](list)
    for commit in _of(events, Committed):
        commits[commit.group, commit.member].append(commit.began)
    spans = defaultdict[str, list[_Span]](list)
    begun: dict[tuple[str, str], float] = {}

    def close(place: str, member: str, at: float, *, lost: bool) -> None:
        begin = begun.pop((place, member))
        sure = max([begin, *(item for item in commits[place, member] if begin <= item <= at)])
        spans[place].append(_Span(member, begin, sure if lost else at))

    changes: list[Owned | Revoked] = [*_of(events, Owned), *_of(events, Revoked)]
    for change in sorted(changes, key=lambda change: change.at):
        for place in (place_of(change.group, partition) for partition in change.partitions):
            if isinstance(change, Owned):
                begun.setdefault((place, change.member), change.at)
            elif (place, change.member) in begun:
                close(place, change.member, change.at, lost=change.lost)
    for place, member in list(begun):
        close(place, member, inf, lost=True)
    return spans


def _overlaps(events: Sequence[Event]) -> Iterator[Violation]:
    """Find partitions that were assigned to a member while another one had them."""
    for place, spans in _spans(events).items():
        last = _Span("", 0.0, 0.0)
        for span in sorted(spans, key=lambda item: item.begin):
            if span.begin < last.end and span.member != last.member:
                early = f"{last.end - span.begin:.3f} s before {last.member} gave it up"
                yield Violation("two owners", f"{span.member} was assigned {place} {early}", span.begin)
            last = max(last, span, key=lambda item: item.end)


def _transactions(events: Sequence[Event], put: list[Put], log: Log) -> Iterator[Violation]:
    held = {(partition, value) for partition, records in log.items() for _, value in records}
    may_be_committed = {item.transaction for item in _of(events, Committing)}
    ends = defaultdict[str, list[Ended]](list)
    for item in _of(events, Ended):
        ends[item.transaction].append(item)
    values = defaultdict[str, list[Put]](list)
    for each_put in put:
        values[each_put.transaction].append(each_put)
    for transaction, mine in values.items():
        at = ends[transaction][-1].at if ends[transaction] else mine[-1].at
        ways = {item.committed for item in ends[transaction]}
        there = [(file.partition, value_of(transaction, file.number)) in held for file in mine]
        text = f"{transaction}: {sum(there)} of {len(there)} values are in the log"
        if len(ways) > 1:
            yield Violation("two ends", text, at)
        elif any(there) and (ways == {False} or transaction not in may_be_committed):
            yield Violation("aborted read", text, at)
        elif any(there) and not all(there):
            yield Violation("torn commit", text, at)
        elif ways == {True} and not all(there):
            yield Violation("lost commit", text, at)


def _aborted_reads(put: list[Put], seen: list[Seen], log: Log) -> Iterator[Violation]:
    transactional = {value_of(item.transaction, item.number) for item in put}
    held = {(partition, *record) for partition, records in log.items() for record in records}
    for item in seen:
        if item.value in transactional and (item.partition, item.offset, item.value) not in held:
            text = f"{item.reader} got {item.value} at offset {item.offset} of partition {item.partition}"
            yield Violation("aborted read", text, item.at)


def _by_record(events: Iterable[Share]) -> dict[Record, list[Share]]:
    records = defaultdict[Record, list[Share]](list)
    for event in events:
        records[event.group, event.partition, event.offset].append(event)
    return records


def _name(record: Record) -> str:
    group, partition, offset = record
    return f"offset {offset} of partition {partition}, for {group},"


def _not_accepted(
    acquired: Mapping[Record, list[Acquisition]],
    settling: Mapping[Record, list[Settling]],
    log: Log,
    deliveries_max: int,
) -> Iterator[Violation]:
    for group in sorted({group for group, _, _ in acquired}):
        for partition, records in log.items():
            for offset, value in records:
                record = group, partition, offset
                accepted = any(item.accept for item in settling.get(record, ()))
                deliveries = [item.delivery for item in acquired.get(record, ())]
                if not accepted and deliveries_max not in deliveries:
                    yield Violation("not accepted", f"{_name(record)} {value}, came as {deliveries}")


def _accepted_again(
    settled: list[Settled],
    acquired: Mapping[Record, list[Acquisition]],
    settling: Mapping[Record, list[Settling]],
) -> Iterator[Violation]:
    for item in settled:
        record = item.group, item.partition, item.offset
        # It may have been accepted by another one before, and be answered for that.
        accepted = [other.delivery for other in settling[record] if other.accept and other.at < item.at]
        for other in acquired[record]:
            if item.accept and other.delivery > max([item.delivery, *accepted]):
                text = (
                    f"{_name(record)} came to {other.member} as {other.delivery},"
                    f" accepted by {item.member} as {item.delivery}"
                )
                yield Violation("accepted again", text, item.at)
