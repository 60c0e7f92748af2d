"""What a fetch asks of a partition and gets, and how what was read becomes record batches for the consumer.

No batch has records of two leader epochs.
"""

from __future__ import annotations

import math
from itertools import groupby

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.log.epochs import FIRST_EPOCH, NO_EPOCH, EpochStart, epoch_at, next_epoch_start
from korvet.log.types import Fetched
from korvet.protocol.records.builder import BatchesBuilder
from korvet.protocol.records.compression import Codec
from korvet.protocol.wire import Buffer
from korvet.topics.registry import Topic
from korvet.topics.types import Partition

_ZSTD = int(Codec.zstd)


def collector_for(
    spec: FetchPartitionSpec, bytes_max: int, *, at_least_one: bool
) -> RecordCollector | BatchCollector:
    """Return an empty collector for a partition; raises as RecordCollector."""
    collector = BatchCollector if spec.partition.format == "batch" else RecordCollector
    return collector(spec, bytes_max, at_least_one=at_least_one)


class FetchPartitionSpec(msgspec.Struct, frozen=True):
    """One partition of a fetch: the offset to read from, and its limit in bytes.

    `zstd_known`: the version of the request may be answered with zstd (KIP-110). `leader_epoch` is the current one by
    what the client knows, `last_fetched_epoch` that of the record before the offset; NO_EPOCH: the client gives none.
    """

    topic: Topic
    partition: Partition
    offset: int
    bytes_max: int
    zstd_known: bool = True
    leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH


class FetchResult(msgspec.Struct):
    """The result for one partition: an error, or record batches, in pieces, and bounds (-1: unknown).

    `size_bytes` are as the limits count them, without compression on the way; `record_count` is that of the batches.
    `diverging`: the log has no record of the client's last epoch at its position, and where it ends instead (KIP-595).
    `from_remote`: they are from the remote tier, or its answer did not come in time and the consumer is to retry.
    `withheld`: the log goes on past the high watermark, and no append announces that replicas have more of it.
    """

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    log_start: int = -1
    chunks: list[Buffer] = []
    size_bytes: int = 0
    record_count: int = 0
    from_remote: bool = False
    withheld: bool = False
    diverging: EpochStart | None = None

    def is_quiet(self, offset: int) -> bool:
        """Return whether this is a read of the end of a log, at which there was nothing and nothing is held back."""
        return self.high_watermark == offset and not (
            self.error or self.chunks or self.diverging or self.from_remote or self.withheld
        )


class RecordCollector(BatchesBuilder):
    """Builds batches of the records of format `record`."""

    def __init__(self, spec: FetchPartitionSpec, bytes_max: int, *, at_least_one: bool) -> None:
        """Raise KafkaError UNSUPPORTED_COMPRESSION_TYPE if the topic's codec is not known to the consumer."""
        codec = spec.topic.config.codec
        if codec is Codec.zstd and not spec.zstd_known:
            raise _zstd_unknown()
        super().__init__(
            codec=codec,
            leader_epoch=FIRST_EPOCH,
            bytes_max=bytes_max,
            at_least_one=at_least_one,
            log_append_time=spec.topic.config.log_append_time,
        )
        self.next_offset = spec.offset

    def take(self, fetched: Fetched) -> tuple[int, int]:
        """Take what fits; returns the bytes and the entries taken."""
        left, count = self.plain_bytes_left, self.record_count
        records, epochs = fetched.records, fetched.epochs
        if records and next_epoch_start(epochs, self.next_offset) < fetched.next_offset:
            for epoch, part in groupby(records, key=lambda record: epoch_at(epochs, record[0])):
                if not self.full:
                    self.begin_epoch(epoch)
                    self.add(list(part))
        else:
            self.begin_epoch(epoch_at(epochs, self.next_offset))
            self.add(records)
        return left - self.plain_bytes_left, self.record_count - count


class BatchCollector:
    """Passes on the batches of format `batch` as they are: no record is looked at, nothing is copied."""

    def __init__(self, spec: FetchPartitionSpec, bytes_max: int, *, at_least_one: bool) -> None:
        self._bytes_left = bytes_max
        self._take_next = at_least_one
        self._zstd_known = spec.zstd_known
        self._chunks: list[Buffer] = []
        self.next_offset = spec.offset
        self.full = False
        self.record_count = 0

    def limit(self, bytes_left: int) -> None:
        """Take no more than `bytes_left` from here on."""
        self._bytes_left = min(self._bytes_left, bytes_left)

    def take(self, fetched: Fetched) -> tuple[int, int]:
        """Take what fits; returns the bytes and the entries taken.

        Raises KafkaError UNSUPPORTED_COMPRESSION_TYPE for a zstd batch if the consumer does not know that.
        """
        left, taken = self._bytes_left, 0
        epoch, epoch_stop = FIRST_EPOCH, -math.inf
        for batch in fetched.batches:
            if batch.size_bytes > left and not self._take_next:
                self.full = True
                break
            if batch.codec == _ZSTD and not self._zstd_known:
                raise _zstd_unknown()
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
            and spec.zstd_known == expected.zstd_known
            # Unless it was cut at the high watermark.
            and fetched.records is found.records
            and fetched.batches is found.batches
        )


def prepare(spec: FetchPartitionSpec, fetched: Fetched) -> PreparedCollector | None:
    """Return a collector that has taken `fetched` for a fetch like that of `spec`; None if it cannot be given that."""
    try:
        collector = collector_for(spec, spec.bytes_max, at_least_one=False)
        return PreparedCollector(spec, collector, fetched, *collector.take(fetched))
    except KafkaError:
        return None


def _zstd_unknown() -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 10 of Fetch")
