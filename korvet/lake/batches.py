"""Record batches as Arrow: every record of many batches a row, without a step of Python for each field.

Knows the layout of a record in a batch (Kafka's documentation, "Record Format") and the columns of `schema`; nothing of
Redis or of tables. Keys, values and headers stay where they were decompressed, as Arrow's binary views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from korvet.errors import ErrorCode, KafkaError
from korvet.lake.schema import HEADER_TYPE, HEADERS, KEY, SCHEMA, VALUE, timestamp_columns
from korvet.lake.varints import Bytes, Ints, read_varint, read_varints, record_spans
from korvet.lake.views import binary_views
from korvet.log.batch_format import StoredBatch
from korvet.log.record_format import text_of
from korvet.protocol.records.batch import CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, BatchHeader
from korvet.protocol.records.compression import decompress

PAYLOAD_BYTES_MAX = 256 * 1024 * 1024
"""Of all batches of one call, uncompressed, where it is more than one: a few bytes may be a batch of many."""

_HEADERS_AT_ONCE = 32  # a record with more headers is walked by itself


class _Headers(NamedTuple):
    """Headers of many records: of which record each is, its place among that record's, and where its parts lie."""

    record: Ints
    place: Ints
    name_at: Ints
    name_length: Ints
    value_at: Ints
    value_length: Ints


def batches_to_arrow(partition: int, batches: Sequence[StoredBatch], bytes_max: int) -> pa.RecordBatch:
    """Return the records of the batches of one partition, in their order, as rows of SCHEMA (binaries as views).

    `bytes_max` is what one batch may have uncompressed (record.decompressed.max.bytes); all of them together
    PAYLOAD_BYTES_MAX. Raises KafkaError MESSAGE_TOO_LARGE, CORRUPT_MESSAGE or UNSUPPORTED_COMPRESSION_TYPE, which names
    the offset of the batch that cannot be read, or of the first one where it is all of them that are too much: then
    ask for fewer.
    """
    heads: list[BatchHeader] = []
    payloads: list[bytes] = []
    starts: list[Ints] = []
    ends: list[Ints] = []
    counts: list[int] = []
    at = 0
    for batch in batches:
        header = batch.header
        payload = _payload(batch, header, bytes_max)
        try:
            found, ending = record_spans(payload, 0, len(payload))
        except (ValueError, IndexError) as error:
            raise _corrupt(batch, error) from error
        starts.append(np.array(found, dtype=np.int64) + at)
        ends.append(np.array(ending, dtype=np.int64) + at)
        counts.append(len(found))
        heads.append(header)
        payloads.append(payload)
        at += len(payload)
        if at > PAYLOAD_BYTES_MAX and len(heads) > 1:
            message = f"the batches from offset {batches[0].base_offset} on hold more than {PAYLOAD_BYTES_MAX} bytes"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
    data = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    per_record = np.asarray(counts)
    try:
        fields = _Fields(data, np.concatenate(starts), np.concatenate(ends))
    except (ValueError, IndexError) as error:
        raise _first_corrupt(batches, payloads, error) from error
    offsets = _offsets(batches, heads, per_record, fields.offset_delta)
    timestamps = np.repeat(np.array([each.base_timestamp for each in heads], dtype=np.int64), per_record)
    timestamps = timestamps + fields.timestamp_delta
    attributes = np.repeat(np.array([each.attributes for each in heads], dtype=np.int64), per_record)
    appended = (attributes & LOG_APPEND_TIME_BIT) != 0
    if appended.any():
        largest = np.repeat(np.array([each.max_timestamp for each in heads], dtype=np.int64), per_record)
        timestamps = np.where(appended, largest, timestamps)
    first, rest = timestamp_columns(timestamps)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(len(offsets), partition, dtype=np.int32)),
            pa.array(offsets),
            first,
            pa.array(appended.astype(np.int32)),
            fields.keys,
            fields.values,
            fields.headers,
            rest,
            *_producers(heads, per_record),
        ],
        schema=VIEW_SCHEMA,
    )


def _offsets(
    batches: Sequence[StoredBatch], heads: Sequence[BatchHeader], per_record: Ints, deltas: Ints
) -> Ints:
    """Return the offset of each record.

    Raises KafkaError CORRUPT_MESSAGE for the first batch whose records are not at offsets of its own, rising.
    """
    firsts = np.repeat(np.array([each.base_offset for each in batches], dtype=np.int64), per_record)
    lasts = firsts + np.repeat(
        np.array([each.last_offset_delta for each in heads], dtype=np.int64), per_record
    )
    offsets: Ints = firsts + deltas
    wrong = (offsets < firsts) | (offsets > lasts)
    wrong[1:] |= offsets[1:] <= offsets[:-1]
    if wrong.any():
        place = int(np.searchsorted(np.cumsum(per_record), int(wrong.argmax()), side="right"))
        raise _corrupt(batches[place], ValueError("its records have no rising offsets of its own"))
    return offsets


def _producers(heads: Sequence[BatchHeader], per_record: Ints) -> list[pa.Array]:
    """Return attributes, producer id and epoch; null but for transactional and control batches."""
    special = np.array([each.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) for each in heads])
    if not special.any():
        count = int(per_record.sum())
        return [pa.nulls(count, type_) for type_ in (pa.int16(), pa.int64(), pa.int16())]
    mask = np.repeat(special == 0, per_record)
    ids = np.array([each.producer_id for each in heads], dtype=np.int64)
    epochs = np.array([each.producer_epoch for each in heads], dtype=np.int16)
    return [
        pa.array(np.repeat(special.astype(np.int16), per_record), mask=mask),
        pa.array(np.repeat(ids, per_record), mask=mask),
        pa.array(np.repeat(epochs, per_record), mask=mask),
    ]


