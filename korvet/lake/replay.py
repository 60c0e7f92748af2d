"""Replays: ranges of a topic, read from both tiers and produced through a broker into another topic, each record once.

Knows how a replay goes on from where it was killed; what it has come to is kept in `replay_state`. A stretch of the
source becomes one batch for each partition of the target at the most. Before it is sent the group says so, and a broker
appends a batch whole or not at all, so whoever goes on asks the target how far the replay's producer has come there.
Two who run the same replay at once send the same sequences: one of them is refused, and nothing is doubled.

How fast something may go: so many records in a second, whatever they are taken in.

Knows a clock and how to wait; both are arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.producer import IdempotentProducer, batch_bytes_max, new_identity
from korvet.admin.types import TopicPartition, settled
from korvet.errors import ErrorCode, KafkaError, LakeError
from korvet.lake.encoding import (
    BATCH_BYTES,
    NO_KEY,
    PRODUCED,
    batches_of,
    by_partition,
    concat_rows,
    encode_batch,
    partitions_of,
)
from korvet.lake.replay_state import (
    ReplayEdge,
    ReplayError,
    ReplayNote,
    ReplaySpec,
    ReplayState,
    landed,
    load_states,
    now_ms,
    save_states,
)
from korvet.lake.scan import LogSnapshot, PartReader, first_offset_from, scan_parts, select_columns, snapshots
from korvet.lake.scan import ScanRange as ScanWish
from korvet.lake.schema import ATTRIBUTES, KEY, OFFSET
from korvet.lake.source import LakeSource, LakeStores
from korvet.lake.table import Lake
from korvet.protocol.records.batch import CONTROL_BIT, SEQUENCES


class RecordRate:
    """Lets records pass evenly, `per_second` of them, or all at once where that is None."""

    def __init__(
        self,
        per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._due = 0.0

    @property
    def at_once(self) -> int | None:
        """How many records to take at once, at the most, so that none of them is much too early."""
        return None if self._per_second is None else max(1, int(self._per_second))

    def take(self, count: int) -> None:
        """Return when `count` more records may pass: when all before them have had their time."""
        if self._per_second is None:
            return
        now = self._clock()
        if self._due > now:
            self._sleep(self._due - now)
        # Time in which nothing passed is not made up for.
        self._due = max(self._due, now) + count / self._per_second


TARGETS_MAX = 200
"""Partitions that records may be shared out to: the note of each commit has two numbers for each, of 4096 bytes."""

_RUNS_ELSEWHERE = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


class ReplayRange(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's part of a replay: records `first` to just before `behind`, the next of them at `next_offset`.

    `records` are replayed, as far as that is known: what was being sent when a replay was killed is not counted yet.
    """

    partition: int
    first: int
    behind: int
    next_offset: int
    records: int = 0


class ReplaySource(NamedTuple):
    """Where records are read: what is open, and what it takes to open the lake."""

    stores: LakeStores
    lake: Lake | None
    source: LakeSource


