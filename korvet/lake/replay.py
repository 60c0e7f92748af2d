"""Replays: ranges of a topic, read from both tiers and produced through a broker into another topic, each record once.

A stretch of the source becomes one batch for each partition of the target at the most. Before it is sent, the progress
in a consumer group says so (see `replay_state`), and a broker appends a batch whole or not at all: a replay that goes
on after it was killed asks the target how far its producer has come there. Two processes that run the same replay at
once send the same sequences: one of them is refused, and nothing is doubled.

A transactional replay sends each stretch in a transaction of its own, which commits the progress too, so none has to be
asked. Its producer has the name of the replay as transactional id: a run fences the one before, aborts what that has
left open, and reads only then how far it came. A transaction is open while its requests are on their way, whatever the
rate is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.producer import (
    IdempotentProducer,
    Identity,
    TransactionalProducer,
    batch_bytes_max,
    new_identity,
)
from korvet.admin.types import TopicPartition, settled
from korvet.clock import CLOCK, Clock
from korvet.config.definition import INT32_MAX
from korvet.errors import ErrorCode, LakeError
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
    refused,
    save_states,
)
from korvet.lake.scan import (
    PartitionSnapshot,
    PartReader,
    ScanRange,
    first_offset_from,
    scan_parts,
    select_columns,
    snapshots,
    snapshots_as_of,
)
from korvet.lake.schema import KEY, OFFSET
from korvet.lake.source import LakeStores
from korvet.protocol.records.batch import NO_PRODUCER_ID, SEQUENCES


class RecordRate:
    """Limits how many records pass in a second, evenly; None is no limit."""

    def __init__(self, per_second: float | None, clock: Clock = CLOCK) -> None:
        self._per_second = per_second
        self._clock = clock
        self._due = 0.0

    @property
    def at_once(self) -> int | None:
        """The largest number of records to take at once so that none of them is much too early."""
        return None if self._per_second is None else max(1, int(self._per_second))

    def take(self, count: int) -> None:
        """Wait until `count` more records may pass: until all before them have had their time."""
        if self._per_second is None:
            return
        now = self._clock.monotonic()
        if self._due > now:
            self._clock.sleep(self._due - now)
        # Time in which nothing passed is not made up for.
        self._due = max(self._due, now) + count / self._per_second


OnProgress: TypeAlias = Callable[[int, int], None]

TARGETS_MAX = 200
"""Partitions of a target by key: the metadata of each commit, of 4096 bytes at most, has two numbers for each."""

_REQUESTS_OF_A_TRANSACTION = 3
"""Batches, offsets and the end, one after the other; each may take as long as the client's timeout."""


