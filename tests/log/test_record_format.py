"""Values that are compressed at rest."""

from __future__ import annotations

from collections.abc import Callable

import lz4.frame
import pytest
import zstandard

from korvet.log.record_format import decompress

LIMIT = 1 << 20


BOMB = LIMIT + 1
FRAME = lz4.frame.compress(bytes(range(256)) * 4)
DAMAGED = {
    "unknown": (b"br", b"x"),
    "no frame": (b"lz4", b"plain"),
    "cut": (b"lz4", lz4.frame.compress(b"x" * 5000)[:-6]),
    "followed by bytes": (b"lz4", lz4.frame.compress(b"x" * 5000) + b"x"),
    "empty": (b"lz4", b""),
    "bomb": (b"lz4", lz4.frame.compress(bytes(BOMB))),
    "in its middle": (b"lz4", FRAME[:20] + b"\xff" + FRAME[21:]),
    "a wrong header": (b"lz4", FRAME[:14] + bytes([FRAME[14] ^ 1]) + FRAME[15:]),
    "more than it says": (b"lz4", FRAME[:6] + bytes(8) + FRAME[14:]),
    "bomb that hides its size": (b"lz4", lz4.frame.compress(bytes(BOMB), store_size=False)),
    "zstd, no frame": (b"zstd", b"plain"),
    "zstd, empty": (b"zstd", b""),
    "zstd, cut": (b"zstd", zstandard.compress(b"x" * 5000)[:-6]),
    "zstd, followed by bytes": (b"zstd", zstandard.compress(b"x" * 5000) + b"x"),
    "zstd, bomb": (b"zstd", zstandard.compress(bytes(BOMB))),
    "zstd, bomb that hides its size": (
        b"zstd",
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(BOMB)),
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_frame_that_does_not_decode_is_none(name: str) -> None:
    encoding, frame = DAMAGED[name]
    assert decompress(frame, encoding, LIMIT) is None
    # The next one is none the worse for it.
    assert decompress(FRAME, b"lz4", LIMIT) == bytes(range(256)) * 4


@pytest.mark.parametrize(("codec", "compress"), [("lz4", lz4.frame.compress), ("zstd", zstandard.compress)])
def test_a_frame_of_exactly_the_limit_is_decoded(codec: str, compress: Callable[[bytes], bytes]) -> None:
    assert decompress(compress(bytes(LIMIT)), codec.encode(), LIMIT) == bytes(LIMIT)
    assert decompress(compress(bytes(LIMIT)), codec.encode(), LIMIT - 1) is None