class Replay:
    """One replay, planned when it is made: `ranges` are what there is to do; `name` is the group's."""

    def __init__(
        self, admin: AdminClient, reading: ReplaySource, wish: ReplaySpec, name: str | None = None
    ) -> None:
        """Look what there is, and change nothing.

        Raises ReplayError for what cannot be; ValueError for a topic that is not there, LakeError, KafkaError,
        StorageUnavailableError, AdminError.
        """
        self.name = name or wish.name
        self._admin = admin
        self._reading = reading
        self._wish = wish
        topic = reading.source.topic(reading.stores, wish.source)
        self._logs = {each.partition.index: each for each in snapshots(reading.stores, reading.lake, topic)}
        self._target_id, self._target_count = self._described(topic.id)
        self.batch_bytes = min(BATCH_BYTES, batch_bytes_max(admin, wish.target) or BATCH_BYTES)
        self._states = load_states(admin, self.name, wish, self._target_id)
        self.resumed = bool(self._states)
        if self.resumed:
            planned = {
                index: ReplayRange(
                    partition=index,
                    first=each.note.first,
                    behind=each.note.behind,
                    next_offset=each.next_offset,
                    records=each.note.records,
                )
                for index, each in self._states.items()
            }
        else:
            planned = self._planned()
        self._ranges = dict(sorted(planned.items()))

    @property
    def ranges(self) -> list[ReplayRange]:
        """What there is to do, partition by partition, and how far it was done."""
        return list(self._ranges.values())

    def run(self, pace: RecordRate, codec: int, seen: Callable[[int, int], None]) -> None:
        """Replay what is left; tells `seen` of records and bytes, uncompressed, as they are appended.

        Raises what making it does. Then, as after being killed, the same replay goes on where this one was.
        """
        if not self._states:
            self._begin()
        with ThreadPoolExecutor(1) as sender:
            for index, state in self._states.items():
                if state.next_offset < state.note.behind:
                    _PartitionReplay(self, index, pace, codec, seen).run(sender)

    def _described(self, source_id: str) -> tuple[str, int]:
        """Return the target's id and number of partitions; raises ReplayError where source and target do not fit."""
        wish = self._wish
        described = self._admin.topics.describe([wish.source, wish.target])
        target = described[wish.target]
        if isinstance(target, BrokerError) and target.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ReplayError(f"there is no topic {wish.target}: make it first")
        settled(described)
        source = settled(described)[wish.source]
        if str(source.topic_id) != source_id:
            raise ReplayError(
                f"the brokers' {wish.source} has id {source.topic_id}, that in Redis {source_id}: "
                "--bootstrap-server and --redis-url name different clusters"
            )
        count = len(settled(described)[wish.target].partitions)
        if wish.sharing == "hash" and count > TARGETS_MAX:
            raise ReplayError(
                f"{wish.target} has {count} partitions: records are shared out to {TARGETS_MAX} at the most"
            )
        if wish.source == wish.target and wish.end == ReplayEdge():
            raise ReplayError("a topic is replayed into itself up to an end: --to-offset or --to-time")
        return str(settled(described)[wish.target].topic_id), count

    def _planned(self) -> dict[int, ReplayRange]:
        """Return what is to be done of each partition; raises ReplayError where the target has none for it."""
        wish, count = self._wish, self._target_count
        wished = self._wished()
        missing = [index for index in wished if index >= count]
        if wish.sharing == "keep" and missing:
            raise ReplayError(
                f"{wish.target} has {count} partitions, and none {missing[0]}, which {wish.source} has: give it more,"
                " or let keys choose, --partitions hash"
            )
        return {index: self._range(log) for index, log in wished.items()}

    def _wished(self) -> dict[int, LogSnapshot]:
        """Return the logs that are asked for; raises ReplayError for one that there is not."""
        wanted = self._wish.partitions or tuple(self._logs)
        for index in wanted:
            if index not in self._logs:
                raise ReplayError(f"{self._wish.source} has no partition {index}")
        return {index: self._logs[index] for index in wanted}

    def _range(self, log: LogSnapshot) -> ReplayRange:
        """Return what is to be replayed of a log as it is now."""
        wish = self._wish
        if wish.source == wish.target and (wish.end.offset or 0) > log.end:
            raise ReplayError(
                f"{wish.source}-{log.partition.index} ends at offset {log.end}: a topic is replayed into itself up to"
                " an end that it has"
            )
        first = self._offset(log, wish.begin, log.start)
        behind = max(first, self._offset(log, wish.end, log.end))
        return ReplayRange(partition=log.partition.index, first=first, behind=behind, next_offset=first)

    def _offset(self, log: LogSnapshot, edge: ReplayEdge, otherwise: int) -> int:
        if edge.timestamp is not None:
            found = first_offset_from(*self._reading, log, edge.timestamp)
            return log.end if found is None else found
        wanted = otherwise if edge.offset is None else edge.offset
        return min(max(wanted, log.start), log.end)

    def _begin(self) -> None:
        """Let the group say what is to be done, before anything is."""
        for index, each in self._ranges.items():
            identity = new_identity(self._admin)
            note = ReplayNote(
                wish=self._wish.digest,
                target_id=self._target_id,
                partitions=len(self._ranges),
                producer_id=identity.producer_id,
                epoch=identity.epoch,
                first=each.first,
                behind=each.behind,
                through=each.first,
                records=0,
                at_ms=now_ms(),
                sequences=(0,) * len(self.targets(index)),
            )
            self._states[index] = ReplayState(each.first, note)
        save_states(self._admin, self.name, self._wish.source, self._states)

    def targets(self, index: int) -> list[TopicPartition]:
        """Return where records of a partition may go."""
        indexes = [index] if self._wish.sharing == "keep" else range(self._target_count)
        return [TopicPartition(self._wish.target, each) for each in indexes]

    def state(self, index: int) -> ReplayState:
        """Return what a partition has come to."""
        return self._states[index]

    def commit(self, index: int, state: ReplayState) -> None:
        """Keep what a partition has come to; raises AdminError."""
        save_states(self._admin, self.name, self._wish.source, {index: state})
        self._states[index] = state
        self._ranges[index] = msgspec.structs.replace(
            self._ranges[index], next_offset=state.next_offset, records=state.note.records
        )

    def landed(self, index: int) -> list[bool]:
        """Return which targets have what was being sent of a partition when it was left."""
        return landed(self._admin, self.name, index, self._states[index], self.targets(index))

    def producer(self, index: int) -> IdempotentProducer:
        """Return the producer of a partition's records, without sequences."""
        return IdempotentProducer(self._admin, self._states[index].note.identity)

    def rows(self, index: int, first: int, behind: int) -> Iterator[pa.RecordBatch]:
        """Yield records of a partition, in the columns of PRODUCED, without those that only brokers write."""
        log = self._logs[index]
        reading = PartReader(*self._reading)
        at = first
        try:
            for part in scan_parts(self._reading.stores, log, ScanWish(first, behind)):
                for rows in reading.rows(part):
                    # Not before: Arrow filters no views.
                    yield _of_producers(select_columns(rows, index, PRODUCED), rows.column(ATTRIBUTES))
                at = part.behind
        except LakeError:
            self.check_there(index, at)
            raise

    def check_there(self, index: int, first: int) -> None:
        """Raise ReplayError where records from an offset on are not there any more; KafkaError."""
        partition = self._logs[index].partition
        [bounds] = self._reading.stores.logs.bounds([partition])
        if isinstance(bounds, KafkaError):
            raise bounds
        if first < bounds.log_start:
            raise ReplayError(
                f"{self.name}: records of {partition.topic}-{index} from offset {first} on were deleted before they"
                f" were replayed: what there is, from offset {bounds.log_start} on, takes another --name"
            )

    def refused(self, place: TopicPartition, error: AdminError, state: ReplayState) -> ReplayError:
        """Return what to say where a batch was not appended."""
        note = state.note
        if isinstance(error, BrokerError) and error.code in _RUNS_ELSEWHERE:
            return ReplayError(f"{self.name} runs elsewhere too, or did just now: {place} says {error}")
        return ReplayError(
            f"{place} did not take offsets {state.next_offset} to {note.through - 1} of {self._wish.source}: {error}"
        )


