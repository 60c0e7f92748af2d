"""One partition's part of a fetch, put together from what was read of it: batches, of either storage format.

Knows how much fits and what the reader may be sent; nothing of Redis, or of how much is to be read.
"""

from __future__ import annotations

import msgspec

from korvet.domain.cluster import LEADER_EPOCH
from korvet.domain.topics import Topic
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.builder import BatchesBuilder
from korvet.protocol.records.compression import Codec
from korvet.storage.log_types import Fetched, Partition

Buffer = bytes | bytearray | memoryview
_ZSTD = int(Codec.zstd)


class Wanted(msgspec.Struct, frozen=True):
    """One partition of a fetch: where to read from, in offsets, and its limit in bytes.

    `zstd_known` says that the reader's version may be sent zstd (KIP-110).
    """

    topic: Topic
    partition: Partition
    offset: int
    bytes_max: int
    zstd_known: bool = True


class RecordCollector:
    """Builds batches of the records of format `record`."""

    def __init__(self, wanted: Wanted, bytes_max: int, *, at_least_one: bool) -> None:
        """Raise KafkaError UNSUPPORTED_COMPRESSION_TYPE where the topic's codec is one the reader does not know."""
        codec = wanted.topic.config.codec
        if codec is Codec.zstd and not wanted.zstd_known:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 10 of Fetch")
        self._builder = BatchesBuilder(
            codec=codec,
            leader_epoch=LEADER_EPOCH,
            bytes_max=bytes_max,
            at_least_one=at_least_one,
            log_append_time=wanted.topic.config.log_append_time,
        )
        self.next_offset = wanted.offset

    @property
    def full(self) -> bool:
        """Whether something did not fit any more."""
        return self._builder.full

    @property
    def record_count(self) -> int:
        """How many records were taken."""
        return self._builder.record_count

    def limit(self, bytes_left: int) -> None:
        """Take no more than `bytes_left` from here on."""
        self._builder.limit(bytes_left)

    def add(self, fetched: Fetched) -> tuple[int, int]:
        """Take what fits; returns the bytes and the entries taken."""
        builder = self._builder
        left, count = builder.plain_bytes_left, builder.record_count
        builder.add(fetched.records)
        taken = builder.record_count - count
        if taken:
            self.next_offset = builder.next_offset
        return left - builder.plain_bytes_left, taken

    def finish(self) -> list[Buffer]:
        """Return the batches."""
        return self._builder.finish()


class BatchCollector:
    """Passes on the batches of format `batch` as they are: no record is looked at, nothing is copied."""

    def __init__(self, wanted: Wanted, bytes_max: int, *, at_least_one: bool) -> None:
        self._bytes_left = bytes_max
        self._take_next = at_least_one
        self._zstd_known = wanted.zstd_known
        self._chunks: list[Buffer] = []
        self.next_offset = wanted.offset
        self.full = False
        self.record_count = 0

    def limit(self, bytes_left: int) -> None:
        """Take no more than `bytes_left` from here on."""
        self._bytes_left = min(self._bytes_left, bytes_left)

    def add(self, fetched: Fetched) -> tuple[int, int]:
        """Take what fits; returns the bytes and the entries taken.

        Raises KafkaError UNSUPPORTED_COMPRESSION_TYPE for a zstd batch that the reader does not know.
        """
        left, taken = self._bytes_left, 0
        for batch in fetched.batches:
            if batch.size_bytes > left and not self._take_next:
                self.full = True
                break
            if batch.codec == _ZSTD and not self._zstd_known:
                raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 10 of Fetch")
            self._take_next = False
            self._chunks += batch.chunks(LEADER_EPOCH)
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
