"""Records as stream entries and back: exactly, over a real server; and entries that others wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import lz4.frame
import pytest
import redis
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.log.record_format import (
    ENTRY_ARGS_MAX,
    Arg,
    Entry,
    batch_args,
    decompress,
    entry_args,
    read_entries,
)
from korvet.protocol.records.record import Header, StoredRecord
from korvet.topics.types import AtRest
from tests.support import redis_servers

STREAM = "korvet:orders:0"
LIMIT = 1 << 20
NONE = AtRest(codec="none")
NAMES = st.one_of(
    st.sampled_from(
        ["", "key", "value", "timestamp", "a.b", "header.x", "nullheader.x", "korvet.encoding", "\x00", "\n"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
CONTENTS = st.one_of(
    st.none(), st.binary(max_size=50), st.binary(min_size=1, max_size=3).map(lambda part: part * 700)
)
RECORDS = st.tuples(
    st.just(0),
    st.integers(-(2**63), 2**63 - 1),
    CONTENTS,
    CONTENTS,
    st.lists(st.tuples(NAMES, CONTENTS), max_size=8),
)


def record(
    value: bytes | None, key: bytes | None = None, *headers: Header, timestamp: int = 5
) -> StoredRecord:
    return 0, timestamp, key, value, list(headers)


def said(arguments: tuple[int, list[Arg]]) -> list[list[Arg]]:
    """Return the fields and values of each record, as lua/log/append_record.lua understands the arguments."""
    shared, rest = arguments
    if shared:
        names, columns = rest[:shared], rest[shared:]
        rows = [columns[at : at + shared] for at in range(0, len(columns), shared)]
        return [[arg for pair in zip(names, row, strict=True) for arg in pair] for row in rows]
    found = []
    while rest:
        size, *rest = rest
        assert isinstance(size, int)
        found.append(rest[:size])
        rest = rest[size:]
    return found


def no_damage(offset: int, encoding: str) -> None:
    raise AssertionError(f"offset {offset} is damaged: {encoding}")


def read(*entries: tuple[str, list[bytes]], bits: int = 10, end: int = 2**53) -> list[StoredRecord]:
    listing: list[Entry] = [(entry_id.encode(), fields) for entry_id, fields in entries]
    return read_entries(listing, bits, end, LIMIT, no_damage)


@pytest.fixture(scope="module")
def client(redis_server: str) -> Iterator[redis.Redis]:
    with redis_servers.connected(redis_server) as made:
        yield made


def stored(client: Any, *args: Any) -> list[Entry]:
    client.delete(STREAM)
    client.execute_command("XADD", STREAM, "1-0", *args)
    # Under its real command name redis-py would turn the fields into a dict, which keeps no repeats.
    return cast("list[Entry]", client.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, STREAM))


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(original=RECORDS)
def test_every_record_survives_the_stream_exactly(client: Any, codec: Any, original: Any) -> None:
    at_rest = AtRest(codec, 100)
    entries = stored(client, *entry_args(original, at_rest))
    assert read_entries(entries, 10, 2**53, LIMIT, no_damage) == [(1 << 10, *original[1:])]
    assert said(batch_args([original], at_rest)) == [entry_args(original, at_rest)]


def test_the_layout_is_the_documented_one() -> None:
    headers: list[Header] = [("b", b"1"), ("a", None), ("b", b""), ("", b"2")]
    assert entry_args(record(b"v", b"k", *headers), NONE) == [
        *(b"key", b"k", b"value", b"v", b"timestamp", b"5"),
        *(b"header.b", b"1", b"nullheader.a", b"", b"header.b", b"", b"header.", b"2"),
    ]
    assert entry_args(record(None), NONE) == [b"timestamp", b"5"]
    assert entry_args(record(b"", b""), NONE) == [b"key", b"", b"value", b"", b"timestamp", b"5"]


@pytest.mark.parametrize(
    "value", [record(b"v", b"k"), record(b"v"), record(None), record(b"v", None, ("h", b""))]
)
def test_a_given_timestamp_replaces_the_records_own(value: StoredRecord) -> None:
    [args] = said(batch_args([value], NONE, timestamp=0))
    assert args[args.index(b"timestamp") + 1] == b"0"


KEYED, BARE = record(b"v", b"k"), record(b"v")
SHAPES = {
    "keyed": ([KEYED, record(b"", b"")], 3),
    "without a key": ([BARE, record(b"")], 2),
    "some with a key": ([KEYED, BARE], 0),
    "a null value": ([KEYED, record(None, b"k")], 0),
    "only null values": ([record(None)], 0),
    "a header": ([BARE, record(b"v", None, ("h", None))], 0),
    "a value worth compressing": ([BARE, record(b"x" * 1024)], 0),
    "a value not quite worth it": ([BARE, record(b"x" * 1023)], 2),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("timestamp", [None, 77])
def test_records_of_one_shape_say_their_fields_once(name: str, timestamp: int | None) -> None:
    records, shared = SHAPES[name]
    arguments = batch_args(records, AtRest("lz4", 1024), timestamp)
    assert arguments[0] == shared
    assert said(arguments) == [entry_args(one, AtRest("lz4", 1024), timestamp) for one in records]


@given(originals=st.lists(RECORDS, min_size=1, max_size=5))
def test_whatever_the_shape_each_record_says_the_same(originals: list[Any]) -> None:
    at_rest = AtRest("zstd", 100)
    expected = [entry_args(one, at_rest) for one in originals]
    assert said(batch_args(originals, at_rest)) == expected


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_values_are_compressed_from_the_threshold_on_and_only_where_that_helps(codec: Any) -> None:
    at_rest = AtRest(codec, 1024)
    assert b"korvet.encoding" not in entry_args(record(b"x" * 1023), at_rest)
    args = entry_args(record(b"x" * 1024), at_rest)
    assert args[-2:] == [b"korvet.encoding", codec.encode()]
    assert len(cast("bytes", args[1])) < 100
    noise = zstandard.compress(bytes(range(256)) * 10, 1) + bytes(i * i % 251 ^ i % 241 for i in range(1000))
    incompressible = lz4.frame.compress(noise)[:900]
    assert entry_args(record(incompressible), AtRest(codec, 1))[:2] == [b"value", incompressible]


def test_a_record_with_more_headers_than_a_script_can_pass_on_is_refused() -> None:
    fitting = (ENTRY_ARGS_MAX - 6) // 2
    assert len(entry_args(record(b"v", b"k", *[("h", b"")] * fitting), NONE)) == ENTRY_ARGS_MAX
    with pytest.raises(KafkaError) as refused:
        batch_args([record(b"v", b"k", *[("h", b"")] * (fitting + 1))], NONE)
    assert refused.value.code == ErrorCode.INVALID_RECORD


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
def test_a_value_of_exactly_the_limit_is_decoded(codec: Any) -> None:
    args = entry_args(record(bytes(LIMIT)), AtRest(codec, 1))
    assert read(("7-1", cast("list[bytes]", args)))[0][3] == bytes(LIMIT)


@pytest.mark.parametrize(
    "entry",
    [(b"x", []), (b"1", []), (b"1-x", []), (b"1-0", [b"key"]), (b"1-0", None), (None, []), (b"1-0", [5, 5])],
)
def test_what_is_no_entry_raises_one_of_the_declared_errors(entry: Any) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, IndexError)):
        read_entries([entry], 10, 2**53, LIMIT, no_damage)
