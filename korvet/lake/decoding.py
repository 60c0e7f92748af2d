"""Records from Redis as Arrow: batches, and records that lie one by one in a stream, as rows of `schema`.

Every record of many batches becomes a row without a step of Python for each field: varints (zigzag, as in protocol
buffers) are read many at once, for a step of Python for each would cost more than all the rest of archiving a record.
Keys, values and headers stay where they were decompressed, as Arrow's binary views. Kafka's documentation, "Record
Format", has the layout of a record in a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from korvet.errors import ErrorCode, KafkaError
from korvet.lake.schema import HEADER_TYPE, HEADERS, KEY, SCHEMA, VALUE, Ints, timestamp_columns
from korvet.log.record_format import DATA
from korvet.log.types import Fetched, StoredBatch
from korvet.protocol.records.batch import (
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.compression import decompress
from korvet.protocol.records.record import Header, StoredRecord, text_of

Bytes = npt.NDArray[np.uint8]

BYTES_MAX = 10
_MORE = 0x80


def read_varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the number that begins at each of the positions, and the position after each.

    Raises ValueError if one is longer than a 64-bit number can be; IndexError if one leaves `data`.
    """
    first = data[at]
    raw = (first & 0x7F).astype(np.uint64)
    after = at + 1
    longer = np.flatnonzero(first & 0x80)
    shift = 7
    while len(longer):
        if shift == 7 * BYTES_MAX:
            raise ValueError("a varint of more than ten bytes")
        byte = data[after[longer]]
        raw[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[longer] += 1
        longer = longer[(byte & 0x80) != 0]
        shift += 7
    halves = (raw >> np.uint64(1)).astype(np.int64)
    return halves ^ -(raw & np.uint64(1)).astype(np.int64), after


def record_spans(data: bytes, start: int, stop: int) -> tuple[list[int], list[int]]:
    """Return where records begin, each after its length, and where they end; they fill `data` from `start` to `stop`.

    Raises ValueError if they do not end at `stop`, or a length is negative.
    """
    starts: list[int] = []
    ends: list[int] = []
    at = start
    # A loop over Python's own bytes is faster here than numpy: each record begins where the one before ends.
    # No more of them than have room: a few kilobytes of zeros, compressed, would be millions of records of no byte.
    for _ in range((stop - start) // RECORD_BYTES_MIN):
        if at >= stop:
            break
        length = data[at]
        at += 1
        if length >= _MORE:  # here rather than in a function: most records are of 64 to 8191 bytes
            second = data[at]
            if second < _MORE:
                length += (second << 7) - _MORE
                at += 1
            else:
                length, at = _length(data, at, length & 0x7F, stop)
        if length & 1:
            raise ValueError("the length of a record is negative")
        starts.append(at)
        at += length >> 1
        ends.append(at)
    if at != stop:
        raise ValueError("the records do not fill their batch")
    return starts, ends


def read_varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and the position after it; raises ValueError if it passes `stop`."""
    if at >= stop:
        raise ValueError("a varint leaves its record")
    raw = data[at]
    at += 1
    if raw >= _MORE:
        raw, at = _length(data, at, raw & 0x7F, stop)
    return (raw >> 1) ^ -(raw & 1), at


def _length(data: bytes, at: int, raw: int, stop: int) -> tuple[int, int]:
    """Read the rest of a varint whose first seven bits are `raw`."""
    shift = 7
    while True:
        if at >= stop or shift == 7 * BYTES_MAX:
            raise ValueError("a varint of more than ten bytes, or cut off")
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < _MORE:
            return raw, at
        shift += 7


_INLINE_BYTES_MAX = 12
_PREFIX_BYTES = 4


def binary_views(buffer: bytes, data: Bytes, at: Ints, lengths: Ints) -> pa.Array:
    """Return binary views of `lengths` bytes from each of `at` in `buffer`; null if the length is negative.

    `data` is the buffer as an array; all of them lie within it. A view (Arrow columnar format, "Variable-size Binary
    View Layout") is 16 bytes: a length, and then up to twelve bytes themselves, else their first four, the number of a
    buffer, and a position.
    """
    count = len(lengths)
    sizes = np.maximum(lengths, 0)
    views = np.zeros((count, 4), dtype=np.int32)
    views[:, 0] = sizes
    short = sizes <= _INLINE_BYTES_MAX
    inline = slice(None) if short.all() else np.flatnonzero(short)
    outside = slice(None) if not short.any() else np.flatnonzero(~short)
    taken = _taken(data, at[inline], _INLINE_BYTES_MAX)
    # The rest of a view has to be zero.
    taken[np.arange(_INLINE_BYTES_MAX) >= sizes[inline][:, None]] = 0
    views[inline, 1:] = taken.view(np.int32)
    views[outside, 1] = _taken(data, at[outside], _PREFIX_BYTES).view(np.int32)[:, 0]
    views[outside, 3] = at[outside]
    nulls = lengths < 0
    validity = None
    if nulls.any():
        validity = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(views), pa.py_buffer(buffer)]
    return pa.Array.from_buffers(pa.binary_view(), count, buffers, null_count=int(nulls.sum()))


def _taken(data: Bytes, at: Ints, count: int) -> Bytes:
    """Return `count` bytes from each position; those past the end of the buffer are not part of the value."""
    if not len(data):
        return np.zeros((len(at), count), dtype=np.uint8)
    taken: Bytes = data[np.minimum(at[:, None] + np.arange(count), len(data) - 1)]
    return taken


PAYLOAD_BYTES_MAX = 256 * 1024 * 1024
"""Of all batches of one call, uncompressed, if it is more than one: a small batch may expand to many bytes."""

_HEADERS_AT_ONCE = 32  # a record with more headers is walked by itself


def visible(found: Fetched) -> Fetched:
    """Return what a committed read has found without what was aborted, and without markers.

    As consumers do it (read_committed): a transaction that was aborted goes from its first offset to its marker.
    """
    if not found.batches and not found.producers:
        return found
    starts = deque(sorted(found.aborted or (), key=lambda each: each.first_offset))
    aborting: set[int] = set()

    def is_visible(last_offset: int, producer_id: int, *, marker: bool) -> bool:
        while starts and starts[0].first_offset <= last_offset:
            aborting.add(starts.popleft().producer_id)
        if marker:
            aborting.discard(producer_id)
        return not marker and producer_id not in aborting

    if found.batches:
        batches = []
        for batch in found.batches:
            header = batch.header
            marker = bool(header.attributes & CONTROL_BIT)
            if not header.attributes & TRANSACTIONAL_BIT or is_visible(
                batch.next_offset - 1, header.producer_id, marker=marker
            ):
                batches.append(batch)
        return found._replace(batches=batches)
    every, records, at = list(found.records), [], 0
    for run in found.producers:
        records += every[at : run.start]
        records += [
            each
            for each in every[run.start : run.stop]
            if is_visible(each[0], run.producer_id, marker=run.control != DATA)
        ]
        at = run.stop
    return found._replace(records=records + every[at:], producers=())


class _Headers(NamedTuple):
    """Headers of many records: the record of each, its place among that record's, and the positions of its parts."""

    record: Ints
    place: Ints
    name_at: Ints
    name_length: Ints
    value_at: Ints
    value_length: Ints


def batches_to_arrow(
    partition: int,
    batches: Sequence[StoredBatch],
    bytes_max: int,
    columns: Collection[str] = (KEY, VALUE, HEADERS),
) -> pa.RecordBatch:
    """Return the records of the batches of one partition, in their order, as rows of SCHEMA (binaries as views).

    Keys, values and headers are null if they are not of `columns`.
    `bytes_max` is what one batch may have uncompressed (record.decompressed.max.bytes); all of them together
    PAYLOAD_BYTES_MAX. Raises KafkaError MESSAGE_TOO_LARGE, CORRUPT_MESSAGE or UNSUPPORTED_COMPRESSION_TYPE, which names
    the offset of the batch that cannot be read, or of the first one if it takes each by itself to say which.
    """
    payloads: list[bytes] = []
    starts: list[Ints] = []
    ends: list[Ints] = []
    at = 0
    for batch in batches:
        payload = _payload(batch, bytes_max)
        try:
            found, ending = record_spans(payload, 0, len(payload))
        except (ValueError, IndexError) as error:
            raise _corrupt(batch.base_offset, error) from error
        if len(found) != batch.record_count:
            raise _corrupt(batch.base_offset, f"it says {batch.record_count} records, and has {len(found)}")
        starts.append(np.array(found, dtype=np.int64) + at)
        ends.append(np.array(ending, dtype=np.int64) + at)
        payloads.append(payload)
        at += len(payload)
        if at > PAYLOAD_BYTES_MAX and len(payloads) > 1:
            message = f"the batches from offset {batches[0].base_offset} on hold more than {PAYLOAD_BYTES_MAX} bytes"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
    data = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    heads = _Heads([each.header for each in batches], [len(each) for each in starts])
    try:
        fields = _Fields(data, np.concatenate(starts), np.concatenate(ends), columns)
    except (ValueError, IndexError) as error:
        raise _corrupt(batches[0].base_offset, error) from error
    attributes = heads.each("attributes")
    appended = (attributes & LOG_APPEND_TIME_BIT) != 0
    timestamps = heads.each("base_timestamp") + fields.timestamp_delta
    if appended.any():
        timestamps = np.where(appended, heads.each("max_timestamp"), timestamps)
    # Attributes and producer are kept of transactional and control batches only.
    special = attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)
    producer = (special, heads.each("producer_id"), heads.each("producer_epoch"))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(len(timestamps), partition, dtype=np.int32)),
            pa.array(_offsets(batches, heads, fields.offset_delta)),
            *_with_rest(
                timestamps, pa.array(appended.astype(np.int32)), fields.keys, fields.values, fields.headers
            ),
            *(
                pa.array(each, type_, mask=special == 0)
                for each, type_ in zip(producer, (pa.int16(), pa.int64(), pa.int16()), strict=True)
            ),
        ],
        schema=VIEW_SCHEMA,
    )


