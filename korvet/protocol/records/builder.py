"""Record batches for a consumer, built from records that lie one by one in the log.

A new batch begins where the offset delta would leave its int32, which in a log with time-coded offsets happens after a
pause; a gap within the range is legal. A new one also begins after records without a timestamp at a batch's beginning:
aiokafka's builder would give them the timestamp of the next record. Batches built here carry no sequences, since they
are not those the producer sent, and a producer only if they are of transactions.

Columns become a batch of their own. aiokafka's builder is the fastest for small ones where nothing is compiled; it
computes the CRC without the processor's help, at 2 GB/s, so large ones are encoded in another way (encoding.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby
from operator import itemgetter, length_hint

from aiokafka.record.default_records import DefaultRecordBatchBuilder

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
from korvet.protocol.records.encoding import NATIVE, encode_records
from korvet.protocol.records.record import NO_TIMESTAMP, StoredRecord
from korvet.protocol.wire import Buffer

OFFSET_DELTA_MAX = 2**31 - 1

LARGE_BYTES = 750
"""From this size on, on average, values are worth another way than that of aiokafka's builder."""

_SAMPLE = 16  # every 16th value is measured
_NO_SEQUENCE = -1
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
        self._bytes_left = bytes_max
        self._at_least_one = at_least_one
        self._log_append_time = log_append_time
        self._time: int | None = None
        self._open: DefaultRecordBatchBuilder | None = None
        self._base_offset = 0
        self._without_time = False
        self._pieces: list[Buffer] = []
        self.record_count = 0
        self.next_offset = 0
        self.full = False

    @property
    def plain_bytes_left(self) -> int:
        """How many bytes may still be taken."""
        return self._bytes_left - (self._open.size() if self._open else 0)

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
        if not self._log_append_time:
            self._add(records)
            return
        for time, part in groupby(records, key=itemgetter(1)):
            if self.full:
                return
            if time != self._time:
                self._close()
                self._time = time
            self._add(list(part))

    def _add(self, records: Sequence[StoredRecord]) -> None:
        if isinstance(records, Columns) and self._add_columns(records):
            return
        position = 0
        while position < len(records) and not self.full:
            if self._open is None:
                self._begin(records[position])
                continue
            offset, timestamp = records[position][:2]
            if offset - self._base_offset > OFFSET_DELTA_MAX or (
                self._without_time and timestamp != NO_TIMESTAMP
            ):
                self._close()
                continue
            position += self._fill(records, position)

    def finish(self) -> list[Buffer]:
        """Return the batches in pieces, which follow each other."""
        self._close()
        return self._pieces

    def _add_columns(self, columns: Columns) -> bool:
        """Make a batch of as many of the records as fit; False if their offsets do not."""
        if columns.runs[-1][-1] - columns.runs[0].start > OFFSET_DELTA_MAX:
            return False
        self._close()
        if NATIVE or columns.timestamps[0] == NO_TIMESTAMP or _are_large(columns):
            self._add_encoded(columns)
        else:
            self._add_small(columns)
        return True

    def _add_small(self, columns: Columns) -> None:
        self._begin(next(iter(columns)))
        if self._open is None:
            return
        base_offset = self._base_offset
        runs = [range(run.start - base_offset, run.stop - base_offset) for run in columns.runs]
        deltas = list(chain.from_iterable(runs))
        left = iter(deltas)
        self.full = None in map(
            self._open.append,
            left,
            columns.timestamps,
            columns.each_key(),
            columns.values,
            columns.each_headers(),
        )
        taken = len(deltas) - length_hint(left) - self.full
        self.record_count += taken
        self.next_offset = base_offset + deltas[taken - 1] + 1
        self._close()

    def _add_encoded(self, columns: Columns) -> None:
        at_least_one = self._at_least_one and not self.record_count
        encoded = encode_records(columns, self._bytes_left - HEADER_BYTES, at_least_one=at_least_one)
        payload, taken, last_offset_delta = encoded
        self.full = taken < len(columns)
        if not taken:
            return
        base_offset, stamps = columns.runs[0].start, columns.timestamps[:taken]
        header = BatchHeader(
            base_offset=base_offset,
            batch_length=HEADER_BYTES - LENGTH_FROM + len(payload),
            partition_leader_epoch=self._leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=Codec.none if self._producer == _NO_PRODUCER else TRANSACTIONAL_BIT,
            last_offset_delta=last_offset_delta,
            base_timestamp=stamps[0],
            max_timestamp=max(stamps),
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=_NO_SEQUENCE,
            record_count=taken,
        )
        self.record_count += taken
        self.next_offset = base_offset + last_offset_delta + 1
        self._base_offset = base_offset
        self._bytes_left -= header.size_bytes
        self._append(header, payload)

    def _begin(self, first: StoredRecord) -> None:
        offset, timestamp, key, value, headers = first
        builder = DefaultRecordBatchBuilder(
            magic=MAGIC,
            compression_type=Codec.none,
            is_transactional=self._producer != _NO_PRODUCER,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=_NO_SEQUENCE,
            # It takes what leaves a byte of this.
            batch_size=max(0, self._bytes_left) + 1,
        )
        # The builder takes its first record at any size, so the size is checked before.
        if self.record_count or not self._at_least_one:
            size = HEADER_BYTES + builder.size_in_bytes(0, timestamp, key, value, headers)
            if size > self._bytes_left:
                self.full = True
                return
        self._open = builder
        self._base_offset = offset
        self._without_time = timestamp == NO_TIMESTAMP

    def _fill(self, records: Sequence[StoredRecord], position: int) -> int:
        """Append to the open batch what fits; returns how many records that were."""
        assert self._open is not None  # noqa: S101 - for the type checker
        stop = len(records)
        base_offset = self._base_offset
        # The builder writes a delta beyond int32 without a word, so the end of its range is looked for here.
        if records[-1][0] - base_offset > OFFSET_DELTA_MAX:
            stop = next(i for i in range(position, stop) if records[i][0] - base_offset > OFFSET_DELTA_MAX)
        if self._without_time:
            stop = next((i for i in range(position, stop) if records[i][1] != NO_TIMESTAMP), stop)
        append = self._open.append
        taken = 0
        for offset, timestamp, key, value, headers in records[position:stop]:
            if append(offset - base_offset, timestamp, key, value, headers) is None:
                self.full = True
                break
            taken += 1
        self.record_count += taken
        if taken:
            self.next_offset = records[position + taken - 1][0] + 1
        return taken

    def _close(self) -> None:
        if self._open is None:
            return
        self._bytes_left -= self._open.size()
        batch = self._open.build()
        header = BatchHeader._make(HEADER.unpack_from(batch))
        self._open = None
        self._append(header, memoryview(batch)[HEADER_BYTES:])

    def _append(self, header: BatchHeader, payload: bytes | memoryview) -> None:
        """Add a batch as aiokafka's builder makes it, or without a CRC (0)."""
        if self._log_append_time:
            header = header._replace(attributes=header.attributes | LOG_APPEND_TIME_BIT, crc=0)
        if self._codec != Codec.none:
            compressed = compress(self._codec, bytes(payload))
            if len(compressed) < len(payload):
                header, payload = with_payload(header, compressed, self._codec), compressed
        if not header.crc:
            header = with_payload(header, bytes(payload), header.codec)
        self._pieces += (patched_header(header, self._base_offset, self._leader_epoch), payload)


def _are_large(columns: Columns) -> bool:
    sample = columns.values[::_SAMPLE]
    return sum(map(len, sample)) >= LARGE_BYTES * len(sample)
