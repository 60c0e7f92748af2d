"""Transactions in logs, as producers and a coordinator write them, and what a consumer makes of them.

The consumer is aiokafka's.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, PartitionRecords
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from korvet.log.appends import Marker
from korvet.log.markers import MarkerWriter
from korvet.log.types import Appended
from tests.support.appends import append_of
from tests.support.batches import Record
from tests.support.domain import Domain

_NUMBERS = itertools.count(1)


class TransactionalProducer:
    """A producer with an id and epoch, whose transactions come one after the other."""

    def __init__(self, view: Domain, topic: str = "orders", producer_id: int = 7, epoch: int = 0) -> None:
        self._view = view
        self._topic = topic
        self._id, self._epoch = producer_id, epoch
        self._number = next(_NUMBERS)
        self._sequences = defaultdict[int, int](int)

    def write(self, *records: Record | bytes | None, partition: int = 0) -> int:
        """Append a batch of the transaction, which this begins if none is open; returns its base offset."""
        sequence = self._sequences[partition]
        topic = self._view.topics.get(self._topic)
        append = append_of(
            topic.partition(partition),
            *records,
            config=topic.config,
            number=self._number,
            producer_id=self._id,
            epoch=self._epoch,
            sequence=sequence,
        )
        [result] = self._view.log.append([append])
        assert isinstance(result, Appended), result
        self._sequences[partition] = sequence + len(records)
        return result.base_offset

    def commit(self, *partitions: int) -> None:
        """Commit the transaction in partitions, 0 by default."""
        self._end(partitions, commit=True)

    def abort(self, *partitions: int) -> None:
        """Abort it there."""
        self._end(partitions, commit=False)

    def _end(self, partitions: Sequence[int], *, commit: bool) -> None:
        topic = self._view.topics.get(self._topic)
        markers = [
            Marker(topic.partition(index), self._id, self._epoch, self._number, commit)
            for index in partitions or (0,)
        ]
        assert MarkerWriter(self._view.log, self._view.replicas).write(markers) == [None] * len(markers)
        self._number = next(_NUMBERS)


class Consumed(NamedTuple):
    """What a consumer makes of an answer: values of records, and the offset that it asks for next."""

    values: list[bytes | None]
    position: int


def consumed(
    data: bytes, offset: int, aborted: Iterable[tuple[int, int]] = (), *, committed: bool
) -> Consumed:
    """Return what a consumer that asked for `offset` makes of record batches; fails on a wrong CRC."""
    isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
    records: Any = PartitionRecords(
        *(
            TopicPartition("orders", 0),
            MemoryRecords(data),
            list(aborted),
            offset,
            None,
            None,
            True,
            isolation,
        )
    )
    return Consumed([record.value for record in records], records.next_fetch_offset)
