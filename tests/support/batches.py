"""Record batches as producers make them, as none should, and read back.

`batch` is aiokafka's builder; `forged` changes what it wrote and makes the CRC right again, so that the lie is found
for what it is and not by its checksum.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import cramjam
import google_crc32c
import lz4.frame
import zstandard
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from korvet.protocol.records.batch import CRC_FROM, HEADER, HEADER_BYTES, BatchHeader

Header = tuple[str, bytes | None]
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
TIMESTAMP = 1_600_000_000_000


class Record(NamedTuple):
    """A record; the offset is where it was read, and means nothing where it is sent."""

    value: bytes | None = b"value"
    key: bytes | None = None
    timestamp: int = TIMESTAMP
    headers: Sequence[Header] = ()
    offset: int = -1


def batch(
    *records: Record | bytes | None,
    codec: int = NONE,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Return a batch of `records`; bytes and None are values."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=int(transactional),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 30,
    )
    for delta, item in enumerate(records or [Record()]):
        record = item if isinstance(item, Record) else Record(item)
        builder.append(delta, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def forged(original: bytes, **fields: int) -> bytes:
    """Return a batch with other header fields (see BatchHeader), its CRC made right unless `crc` is given."""
    view = BatchHeader.read(original)._replace(**fields)
    return sealed(HEADER.pack(*view) + original[HEADER_BYTES:], keep_crc="crc" in fields)


def sealed(data: bytes, *, keep_crc: bool = False) -> bytes:
    """Make the CRC of a batch right."""
    if keep_crc:
        return data
    crc = struct.pack(">I", google_crc32c.value(data[CRC_FROM:]))
    return data[: CRC_FROM - 4] + crc + data[CRC_FROM:]


def raw(payload: bytes, *, count: int = 1, codec: int = NONE, **fields: int) -> bytes:
    """Return a batch of `count` records, so it says, whose records (compressed ones, by `codec`) are `payload`."""
    template = BatchHeader.read(batch())._asdict()
    header = template | {
        "batch_length": HEADER_BYTES - 12 + len(payload),
        "attributes": codec,
        "record_count": count,
        "last_offset_delta": count - 1,
    }
    return sealed(HEADER.pack(*(header | fields).values()) + payload)


def compress(codec: int, data: bytes) -> bytes:
    """Compress as the producers of `codec` do."""
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == LZ4:
        return cast("bytes", lz4.frame.compress(data, block_linked=False))
    return zstandard.compress(data) if codec == ZSTD else data


def xerial(*blocks: bytes) -> bytes:
    """Return snappy in the blocks of snappy-java."""
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return head + b"".join(struct.pack(">i", len(item)) + item for item in packed)


def old_message(value: bytes, magic: int) -> bytes:
    """Return a message set of one message in the format that batches of magic 2 replaced."""
    timestamp = struct.pack(">q", TIMESTAMP) if magic else b""
    body = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">ii", -1, len(value)) + value
    message = struct.pack(">I", 0) + body
    return struct.pack(">qi", 0, len(message)) + message


def headers_of(data: bytes | bytearray | memoryview) -> list[BatchHeader]:
    """Return the headers of all batches in what a fetch answered."""
    result = []
    position = 0
    while position < len(data):
        result.append(BatchHeader.read(data, position))
        position += result[-1].size_bytes
    assert position == len(data), "a batch is cut off"
    return result


def read(data: bytes | bytearray | memoryview | None) -> list[Record]:
    """Return the records of all batches in what a fetch answered; fails on a wrong CRC."""
    if not data:
        return []
    headers_of(data)
    result = []
    batches: Any = MemoryRecords(bytes(data))
    while (item := batches.next_batch()) is not None:
        assert item.validate_crc()
        result += [Record(r.value, r.key, r.timestamp, tuple(r.headers), r.offset) for r in item]
    return result


def values(data: bytes | bytearray | memoryview | None) -> list[bytes | None]:
    """Return the values of all records in what a fetch answered."""
    return [record.value for record in read(data)]


_ONE = batch(Record(b"value" * 4, b"key", headers=[("h", b"v")]))[HEADER_BYTES:]
_THREE = batch(b"a" * 20, b"b", b"c")[HEADER_BYTES:]
_LONG = batch(bytes(100_000))[HEADER_BYTES:]
_LZ4 = compress(LZ4, _ONE)


def _one(at: int, new: bytes) -> bytes:
    """Return a batch of one record with other bytes from `at` on in its 33."""
    return raw(_ONE[:at] + new + _ONE[at + len(new) :])


LINKED = "blocks of lz4 that are linked"
"""Refused, because Java's client does not read them; other readers do."""

MALFORMED = {
    "fewer records than it says": raw(_THREE, count=5),
    "more records than it says": raw(_THREE, count=2),
    "one offset twice": raw(_ONE * 2, count=2),
    "a record that is cut off": raw(_ONE[:-3]),
    "bytes after its record": raw(_ONE + b"x" * 10),
    "zeros": raw(bytes(30)),
    "a varint without an end": raw(b"\xff" * 30),
    "a record of negative length": _one(0, b"\x01"),
    "a key longer than its record": _one(4, b"\x7e"),
    "a key of length -2": _one(4, b"\x03"),
    "a null key of length -2": raw(b"\x0e\0\0\0\x03\x02v\0"),
    "a null key, its varint beyond an int32": raw(b"\x16\0\0\0\x81\x80\x80\x80\x10\x02v\0"),
    "a value longer than its record": _one(8, b"\x7e"),
    "fewer headers than none": _one(29, b"\x01"),
    "more headers than it has": _one(29, b"\x04"),
    "a header without a name": _one(30, b"\x01"),
    "an offset of another batch": _one(3, b"\x08"),
    "an offset of an earlier batch": _one(3, b"\x07"),
    "a CRC and a field that are wrong": raw(_THREE, count=5)[:-2] + b"\x7e\x7e",
    "a zstd frame that is cut off": raw(compress(ZSTD, _ONE * 20)[:-3], codec=ZSTD),
    LINKED: raw(lz4.frame.compress(_LONG), codec=LZ4),
    "a block of lz4 without bytes": raw(_LZ4[:-4] + b"\0\0\0\x80" + _LZ4[-4:], codec=LZ4),
    **{f"no frame of codec {codec}": raw(b"no frame" * 3, codec=codec) for codec in CODECS[1:]},
    "30 MB in 3 kB": batch(bytes(30_000_000), codec=ZSTD),
}
"""Batches of which a broker that looks at no record refuses only the one with a wrong CRC."""