class ReplayRange(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's part of a replay: records `first` to just before `end`, the next of them at `next_offset`.

    `records` are known to be replayed: what was being sent when a replay was killed is not counted yet.
    """

    partition: int
    first: int
    end: int
    next_offset: int
    records: int = 0


class Replay:
    """One replay, planned when it is created: `ranges` are its work; `name` is the group's."""

    def __init__(
        self,
        admin: AdminClient,
        stores: LakeStores,
        spec: ReplaySpec,
        name: str | None = None,
        *,
        transactional: bool = False,
    ) -> None:
        """Plan the replay, and change nothing.

        Raises ReplayError if it cannot begin or go on; ValueError for a topic that does not exist, LakeError,
        KafkaError, StorageUnavailableError, AdminError.
        """
        self.name = name or spec.name
        self.admin = admin
        self.producer: TransactionalProducer | None = None
        self._stores = stores
        self._spec = spec
        self._transactional = transactional
        topic = stores.topic(spec.source)
        logs = (
            snapshots(stores, topic)
            if spec.as_of is msgspec.UNSET
            else snapshots_as_of(stores, topic, spec.as_of)
        )
        self._logs = {log.partition.index: log for log in logs}
        self._target_id, self._target_count = self._described(topic.id)
        self.batch_bytes = min(BATCH_BYTES, batch_bytes_max(admin, spec.target) or BATCH_BYTES)
        self.states = self._load()
        self.resumed = bool(self.states)
        self._planned = {} if self.resumed else self._plan()

    @property
    def ranges(self) -> list[ReplayRange]:
        """The work, partition by partition, and how far it is done."""
        begun = {
            index: ReplayRange(
                partition=index,
                first=state.note.first,
                end=state.note.end,
                next_offset=state.next_offset,
                records=state.note.records,
            )
            for index, state in self.states.items()
        }
        return [state for _, state in sorted((self._planned | begun).items())]

    def run(self, rate: RecordRate, codec: int, on_progress: OnProgress) -> None:
        """Replay what is left; calls `on_progress` with records and bytes, uncompressed, as they are appended.

        Raises as the constructor. Then, as after being killed, the same replay goes on where this one was.
        """
        if self._transactional:
            self.producer = self._take_over()
            # The run before may have gone on until then.
            self.states = self._load()
        try:
            if not self.states:
                self._planned = self._planned or self._plan()
                self._begin()
            with ThreadPoolExecutor(1) as sender:
                for index, state in self.states.items():
                    if state.next_offset < state.note.end:
                        _PartitionReplay(self, index, rate, codec, on_progress).run(sender)
        except ReplayError as error:
            if self.producer is not None and isinstance(error.__cause__, BrokerError):
                # Readers need not wait for the timeout of what is open. A run that is fenced is refused.
                with contextlib.suppress(AdminError):
                    self.producer.abort()
            raise

    def _load(self) -> dict[int, ReplayState]:
        return load_states(
            self.admin, self.name, self._spec, self._target_id, transactional=self._transactional
        )

    def _take_over(self) -> TransactionalProducer:
        """Return the producer of this run: from here on no other can send, and nothing is open."""
        timeout_ms = int(min(self.admin.deadline().left() * 1000 * _REQUESTS_OF_A_TRANSACTION, INT32_MAX))
        try:
            return TransactionalProducer(self.admin, self.name, timeout_ms)
        except BrokerError as error:
            raise self._no_producer(error) from error

    def _no_producer(self, error: BrokerError) -> ReplayError:
        return ReplayError(f"brokers give no producer id to write {self._spec.target}: {error}")

    def _described(self, source_id: str) -> tuple[str, int]:
        """Return the target's id and number of partitions; raises ReplayError if source and target do not fit."""
        spec = self._spec
        outcomes = self.admin.topics.describe([spec.source, spec.target])
        target = outcomes[spec.target]
        if isinstance(target, BrokerError) and target.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ReplayError(f"there is no topic {spec.target}: create it first")
        described = settled(outcomes)
        actual_id = str(described[spec.source].topic_id)
        if actual_id != source_id:
            raise ReplayError(
                f"the brokers' {spec.source} has id {actual_id}, that in Redis {source_id}: "
                "--bootstrap-server and --redis-url name different clusters"
            )
        count = len(described[spec.target].partitions)
        if spec.partitioning == "hash" and count > TARGETS_MAX:
            raise ReplayError(
                f"{spec.target} has {count} partitions: records are hashed to {TARGETS_MAX} at the most"
            )
        if spec.source == spec.target and spec.end == ReplayEdge() and spec.as_of is msgspec.UNSET:
            raise ReplayError("a topic is replayed into itself up to an end: --to-offset or --to-time")
        return str(described[spec.target].topic_id), count

    def _plan(self) -> dict[int, ReplayRange]:
        """Return the range of each partition.

        Raises ReplayError if source or target has no such partition, or no range has a record.
        """
        spec, count = self._spec, self._target_count
        wanted = sorted(spec.partitions or self._logs)
        for index in wanted:
            if index not in self._logs:
                raise ReplayError(f"{spec.source} has no partition {index}")
            if spec.partitioning == "keep" and index >= count:
                raise ReplayError(
                    f"{spec.target} has {count} partitions, but {spec.source} has partition {index}: add partitions,"
                    " or give --partitions hash"
                )
        planned = {index: self._range(self._logs[index]) for index in wanted}
        if not any(map(self._has_records, planned.values())):
            raise ReplayError(f"nothing to replay: {spec.source} has no record in the range")
        return planned

    def _has_records(self, range_: ReplayRange) -> bool:
        """Return whether a range has a record: offsets have gaps, and markers and what was aborted are none."""
        return any(rows.num_rows for rows in self.rows(range_.partition, range_.first, range_.end))

    def _range(self, log: PartitionSnapshot) -> ReplayRange:
        spec = self._spec
        if spec.source == spec.target and (spec.end.offset or 0) > log.end:
            raise ReplayError(
                f"{spec.source}-{log.partition.index} ends at offset {log.end}: a topic is replayed into itself up to"
                " an end that it has"
            )
        first = self._offset(log, spec.start, log.start)
        end = max(first, self._offset(log, spec.end, log.end))
        return ReplayRange(partition=log.partition.index, first=first, end=end, next_offset=first)

    def _offset(self, log: PartitionSnapshot, edge: ReplayEdge, otherwise: int) -> int:
        if edge.timestamp is not None:
            offset = first_offset_from(self._stores, log, edge.timestamp)
            return log.end if offset is None else offset
        wanted = otherwise if edge.offset is None else edge.offset
        return min(max(wanted, log.start), log.end)

    def _begin(self) -> None:
        """Commit what will be replayed, before anything is."""
        for index, planned in self._planned.items():
            identity = Identity(NO_PRODUCER_ID, -1)
            if self.producer is None:
                try:
                    identity = new_identity(self.admin)
                except BrokerError as error:
                    raise self._no_producer(error) from error
            note = ReplayNote(
                spec=self._spec.digest,
                target_id=self._target_id,
                partitions=len(self._planned),
                producer_id=identity.producer_id,
                epoch=identity.epoch,
                first=planned.first,
                end=planned.end,
                through=planned.first,
                records=0,
                at_ms=now_ms(),
                sequences=() if self._transactional else (0,) * len(self.targets(index)),
            )
            self.states[index] = ReplayState(planned.first, note)
        save_states(self.admin, self.name, self._spec.source, self.states, self.producer)

    def targets(self, index: int) -> list[TopicPartition]:
        """Return the partitions that records of a partition may go to."""
        indexes = [index] if self._spec.partitioning == "keep" else range(self._target_count)
        return [TopicPartition(self._spec.target, item) for item in indexes]

    def commit(self, index: int, state: ReplayState) -> None:
        """Commit the progress of a partition; raises ReplayError, AdminError."""
        save_states(self.admin, self.name, self._spec.source, {index: state}, self.producer)
        self.states[index] = state

    def rows(self, index: int, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield records of a partition, in the columns of PRODUCED."""
        log = self._logs[index]
        reading = PartReader(self._stores)
        at = first
        try:
            for part in scan_parts(self._stores, log, ScanRange(first, end)):
                for rows in reading.rows(part):
                    at = rows.column(OFFSET)[-1].as_py() + 1
                    yield select_columns(rows, PRODUCED)
                at = part.end
        except LakeError:
            self.check_there(index, at)
            raise

    def refused(self, partition: TopicPartition, first: int, through: int, error: AdminError) -> ReplayError:
        """Return the error for a batch that was not appended, of offsets `first` to just before `through`."""
        what = f"{partition} did not take offsets {first} to {through - 1} of {self._spec.source}"
        return refused(self.name, what, error)

    def check_there(self, index: int, first: int) -> None:
        """Raise ReplayError if records from an offset on were deleted; KafkaError."""
        if self._spec.as_of is not msgspec.UNSET:
            return
        partition = self._logs[index].partition
        bounds = self._stores.bounds(partition)
        if first < bounds.log_start:
            raise ReplayError(
                f"{self.name}: records of {partition.topic}-{index} from offset {first} on were deleted before they"
                f" were replayed: replay the rest, from offset {bounds.log_start} on, under another --name"
            )


class _ReplayBatch(NamedTuple):
    """Records up to just before `through`, as one batch for each of some targets, by their indexes."""

    through: int
    batches: dict[int, bytes]
    counts: tuple[int, ...]
    size_bytes: int


class _PartitionReplay:
    """The replay of one partition: the next stretch is encoded while one is being sent."""

    def __init__(
        self, replay: Replay, index: int, rate: RecordRate, codec: int, on_progress: OnProgress
    ) -> None:
        self._replay = replay
        self._index = index
        self._rate = rate
        self._codec = codec
        self._on_progress = on_progress
        self._targets = replay.targets(index)
        self._state = replay.states[index]
        self._is_transactional = replay.producer is not None
        self._producer = replay.producer or IdempotentProducer(replay.admin, self._state.note.identity)
        self._sequences = list(self._state.note.sequences)

    def run(self, sender: ThreadPoolExecutor) -> None:
        """Replay what is left of the partition."""
        self._finish_stretch()
        first, end = self._state.next_offset, self._state.note.end
        self._replay.check_there(self._index, first)
        nothing = [False] * len(self._targets)
        sending: Future[None] | None = None
        rows_of = self._replay.rows(self._index, first, end)
        bytes_max = self._replay.batch_bytes
        for rows in batches_of(rows_of, bytes_max=bytes_max, records_max=self._rate.at_once):
            stretch = self._stretch(rows, rows.column(OFFSET)[-1].as_py() + 1, nothing)
            if sending is not None:
                sending.result()
            self._rate.take(rows.num_rows)
            sending = sender.submit(self._send, stretch)
        if sending is not None:
            sending.result()
        self._state = ReplayState(end, self._noted(through=end))
        self._replay.commit(self._index, self._state)

    def _finish_stretch(self) -> None:
        """Send what was being sent when the replay stopped, to the targets that have not appended it."""
        next_offset, note = self._state.next_offset, self._state.note
        if note.through <= next_offset:
            return
        replay = self._replay
        there = landed(replay.admin, replay.name, self._index, self._state, self._targets)
        counts = [count if is_there else 0 for count, is_there in zip(note.counts, there, strict=True)]
        self._sequences = [
            (sequence + count) % SEQUENCES for sequence, count in zip(note.sequences, counts, strict=True)
        ]
        self._state = ReplayState(
            next_offset, msgspec.structs.replace(note, records=note.records + sum(counts))
        )
        if all(there):
            self._state = ReplayState(note.through, self._state.note)
            return
        self._replay.check_there(self._index, next_offset)
        rows = concat_rows(list(self._replay.rows(self._index, next_offset, note.through)))
        self._send(self._stretch(rows, note.through, there))

    def _stretch(self, rows: pa.RecordBatch, through: int, without: Sequence[bool]) -> _ReplayBatch:
        """Return records as batches for the targets except those `without`."""
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
        return _ReplayBatch(through, batches, counts, rows.nbytes)

    def _send(self, stretch: _ReplayBatch) -> None:
        """Send a stretch and the progress in one transaction; without one, commit before that it is being sent."""
        note = self._noted(through=stretch.through, counts=stretch.counts)
        if not self._is_transactional:
            self._state = ReplayState(self._state.next_offset, note)
            self._replay.commit(self._index, self._state)
            self._producer.sequences = dict(zip(self._targets, self._sequences, strict=True))
        outcomes = self._producer.send(
            {self._targets[place]: batch for place, batch in stretch.batches.items()}
        )
        for place, outcome in outcomes.items():
            if isinstance(outcome, AdminError):
                first = self._state.next_offset
                raise self._replay.refused(place, first, stretch.through, outcome) from outcome
        note = msgspec.structs.replace(note, records=note.records + sum(stretch.counts))
        self._state = ReplayState(stretch.through, note)
        if self._is_transactional:
            self._replay.commit(self._index, self._state)
        else:
            self._sequences = [self._producer.sequences[target] for target in self._targets]
        self._on_progress(sum(stretch.counts), stretch.size_bytes)

    def _noted(self, *, through: int, counts: tuple[int, ...] = ()) -> ReplayNote:
        return msgspec.structs.replace(
            self._state.note,
            through=through,
            at_ms=now_ms(),
            sequences=tuple(self._sequences),
            counts=counts,
        )
