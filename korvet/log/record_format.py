"""Format `record`: a record as a stream entry, and a stream entry as a record.

An entry has the fields `key`, `value`, `timestamp`, `header.<name>`, in this order; an absent `key` or `value` is null.
A stream keeps the order and the repeats of fields, so a repeated header is a repeated field; a null header value, which
is not an empty one, is the field `nullheader.<name>`. A value worth compressing is stored as an lz4 or zstd frame with
the marker field `korvet.encoding`.

Any client may XADD to the stream. Such an entry is neither lost nor refused: without a usable timestamp it gets the
time of its id, and a field that is none of the above becomes a header of that name.

A record of a transaction has the field `korvet.producer` as its last one. A marker, which ends a transaction, has the
fields `korvet.marker`, `korvet.producer` and `timestamp`.

`read_entries` reads entries one by one; `read_columns` reads many entries of one layout as columns, at once.
"""

from __future__ import annotations

import contextlib
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import lz4.frame
import msgspec
import zstandard

from korvet.protocol.records.columns import Columns, Contents
from korvet.protocol.records.control import ABORT, COMMIT, control_record
from korvet.protocol.records.record import Header, StoredRecord, text_of
from korvet.topics.entry_ids import added_ms, width_of

Arg = bytes | str | int | memoryview
Entry: TypeAlias = Any
"""An id and its flat list of fields and values, in a list, as XRANGE answers it; checked by what reads it."""

ENTRY_ARGS_MAX = 7900
"""Lua's stack holds 8000 values (LUAI_MAXCSTACK), and a script passes all arguments of XADD through it."""

HEADER = b"header."
NULL_HEADER = b"nullheader."
MARKER = b"korvet.encoding"
"""The field that says how a value, or a batch, is compressed."""

PRODUCER = b"korvet.producer"
"""The field that says whose an entry of a transaction is, the last of a record: `<producer id>:<epoch>`."""

CONTROL = b"korvet.marker"
"""The field that makes an entry the end of a transaction: `commit` or `abort`; then PRODUCER and `timestamp` follow."""

# Names and values after the key: value, timestamp, and maybe how the value is encoded.
_PLAIN, _ENCODED = 4, 6
DATA = -1
"""The kind of records that producers write, where markers have ABORT or COMMIT."""

_MARKER_FIELDS = [CONTROL, PRODUCER, b"timestamp"]
_CONTROLS = {b"abort": ABORT, b"commit": COMMIT}
_PRODUCER = re.compile(rb"[0-9]{1,19}:[0-9]{1,5}")
_PRODUCER_ID_MAX, _PRODUCER_EPOCH_MAX = 2**63 - 1, 2**15 - 1
# One of each for the process, since making one costs more than a value: no greenlet switches within a call.
_ZSTD_COMPRESSOR = zstandard.ZstdCompressor()
_ZSTD_DECOMPRESSOR = zstandard.ZstdDecompressor()
_LZ4_DECOMPRESSOR = lz4.frame.create_decompression_context()
_TIMESTAMP = re.compile(rb"-?[0-9]{1,19}")
_TIMESTAMP_END = 2**63
# int() of up to 18 digits stays within int64: the common case needs no range check.
SAFE_DIGITS = 18
_SAMPLE_BYTES, _SAMPLE_GAIN_MIN = 1024, 0.97
# Of a frame with its content size: magic, flags, block size, content size (LZ4 frame format, "FLG byte").
_LZ4_HEADER = struct.Struct("<4xBxQ")
_LZ4_CONTENT_SIZE_FLAG = 0x08


class ProducerRun(NamedTuple):
    """Records of one transactional producer, from position `start` to `stop` of those that were read.

    `control` is ABORT or COMMIT for a marker, which is a run of its own, and DATA for what producers write.
    """

    start: int
    stop: int
    producer_id: int
    producer_epoch: int
    control: int


Owned = tuple[int, tuple[int, int], int]
"""A record of a transactional producer: its position, the producer's id and epoch, and its kind as in ProducerRun."""


@lru_cache(maxsize=4096)
def producer_of(text: bytes) -> tuple[int, int] | None:
    """Return the producer id and epoch that a field PRODUCER holds; None if it is not Korvet's."""
    if not _PRODUCER.fullmatch(text):
        return None
    producer_id, epoch = [int(each) for each in text.split(b":")]
    return (producer_id, epoch) if producer_id <= _PRODUCER_ID_MAX and epoch <= _PRODUCER_EPOCH_MAX else None


