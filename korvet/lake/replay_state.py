"""The progress of a replay, kept where it outlives the process: as offsets that a consumer group has committed.

The committed offset is the next record of the source to read, as for any group. The metadata beside it names
the range being replayed, and the part being sent: it is written before sending, so after a crash the target's
brokers can be asked how much of it they have (see `landed`). A transactional replay commits it with the records, so
nothing is ever being sent.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.offsets import CommittedOffset
from korvet.admin.producer import Identity, TransactionalProducer
from korvet.admin.types import Resource, TopicPartition, settled
from korvet.errors import ErrorCode, LakeError
from korvet.protocol.records.batch import NO_PRODUCER_ID, SEQUENCES

Partitioning = Literal["keep", "hash"]

_EXPIRATION = "producer.id.expiration.ms"
_EXPIRATION_DEFAULT_MS = 86_400_000
_CLOCKS_MS_MAX = 60_000
"""How far the clocks of two machines that resume a replay may differ."""

FENCED = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
"""Of a producer that another one of its transactional id has replaced."""


class ReplayError(LakeError):
    """A replay cannot begin or go on; the message says why."""


class ReplayEdge(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a range begins or ends in every partition: an offset, a timestamp (ms), or the log's own edge."""

    offset: int | None = None
    timestamp: int | None = None


class ReplaySpec(msgspec.Struct, frozen=True, kw_only=True):
    """A replay: records of `source` from `start` to just before `end`, into `target`.

    No `partitions`: all. `partitioning`: records go to the partition of the same number, or of their key; records
    without a key then go to the same number modulo the target's count. `as_of`: only the source's table as it was then.
    """

    source: str
    target: str
    partitions: tuple[int, ...] = ()
    start: ReplayEdge = msgspec.field(name="begin", default=ReplayEdge())
    end: ReplayEdge = ReplayEdge()
    partitioning: Partitioning = msgspec.field(name="sharing", default="keep")
    # Absent in the JSON without one, so that replays which were begun before it have the same digest.
    as_of: int | datetime | msgspec.UnsetType = msgspec.UNSET

    @property
    def digest(self) -> str:
        """A text of 16 characters for this replay and no other; persisted, so names in the JSON never change."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The default name of the replay."""
        return f"korvet-replay.{self.source}.{self.target}.{self.digest}"


