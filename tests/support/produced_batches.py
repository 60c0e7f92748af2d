"""Batches of producers as the core checks and recompresses them, with what its walk over the records saw."""

from __future__ import annotations

from typing import NamedTuple

import korvet_core

from korvet.protocol.records.batch import BatchHeader
from korvet.protocol.records.compression import refusals
from korvet.protocol.wire import Buffer


class Walk(NamedTuple):
    """What the walk over the records of a produced batch saw; timestamps in milliseconds, NO_TIMESTAMP among them."""

    plain_bytes: int
    min_timestamp: int
    max_timestamp: int
    null_keys: int


class ProducedBatch:
    """A producer's batch that passed the checks of its header, with its bytes."""

    def __init__(self, header: BatchHeader, view: memoryview) -> None:
        self.header, self.view = header, view

    def as_stored(self, bytes_max: int, *, codec: int | None = None) -> tuple[ProducedBatch, Walk]:
        """Check the records; returns the batch to store: in another codec, if one is given, else this one."""
        with refusals():
            walk, changed = korvet_core.walk(self.view, bytes_max, codec, None)
        batch = self if changed is None else ProducedBatch(BatchHeader.read(changed), memoryview(changed))
        return batch, Walk._make(walk)


def produced_batch(records: Buffer, message_bytes_max: int) -> ProducedBatch:
    """Check the header of a producer's batch; raises KafkaError."""
    with refusals():
        korvet_core.check_header(records, message_bytes_max)
    return ProducedBatch(BatchHeader.read(records), memoryview(records))