def producer_runs(owned: Iterable[Owned]) -> list[ProducerRun]:
    """Return the runs of records, by rising positions."""
    runs: list[ProducerRun] = []
    start = stop = 0
    last: tuple[tuple[int, int], int] | None = None
    for position, producer, control in owned:
        if position != stop or (producer, control) != last or control != DATA:
            if last is not None:
                runs.append(ProducerRun(start, stop, *last[0], last[1]))
            start, last = position, (producer, control)
        stop = position + 1
    if last is not None:
        runs.append(ProducerRun(start, stop, *last[0], last[1]))
    return runs


def read_entries(
    entries: Sequence[Entry],
    bits: int,
    end: int,
    decompressed_bytes_max: int,
    damaged: Callable[[int, str], None],
    owned: list[Owned] | None = None,
) -> list[StoredRecord]:
    """Return the records of the entries below offset `end`, up to the first entry whose id is no offset.

    `damaged(offset, encoding)` is called for a value that claims an encoding and does not decode within
    `decompressed_bytes_max` bytes; it is served as it is stored. To `owned` those are added that are of transactions or
    markers, which are control records. Raises ValueError, TypeError, AttributeError or IndexError for what is no answer
    to XRANGE.
    """
    records: list[StoredRecord] = []
    owned = [] if owned is None else owned
    append = records.append
    width, shift = width_of(bits)
    prefix: bytes | None = None
    base = 0
    for entry_id, fields in entries:
        ms, _, sequence_text = entry_id.partition(b"-")
        if ms != prefix:
            prefix, base = ms, int(ms) * width + shift
        sequence = int(sequence_text)
        offset = base + sequence
        if sequence >= width or offset >= end:
            break
        # The fields that nearly every record has, in the order in which they are written.
        at = 2 if fields[0] == b"key" else 0
        size = len(fields) - at
        if size > _PLAIN and fields[-2] == PRODUCER and (of := producer_of(fields[-1])):
            owned.append((len(records), of, DATA))
            fields, size = fields[:-2], size - 2  # noqa: PLW2901 - the rest is as without a transaction
        if size >= _PLAIN and fields[at] == b"value" and fields[at + 2] == b"timestamp":
            stamp = fields[at + 3]
            value: bytes | None = fields[at + 1]
            if size == _ENCODED and fields[at + 4] == MARKER:
                value = decompress(fields[at + 1], fields[at + 5], decompressed_bytes_max)
            elif size != _PLAIN:
                value = None
            if value is not None and stamp.isdigit() and len(stamp) <= SAFE_DIGITS:
                append((offset, int(stamp), fields[1] if at else None, value, []))
                continue
        fields, control = _without_owner(fields, len(records), owned)  # noqa: PLW2901 - as above
        if control == DATA:
            append(_read_fields(offset, bits, fields, decompressed_bytes_max, damaged))
        else:
            append(_marker(offset, bits, fields, control))
    return records


def _without_owner(fields: list[bytes], position: int, owned: list[Owned]) -> tuple[list[bytes], int]:
    """Add to `owned` what belongs to a transactional producer; returns the other fields, and the kind of the record."""
    control = _control_of(fields)
    noted = owned and owned[-1][0] == position
    if control != DATA:
        owned.append((position, producer_of(fields[3]) or (-1, -1), control))
    elif not noted and fields[2:] and fields[-2] == PRODUCER and (of := producer_of(fields[-1])):
        owned.append((position, of, DATA))
        fields = fields[:-2]
    return fields, control


def _control_of(fields: list[bytes]) -> int:
    """Return which marker an entry is, DATA if it is none."""
    if fields[0] != CONTROL or fields[::2] != _MARKER_FIELDS or producer_of(fields[3]) is None:
        return DATA
    return _CONTROLS.get(fields[1], DATA)


def _marker(offset: int, bits: int, fields: list[bytes], control: int) -> StoredRecord:
    timestamp = timestamp_of(fields[5])
    time = added_ms(offset, bits) if timestamp is None else timestamp
    return control_record(control == COMMIT, time, offset)


