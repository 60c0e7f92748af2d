"""Copies a topic into a new one: its committed records, and the offsets that groups have committed.

The records of each partition come in order into the partition of the same number, by an idempotent producer. An offset
of a group becomes that of the first record copied from there on, or the end if there is none. Nobody may write to the
source or commit offsets in it meanwhile: the copy checks both at its end.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, zip_longest
from typing import NamedTuple

import korvet_core
import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.connection import Deadline
from korvet.admin.errors import AdminError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from korvet.admin.groups import EMPTY, SHARE
from korvet.admin.offsets import EARLIEST, LATEST, CommittedOffset
from korvet.admin.producer import IdempotentProducer, batch_bytes_max, new_identity
from korvet.admin.records import FetchedBatch, FetchedSlice
from korvet.admin.topics import NewTopic
from korvet.admin.types import ConfigSource, Resource, TopicPartition, settled
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.batch import CRC_FROM, BatchHeader, each_record
from korvet.protocol.records.record import StoredRecord

_FETCH_BYTES = 16 * 1024 * 1024
_WAIT_MS = 500
_DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
_BATCH_BYTES = 256 * 1024
_BATCH_RECORDS = 2_000
"""Far below the default of max.message.records, by which Korvet limits batches of topics of format record."""

_LAYOUT = ("offset.encoding", "offset.sequence.bits", "storage.format")
"""Configs that Korvet gives to each topic at its creation, which the copy is to have as well."""


class CopyError(AdminError):
    """The topic cannot be copied, or not to the end; the message says why."""


class CopiedOffset(msgspec.Struct, frozen=True):
    """A group's committed offset, of a share group its start, in the source and in the target."""

    group: str
    partition: int
    before: int
    after: int


class CopyStep(NamedTuple):
    """Progress of a copy: records and bytes that are appended, or lines about batches that cannot be read."""

    records: int = 0
    size: int = 0
    skipped: Sequence[str] = ()


class _CopiedBatch(NamedTuple):
    """A batch to produce, and the offset in the source of each of its records."""

    content: bytes
    offsets: Sequence[int]


_Commits = dict[str, dict[TopicPartition, CommittedOffset]]


