"""Record batches for a consumer, built from records that lie one by one in the log.

A new batch begins where the offset delta would leave its int32, which in a log with time-coded offsets happens after a
pause; a gap within the range is legal. Batches built here carry no sequences, since they are not those the producer
sent, and a producer only if they are of transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import korvet_core

from korvet.protocol.records.batch import (
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    patched_header,
    with_payload,
)
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.compression import Codec, compress
from korvet.protocol.records.record import StoredRecord
from korvet.protocol.wire import Buffer

_NO_SEQUENCE = -1
_OFFSET_DELTA_MAX = 2**31 - 1
_NO_PRODUCER = (-1, -1)


class BatchesBuilder:
    """Takes records with rising offsets until `bytes_max` are reached (uncompressed), and makes batches of them.

    With `at_least_one` the first record is taken at any size, so that a consumer makes progress (KIP-74). `codec`
    compresses each batch that it makes smaller. `log_append_time` says that the records' times are the broker's:
    a batch has one such time for all its records, so each time begins a batch.
    """

    def __init__(
        self,
        *,
        codec: int,
        leader_epoch: int,
        bytes_max: int,
        at_least_one: bool,
        log_append_time: bool = False,
    ) -> None:
        self._codec = codec
        self._leader_epoch = leader_epoch
        self._producer = _NO_PRODUCER
        self._at_least_one = at_least_one
        self._log_append_time = log_append_time
        self._bytes_left = bytes_max
        self._open: korvet_core.RecordEncoder | None = None
        self._base_offset = self._base_timestamp = 0
        self._pieces: list[Buffer] = []
        self.record_count = 0
        self.next_offset = 0
        self.full = False

    @property
    def plain_bytes_left(self) -> int:
        """How many bytes may still be taken."""
        return self._bytes_left - (HEADER_BYTES + self._open.payload_bytes if self._open else 0)

    def begin_epoch(self, leader_epoch: int) -> None:
        """Set the leader epoch of the records that follow: no batch has records of two."""
        if leader_epoch != self._leader_epoch:
            self._close()
            self._leader_epoch = leader_epoch

    def begin_producer(self, producer_id: int = -1, epoch: int = -1) -> None:
        """Set the transactional producer of the records that follow, none by default: no batch has records of two.

        Nor of two transactions, the marker between which may be gone: a consumer leaves out whole batches.
        """
        producer = (producer_id, epoch)
        if producer != self._producer or producer != _NO_PRODUCER:
            self._close()
            self._producer = producer

    def add_batch(self, batch: bytes, offset: int) -> None:
        """Take a batch of one record as it is, for that offset; `full` as `add` has it."""
        self._close()
        if len(batch) > self._bytes_left and (self.record_count or not self._at_least_one):
            self.full = True
            return
        self._bytes_left -= len(batch)
        self.record_count += 1
        self.next_offset = offset + 1
        header = BatchHeader._make(HEADER.unpack_from(batch))
        self._pieces += (patched_header(header, offset, self._leader_epoch), memoryview(batch)[HEADER_BYTES:])

    def limit(self, bytes_left: int) -> None:
        """Take no more than `bytes_left` from here on."""
        if bytes_left < self.plain_bytes_left:
            self._close()  # an open batch grows to the size it was opened with
            self._bytes_left = bytes_left

    def add(self, records: Sequence[StoredRecord]) -> None:
        """Take `records` from the first on; `full` says afterwards that one did not fit any more."""
        if isinstance(records, Columns) and not self._log_append_time:
            self._add_columns(records)
        elif not self._log_append_time:
            self._add(records)
        else:
            for time, part in groupby(records, key=itemgetter(1)):
                if time != self._base_timestamp:
                    self._close()
                if not self.full:
                    self._add(list(part))

    def finish(self) -> list[Buffer]:
        """Return the batches in pieces, which follow each other."""
        self._close()
        return self._pieces

    def _add(self, records: Sequence[StoredRecord]) -> None:
        position = 0
        while position < len(records) and not self.full:
            encoder, is_new = self._open, self._open is None
            if encoder is None:
                self._base_offset, self._base_timestamp = records[position][:2]
                room, any_size = self._limits()
                encoder = korvet_core.RecordEncoder(self._base_offset, room, at_least_one=any_size)
            taken = encoder.add(records, position)
            self._open = encoder if taken or not is_new else None
            if taken:
                position += taken
                self.record_count += taken
                self.next_offset = records[position - 1][0] + 1
            elif is_new:
                self.full = True
            if position < len(records):
                self._close()

    def _add_columns(self, columns: Columns) -> None:
        """Make batches of columns alone."""
        self._close()
        position = 0
        while position < len(columns) and not self.full:
            # Of the rest only what the offset delta may reach: each pause of a log begins a batch.
            stop = columns.within(position, _OFFSET_DELTA_MAX)
            rest = columns.part(position, stop) if position or stop < len(columns) else columns
            self._base_offset, self._base_timestamp = rest.runs[0].start, rest.timestamps[0]
            room, any_size = self._limits()
            runs = [(run.start, run.stop) for run in rest.runs]
            payload, taken, last_offset_delta, max_timestamp = korvet_core.encode_columns(
                runs, rest.timestamps, rest.keys, rest.values, rest.headers, room, at_least_one=any_size
            )
            if taken:
                position += taken
                self.record_count += taken
                self.next_offset = self._base_offset + last_offset_delta + 1
                self._append(payload, taken, last_offset_delta, max_timestamp)
            else:
                self.full = True

    def _limits(self) -> tuple[int, bool]:
        """Return the bytes of records that the next batch may have, and whether its first one may have more."""
        return max(0, self._bytes_left - HEADER_BYTES), self._at_least_one and not self.record_count

    def _close(self) -> None:
        if self._open is not None:
            encoded, self._open = self._open.encoded(), None
            self._append(*encoded)

    def _append(self, payload: bytes, count: int, last_offset_delta: int, max_timestamp: int) -> None:
        header = BatchHeader(
            base_offset=self._base_offset,
            batch_length=HEADER_BYTES - LENGTH_FROM + len(payload),
            partition_leader_epoch=self._leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=(TRANSACTIONAL_BIT if self._producer != _NO_PRODUCER else 0)
            | (LOG_APPEND_TIME_BIT if self._log_append_time else 0),
            last_offset_delta=last_offset_delta,
            base_timestamp=self._base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=_NO_SEQUENCE,
            record_count=count,
        )
        self._bytes_left -= header.size_bytes
        codec = Codec.none
        if self._codec != Codec.none and len(compressed := compress(self._codec, payload)) < len(payload):
            codec, payload = Codec(self._codec), compressed
        self._pieces += (HEADER.pack(*with_payload(header, payload, codec)), payload)
