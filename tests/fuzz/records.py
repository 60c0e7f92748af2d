"""Record batches of every magic and codec, in every form that a codec allows, true ones and lies.

The CRC is nearly always right, so that a lie is met by the code after the check of it. Nothing is larger than a few
MiB when it is decompressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from random import Random

import lz4.frame
import zstandard

from korvet.protocol.records.batch import HEADER_BYTES
from tests.support.batches import (
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    TIMESTAMP,
    ZSTD,
    Record,
    batch,
    compress,
    old_message,
    raw,
    xerial,
)

_HEADER_LIES: dict[str, tuple[int, ...]] = {
    "record_count": (-1, 0, 1, 2, 1000, 2**31 - 1),
    "last_offset_delta": (-1, 0, 1, 1000, 2**31 - 1),
    "attributes": (*range(16), 0x10, 0x20, 0x24, 0x40, 0x7FF8, -1),
    "base_timestamp": (-(2**63), -1, 0, 2**63 - 1),
    "max_timestamp": (-(2**63), -1, 0, 2**63 - 1),
    "producer_id": (-2, 0, 7, 2**63 - 1),
    "producer_epoch": (-1, 0, 2**15 - 1),
    "base_sequence": (-2, -1, 0, 2**31 - 1),
    "base_offset": (-1, 2**63 - 1),
    "batch_length": (-(2**31), -1, 0, 48, 49, 2**31 - 1),
    "magic": (-1, 0, 1, 3),
    "crc": (0,),
}
_VARINTS = (
    b"\x01",
    b"\x03",
    b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 10,
    b"\x80" * 9 + b"\x01",
)
"""Zigzag: -1, -2, the ends of int32, and those longer than any."""


def any_records(rng: Random) -> bytes:
    """Return what a hostile producer sends for a partition."""
    kind = rng.random()
    if kind < 0.4:  # as it should be, so that there is something to read
        return _compressed(_records(rng, plain=True), rng.randrange(5))
    if kind < 0.5:
        return _old(rng)
    data = _batch(rng)
    if kind > 0.95:
        return rng.choice((data + data, data[: rng.randrange(len(data))], data + b"\0", b""))
    return data


def _compressed(records: list[Record], codec: int) -> bytes:
    times = [record.timestamp for record in records]
    payload = compress(codec, batch(*records)[HEADER_BYTES:])
    return raw(payload, count=len(records), codec=codec, base_timestamp=times[0], max_timestamp=max(times))


def _batch(rng: Random) -> bytes:
    records = _records(rng)
    plain = batch(*records)[HEADER_BYTES:]
    count = len(records)
    match rng.randrange(8):
        case 0:
            plain = _damaged(rng, plain)
        case 1:  # many records of seven bytes
            count = rng.choice((100, 3000))
            plain = b"".join(struct.pack(">BBBBBBB", 12, 0, 0, 0, 1, 1, 0) for _ in range(count))
        case 2:  # a batch within the batch
            plain = _compressed(records, rng.randrange(5))
        case 3:
            plain, count = bytes(rng.choice((10, 10**5, 4 * 10**6))), rng.choice((1, 10**5))
    codec = rng.randrange(5)
    packed = _packed(rng, codec, plain)
    if rng.random() < 0.2:
        packed = _damaged(rng, packed)
    lies = {}
    for _ in range(rng.choice((0, 0, 1, 2))):
        name = rng.choice(tuple(_HEADER_LIES))
        lies[name] = rng.choice(_HEADER_LIES[name])
    times = {"base_timestamp": TIMESTAMP, "max_timestamp": TIMESTAMP}
    made = raw(packed, count=count, codec=codec, **(times | lies))
    return made if "crc" not in lies else made[:17] + b"\0\0\0\0" + made[21:]


def _records(rng: Random, *, plain: bool = False) -> list[Record]:
    times = (TIMESTAMP, TIMESTAMP + 1) if plain else (TIMESTAMP, 0, -1, 2**62)
    return [
        Record(
            value=rng.choice((None, b"", b"value", rng.randbytes(rng.randrange(300)))),
            key=rng.choice((None, b"", b"key", b"k%d" % rng.randrange(20)))
            if not plain
            else b"k%d" % rng.randrange(20),
            timestamp=rng.choice(times),
            headers=[(rng.choice(("", "h", "\u20ac")), rng.choice((None, b"", b"v")))]
            * rng.choice((0, 0, 1, 5)),
        )
        for _ in range(rng.choice((1, 1, 2, 20)))
    ]


def _damaged(rng: Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randint(0, len(data))
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = rng.choice(_VARINTS)
            case 1:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                del data[at:]
            case _:
                del data[at : at + rng.randint(1, 4)]
    return bytes(data)


def _packed(rng: Random, codec: int, data: bytes) -> bytes:
    """Compress in one of the forms that the codec allows, or as no producer does."""
    if rng.random() < 0.1:
        data = compress(codec, data)  # twice
    if codec == NONE or rng.random() < 0.4:
        return compress(codec, data)
    half = len(data) // 2
    first, second = data[:half], data[half:]
    empties = rng.choice((1, 100, 3000))
    size = struct.pack(">i", rng.choice((-1, 0, 2**31 - 1)))
    skippable = struct.pack("<II", 0x184D2A50, rng.choice((0, 2**31 - 1)))
    forms: dict[int, tuple[Callable[[], bytes], ...]] = {
        GZIP: (lambda: compress(GZIP, data)[:-8] + struct.pack("<II", zlib.crc32(data) ^ 1, half),),
        SNAPPY: (
            lambda: xerial(first, second),
            lambda: xerial(*[b""] * empties, data),
            lambda: xerial(data)[:16] + size + data[:100],
            lambda: b"\xff\xff\xff\xff\x0f" + compress(SNAPPY, data)[1:],
        ),
        LZ4: (
            lambda: bytes(lz4.frame.compress(data, content_checksum=True, block_checksum=True, block_size=4)),
            lambda: compress(LZ4, data)[:6] + struct.pack("<Q", 2**62) + compress(LZ4, data)[6:],
            lambda: skippable + compress(LZ4, data),
        ),
        ZSTD: (
            lambda: zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(data),
            lambda: b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**62) + compress(ZSTD, data)[6:],
            lambda: skippable + compress(ZSTD, data),
        ),
    }
    # Members and frames may follow each other, empty ones too.
    several: tuple[Callable[[], bytes], ...] = (
        lambda: compress(codec, first) + compress(codec, second),
        lambda: compress(codec, b"") * empties + compress(codec, data),
    )
    form: Callable[[], bytes] = rng.choice((*forms[codec], *several))
    return form()


def _old(rng: Random) -> bytes:
    """Return a message set of magic 0 or 1, perhaps within another one, compressed."""
    magic = rng.randrange(2)
    inner = b"".join(old_message(rng.randbytes(10), magic) for _ in range(rng.choice((1, 3))))
    depth = rng.choice((0, 1, 1, 5))
    for _ in range(depth):
        codec = rng.randrange(1, 5)
        nested = bytearray(old_message(compress(codec, inner), magic))
        nested[17] = codec
        inner = sealed_old(bytes(nested))
    return _damaged(rng, inner) if rng.random() < 0.3 else inner


def sealed_old(message: bytes) -> bytes:
    """Make the CRC (CRC-32) of a message of magic 0 or 1 right."""
    return message[:12] + struct.pack(">I", zlib.crc32(message[16:])) + message[16:]
