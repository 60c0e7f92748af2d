"""Kafka's four compression codecs; none decompresses more than a limit.

A few bytes of a hostile peer can stand for gigabytes, so every codec stops at `limit` with MESSAGE_TOO_LARGE. Members,
frames and blocks that are looked at one by one here are PIECES_MAX at the most, since each may be empty.
Sources: the numbers are the attribute bits of a record batch; snappy comes raw or in the blocks of snappy-java
("xerial"), as Java's producer writes it; lz4 and gzip are their standard frames.

A new codec is a member of Codec and a row in _DECOMPRESSORS and _COMPRESSORS, at the end of this file. The settings
that name codecs, `compression.type` and `storage.compression`, list their values in korvet/config/settings.py; how
values and batches are compressed in Redis is in korvet/log/record_format.py and batch_format.py, and a codec at rest
also stands in korvet/topics/config.py and types.py. `korvet produce` lists its codecs in korvet/cli/options.py.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum

import cramjam
import lz4.frame
import zstandard

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.wire import Buffer

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES = 16
GZIP_WINDOW = zlib.MAX_WBITS | 16
GZIP_PIECE_BYTES = 1024
"""Given to a gzip member first, growing from there: zlib copies whatever lies after the member's end."""
ZSTD_HEADER_BYTES_MAX = 18
ZSTD_BLOCK_RLE = 1
"""One byte stands for a block of repetitions of any size."""
ZSTD_BLOCK_COMPRESSED = 2
ZSTD_BLOCK_BYTES_MAX = 128 * 1024
PIECES_MAX = 10_000
"""Some 15 ms of work. Codecs write blocks of 32 KiB and more: these would be 320 MiB."""
STEP_BYTES_MIN = 64 * 1024
EXPECTED_RATIO = 8

# One of each for the process, since making one costs more than a small batch: no greenlet switches within a call.
_ZSTD_COMPRESSOR = zstandard.ZstdCompressor()
_ZSTD_DECOMPRESSOR = zstandard.ZstdDecompressor()


class Codec(IntEnum):
    """The three lowest attribute bits of a batch; the names are the values of `compression.type`."""

    none = 0
    gzip = 1
    snappy = 2
    lz4 = 3
    zstd = 4


class _TooLargeError(Exception):
    """More than the limit came out."""


class _TooManyPiecesError(ValueError):
    """More members, frames or blocks than codecs write."""

    def __init__(self) -> None:
        super().__init__(f"more than {PIECES_MAX} members, frames or blocks")


class _TruncatedError(ValueError):
    """The data ends too early."""

    def __init__(self) -> None:
        super().__init__("truncated")


def compress(codec: int, data: bytes) -> bytes:
    """Return `data` in `codec`, a member of Codec, as every client reads it."""
    return _COMPRESSORS[codec](data)


def decompress(codec: int, data: bytes, limit: int) -> bytes:
    """Undo `codec` on `data`, to `limit` bytes at the most.

    Raises KafkaError: MESSAGE_TOO_LARGE beyond the limit, CORRUPT_MESSAGE if the data is not what the codec
    writes, UNSUPPORTED_COMPRESSION_TYPE for a number that is no codec.
    """
    function = _DECOMPRESSORS.get(codec)
    if function is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec} is unknown")
    try:
        return function(data, limit)
    except _TooLargeError:
        message = f"the records exceed {limit} bytes uncompressed"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message) from None
    except (
        zlib.error,
        zstandard.ZstdError,
        cramjam.DecompressionError,
        RuntimeError,
        ValueError,
        EOFError,
    ) as error:
        # lz4 reports damage as RuntimeError, and an end that came too soon as EOFError.
        message = f"the records are not valid {Codec(codec).name}: {error}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, message) from error


def check_size(codec: int, data: Buffer, limit: int) -> None:
    """Check that `data` in `codec`, a member of Codec, decompresses to `limit` bytes at most; raises as `decompress`.

    Data that is too short to exceed the limit, or has too few blocks of zstd, is not decompressed: damage in it passes.
    """
    try:
        bytes_max = _zstd_bytes_max(data) if codec == Codec.zstd else len(data) * _RATIO_MAX[codec]
    except (zstandard.ZstdError, ValueError):
        bytes_max = limit + 1
    if bytes_max > limit:
        decompress(codec, bytes(data), limit)