def _with_rest(timestamps: Ints, *others: pa.Array) -> list[pa.Array]:
    """Return the columns from TIMESTAMP to TIMESTAMP_MS."""
    first, rest = timestamp_columns(timestamps)
    return [first, *others, rest]


class _Heads(NamedTuple):
    """Headers of batches, and how many records each has."""

    headers: Sequence[BatchHeader]
    counts: Sequence[int]

    def each(self, field: str) -> Ints:
        """Return a field of the header of each record."""
        values = np.array([getattr(each, field) for each in self.headers], dtype=np.int64)
        return np.repeat(values, self.counts)


def _offsets(batches: Sequence[StoredBatch], heads: _Heads, deltas: Ints) -> Ints:
    """Return the offset of each record.

    Raises KafkaError CORRUPT_MESSAGE for the first batch whose records are not at offsets of its own, rising.
    """
    firsts = np.repeat(np.array([each.base_offset for each in batches], dtype=np.int64), heads.counts)
    lasts = firsts + heads.each("last_offset_delta")
    offsets: Ints = firsts + deltas
    wrong = (offsets < firsts) | (offsets > lasts)
    wrong[1:] |= offsets[1:] <= offsets[:-1]
    if wrong.any():
        place = int(np.searchsorted(np.cumsum(heads.counts), int(wrong.argmax()), side="right"))
        raise _corrupt(batches[place].base_offset, "its records have no rising offsets of its own")
    return offsets