class _Stretch(NamedTuple):
    """Records up to just before `through`, as one batch for each of some targets, by their places."""

    through: int
    batches: dict[int, bytes]
    counts: tuple[int, ...]
    size_bytes: int


class _PartitionReplay:
    """The replay of one partition: the next stretch is made while one is on its way."""

    def __init__(
        self, replay: Replay, index: int, pace: RecordRate, codec: int, seen: Callable[[int, int], None]
    ) -> None:
        self._replay = replay
        self._index = index
        self._pace = pace
        self._codec = codec
        self._seen = seen
        self._targets = replay.targets(index)
        self._producer = replay.producer(index)
        self._state = replay.state(index)
        self._sequences = list(self._state.note.sequences)

    def run(self, sender: ThreadPoolExecutor) -> None:
        """Replay what is left of the partition."""
        self._finish_stretch()
        first, behind = self._state.next_offset, self._state.note.behind
        self._replay.check_there(self._index, first)
        nothing = [False] * len(self._targets)
        on_its_way: Future[None] | None = None
        rows_of = self._replay.rows(self._index, first, behind)
        bytes_max = self._replay.batch_bytes
        for rows in batches_of(rows_of, bytes_max=bytes_max, records_max=self._pace.at_once):
            stretch = self._stretch(rows, rows.column(OFFSET)[-1].as_py() + 1, nothing)
            if on_its_way is not None:
                on_its_way.result()
            self._pace.take(rows.num_rows)
            on_its_way = sender.submit(self._send, stretch)
        if on_its_way is not None:
            on_its_way.result()
        self._state = ReplayState(behind, self._noted(through=behind))
        self._replay.commit(self._index, self._state)

    def _finish_stretch(self) -> None:
        """Send what was being sent when the replay was left, where it has not come yet."""
        next_offset, note = self._state.next_offset, self._state.note
        if note.through <= next_offset:
            return
        there = self._replay.landed(self._index)
        came = [count if each else 0 for count, each in zip(note.counts, there, strict=True)]
        self._sequences = [
            (each + count) % SEQUENCES for each, count in zip(note.sequences, came, strict=True)
        ]
        self._state = ReplayState(
            next_offset, msgspec.structs.replace(note, records=note.records + sum(came))
        )
        if all(there):
            self._state = ReplayState(note.through, self._state.note)
            return
        self._replay.check_there(self._index, next_offset)
        rows = concat_rows(list(self._replay.rows(self._index, next_offset, note.through)))
        self._send(self._stretch(rows, note.through, there))

    def _stretch(self, rows: pa.RecordBatch, through: int, without: Sequence[bool]) -> _Stretch:
        """Return records as batches for the targets, but for those `without`."""
        if len(self._targets) == 1:
            shared = {0: rows} if rows.num_rows else {}
        else:
            places = partitions_of(rows.column(KEY), len(self._targets))
            places = np.where(places == NO_KEY, self._index % len(self._targets), places)
            shared = by_partition(rows, places)
        wanted = {place: part for place, part in shared.items() if not without[place]}
        batches = {place: encode_batch(part, self._codec) for place, part in wanted.items()}
        counts = tuple(
            wanted[place].num_rows if place in wanted else 0 for place in range(len(self._targets))
        )
        return _Stretch(through, batches, counts, rows.nbytes)

    def _send(self, stretch: _Stretch) -> None:
        """Let the group know of a stretch, and send it; the next commit says that it has come."""
        note = self._noted(through=stretch.through, counts=stretch.counts)
        self._state = ReplayState(self._state.next_offset, note)
        self._replay.commit(self._index, self._state)
        self._producer.sequences = dict(zip(self._targets, self._sequences, strict=True))
        outcomes = self._producer.send(
            {self._targets[place]: each for place, each in stretch.batches.items()}
        )
        for place, outcome in outcomes.items():
            if isinstance(outcome, AdminError):
                raise self._replay.refused(place, outcome, self._state) from outcome
        self._sequences = [self._producer.sequences[each] for each in self._targets]
        note = msgspec.structs.replace(note, records=note.records + sum(stretch.counts))
        self._state = ReplayState(stretch.through, note)
        self._seen(sum(stretch.counts), stretch.size_bytes)

    def _noted(self, *, through: int, counts: tuple[int, ...] = ()) -> ReplayNote:
        return msgspec.structs.replace(
            self._state.note,
            through=through,
            at_ms=now_ms(),
            sequences=tuple(self._sequences),
            counts=counts,
        )


def _of_producers(rows: pa.RecordBatch, attributes: pa.Array) -> pa.RecordBatch:
    """Return rows without the marks that end transactions."""
    if attributes.null_count == len(attributes):
        return rows
    bits = attributes.fill_null(0).to_numpy(zero_copy_only=False)
    return rows.filter(pa.array((bits & CONTROL_BIT) == 0))
