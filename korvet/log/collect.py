"""What a fetch asks of a partition and gets, and how what was read becomes record batches for the consumer.

No batch has records of two leader epochs, or of two producers of transactions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Self

import msgspec
from korvet_core import BatchesBuilder

from korvet.errors import ErrorCode, KafkaError, partition_code
from korvet.log.epochs import FIRST_EPOCH, NO_EPOCH, Epochs, EpochStart, epoch_at, next_epoch_start
from korvet.log.record_format import DATA
from korvet.log.types import AbortedTransaction, Bounds, Fetched, end_of
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.compression import Codec
from korvet.protocol.records.control import COMMIT, control_record
from korvet.protocol.records.record import StoredRecord
from korvet.protocol.wire import Buffer
from korvet.topics.registry import Topic
from korvet.topics.types import Partition


def collector_for(
    spec: FetchPartitionSpec, bytes_max: int, *, at_least_one: bool
) -> RecordCollector | BatchCollector:
    """Return an empty collector for a partition."""
    collector = BatchCollector if spec.partition.format == "batch" else RecordCollector
    return collector(spec, bytes_max, at_least_one=at_least_one)


def collect(
    collector: RecordCollector | BatchCollector | None,
    spec: FetchPartitionSpec,
    fetched: Fetched,
    room: int,
    *,
    first: bool,
) -> tuple[RecordCollector | BatchCollector, int, int]:
    """Take what fits into `room`; returns the partition's collector, and the bytes and the entries taken."""
    prepared = fetched.prepared
    if collector is not None:
        # Others of the request may have used up what it could have had when it began.
        collector.limit(room)
    elif isinstance(prepared, PreparedCollector) and prepared.suits(spec, room, fetched):
        return prepared.collector, prepared.size_bytes, prepared.entries
    else:
        collector = collector_for(spec, room, at_least_one=first)
    return collector, *collector.take(fetched)


def without_batches(
    spec: FetchPartitionSpec, offset: int, bounds: Bounds | KafkaError
) -> Fetched | KafkaError:
    """Return the bounds of a log as a read from an offset on that has found nothing of what there may be."""
    if isinstance(bounds, KafkaError):
        return bounds
    found = Fetched(
        *(bounds.log_start, bounds.first_offset, bounds.high_watermark, []),
        more=False,
        remote=bounds.remote,
        epochs=bounds.epochs,
        open_offset=bounds.open_offset,
        aborted=[] if spec.committed else None,
    )
    return found._replace(more=offset < found.visible_end)


def merge_aborted(
    known: list[AbortedTransaction] | None, found: Sequence[AbortedTransaction] | None
) -> list[AbortedTransaction] | None:
    """Return what was aborted by two reads that follow each other, each once; None if nobody asked."""
    if found is None or not known:
        return known if found is None else list(found)
    return list(dict.fromkeys((*known, *found)))


class FetchPartitionSpec(msgspec.Struct, frozen=True):
    """One partition of a fetch: the offset to read from, and its limit in bytes.

    `leader_epoch` is the current one by what the client knows, `last_fetched_epoch` that of the record before the
    offset; NO_EPOCH: the client gives none.
    `committed`: what lies past the last stable offset is not asked for (read_committed).
    """

    topic: Topic
    partition: Partition
    offset: int
    bytes_max: int
    leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    committed: bool = False

    @property
    def codec(self) -> Codec:
        """The codec of batches that are built for the consumer."""
        return self.topic.config.codec


class FetchResult(msgspec.Struct):
    """The result for one partition: an error, or record batches, in pieces, and bounds (-1: unknown).

    `size_bytes` are as the limits count them, without compression on the way; `record_count` is that of the batches.
    `diverging`: the log has no record of the client's last epoch at its position, and where it ends instead (KIP-595).
    `from_remote`: they are from the remote tier, or its answer did not come in time and the consumer is to retry.
    `withheld`: the log goes on past the high watermark, and no append announces that replicas have more of it.
    `aborted` are the transactions of which the batches have records that do not count, None if all are asked for.
    With an error the rest is empty and unknown, as in Apache Kafka.
    """

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    chunks: list[Buffer] = []
    size_bytes: int = 0
    record_count: int = 0
    from_remote: bool = False
    withheld: bool = False
    diverging: EpochStart | None = None
    aborted: list[AbortedTransaction] | None = None

    @classmethod
    def refused(cls, error: KafkaError) -> FetchResult:
        """Return the result of a partition that was not read (Kafka's FetchResponse.partitionResponse)."""
        return cls(error=partition_code(error), aborted=[])

    def is_quiet(self, spec: FetchPartitionSpec) -> bool:
        """Return whether this is a read of the end of what may be read, at which there was nothing.

        An append announces what comes there: more of the log, or the marker of a transaction. Nothing is held back.
        """
        return self.readable_end(spec) == spec.offset and not (
            self.error or self.chunks or self.diverging or self.from_remote or self.withheld
        )

    def readable_end(self, spec: FetchPartitionSpec) -> int:
        """Return the offset at which what may be read ends."""
        return self.last_stable_offset if spec.committed else self.high_watermark