class _Fields:
    """The fields of records that lie in `data`, from each of `starts` to the end of the same index."""

    def __init__(self, data: bytes, starts: Ints, ends: Ints, columns: Collection[str]) -> None:
        """Raise ValueError or IndexError if they are no records."""
        self._data = data
        self._bytes: Bytes = np.frombuffer(data, dtype=np.uint8)
        self._ends = ends
        # One byte of attributes, which are unused, lies before the first delta.
        self.timestamp_delta, at = read_varints(self._bytes, starts + 1)
        self.offset_delta, at = read_varints(self._bytes, at)
        self.keys, at = self._field(at, is_wanted=KEY in columns)
        self.values, at = self._field(at, is_wanted=VALUE in columns)
        counts, at = read_varints(self._bytes, at)
        if (counts < 0).any() or (at > ends).any():
            raise ValueError("a record is longer or shorter than it says")
        self.headers = self._headers(counts, at) if HEADERS in columns else _no_headers(len(counts))

    def _field(self, at: Ints, *, is_wanted: bool) -> tuple[pa.Array, Ints]:
        lengths, at = read_varints(self._bytes, at)
        after = at + np.maximum(lengths, 0)
        if (lengths < -1).any() or (after > self._ends).any():
            raise ValueError("a field is longer than its record")
        if not is_wanted:
            return pa.nulls(len(at), pa.binary_view()), after
        return binary_views(self._data, self._bytes, at, lengths), after

    def _headers(self, counts: Ints, at: Ints) -> pa.Array:
        having = np.flatnonzero(counts)
        ends = at.copy()
        many = having[counts[having] > _HEADERS_AT_ONCE]
        found = [self._walk(int(record), int(counts[record]), ends) for record in many]
        found += self._in_passes(having[counts[having] <= _HEADERS_AT_ONCE], counts, ends)
        if (ends != self._ends).any():
            raise ValueError("a record is shorter than it says")
        if not len(having):
            return _no_headers(len(counts))
        each = _Headers(*(np.concatenate(column) for column in zip(*found, strict=True)))
        order = np.lexsort((each.place, each.record))
        each = _Headers(*(column[order] for column in each))
        names = binary_views(self._data, self._bytes, each.name_at, each.name_length)
        values = binary_views(self._data, self._bytes, each.value_at, each.value_length)
        return _header_lists(counts, _texts(names), values.cast(pa.binary()))

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
        """Read all headers of one record; writes where they end to `ends`."""
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


