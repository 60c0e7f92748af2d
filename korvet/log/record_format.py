"""Format `record`: a record as a stream entry, and a stream entry as a record.

An entry has the fields `key`, `value`, `timestamp`, `header.<name>`, in this order; an absent `key` or `value` is null.
A stream keeps the order and the repeats of fields, so a repeated header is a repeated field; a null header value, which
is not an empty one, is the field `nullheader.<name>`. A value worth compressing is stored as an lz4 or zstd frame with
the marker field `korvet.encoding`.

Any client may XADD to the stream. Such an entry is neither lost nor refused: without a usable timestamp it gets the
time of its id, and a field that is none of the above becomes a header of that name.

A record of a transaction has the field `korvet.producer` as its last one. A marker, which ends a transaction, has the
fields `korvet.marker`, `korvet.producer` and `timestamp`.

The core reads entries (korvet_core.LogReader).
"""

from __future__ import annotations

import re
import struct
from typing import Any, NamedTuple, TypeAlias

import lz4.frame
import zstandard

Arg = bytes | str | int | memoryview
Entry: TypeAlias = Any
"""An id and its flat list of fields and values, in a list, as XRANGE answers it; checked by what reads it."""

ENTRY_ARGS_MAX = 7900
"""Lua's stack holds 8000 values (LUAI_MAXCSTACK), and a script passes all arguments of XADD through it."""

MARKER = b"korvet.encoding"
"""The field that says how a value, or a batch, is compressed."""

PRODUCER = b"korvet.producer"
"""The field that says whose an entry of a transaction is, the last of a record: `<producer id>:<epoch>`."""

CONTROL = b"korvet.marker"
"""The field that makes an entry the end of a transaction: `commit` or `abort`; then PRODUCER and `timestamp` follow."""

DATA = -1
"""The kind of records that producers write, where markers have ABORT or COMMIT."""

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