class _Fields:
    """The fields of records that lie in `data`, from each of `starts` to the end of the same index."""

    def __init__(self, data: bytes, starts: Ints, ends: Ints) -> None:
        """Raise ValueError or IndexError where they are no records."""
        self._data = data
        self._bytes: Bytes = np.frombuffer(data, dtype=np.uint8)
        self._ends = ends
        # One byte of attributes, which are unused, lies before the first delta.
        self.timestamp_delta, at = read_varints(self._bytes, starts + 1)
        self.offset_delta, at = read_varints(self._bytes, at)
        self.keys, at = self._field(at)
        self.values, at = self._field(at)
        counts, at = read_varints(self._bytes, at)
        if (counts < 0).any() or (at > ends).any():
            raise ValueError("a record is longer or shorter than it says")
        self.headers = self._headers(counts, at)

    def _field(self, at: Ints) -> tuple[pa.Array, Ints]:
        lengths, at = read_varints(self._bytes, at)
        after = at + np.maximum(lengths, 0)
        if (lengths < -1).any() or (after > self._ends).any():
            raise ValueError("a field is longer than its record")
        return binary_views(self._data, self._bytes, at, lengths), after

    def _headers(self, counts: Ints, at: Ints) -> pa.Array:
        having = np.flatnonzero(counts)
        ends = at.copy()
        type_ = SCHEMA.field(HEADERS).type
        if not len(having):
            if (ends != self._ends).any():
                raise ValueError("a record is shorter than it says")
            return pa.nulls(len(counts), type_)
        many = having[counts[having] > _HEADERS_AT_ONCE]
        found = [self._walk(int(record), int(counts[record]), ends) for record in many]
        found += self._in_passes(having[counts[having] <= _HEADERS_AT_ONCE], counts, ends)
        if (ends != self._ends).any():
            raise ValueError("a record is shorter than it says")
        each = _Headers(*(np.concatenate(column) for column in zip(*found, strict=True)))
        order = np.lexsort((each.place, each.record))
        each = _Headers(*(column[order] for column in each))
        names = binary_views(self._data, self._bytes, each.name_at, each.name_length)
        values = binary_views(self._data, self._bytes, each.value_at, each.value_length)
        offsets = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        pairs = pa.StructArray.from_arrays(
            [_texts(names), values.cast(pa.binary())], fields=list(HEADER_TYPE)
        )
        return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=type_, mask=pa.array(counts == 0))

    def _in_passes(self, records: Ints, counts: Ints, ends: Ints) -> list[_Headers]:
        """Read one header of each record, then the next of those that have more; writes where they end to `ends`."""
        found: list[_Headers] = []
        place = 0
        while len(records):
            name_length, name_at = read_varints(self._bytes, ends[records])
            value_length, value_at = read_varints(self._bytes, name_at + np.maximum(name_length, 0))
            after = value_at + np.maximum(value_length, 0)
            if (name_length < 0).any() or (value_length < -1).any() or (after > self._ends[records]).any():
                raise ValueError("a header is longer than its record")
            ends[records] = after
            found.append(
                _Headers(records, np.full(len(records), place), name_at, name_length, value_at, value_length)
            )
            place += 1
            records = records[counts[records] > place]
        return found

    def _walk(self, record: int, count: int, ends: Ints) -> _Headers:
        """Do the same for all headers of one record."""
        at, stop = int(ends[record]), int(self._ends[record])
        rows: list[tuple[int, int, int, int, int, int]] = []
        for place in range(count):
            name_length, name_at = read_varint(self._data, at, stop)
            value_length, value_at = read_varint(self._data, name_at + max(name_length, 0), stop)
            at = value_at + max(value_length, 0)
            if name_length < 0 or value_length < -1 or at > stop:
                raise ValueError("a header is longer than its record")
            rows.append((record, place, name_at, name_length, value_at, value_length))
        ends[record] = at
        return _Headers(*np.array(rows, dtype=np.int64).T)


def _texts(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text_of(raw) for raw in names.to_pylist()], type=pa.string())


def _payload(batch: StoredBatch, header: BatchHeader, bytes_max: int) -> bytes:
    try:
        return decompress(header.codec, bytes(batch.payload), bytes_max)
    except KafkaError as error:
        message = f"the batch at offset {batch.base_offset}: {error.message}"
        raise KafkaError(error.code, message) from error


def _first_corrupt(batches: Sequence[StoredBatch], payloads: Sequence[bytes], error: Exception) -> KafkaError:
    """Find the batch that cannot be read: each by itself, until one fails."""
    for batch, payload in zip(batches, payloads, strict=True):
        starts, ends = record_spans(payload, 0, len(payload))
        try:
            _Fields(payload, np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))
        except (ValueError, IndexError) as own:
            return _corrupt(batch, own)
    return _corrupt(batches[0], error)


def _corrupt(batch: StoredBatch, error: Exception) -> KafkaError:
    message = f"the batch at offset {batch.base_offset} cannot be read: {error}"
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)


_VIEWS = {KEY: pa.binary_view(), VALUE: pa.binary_view()}

VIEW_SCHEMA = pa.schema(
    [pa.field(each.name, _VIEWS.get(each.name, each.type), each.nullable) for each in SCHEMA]
)
"""SCHEMA with views for keys and values: a file written from one is the same as from the other."""