class TopicCopy:
    """One copy: the constructor plans it and changes nothing, `create` creates the target, `run` copies.

    `offsets` are those of the groups, once `run` has ended.
    """

    def __init__(self, admin: AdminClient, source: str, target: str, configs: Mapping[str, str]) -> None:
        """Override by `configs` those that the source itself has.

        Raises AdminError: UnknownTopicOrPartitionError, CopyError for groups with members.
        """
        self._admin = admin
        self._target = target
        self.offsets: list[CopiedOffset] = []
        partitions = settled(admin.topics.describe([source]))[source].partitions
        self._partitions = [TopicPartition(source, description.partition) for description in partitions]
        resource = Resource.topic(source)
        own: dict[str, str | None] = {
            config.name: config.value
            for config in settled(admin.configs.describe([resource]))[resource].values()
            if config.source is ConfigSource.TOPIC or config.name in _LAYOUT
        }
        if configs.get("storage.format") == "batch":
            own.pop("offset.encoding", None)
        self._new = NewTopic(target, len(partitions), len(partitions[0].replicas), configs={**own, **configs})
        self._share_groups: set[str] = set()
        self._commits = self._committed()
        self._positions = self._at(EARLIEST)
        self._ends = self._at(LATEST)
        # The committed offsets of each partition that the copy has not reached, and what became of the others.
        self._awaited = {
            key: sorted({offsets[key].offset for offsets in self._commits.values() if key in offsets})
            for key in self._partitions
        }
        self._reached: dict[tuple[TopicPartition, int], int] = {}

    def create(self) -> None:
        """Create the target. Raises AdminError: TopicExistsError."""
        settled(self._admin.topics.create([self._new]))

    def run(self) -> Iterator[CopyStep]:
        """Copy records, step by step, and then offsets into the target that `create` has created.

        Raises AdminError: the target is incomplete.
        """
        self._admin.retry(self._check_leaders)
        bytes_max = batch_bytes_max(self._admin, self._target) or sys.maxsize
        producer = IdempotentProducer(self._admin, new_identity(self._admin))
        deadline = self._admin.deadline()
        while left := {key: offset for key, offset in self._positions.items() if offset < self._ends[key]}:
            slices = self._read(left)
            skipped: list[str] = []
            batches = [self._batches(key, slices[key], bytes_max, skipped) for key in slices]
            yield CopyStep(skipped=skipped)
            yield from self._append(producer, batches)
            if any(self._positions[key] > offset for key, offset in left.items()):
                deadline = self._admin.deadline()
            else:
                self._check_more_can_come(slices, deadline)
        self._check_unchanged()
        self._commit()

    def _at(self, timestamp: int) -> dict[TopicPartition, int]:
        offsets = settled(self._admin.offsets.at(dict.fromkeys(self._partitions, timestamp)))
        return {key: offset.offset for key, offset in offsets.items()}

    def _committed(self) -> _Commits:
        """Return the offsets of all groups in the source. Raises CopyError if one of these groups has members."""
        groups = self._admin.groups.list()
        self._share_groups = {group.group_id for group in groups if group.type == SHARE}
        starts = settled(
            self._admin.offsets.of_share_groups(dict.fromkeys(self._share_groups, self._partitions))
        )
        commits: _Commits = {}
        for group in groups:
            group_id = group.group_id
            commits[group_id] = (
                {key: CommittedOffset(offset.start) for key, offset in starts[group_id].items()}
                if group_id in starts
                else self._admin.offsets.committed(group_id, self._partitions, stable=True)
            )
        live = [group.group_id for group in groups if commits[group.group_id] and group.state != EMPTY]
        if live:
            raise CopyError("; ".join(f"group {group_id} has members: stop them" for group_id in live))
        return {group_id: offsets for group_id, offsets in commits.items() if offsets}

    def _check_leaders(self, deadline: Deadline) -> None:
        """Raise a retriable error while brokers do not know the new topic."""
        topology = self._admin.topology_now([self._target], deadline)
        for key in self._partitions:
            leader = topology.leader(self._in_target(key))
            if isinstance(leader, AdminError):
                leader.retriable |= isinstance(leader, UnknownTopicOrPartitionError)
                raise leader

    def _in_target(self, key: TopicPartition) -> TopicPartition:
        return key._replace(topic=self._target)

    def _read(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, FetchedSlice]:
        """Return the next slices; of partitions whose next records retention has deleted, only move the position."""
        outcomes = self._admin.records.read_committed(positions, bytes_max=_FETCH_BYTES, wait_ms=_WAIT_MS)
        deleted = [key for key, outcome in outcomes.items() if isinstance(outcome, OffsetOutOfRangeError)]
        starts = self._at(EARLIEST) if deleted else {}
        for key in deleted:
            if starts[key] > positions[key]:
                self._positions[key] = starts[key]
                del outcomes[key]
        return settled(outcomes)

    def _batches(
        self, key: TopicPartition, slice_: FetchedSlice, bytes_max: int, skipped: list[str]
    ) -> list[tuple[TopicPartition, _CopiedBatch]]:
        """Return the batches to append of a slice, and move the position past it."""
        begin, self._positions[key] = self._positions[key], slice_.next_offset
        unread: list[str] = []
        try:
            batches = [(key, batch) for batch in _rebuilt(slice_.batches, begin, bytes_max, unread)]
        except KafkaError as error:
            raise CopyError(f"partition {key}, after offset {begin}: {error.message}") from error
        skipped += [f"partition {key}, {line}" for line in unread]
        return batches

    def _append(
        self,
        producer: IdempotentProducer,
        batches: Sequence[Sequence[tuple[TopicPartition, _CopiedBatch]]],
    ) -> Iterator[CopyStep]:
        """Append batches, one of each partition at a time."""
        for row in zip_longest(*batches):
            sending = dict(filter(None, row))
            sent = settled(
                producer.send({self._in_target(key): batch.content for key, batch in sending.items()})
            )
            for key, batch in sending.items():
                self._reach(key, batch.offsets, sent[self._in_target(key)])
                yield CopyStep(len(batch.offsets), len(batch.content))

    def _reach(self, key: TopicPartition, offsets: Sequence[int], base_offset: int) -> None:
        """Note what becomes of the committed offsets up to the last of `offsets`, copied from `base_offset` on."""
        awaited = self._awaited[key]
        while awaited and awaited[0] <= offsets[-1]:
            if base_offset < 0:
                raise CopyError(f"{self._in_target(key)} has a batch whose offset its broker has forgotten")
            offset = awaited.pop(0)
            self._reached[key, offset] = base_offset + bisect_left(offsets, offset)

    def _check_more_can_come(self, slices: Mapping[TopicPartition, FetchedSlice], deadline: Deadline) -> None:
        """Raise CopyError if the slices, which are empty, will not have records, or had none until the deadline."""
        for key, slice_ in slices.items():
            if slice_.stable_end <= self._positions[key]:
                raise CopyError(
                    f"partition {key} has an open transaction, from offset {slice_.stable_end} on"
                )
            if not deadline.left():
                raise CopyError(f"partition {key} has no records at offset {self._positions[key]}")

    def _check_unchanged(self) -> None:
        """Raise CopyError if somebody has written to the source, or committed an offset in it."""
        for key, end in self._at(LATEST).items():
            if end != self._ends[key]:
                raise CopyError(
                    f"partition {key} has grown from offset {self._ends[key]} to {end}: stop its writers"
                )
        commits = self._committed()
        changed = [
            group_id
            for group_id in sorted(commits | self._commits)
            if commits.get(group_id) != self._commits.get(group_id)
        ]
        if changed:
            raise CopyError(
                "; ".join(f"group {group_id} has committed: stop its members" for group_id in changed)
            )

    def _commit(self) -> None:
        """Commit the offsets of all groups in the target."""
        ends = settled(self._admin.offsets.at({self._in_target(key): LATEST for key in self._partitions}))
        for group_id, commits in self._commits.items():
            after: dict[TopicPartition, CommittedOffset] = {}
            for key, commit in commits.items():
                in_target = self._in_target(key)
                offset = self._reached.get((key, commit.offset), ends[in_target].offset)
                after[in_target] = CommittedOffset(offset, metadata=commit.metadata)
                self.offsets.append(CopiedOffset(group_id, key.partition, commit.offset, offset))
            if group_id in self._share_groups:
                starts = {key: commit.offset for key, commit in after.items()}
                outcomes = self._admin.offsets.alter_share_group(group_id, starts)
            else:
                outcomes = self._admin.offsets.alter(group_id, after)
            try:
                settled(outcomes)
            except AdminError as error:
                raise CopyError(f"group {group_id}: {error}") from error