def _payload(batch: StoredBatch, bytes_max: int) -> bytes:
    try:
        return decompress(batch.header.codec, bytes(batch.payload), bytes_max)
    except KafkaError as error:
        message = f"the batch at offset {batch.base_offset}: {error.message}"
        raise KafkaError(error.code, message) from error


def _corrupt(offset: int, why: object) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {offset} cannot be read: {why}")


_VIEWS = {KEY: pa.binary_view(), VALUE: pa.binary_view()}

VIEW_SCHEMA = pa.schema(
    [pa.field(each.name, _VIEWS.get(each.name, each.type), each.nullable) for each in SCHEMA]
)
"""SCHEMA with views for keys and values: a file written from one is the same as from the other."""


def records_to_arrow(
    partition: int, records: Sequence[StoredRecord], *, log_append_time: bool = False
) -> pa.RecordBatch:
    """Return records of one partition, in their order, as rows of SCHEMA.

    `log_append_time`: their timestamps are those of their appends.
    """
    count = len(records)
    if isinstance(records, Columns):
        runs = [np.arange(run.start, run.stop, dtype=np.int64) for run in records.runs]
        offsets = np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)
        timestamps: Sequence[int] = records.timestamps
        keys = pa.nulls(count, pa.binary()) if records.keys is None else pa.array(records.keys, pa.binary())
        values = pa.array(records.values, pa.binary())
        headers = _headers(records.each_headers()) if records.headers else _no_headers(count)
    else:
        offsets = np.array([each[0] for each in records], dtype=np.int64)
        timestamps = [each[1] for each in records]
        keys = pa.array([each[2] for each in records], pa.binary())
        values = pa.array([each[3] for each in records], pa.binary())
        some = any(each[4] for each in records)
        headers = _headers(each[4] for each in records) if some else _no_headers(count)
    kinds = pa.array(np.full(count, int(log_append_time), dtype=np.int32))
    columns = [
        pa.array(np.full(count, partition, dtype=np.int32)),
        pa.array(offsets),
        *_with_rest(np.array(timestamps, dtype=np.int64), kinds, keys, values, headers),
    ]
    columns += [pa.nulls(count, SCHEMA.field(at).type) for at in range(len(columns), len(SCHEMA))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _no_headers(count: int) -> pa.Array:
    return pa.nulls(count, SCHEMA.field(HEADERS).type)


def _headers(each: Iterable[list[Header]]) -> pa.Array:
    """Return the headers of each record; null if one has none."""
    lists = list(each)
    flat = list(chain.from_iterable(lists))
    names = pa.array([name for name, _ in flat], pa.string())
    contents = pa.array([content for _, content in flat], pa.binary())
    return _header_lists(np.array(list(map(len, lists)), dtype=np.int64), names, contents)


def _header_lists(counts: Ints, names: pa.Array, values: pa.Array) -> pa.Array:
    """Return a list of headers for each count; names and values are those of all lists, one after the other."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
    type_ = SCHEMA.field(HEADERS).type
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=type_, mask=pa.array(counts == 0))
