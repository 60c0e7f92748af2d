"""Offsets by question: the start and end of a log, the offset that belongs to a timestamp, the end of an epoch.

Knows the special timestamps of ListOffsets and what "not found" is; nothing of messages. A search by timestamp goes
through the log from its start: correct, and slow on a long log. In format `batch` only such batches are decoded whose
header says that the answer may lie in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import msgspec

from korvet.domain.cluster import LEADER_EPOCH
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.batch import ProducedBatch
from korvet.storage.batch_entry import StoredBatch
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Bounds, Partition, Read

SCAN_RECORDS, SCAN_BATCHES = 1000, 64
"""Entries per step of a search: a step holds up neither Redis nor the other greenlets of the worker for long."""


class SpecialTimestamp(IntEnum):
    """Negative timestamps of ListOffsets, each a question of its own."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class OffsetFound(msgspec.Struct, frozen=True):
    """An offset with its timestamp (ms) and leader epoch; all -1 where no record answers the question."""

    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


def is_fenced(answer: OffsetFound | KafkaError) -> bool:
    """Tell whether the log does not know the partition that was asked for: it was deleted, or made anew."""
    return isinstance(answer, KafkaError) and answer.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Question(msgspec.Struct, frozen=True):
    """A timestamp in ms, or a SpecialTimestamp, for one partition."""

    partition: Partition
    timestamp: int


class Run(NamedTuple):
    """A piece of the log: its largest timestamp, and the offset and timestamp of each of its records."""

    max_timestamp: int
    stamps: Callable[[], list[tuple[int, int]]]


class Offsets:
    """Answers questions for offsets."""

    def __init__(self, log: LogStore, decompressed_bytes_max: int) -> None:
        """`decompressed_bytes_max` is record.decompressed.max.bytes."""
        self._log = log
        self._decompressed_bytes_max = decompressed_bytes_max

    def find(self, questions: Sequence[Question]) -> list[OffsetFound | KafkaError]:
        """Answer each question, in order.

        A timestamp's answer is the first record, by offset, whose timestamp is not smaller; there may be none.
        """
        bounds = self._log.bounds([question.partition for question in questions])
        return [
            found if isinstance(found, KafkaError) else self._answer(question, found)
            for question, found in zip(questions, bounds, strict=True)
        ]

    def epoch_ends(self, partitions: Sequence[tuple[Partition, int]]) -> list[OffsetFound | KafkaError]:
        """Return the end of the log for each partition asked for its present leader epoch; none for another epoch."""
        bounds = self._log.bounds([partition for partition, _ in partitions])
        answers: list[OffsetFound | KafkaError] = []
        for (_, epoch), found in zip(partitions, bounds, strict=True):
            if isinstance(found, KafkaError):
                answers.append(found)
            elif epoch == LEADER_EPOCH:
                answers.append(OffsetFound(found.high_watermark, leader_epoch=LEADER_EPOCH))
            else:
                answers.append(OffsetFound())
        return answers

    def _answer(self, question: Question, bounds: Bounds) -> OffsetFound | KafkaError:
        try:
            match question.timestamp:
                case SpecialTimestamp.LATEST:
                    return OffsetFound(bounds.high_watermark, leader_epoch=LEADER_EPOCH)
                case SpecialTimestamp.EARLIEST | SpecialTimestamp.EARLIEST_LOCAL:
                    return OffsetFound(bounds.first_offset, leader_epoch=LEADER_EPOCH)
                case SpecialTimestamp.LATEST_TIERED | SpecialTimestamp.EARLIEST_PENDING_UPLOAD:
                    return OffsetFound()
                case SpecialTimestamp.MAX_TIMESTAMP:
                    return self._largest(question.partition, bounds)
                case timestamp:
                    return self._first_from(question.partition, bounds, timestamp)
        except KafkaError as error:
            return error

    def _first_from(self, partition: Partition, bounds: Bounds, timestamp: int) -> OffsetFound:
        for run in self._runs(partition, bounds):
            if run.max_timestamp >= timestamp:
                for offset, at in run.stamps():
                    if at >= timestamp:
                        return OffsetFound(offset, at, LEADER_EPOCH)
        return OffsetFound()

    def _largest(self, partition: Partition, bounds: Bounds) -> OffsetFound:
        largest = OffsetFound()
        for run in self._runs(partition, bounds):
            if run.max_timestamp > largest.timestamp:
                offset, at = max(run.stamps(), key=itemgetter(1))
                if at > largest.timestamp:
                    largest = OffsetFound(offset, at, LEADER_EPOCH)
        return largest

    def _runs(self, partition: Partition, bounds: Bounds) -> Iterator[Run]:
        """Yield the log up to the high watermark, in order: batch by batch, or so many records at a time."""
        offset = bounds.first_offset
        count = SCAN_BATCHES if partition.format == "batch" else SCAN_RECORDS
        while offset < bounds.high_watermark:
            [fetched] = self._log.read([Read(partition, offset, count)])
            if isinstance(fetched, KafkaError):
                raise fetched
            if fetched.batches:
                for batch in fetched.batches:
                    yield Run(batch.header.max_timestamp, partial(self._stamps, batch))
                offset = fetched.batches[-1].next_offset
            elif fetched.records:
                stamps = [(record[0], record[1]) for record in fetched.records]
                yield Run(max(at for _, at in stamps), partial(list, stamps))
                offset = stamps[-1][0] + 1
            else:
                return

    def _stamps(self, batch: StoredBatch) -> list[tuple[int, int]]:
        header = batch.header
        whole = memoryview(b"".join(batch.chunks(LEADER_EPOCH)))
        try:
            records = ProducedBatch(header, whole).records(self._decompressed_bytes_max)
        except KafkaError:
            # Nobody has looked at its records before: what its header says must do, and the search goes on.
            return [(batch.base_offset, header.max_timestamp)]
        return [(batch.base_offset + delta, record.timestamp) for delta, record in enumerate(records)]
