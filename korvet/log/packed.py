"""The packed fields of a partition's state in Redis: the log's counters, and a row for each idempotent producer.

docs/redis-schema.md shows both byte by byte; in Lua they are packed and unpacked by lua/shared/log_fields.lua and the
parts of an append. Numbers are big-endian.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from korvet.topics.entry_ids import OFFSETS_END

LOG_FIELD = "log"
"""Where the counters stand in the state."""

PRODUCER_FIELDS = "[0-9]*"
"""The pattern of the fields that are rows of producers: each is named by the producer's id."""

_LOG = struct.Struct(">QQqqQQQqqiB")
_PRODUCER = struct.Struct(">hIHI")
_TRANSACTION = struct.Struct(">Qq")
_BATCH = struct.Struct(">IQ")
_BATCHES_MAX = 5


class PackedLog(NamedTuple):
    """The counters of a log; timestamps in ms.

    `next_offset` is the log's end, `start` its start in Redis, `first` the offset of its first record (-1 without one),
    `lake_start` where it starts in the remote tier (-1: nothing is archived). `size_bytes` and `records` ever came;
    `entries` is the stream's length after the last append, in format `batch`. `largest` is the largest timestamp,
    `interval` that since the last row of the index (-1 without one). `epoch` is the leader epoch of the last record (-1
    without one). `moving` is 1 while external entries wait for new offsets, and the log is closed.
    """

    next_offset: int = 0
    start: int = 0
    first: int = -1
    lake_start: int = -1
    size_bytes: int = 0
    records: int = 0
    entries: int = 0
    largest: int = -1
    interval: int = -1
    epoch: int = -1
    moving: int = 0

    @classmethod
    def unpack(cls, packed: bytes | None) -> PackedLog:
        """Return the counters; raises ValueError if they are malformed, as the scripts see it."""
        if packed is None or len(packed) != _LOG.size:
            raise ValueError("the field log is malformed")
        log = cls._make(_LOG.unpack(packed))
        exact = log.next_offset, log.size_bytes, log.records, log.entries, log.largest
        if max(exact) > OFFSETS_END or max(log.start, log.first, log.lake_start) > log.next_offset:
            raise ValueError("the field log is malformed")
        if log.interval > log.largest or log.moving > 1:
            raise ValueError("the field log is malformed")
        return log

    def pack(self) -> bytes:
        """Return the field as it is stored."""
        return _LOG.pack(*self)


class KeptBatch(NamedTuple):
    """A batch that a producer's row keeps, to know it again: how many records, and the offset of the first."""

    records: int
    base_offset: int


class ProducerRow(NamedTuple):
    """One producer in one partition.

    `next_sequence` is the sequence that its next batch begins with, `last_ms` the time of its last batch or marker by
    the clock of the worker that sent it. `transaction` is the number of its last transaction in the partition, -1
    without any, and `first_offset` where that begins while it is open, else -1. `batches` are its last ones, at most
    five, the newest first.
    """

    epoch: int
    next_sequence: int
    last_ms: int
    transaction: int = -1
    first_offset: int = -1
    batches: tuple[KeptBatch, ...] = ()

    @classmethod
    def unpack(cls, packed: bytes) -> ProducerRow:
        """Return the row; raises ValueError if it is malformed."""
        at = _PRODUCER.size
        transaction = first_offset = -1
        kept, rest = divmod(len(packed) - at, _BATCH.size)
        if rest:
            kept, rest = divmod(len(packed) - at - _TRANSACTION.size, _BATCH.size)
        if rest or not 0 <= kept <= _BATCHES_MAX:
            raise ValueError("the row is malformed")
        epoch, next_sequence, ms_high, ms_low = _PRODUCER.unpack_from(packed)
        if len(packed) - at != kept * _BATCH.size:
            transaction, first_offset = _TRANSACTION.unpack_from(packed, at)
            at += _TRANSACTION.size
        batches = tuple(KeptBatch._make(fields) for fields in _BATCH.iter_unpack(packed[at:]))
        return cls(epoch, next_sequence, ms_high << 32 | ms_low, transaction, first_offset, batches)

    def pack(self) -> bytes:
        """Return the row as it is stored."""
        packed = _PRODUCER.pack(self.epoch, self.next_sequence, self.last_ms >> 32, self.last_ms & 0xFFFFFFFF)
        if self.transaction >= 0:
            packed += _TRANSACTION.pack(self.transaction, self.first_offset)
        return packed + b"".join(_BATCH.pack(*batch) for batch in self.batches)