class RecordCollector(BatchesBuilder):
    """Builds batches of the records of format `record`."""

    def __new__(cls, spec: FetchPartitionSpec, bytes_max: int, *, at_least_one: bool) -> Self:
        """Take `bytes_max` bytes, or with `at_least_one` one record of any size, from the offset of `spec` on."""
        return super().__new__(
            cls,
            codec=spec.codec,
            leader_epoch=FIRST_EPOCH,
            bytes_max=bytes_max,
            at_least_one=at_least_one,
            log_append_time=spec.topic.config.log_append_time,
            next_offset=spec.offset,
        )

    def take(self, fetched: Fetched) -> tuple[int, int]:
        """Take what fits; returns the bytes and the entries taken."""
        left, count = self.plain_bytes_left, self.record_count
        if fetched.producers:
            self._take_runs(fetched)
        else:
            self.begin_producer()
            self._take_records(fetched.records, fetched.epochs)
        return left - self.plain_bytes_left, self.record_count - count

    def _take_runs(self, fetched: Fetched) -> None:
        """Take records some of which are of transactions."""
        records, epochs, position = fetched.records, fetched.epochs, 0
        for run in fetched.producers:
            self._take_part(records, epochs, position, run.start)
            part, position = _part(records, run.start, run.stop), run.stop
            if self.full:
                return
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
        if start < stop and not self.full:
            self.begin_producer()
            self._take_records(_part(records, start, stop), epochs)

    def _take_records(self, records: Sequence[StoredRecord], epochs: Epochs) -> None:
        if records and next_epoch_start(epochs, self.next_offset) < end_of(records):
            for epoch, part in groupby(records, key=lambda record: epoch_at(epochs, record[0])):
                if not self.full:
                    self.begin_epoch(epoch)
                    self.add(list(part))
        else:
            self.begin_epoch(epoch_at(epochs, self.next_offset))
            self.add(records)


def _part(records: Sequence[StoredRecord], start: int, stop: int) -> Sequence[StoredRecord]:
    return records.part(start, stop) if isinstance(records, Columns) else records[start:stop]


class BatchCollector:
    """Passes on the batches of format `batch` as they are: no record is looked at, nothing is copied."""

    def __init__(self, spec: FetchPartitionSpec, bytes_max: int, *, at_least_one: bool) -> None:
        self._bytes_left = bytes_max
        self._take_next = at_least_one
        self._chunks: list[Buffer] = []
        self.next_offset = spec.offset
        self.full = False
        self.record_count = 0

    def limit(self, bytes_left: int) -> None:
        """Take no more than `bytes_left` from here on."""
        self._bytes_left = min(self._bytes_left, bytes_left)

    def take(self, fetched: Fetched) -> tuple[int, int]:
        """Take what fits; returns the bytes and the entries taken."""
        left, taken = self._bytes_left, 0
        epoch, epoch_stop = FIRST_EPOCH, -math.inf
        for batch in fetched.batches:
            if batch.size_bytes > left and not self._take_next:
                self.full = True
                break
            self._take_next = False
            if batch.base_offset >= epoch_stop:
                epoch = epoch_at(fetched.epochs, batch.base_offset)
                epoch_stop = next_epoch_start(fetched.epochs, batch.base_offset)
            self._chunks += batch.chunks(epoch)
            left -= batch.size_bytes
            taken += 1
            self.record_count += batch.record_count
        size_bytes, self._bytes_left = self._bytes_left - left, left
        if taken:
            self.next_offset = fetched.batches[taken - 1].next_offset
        return size_bytes, taken

    def finish(self) -> list[Buffer]:
        """Return the batches, in pieces."""
        return self._chunks


class PreparedCollector(msgspec.Struct, frozen=True):
    """A collector that has taken what was read ahead for a fetch that is expected to ask as the one before."""

    spec: FetchPartitionSpec
    collector: RecordCollector | BatchCollector
    fetched: Fetched
    size_bytes: int
    entries: int

    def suits(self, spec: FetchPartitionSpec, room: int, fetched: Fetched) -> bool:
        """Return whether a new collector with `room` would have taken the same of `fetched`."""
        expected, found = self.spec, self.fetched
        return (
            # Nothing was taken of what the first of a fetch is given at any size.
            self.entries > 0
            and room == expected.bytes_max
            and spec.topic is expected.topic
            and spec.committed == expected.committed
            # Unless it was cut at the high watermark, or the last stable offset.
            and fetched.records is found.records
            and fetched.batches is found.batches
        )


def prepare(spec: FetchPartitionSpec, fetched: Fetched) -> PreparedCollector:
    """Return a collector that has taken `fetched`, for a fetch like that of `spec`."""
    collector = collector_for(spec, spec.bytes_max, at_least_one=False)
    return PreparedCollector(spec, collector, fetched, *collector.take(fetched))
