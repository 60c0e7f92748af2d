"""What is in C does what Python does, byte for byte, and leaves to Python all that it does not know.

`make test-compiled` runs these; no other target has the extension (tests/conftest.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet import native
from korvet.log import batch_format, record_format
from korvet.log.record_format import Entry
from korvet.log.types import StoredBatch
from korvet.protocol.records import encoding
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.encoding import EncodedRecords, encode_records
from korvet.topics.types import AtRest
from tests.native.replies import KEPT_MIN, blocks_of, entries_of
from tests.support import batches

CONTENTS = st.one_of(st.binary(max_size=9), st.binary(min_size=60, max_size=70), st.just(bytes(8192)))
TIMES = st.one_of(
    st.just(5), st.integers(0, 10**18 - 1), st.integers(-1, 200), st.integers(-(2**63), 2**63 - 1)
)
GAPS = st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 2**26))
NAMES = st.one_of(st.text(max_size=3), st.just("long" * 40))


@st.composite
def some_columns(draw: Any) -> Columns:
    runs, start = [], draw(st.integers(0, 2**50))
    for length in draw(st.lists(st.integers(1, 70), min_size=1, max_size=4)):
        runs.append(range(start, start + length))
        start += length + draw(GAPS)
    count = sum(map(len, runs))

    def column(each: Any) -> Any:
        some = draw(st.lists(each, min_size=1, max_size=5))
        return [some[at % len(some)] for at in range(count)]

    headers = [
        (name, draw(st.sampled_from([None, column(CONTENTS)]))) for name in draw(st.lists(NAMES, max_size=3))
    ]
    return Columns(
        runs, column(TIMES), draw(st.sampled_from([None, column(CONTENTS)])), column(CONTENTS), headers
    )


def by_python(columns: Columns, bytes_max: int, *, at_least_one: bool) -> EncodedRecords:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoding, "NATIVE", False)
        return encode_records(columns, bytes_max, at_least_one=at_least_one)


@given(
    columns=some_columns(),
    bytes_max=st.one_of(st.just(2**31), st.integers(-100, 30_000)),
    least=st.booleans(),
)
def test_records_are_the_same_bytes_at_any_limit(columns: Columns, bytes_max: int, *, least: bool) -> None:
    wanted = by_python(columns, bytes_max, at_least_one=least)
    assert encode_records(columns, bytes_max, at_least_one=least) == wanted


def test_every_limit_near_the_end_of_a_record_cuts_at_the_same_record() -> None:
    columns = Columns([range(7, 10), range(70, 71)], [3, 4, 5, 2], [b"k"] * 4, [b"value"] * 4, [("h", None)])
    whole = by_python(columns, 1 << 20, at_least_one=False)
    assert whole.record_count == 4
    for bytes_max in range(-1, len(whole.payload) + 2):
        for least in (False, True):
            found = encode_records(columns, bytes_max, at_least_one=least)
            assert found == by_python(columns, bytes_max, at_least_one=least)


RUNS, TIMESTAMPS, CONTENT, AFTER = [(0, 2)], [5, 5], [None, [b"a", b"b"]], [b"", b"\0"]


class Bytes(bytes):
    __slots__ = ()


class List(list[Any]):
    __slots__ = ()


@pytest.mark.parametrize(
    "changed",
    [
        *[
            {0: runs}
            for runs in ([], [(0, 1)], [(0, 0)], [(-1, 1)], [(1, 2), (0, 1)], [(0, 1), (0, 1)], [[0, 2]])
        ],
        *[
            {0: runs}
            for runs in ([(0,)], [(0, 2.0)], [(0, 2**31 + 1)], [(0, 2**70)], [None], None, [(True, 2)])
        ],
        *[
            {1: times}
            for times in ([], [5], [5, 5, 5], [5, None], [b"5", 5], [5, 5.0], [5, 2**63], (5, 5), None)
        ],
        {1: [2**63 - 1, -2]},
        {1: [-(2**63), 1]},
        *[
            {2: [None, column]}
            for column in ([b"a"], [b"a"] * 3, [b"a", None], [b"a", "b"], (b"a", b"b"), 5, "ab")
        ],
        *[
            {2: [None, column]}
            for column in ([b"a", Bytes(b"b")], [b"a", bytearray(b"b")], List([b"a", b"b"]))
        ],
        *[{2: contents} for contents in ([], [None], None, (None, None))],
        *[{3: after} for after in ([], [b""], [b"", None], [b"", ""], None, (b"", b""))],
    ],
)
def test_what_is_not_for_it_is_left_to_python(changed: dict[int, Any]) -> None:
    arguments: list[Any] = [RUNS, TIMESTAMPS, CONTENT, AFTER, 1000, 0]
    assert native.encode_records(*arguments) == (b"\x0e\0\0\0\x01\x02a\0" + b"\x0e\0\0\x02\x01\x02b\0", 2, 1)
    for place, value in changed.items():
        arguments[place] = value
    assert native.encode_records(*arguments) is None


def test_a_batch_of_more_than_2_gib_is_left_to_python() -> None:
    large = bytes(2**20)
    count = 2**11
    arguments = ([(0, count)], [5] * count, [None, [large] * count], [b"", b"\0"])
    assert native.encode_records(*arguments, 2**40, 0) is None
    found = native.encode_records(*arguments, 2**21, 0)
    assert found is not None
    assert found[1:] == (1, 0)


def test_other_arguments_are_an_error() -> None:
    call: Any = native.encode_records
    with pytest.raises(TypeError):
        call(RUNS)
    with pytest.raises(TypeError):
        call(RUNS, TIMESTAMPS, CONTENT, AFTER, "1000", 0)
    with pytest.raises(OverflowError):
        call(RUNS, TIMESTAMPS, CONTENT, AFTER, 2**70, 0)


NAME = st.sampled_from([b"key", b"value", b"timestamp", b"header.a"])
PAIRS = st.lists(
    st.tuples(st.one_of(NAME, st.binary(max_size=2)), st.binary(max_size=2)), min_size=1, max_size=3
)


def as_lists(split: tuple[Any, list[bytes], list[Any]] | None) -> object:
    return split and (list(split[0]), split[1], list(map(list, split[2])))


@given(st.lists(PAIRS, min_size=2, max_size=4))
def test_entries_are_split_as_python_does(some: list[list[tuple[bytes, bytes]]]) -> None:
    entries: list[Entry] = [[b"7-%d" % at, [*chain(*pairs)]] for at, pairs in enumerate(some)]
    wanted = record_format._split_entries(entries)
    assert as_lists(native.split_entries(entries_of(entries))) == wanted


@given(st.lists(NAME, min_size=1, max_size=4), st.lists(st.binary(max_size=3), min_size=2, max_size=40))
def test_entries_of_one_layout_are_columns(names: list[bytes], contents: list[bytes]) -> None:
    entries: list[Entry] = [
        [b"7-%d" % at, [part for name in names for part in (name, each)]] for at, each in enumerate(contents)
    ]
    found = as_lists(native.split_entries(entries_of(entries)))
    assert found == ([each[0] for each in entries], names, [contents] * len(names))
    assert found == record_format._split_entries(entries)


def test_entries_with_more_fields_than_it_takes_are_left_to_python() -> None:
    for fields in (1024, 1025):
        entries = [[b"7-%d" % at, [b"f", b"v"] * fields] for at in range(2)]
        assert (native.split_entries(entries_of(entries)) is None) == (fields == 1025)


def test_what_are_no_entries_is_left_to_python() -> None:
    for other in (None, 5, [], [[b"7-1", [b"a", b"b"]]] * 2):
        wrong: Any = other
        assert native.split_entries(wrong) is None
        assert native.read_batches(wrong, 5, StoredBatch, record_format.decompress) is None
        assert native.parse_runs(wrong, 4, 5) is None


IDS = st.one_of(
    st.tuples(st.integers(0, 3), st.integers(0, 17)).map(lambda pair: b"%d-%d" % pair),
    st.tuples(st.integers(0, 2**50), st.integers(0, 9)).map(lambda pair: b"%d-%d" % pair),
    st.sampled_from(
        [
            b"1-",
            b"-1",
            b"1",
            b"",
            b"a-1",
            b"1-a",
            b"1-1-1",
            b"999999999999999999-1",
            b"18446744073709551615-1",
        ]
    ),
)


@given(st.lists(IDS, min_size=2, max_size=30), st.sampled_from([0, 4, 20]), st.sampled_from([5, 40, 2**53]))
def test_the_offsets_of_ids_are_those_that_python_finds(ids: list[bytes], bits: int, end: int) -> None:
    split = native.split_entries(entries_of([[each, [b"f", b"v"]] for each in ids]))
    assert split is not None
    found = native.parse_runs(split[0], bits, end)
    if found is not None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(record_format, "NATIVE", False)
            wanted = record_format._runs(ids, bits, end)
        assert wanted is not None
        # Python leaves runs that touch each other apart.
        assert list(chain(*found)) == list(chain(*wanted))
        assert all(run.stop < following.start for run, following in pairwise(found))


def test_ids_that_rise_have_their_offsets_in_runs() -> None:
    ids = [b"7-3", b"7-4", b"7-5", b"7-15", b"8-0", b"9-0"]
    split = native.split_entries(entries_of([[each, [b"f", b"v"]] for each in ids]))
    assert split is not None
    assert native.parse_runs(split[0], 4, 145) == [range(115, 118), range(127, 129), range(144, 145)]
    assert native.parse_runs(split[0], 4, 144) is None
    assert native.parse_runs(split[0], 3, 145) is None
    assert native.parse_runs(split[0], -1, 145) is None
    assert native.parse_runs(split[0], 63, 145) is None


def stored(first: int, count: int, value: bytes, codec: Literal["none", "lz4", "zstd"] = "none") -> Entry:
    """Return a batch as it lies in Redis."""
    whole = batches.batch(*[batches.Record(value, None, 5)] * count)
    args: list[Any] = batch_format.batch_args(memoryview(whole), 0, AtRest(codec=codec, min_bytes=0))
    return [b"0-%d" % (first + count), [bytes(each) for each in args]]


def test_batches_are_those_that_python_finds() -> None:
    entries = [
        stored(0, 3, b"plain"),
        stored(3, 20, bytes(100), "lz4"),
        stored(23, 20, bytes(100), "zstd"),
        stored(43, 1, b"last"),
    ]
    assert [len(fields) for _, fields in entries] == [2, 4, 4, 2]
    for end in (44, 43, 23, 2):
        wanted, external = batch_format.read_batches(entries, end)
        found = native.read_batches(entries_of(entries), end, StoredBatch, record_format.decompress)
        assert found is not None
        assert (found, external) == (wanted, 0)
        assert [b"".join(each.chunks(7)) for each in found] == [b"".join(each.chunks(7)) for each in wanted]
        assert [each.header for each in found] == [each.header for each in wanted]
    assert batch_format.read_batches(entries_of(entries), 44) == batch_format.read_batches(entries, 44)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "other",
    [
        [b"9-1", [b"batch", bytes(61)]],
        [b"0-", [b"batch", bytes(61)]],
        [b"0-x", [b"batch", bytes(61)]],
        [b"0-9", [b"other", bytes(61)]],
        [b"0-9", [b"batch", bytes(60)]],
        [b"0-9", [b"batch", bytes(61)]],
        [b"0-9", [b"batch", stored(6, 3, b"x")[1][1] + b"x"]],
        [b"0-9", [b"batch", stored(6, 3, b"x")[1][1][:-1]]],
        [b"0-2", stored(6, 3, b"x")[1]],
        [b"0-9", [*stored(6, 3, b"x")[1], b"other", b"lz4"]],
        [b"0-9", [*stored(6, 3, b"x")[1], b"korvet.encoding", b"lz4"]],
        [b"0-9", [*stored(6, 3, b"x")[1], b"more", b"x", b"more", b"x"]],
        [b"0-99", [*stored(6, 20, bytes(99), "lz4")[1][:-1], b"zstd"]],
    ],
)
def test_what_is_no_batch_is_left_to_python(other: Entry, place: int) -> None:
    entries = [stored(0, 3, b"one"), stored(3, 3, b"two")]
    entries[place] = other
    raw = entries_of(entries)
    assert isinstance(raw, native.Entries)
    assert native.read_batches(raw, 99, StoredBatch, record_format.decompress) is None

    def read(some: Any) -> object:
        try:
            return batch_format.read_batches(some, 99)
        except ValueError as error:
            return str(error)

    assert read(raw) == read(entries)


def test_an_error_of_what_it_calls_is_raised() -> None:
    raw = entries_of([stored(0, 20, bytes(100), "lz4")] * 2)

    def fail(*_: object) -> Any:
        raise RuntimeError("of the caller")

    with pytest.raises(RuntimeError, match="of the caller"):
        native.read_batches(raw, 99, fail, record_format.decompress)
    with pytest.raises(RuntimeError, match="of the caller"):
        native.read_batches(raw, 99, StoredBatch, fail)


TEXTS = st.one_of(
    st.sampled_from(
        [b"5", b"05", b"", b"-5", b"+5", b" 5", b"5_0", b"\xb2", b"9" * 18, b"1" + b"0" * 18, b"5\0"]
    ),
    st.integers(0, 10**19).map(lambda number: b"%d" % number),
)


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_timestamps_are_those_that_python_reads(column: list[bytes]) -> None:
    assert native.parse_timestamps(column) == record_format._timestamps(column)


@pytest.mark.parametrize("column", [None, (b"5",), [None], [b"5", 5], [b"5", "5"], [bytearray(b"5")]])
def test_what_is_no_column_of_timestamps_has_none(column: Any) -> None:
    assert native.parse_timestamps(column) is None


def calls() -> list[Callable[[], object]]:
    """Return calls that end in each way."""
    raw = entries_of([stored(at * 9, 9, b"v") for at in range(20)])
    encoded = entries_of([stored(at * 9, 9, bytes(99), "lz4") for at in range(20)])
    column = [b"99%d" % at for at in range(50)]
    values: list[Any] = [b"v%d" % at for at in range(50)]
    stamps = [10**12 + at for at in range(50)]

    def encode(contents: list[Any], bytes_max: int) -> object:
        return native.encode_records([(0, 50)], stamps, [None, contents], [b"", b"\0"], bytes_max, 0)

    return [
        lambda: native.read_batches(raw, 2**50, StoredBatch, record_format.decompress),
        lambda: native.read_batches(raw, 50, StoredBatch, record_format.decompress),
        lambda: native.read_batches(encoded, 2**50, StoredBatch, record_format.decompress),
        lambda: native.read_batches(encoded, 2**50, StoredBatch, lambda *_: None),
        lambda: native.parse_timestamps(column),
        lambda: native.parse_timestamps([*column, b"x"]),
        lambda: encode(values, 1 << 20),
        lambda: encode(values, 0),
        lambda: encode([*values[1:], None], 1 << 20),
    ]


@pytest.mark.parametrize("place", range(len(calls())))
def test_no_reference_is_lost_or_kept(place: int) -> None:
    assert abs(blocks_of(calls()[place])) < KEPT_MIN
    shared = b"shared, and not interned"
    count = sys.getrefcount(shared)
    assert native.encode_records([(0, 2)], [5, 5], [[shared, shared]], [shared], 1000, 0) is not None
    assert sys.getrefcount(shared) == count