def _read_fields(
    offset: int,
    bits: int,
    fields: list[bytes],
    decompressed_bytes_max: int,
    damaged: Callable[[int, str], None],
) -> StoredRecord:
    key: bytes | None = None
    value: bytes | None = None
    encoding: bytes | None = None
    timestamp: int | None = None
    headers: list[Header] = []
    for name, content in zip(fields[::2], fields[1::2], strict=True):
        if name.startswith(HEADER):
            headers.append((text_of(name[len(HEADER) :]), content))
        elif name.startswith(NULL_HEADER) and not content:
            headers.append((text_of(name[len(NULL_HEADER) :]), None))
        elif name == b"key" and key is None:
            key = content
        elif name == b"value" and value is None:
            value = content
        elif name == b"timestamp" and timestamp is None and (parsed := timestamp_of(content)) is not None:
            timestamp = parsed
        elif name == MARKER and encoding is None:
            encoding = content
        else:
            headers.append((text_of(name), content))
    if encoding is not None:
        plain = None if value is None else decompress(value, encoding, decompressed_bytes_max)
        if plain is None:
            damaged(offset, text_of(encoding))
            headers.append((MARKER.decode(), encoding))
        else:
            value = plain
    return offset, added_ms(offset, bits) if timestamp is None else timestamp, key, value, headers


def timestamp_of(content: bytes) -> int | None:
    """Return the timestamp (ms) that a field holds, None if it is no decimal int64."""
    if not _TIMESTAMP.fullmatch(content):
        return None
    parsed = int(content)
    return parsed if -_TIMESTAMP_END <= parsed < _TIMESTAMP_END else None


def compress(value: bytes | memoryview, codec: str) -> bytes | None:
    """Return the frame, None if it is not smaller; `codec` is its marker.

    Of a large value a part from its middle is tried first: if that gains nothing, as with what is compressed or
    random already, all of it will hardly.
    """
    if len(value) >= _SAMPLE_BYTES * 4:
        middle = len(value) // 2
        sample = value[middle : middle + _SAMPLE_BYTES]
        if len(_frame(sample, codec)) > _SAMPLE_BYTES * _SAMPLE_GAIN_MIN:
            return None
    frame = _frame(value, codec)
    return frame if len(frame) < len(value) else None


def _frame(value: bytes | memoryview, codec: str) -> bytes:
    frame: bytes = lz4.frame.compress(value) if codec == "lz4" else _ZSTD_COMPRESSOR.compress(value)
    return frame


def decompress(frame: bytes, encoding: bytes, bytes_max: int) -> bytes | None:
    """Return the value, or None if the frame is not one, is cut, or holds more than `bytes_max` bytes.

    A frame must say how much it holds, as Korvet's do: then nothing larger is allocated for it.
    """
    try:
        if encoding == b"lz4":
            return _lz4_content(frame, bytes_max)
        if encoding == b"zstd":
            size = zstandard.get_frame_parameters(frame).content_size
            if size > bytes_max:  # also if the frame does not say
                return None
            return _ZSTD_DECOMPRESSOR.decompress(frame, allow_extra_data=False)
    except (ValueError, struct.error, zstandard.ZstdError):
        return None
    return None


def _lz4_content(frame: bytes, bytes_max: int) -> bytes | None:
    """Return what an lz4 frame holds, None if it is none; raises struct.error for one without a whole header."""
    flags, size = _LZ4_HEADER.unpack_from(frame)
    if not flags & _LZ4_CONTENT_SIZE_FLAG or size > bytes_max:
        return None
    plain: bytes
    try:
        plain, used, ended = lz4.frame.decompress_chunk(_LZ4_DECOMPRESSOR, frame, size)
        if ended and used == len(frame):
            return plain
    except RuntimeError:  # lz4 knows no error of its own
        pass
    except BaseException:
        lz4.frame.reset_decompression_context(_LZ4_DECOMPRESSOR)
        raise
    # What is left of a damaged frame must not be taken for the beginning of the next.
    lz4.frame.reset_decompression_context(_LZ4_DECOMPRESSOR)
    return None


ENTRIES_MIN = 16
"""Below this many entries the columns cost more than they spare."""

# Ids that share a millisecond for fewer entries than this are read one by one: finding the end of a run costs as much.
_RUN_MIN = 8