def _rebuilt(
    batches: Iterable[FetchedBatch], begin: int, bytes_max: int, skipped: list[str]
) -> Iterator[_CopiedBatch]:
    """Yield batches of the records from offset `begin` on as a producer sends them, each in the codec that it had.

    They have `bytes_max` bytes at most unless a record takes more. `skipped` gets a line about each batch that cannot
    be read. Raises KafkaError MESSAGE_TOO_LARGE.
    """
    for codec, group in groupby(batches, key=lambda fetched: fetched.header.codec):
        records = _records(group, begin, skipped)
        left: list[StoredRecord] = []
        while left := [*left, *islice(records, _BATCH_RECORDS - len(left))]:
            builder = korvet_core.BatchesBuilder(
                codec=codec, leader_epoch=-1, bytes_max=min(_BATCH_BYTES, bytes_max), at_least_one=True
            )
            builder.add([(index, *record[1:]) for index, record in enumerate(left)])
            count = builder.record_count
            [batch] = builder.finish()
            yield _CopiedBatch(bytes(batch), [offset for offset, *_ in left[:count]])
            del left[:count]


def _records(batches: Iterable[FetchedBatch], begin: int, skipped: list[str]) -> Iterator[StoredRecord]:
    for header, batch in batches:
        try:
            records = _decoded(header, batch)
        except KafkaError as error:
            if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                raise
            last = header.base_offset + header.last_offset_delta
            skipped.append(f"offsets {header.base_offset} to {last}: {error.message}")
        else:
            yield from (record for record in records if record[0] >= begin)


def _decoded(header: BatchHeader, batch: memoryview) -> list[StoredRecord]:
    if korvet_core.crc32c(batch[CRC_FROM:]) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the CRC does not match the batch")
    return list(each_record(batch, header.base_offset, _DECOMPRESSED_BYTES_MAX))
