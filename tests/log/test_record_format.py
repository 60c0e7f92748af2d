"""Stream entries as records: those that Korvet has made, and those that others wrote."""

from __future__ import annotations

from typing import Any

import lz4.frame
import pytest
import zstandard

from korvet.log.record_format import Entry, decompress, read_entries
from korvet.protocol.records.record import StoredRecord
from tests.support.appends import entry_of

LIMIT = 1 << 20


def no_damage(offset: int, encoding: str) -> None:
    raise AssertionError(f"offset {offset} is damaged: {encoding}")


def read(*entries: tuple[str, list[bytes]], bits: int = 10, end: int = 2**53) -> list[StoredRecord]:
    listing: list[Entry] = [(entry_id.encode(), fields) for entry_id, fields in entries]
    return read_entries(listing, bits, end, LIMIT, no_damage)


@pytest.mark.parametrize("bits", range(8, 13))
def test_ids_are_offsets(bits: int) -> None:
    top = (1 << bits) - 1
    found = read(
        ("7-0", [b"value", b"a"]), (f"7-{top}", [b"value", b"b"]), ("9-1", [b"value", b"c"]), bits=bits
    )
    assert [one[0] for one in found] == [7 << bits, (7 << bits) + top, (9 << bits) + 1]


@pytest.mark.parametrize("unreadable", ["7-1024", f"{2**43}-0", f"{2**64 - 1}-{2**64 - 1}"])
def test_an_entry_without_an_offset_ends_what_is_read(unreadable: str) -> None:
    fields = [b"value", b"x"]
    assert [one[0] for one in read(("7-1023", fields), (unreadable, fields), ("9-0", fields))] == [
        (7 << 10) + 1023
    ]


def test_nothing_is_read_at_or_past_the_end() -> None:
    fields = [b"value", b"x"]
    assert len(read(("7-0", fields), ("7-1", fields), ("7-2", fields), end=(7 << 10) + 2)) == 2


@pytest.mark.parametrize(
    "timestamp",
    [b"", b"x", b"1.5", b"1_0", b" 5", b"+5", b"\xff", b"9223372036854775808", b"1" * 5000, b"\xd9\xa1"],
)
@pytest.mark.parametrize("key", [[], [b"key", b"k"]])
def test_without_a_usable_timestamp_an_entry_has_the_time_of_its_id(
    timestamp: bytes, key: list[bytes]
) -> None:
    [(_, at, _, value, headers)] = read(("1234-5", [*key, b"value", b"v", b"timestamp", timestamp]))
    assert (at, value) == (1234, b"v")
    assert headers == [("timestamp", timestamp)]


def test_of_an_external_entry_nothing_is_lost() -> None:
    fields = {b"temperature": b"21", b"\xff\xfe": b"\x00", b"nullheader.x": b"not null", b"header.x": b"1"}
    flat = [part for pair in fields.items() for part in pair]
    [(_, at, key, value, headers)] = read(("1234-5", [*flat, b"key", b"a", b"key", b"b"]))
    assert (at, key, value) == (1234, b"a", None)
    assert headers == [
        ("temperature", b"21"),
        ("\\xff\\xfe", b"\x00"),
        ("nullheader.x", b"not null"),
        ("x", b"1"),
        ("key", b"b"),
    ]


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
def test_a_value_that_does_not_decode_is_served_as_it_is_stored(name: str) -> None:
    encoding, value = DAMAGED[name]
    damages: list[tuple[int, str]] = []
    entries: list[Entry] = [(b"7-1", [b"value", value, b"timestamp", b"5", b"korvet.encoding", encoding])]
    found = read_entries(entries, 10, 2**53, LIMIT, lambda offset, text: damages.append((offset, text)))
    offset = (7 << 10) + 1
    assert found == [(offset, 5, None, value, [("korvet.encoding", encoding)])]
    assert damages == [(offset, encoding.decode())]
    # The next value is none the worse for it.
    assert decompress(FRAME, b"lz4", LIMIT) == bytes(range(256)) * 4


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_value_of_exactly_the_limit_is_decoded(codec: str) -> None:
    entry = entry_of((0, 5, None, bytes(LIMIT), []), codec)
    assert read(("7-1", entry))[0][3] == bytes(LIMIT)


@pytest.mark.parametrize(
    "entry",
    [(b"x", []), (b"1", []), (b"1-x", []), (b"1-0", [b"key"]), (b"1-0", None), (None, []), (b"1-0", [5, 5])],
)
def test_what_is_no_entry_raises_one_of_the_declared_errors(entry: Any) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, IndexError)):
        read_entries([entry], 10, 2**53, LIMIT, no_damage)