def read_columns(
    entries: Sequence[Entry],
    bits: int,
    end: int,
    decompressed_bytes_max: int,
    owned: list[Owned] | None = None,
) -> Columns | None:
    """Return the records of all the entries, `owned` as `read_entries` does; None if that must read each.

    That is so for entries that differ in their fields or have others than those that Korvet writes, and if an id is
    no offset below `end`, a timestamp is none, or a value does not decompress within `decompressed_bytes_max` bytes.
    Raises what `read_entries` raises.
    """
    count = len(entries)
    if count < ENTRIES_MIN:
        return None
    split = _split_entries(entries)
    if split is None:
        return None
    ids, names, columns = split
    owners: list[tuple[int, int]] = []
    if names[-1] == PRODUCER:
        names.pop()
        producers = columns.pop()
        owners = [of for of in map(producer_of, producers) if of is not None]
        if len(owners) < count or not names:
            return None
    keys = columns.pop(0) if names[0] == b"key" else None
    del names[: len(names) - len(columns)]
    if names[:2] != [b"value", b"timestamp"]:
        return None
    values: Contents | None = columns[0]
    rest = 2
    if names[2:3] == [MARKER]:
        values = _decompressed(columns[0], columns[2], decompressed_bytes_max)
        rest = 3
    timestamps = _timestamps(columns[1])
    headers = _headers(names[rest:], columns[rest:])
    if values is None or timestamps is None or headers is None:
        return None
    runs = _runs(ids, bits, end)
    if owned is not None and runs is not None:
        owned += [(position, of, DATA) for position, of in enumerate(owners)]
    return None if runs is None else Columns(runs, timestamps, keys, values, headers)


def _split_entries(entries: Sequence[Entry]) -> tuple[Contents, list[bytes], list[Contents]] | None:
    """Return the ids, the names of the fields and a column for each; None if the entries differ in their fields."""
    count = len(entries)
    fields = [entry[1] for entry in entries]
    names, width = fields[0][::2], len(fields[0])
    if list(map(len, fields)).count(width) != count:
        return None
    flat = list(chain.from_iterable(fields))
    if any(flat[2 * at :: width].count(name) != count for at, name in enumerate(names)):
        return None
    columns: list[Contents] = [flat[at::width] for at in range(1, width, 2)]
    return [entry[0] for entry in entries], names, columns


def _runs(ids: Contents, bits: int, end: int) -> list[range] | None:
    """Return the offsets, in runs without gaps; None if an id has no offset below `end`."""
    width, shift = width_of(bits)
    count = len(ids)
    runs: list[range] = []
    position = 0
    while position < count:
        ms, _, sequence = ids[position].partition(b"-")
        prefix = ms + b"-"
        low = int(sequence)
        stop = position + 1
        if position + _RUN_MIN <= count and ids[position + _RUN_MIN - 1].startswith(prefix):
            # Ids rise; as text only their sequences may not, and all of these are below a colon.
            stop = bisect_right(ids, prefix + b":", stop)
            if not ids[stop - 1].startswith(prefix):  # the next millisecond has one digit more
                stop = position + 1
        base = int(ms) * width + low + shift
        last = int(ids[stop - 1][len(prefix) :])
        if last >= width or base - low + last >= end:
            return None
        if last - low == stop - position - 1:
            # As many ids as there are numbers from the first to the last: they are these.
            runs.append(range(base, base + stop - position))
        else:
            offsets = [base - low + int(entry_id[len(prefix) :]) for entry_id in ids[position:stop]]
            runs += [range(offset, offset + 1) for offset in offsets]
        position = stop
    return runs


_INTEGERS = msgspec.json.Decoder(list[int])


def _timestamps(column: Contents) -> list[int] | None:
    if column.count(column[0]) == len(column):
        return [int(column[0])] * len(column) if _is_timestamp(column[0]) else None
    if b"".join(column).isdigit():
        # As one array of JSON they take a quarter of the time. It refuses a text that is empty or begins with a zero.
        with contextlib.suppress(msgspec.DecodeError):
            found = _INTEGERS.decode(b"[%b]" % b",".join(column))
            return found if max(found) < 10**SAFE_DIGITS else None
    return [int(text) for text in column] if all(map(_is_timestamp, column)) else None


def _is_timestamp(text: bytes) -> bool:
    return text.isdigit() and len(text) <= SAFE_DIGITS


def _headers(names: list[bytes], columns: list[Contents]) -> list[tuple[str, Contents | None]] | None:
    headers: list[tuple[str, Contents | None]] = []
    for name, column in zip(names, columns, strict=True):
        if name.startswith(HEADER):
            headers.append((text_of(name[len(HEADER) :]), column))
        elif name.startswith(NULL_HEADER) and not any(column):
            headers.append((text_of(name[len(NULL_HEADER) :]), None))
        else:
            return None
    return headers


def _decompressed(frames: Contents, encodings: Contents, bytes_max: int) -> list[bytes] | None:
    values: list[bytes] = []
    for frame, encoding in zip(frames, encodings, strict=True):
        value = decompress(frame, encoding, bytes_max)
        if value is None:
            return None
        values.append(value)
    return values
