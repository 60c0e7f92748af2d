"""What is in C does what Python does, byte for byte, and leaves to Python all that it does not know.

`make test-compiled` runs these; no other target has the extension (tests/conftest.py).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.log import record_format
from korvet.log.record_format import Entry
from korvet.protocol.records import encoding, native
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.encoding import EncodedRecords, encode_records

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


@settings(max_examples=300)
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
    assert native.encode_records(*arguments) == (
        b"\x0e\0\0\0\x01\x02a\0" + b"\x0e\0\0\x02\x01\x02b\0",
        2,
        1,
    )
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
ANY_ENTRY: Any = st.tuples(st.just(b"7-1"), st.lists(st.one_of(NAME, st.binary(max_size=2)), max_size=6))


@given(st.lists(ANY_ENTRY, min_size=1, max_size=4))
def test_entries_are_split_as_python_does(entries: list[Entry]) -> None:
    wanted = record_format._split_entries(entries) if all(len(each[1]) % 2 == 0 for each in entries) else None
    assert native.split_entries(entries) == wanted
    as_lists: Any = [list(each) for each in entries]
    assert native.split_entries(as_lists) == wanted


@given(st.lists(NAME, max_size=4), st.lists(st.binary(max_size=3), min_size=1, max_size=40))
def test_entries_of_one_layout_are_columns(names: list[bytes], contents: list[bytes]) -> None:
    entries = [
        (b"7-%d" % at, [part for name in names for part in (name, each)]) for at, each in enumerate(contents)
    ]
    found = native.split_entries(entries)
    assert found == ([each[0] for each in entries], names, [contents] * len(names))
    assert found == record_format._split_entries(entries)


@pytest.mark.parametrize(
    "entries",
    [
        *[None, 5, [], (), [None], [b"7-1"], [(b"7-1",)], [(b"7-1", None)], [(b"7-1", (b"a", b"b"))], {1: 2}],
        *[[(b"7-1", [b"a"])], [(7, [b"a", b"b"])], [(b"7-1", [b"a", None])], [(b"7-1", [None, b"a"])]],
        *[
            [(b"7-1", [b"a", b"b"]), other]
            for other in (None, 5, (b"7-2", [b"b", b"b"]), (b"7-2", [b"a", 5]))
        ],
        *[
            [(b"7-1", [b"a", b"b"]), other]
            for other in ((b"7-2", []), (b"7-2", [b"a", b"b"] * 2), (None, [b"a", b"b"]))
        ],
    ],
)
def test_entries_that_are_not_alike_are_not_split(entries: Any) -> None:
    assert native.split_entries(entries) is None


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
    entries: list[Any] = [
        (b"7-%d" % at, [b"value", b"v%d" % at, b"timestamp", b"99%d" % at]) for at in range(50)
    ]
    column = [b"99%d" % at for at in range(50)]
    values: list[Any] = [b"v%d" % at for at in range(50)]
    stamps = [10**12 + at for at in range(50)]

    def encode(contents: list[Any], bytes_max: int) -> object:
        return native.encode_records([(0, 50)], stamps, [None, contents], [b"", b"\0"], bytes_max, 0)

    return [
        lambda: native.split_entries(entries),
        lambda: native.split_entries([*entries, (b"8-1", [b"value", b"v", b"other", b"v"])]),
        lambda: native.split_entries([*entries, cast("Any", None)]),
        lambda: native.parse_timestamps(column),
        lambda: native.parse_timestamps([*column, b"x"]),
        lambda: encode(values, 1 << 20),
        lambda: encode(values, 0),
        lambda: encode([*values[1:], None], 1 << 20),
    ]


@pytest.mark.parametrize("place", range(len(calls())))
def test_no_reference_is_lost_or_kept(place: int) -> None:
    call = calls()[place]
    call()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        call()
    gc.collect()
    # A reference that is lost or kept is one of each call; what others in the process free meanwhile is less.
    assert abs(sys.getallocatedblocks() - before) < 500
    shared = b"shared, and not interned"
    count = sys.getrefcount(shared)
    entries = [(shared, [shared, shared])] * 20
    assert native.split_entries(entries) == ([shared] * 20, [shared], [[shared] * 20])
    assert native.encode_records([(0, 2)], [5, 5], [[shared, shared]], [shared], 1000, 0) is not None
    del entries
    assert sys.getrefcount(shared) == count
