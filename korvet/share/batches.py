"""Batches of what was read of a log, for a member that has acquired it: nothing of it may be left out.

No batch has records of two leader epochs, or of two producers of transactions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Self

from korvet_core import BatchesBuilder

from korvet.config.definition import INT32_MAX
from korvet.log.epochs import FIRST_EPOCH, Epochs, epoch_at, next_epoch_start
from korvet.log.record_format import DATA
from korvet.log.types import Fetched, end_of
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.control import COMMIT, control_record
from korvet.protocol.records.record import StoredRecord
from korvet.protocol.wire import Buffer
from korvet.topics.registry import Topic


class RecordCollector(BatchesBuilder):
    """Builds batches of the records of format `record`."""

    def __new__(cls, topic: Topic, offset: int) -> Self:
        """Take the records of a topic, the first of which is at an offset."""
        return super().__new__(
            cls,
            codec=topic.config.codec,
            leader_epoch=FIRST_EPOCH,
            bytes_max=INT32_MAX,
            at_least_one=True,
            log_append_time=topic.config.log_append_time,
            next_offset=offset,
        )

    def take(self, fetched: Fetched) -> None:
        """Take what was read."""
        records, epochs, position = fetched.records, fetched.epochs, 0
        for run in fetched.producers:
            self._take_part(records, epochs, position, run.start)
            part, position = _part(records, run.start, run.stop), run.stop
            self.begin_producer(run.producer_id, run.producer_epoch)
            if run.control == DATA:
                self._take_records(part, epochs)
            else:
                [(offset, timestamp, *_)] = part
                self.begin_epoch(epoch_at(epochs, offset))
                self.add_control(control_record(run.control == COMMIT, timestamp, offset))
        self._take_part(records, epochs, position, len(records))

    def _take_part(self, records: Sequence[StoredRecord], epochs: Epochs, start: int, stop: int) -> None:
        """Take those between two runs."""
        if start < stop:
            self.begin_producer()
            self._take_records(_part(records, start, stop), epochs)

    def _take_records(self, records: Sequence[StoredRecord], epochs: Epochs) -> None:
        if records and next_epoch_start(epochs, self.next_offset) < end_of(records):
            for epoch, part in groupby(records, key=lambda record: epoch_at(epochs, record[0])):
                self.begin_epoch(epoch)
                self.add(list(part))
        else:
            self.begin_epoch(epoch_at(epochs, self.next_offset))
            self.add(records)


def _part(records: Sequence[StoredRecord], start: int, stop: int) -> Sequence[StoredRecord]:
    return records.part(start, stop) if isinstance(records, Columns) else records[start:stop]


class BatchCollector:
    """Passes on the batches of format `batch` as they are: no record is looked at, nothing is copied."""

    def __init__(self) -> None:
        self._chunks: list[Buffer] = []
        self.record_count = 0

    def take(self, fetched: Fetched) -> None:
        """Take what was read."""
        epoch, epoch_stop = FIRST_EPOCH, -math.inf
        for batch in fetched.batches:
            if batch.base_offset >= epoch_stop:
                epoch = epoch_at(fetched.epochs, batch.base_offset)
                epoch_stop = next_epoch_start(fetched.epochs, batch.base_offset)
            self._chunks += batch.chunks(epoch)
            self.record_count += batch.record_count

    def finish(self) -> list[Buffer]:
        """Return the batches, in pieces."""
        return self._chunks