class ReplayNote(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of the committed offset of a partition of the source; persisted, so names in it never change.

    Records `first` to just before `end` are replayed, into a target with this id, as part of `partitions` of the
    source in all; `records` are there already, without those of offsets below `through`, which are being sent since
    `at_ms` (this machine's clock). For each partition of the target that they go to, in order: the sequence that the
    producer went on with, and how many records. A transactional replay needs neither, and has no producer id here.
    """

    spec: str = msgspec.field(name="wish")
    target_id: str
    partitions: int
    producer_id: int
    epoch: int
    first: int
    end: int = msgspec.field(name="behind")
    through: int
    records: int
    at_ms: int
    sequences: tuple[int, ...]
    counts: tuple[int, ...] = ()

    @property
    def identity(self) -> Identity:
        """The producer of the records, for the target's brokers."""
        return Identity(self.producer_id, self.epoch)


class ReplayState(msgspec.Struct, frozen=True):
    """A partition's committed offset, and its metadata."""

    next_offset: int
    note: ReplayNote


def load_states(
    admin: AdminClient, name: str, spec: ReplaySpec, target_id: str, *, transactional: bool = False
) -> dict[int, ReplayState]:
    """Return the progress of a replay, by partitions of the source; nothing if it has not begun.

    Raises ReplayError if the name is another replay's or group's, or may not be read; AdminError.
    """
    try:
        progress = admin.offsets.committed(name)
    except BrokerError as error:
        raise ReplayError(f"group {name} does not give the progress of the replay: {error}") from error
    states = {}
    for place, committed in progress.items():
        try:
            note = msgspec.json.decode(committed.metadata, type=ReplayNote)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ReplayError(
                f"{name} is a consumer group that has committed offsets of {place}: choose another --name"
            ) from error
        if place.topic != spec.source or note.spec != spec.digest:
            raise ReplayError(
                f"{name} is a replay of something else, of {place.topic} from offset {note.first} to {note.end - 1}"
                f" of partition {place.partition}: give it the flags that it was begun with, or choose another --name"
            )
        if note.target_id != target_id:
            raise ReplayError(
                f"{name}: {spec.target} was deleted and re-created since it began: choose another --name"
            )
        if (note.producer_id == NO_PRODUCER_ID) is not transactional:
            begun, now = ("without", "with") if transactional else ("with", "without")
            raise ReplayError(
                f"{name} was begun {begun} --transactional, and cannot go on {now} it: choose another --name"
            )
        states[place.partition] = ReplayState(committed.offset, note)
    if any(len(states) != state.note.partitions for state in states.values()):
        raise ReplayError(
            f"{name}: group {name} has lost offsets that the replay had committed: choose another --name"
        )
    return states


def save_states(
    admin: AdminClient,
    name: str,
    source: str,
    states: Mapping[int, ReplayState],
    producer: TransactionalProducer | None = None,
) -> None:
    """Commit the progress of a replay, and what a transactional producer has sent with it.

    Raises ReplayError if it is refused, AdminError.
    """
    offsets = {
        TopicPartition(source, index): CommittedOffset(
            state.next_offset, metadata=msgspec.json.encode(state.note).decode()
        )
        for index, state in states.items()
    }
    try:
        if producer is None:
            settled(admin.offsets.alter(name, offsets))
        else:
            producer.commit(name, offsets)
    except BrokerError as error:
        raise refused(name, f"group {name} does not take the progress in {source}", error) from error


def refused(name: str, what: str, error: AdminError) -> ReplayError:
    code = error.code if isinstance(error, BrokerError) else None
    if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return ReplayError(f"{name} runs elsewhere too, or did a moment ago: {what}: {error}")
    if code in FENCED:
        return ReplayError(f"{name} runs elsewhere now, or its transaction took too long: {what}: {error}")
    return ReplayError(f"{what}: {error}")


def landed(
    admin: AdminClient, name: str, index: int, state: ReplayState, targets: Sequence[TopicPartition]
) -> list[bool]:
    """Return for each target partition whether it has all that was being sent when the note was written.

    `index` is the source's partition. Raises ReplayError if that is unknown; AdminError.
    """
    note = state.note
    if not any(note.counts):
        return [True] * len(targets)
    try:
        producers = settled(admin.partitions.producers(targets))
    except BrokerError as error:
        raise ReplayError(f"{name}: {targets[0].topic} does not say which records it has: {error}") from error
    complete = []
    for target, sequence, count in zip(targets, note.sequences, note.counts, strict=True):
        last = [
            producer.last_sequence
            for producer in producers[target]
            if (producer.producer_id, producer.epoch) == note.identity
        ]
        ahead = (last[0] + 1 - sequence) % SEQUENCES if last else 0
        if count and not last:
            _check_remembered(admin, name, index, state, target)
        elif last and ahead not in (0, count):
            raise ReplayError(
                f"{name}: {target} has the replay's records up to number {last[0]}, where {sequence - 1} or"
                f" {sequence + count - 1} is expected: it runs elsewhere now, or {target.topic} has lost records"
            )
        complete.append(not count or ahead == count)
    return complete


def _check_remembered(
    admin: AdminClient, name: str, index: int, state: ReplayState, target: TopicPartition
) -> None:
    """Raise ReplayError if a producer that the target does not know may have expired there."""
    note = state.note
    # A producer that appended since the note was written is remembered at least that long.
    if now_ms() - note.at_ms < _expiration_ms(admin) - _CLOCKS_MS_MAX:
        return
    raise ReplayError(
        f"{name} was stopped for longer than brokers remember producers ({_EXPIRATION}): it is unknown whether offsets"
        f" {state.next_offset} to {note.through - 1} of partition {index} were appended to {target}. Check there, then"
        f" go on under another name from the right one: --name NAME --partition {index} --to-offset {note.end}"
        f" --from-offset {state.next_offset} or {note.through}"
    )


def now_ms() -> int:
    """Return the time of this machine's clock (ms)."""
    return time.time_ns() // 1_000_000


def _expiration_ms(admin: AdminClient) -> int:
    broker = Resource.broker(min(admin.topology().brokers, default=0))
    try:
        configs = settled(admin.configs.describe([broker], names=[_EXPIRATION]))[broker]
    except BrokerError as error:
        raise ReplayError(
            f"brokers do not say how long they remember producers ({_EXPIRATION}): {error}"
        ) from error
    config = configs.get(_EXPIRATION)
    return _EXPIRATION_DEFAULT_MS if config is None or config.value is None else int(config.value)