def _none(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise _TooLargeError
    return data


def _gzip(data: bytes, limit: int) -> bytes:
    out, left, pieces = bytearray(), memoryview(data), 0
    while left:  # a gzip file may have several members, one after the other
        pieces += 1
        if pieces > PIECES_MAX:
            raise _TooManyPiecesError
        member, piece_bytes = zlib.decompressobj(GZIP_WINDOW), GZIP_PIECE_BYTES
        while not member.eof:
            piece, left = left[:piece_bytes], left[piece_bytes:]
            if not piece:
                raise _TruncatedError
            out += member.decompress(piece, limit - len(out) + 1)
            if len(out) > limit:
                raise _TooLargeError
            piece_bytes *= 4
        left = memoryview(data)[len(data) - len(left) - len(member.unused_data) :]
    return bytes(out)


def _lz4(data: bytes, limit: int) -> bytes:
    frame = lz4.frame.LZ4FrameDecompressor()
    step = _step(data, limit)
    out: bytes = frame.decompress(data, max_length=step)
    if not frame.eof:
        parts = [out]
        size = len(out)
        while not frame.eof and not frame.needs_input and size <= limit:
            parts.append(frame.decompress(b"", max_length=step))
            size += len(parts[-1])
        out = b"".join(parts)
    if len(out) > limit:
        raise _TooLargeError
    if not frame.eof:
        raise _TruncatedError
    return out


def _zstd(data: bytes, limit: int) -> bytes:
    _zstd_bytes_max(data)
    # A stream, since a frame may not say its size and what it says is not to be allocated.
    step = _step(data, limit)
    parts: list[bytes] = []
    size = 0
    with _ZSTD_DECOMPRESSOR.stream_reader(data, read_across_frames=True) as stream:
        while size <= limit and (part := stream.read(step)):
            parts.append(part)
            size += len(part)
    if size > limit:
        raise _TooLargeError
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd_bytes_max(data: Buffer) -> int:
    """Return the most bytes that the frames can decompress to, by the headers of their blocks (RFC 8878, 3.1.1).

    Raises ValueError if the last frame is cut off: the stream reader takes that for its end.
    """
    position = pieces = bytes_max = 0
    while position < len(data) or not data:
        frame = data[position : position + ZSTD_HEADER_BYTES_MAX]
        parameters = zstandard.get_frame_parameters(frame)
        position += zstandard.frame_header_size(frame)
        last = False
        while not last:
            pieces += 1
            if pieces > PIECES_MAX:
                raise _TooManyPiecesError
            header = int.from_bytes(data[position : position + 3], "little")
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            position += 3 + (1 if kind == ZSTD_BLOCK_RLE else size)
            bytes_max += ZSTD_BLOCK_BYTES_MAX if kind == ZSTD_BLOCK_COMPRESSED else size
            if position > len(data):
                raise _TruncatedError
        position += 4 * parameters.has_checksum
    if position > len(data):
        raise _TruncatedError
    return bytes_max


def _step(data: bytes, limit: int) -> int:
    """Return how much to decompress at once: these libraries allocate all that they are allowed, used or not."""
    return min(limit + 1, max(STEP_BYTES_MIN, EXPECTED_RATIO * len(data)))


def _snappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(XERIAL_MAGIC):
        return _snappy_block(data, limit)
    out = bytearray()
    position, pieces = XERIAL_HEADER_BYTES, 0
    while position < len(data):
        pieces += 1
        if pieces > PIECES_MAX:
            raise _TooManyPiecesError
        if position + 4 > len(data):
            raise _TruncatedError
        (size,) = struct.unpack_from(">I", data, position)
        block = data[position + 4 : position + 4 + size]
        if len(block) != size:
            raise _TruncatedError
        out += _snappy_block(block, limit - len(out))
        position += 4 + size
    return bytes(out)


def _xerial(data: bytes) -> bytes:
    """Write one xerial block; Java's client reads nothing else."""
    block = bytes(cramjam.snappy.compress_raw(data))
    return XERIAL_MAGIC + struct.pack(">iiI", 1, 1, len(block)) + block


def _snappy_block(block: bytes, limit: int) -> bytes:
    # A block opens with its uncompressed size as a varint, so the bound can be checked before anything is made.
    if cramjam.snappy.decompress_raw_len(block) > limit:
        raise _TooLargeError
    return bytes(cramjam.snappy.decompress_raw(block))


_DECOMPRESSORS: dict[int, Callable[[bytes, int], bytes]] = {
    Codec.none: _none,
    Codec.gzip: _gzip,
    Codec.snappy: _snappy,
    Codec.lz4: _lz4,
    Codec.zstd: _zstd,
}
_RATIO_MAX: dict[int, int] = {Codec.none: 1, Codec.gzip: 1032, Codec.snappy: 22, Codec.lz4: 255}
"""The most bytes that a byte of each format can stand for."""
_COMPRESSORS: dict[int, Callable[[bytes], bytes]] = {
    Codec.none: bytes,
    Codec.gzip: lambda data: bytes(cramjam.gzip.compress(data)),
    Codec.snappy: _xerial,
    Codec.lz4: lambda data: bytes(
        lz4.frame.compress(data, block_linked=False)
    ),  # Java reads no linked blocks
    Codec.zstd: _ZSTD_COMPRESSOR.compress,
}
