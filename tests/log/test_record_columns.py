"""Entries read as columns are what they are when read one by one, or are left to that."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.log.record_format import (
    DATA,
    ENTRIES_MIN,
    MARKER,
    Entry,
    Owned,
    ProducerRun,
    compress,
    producer_runs,
    read_columns,
    read_entries,
)
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.record import StoredRecord
from tests.support.appends import entry_of

BITS = 10
END = 2**53
LIMIT = 1 << 20


def no_damage(offset: int, encoding: str) -> None:
    raise AssertionError(f"offset {offset} is damaged: {encoding}")


def columns(entries: list[Entry], end: int = END) -> Columns | None:
    return read_columns(entries, BITS, end, LIMIT)


def one_by_one(entries: list[Entry]) -> list[Any]:
    return read_entries(entries, BITS, END, LIMIT, no_damage)


def fields_of(number: int, *names: bytes) -> list[bytes]:
    return [part for name in names for part in (name, b"%d" % number)]


def uniform(*names: bytes, count: int = ENTRIES_MIN) -> list[Entry]:
    return [(b"7-%d" % number, fields_of(number, *names)) for number in range(count)]


STEPS = st.one_of(st.just(1), st.integers(1, 3), st.integers(1, 3 * 2**BITS), st.integers(1, 2**33))
CONTENTS = st.binary(max_size=9)
TIMESTAMPS = st.one_of(st.just(5), st.integers(0, 10**18 - 1))


@st.composite
def listings(draw: Any) -> list[Entry]:
    steps = draw(st.lists(STEPS, min_size=ENTRIES_MIN, max_size=30))
    keyed, headers = (
        draw(st.booleans()),
        draw(st.lists(st.tuples(st.text(max_size=3), st.booleans()), max_size=3)),
    )
    codec = draw(st.sampled_from(["none", "lz4", "zstd"]))
    repeated = b"x" * (0 if codec == "none" else 200)
    entries: list[Entry] = []
    offset = draw(st.integers(0, 2**50))
    for step in steps:
        offset += step
        value = repeated + draw(CONTENTS)
        key, timestamp = draw(CONTENTS) if keyed else None, draw(TIMESTAMPS)
        contents = [(name, None if null else draw(CONTENTS)) for name, null in headers]
        record: StoredRecord = (0, timestamp, key, value, contents)
        entries.append((b"%d-%d" % (offset >> BITS, offset & (1 << BITS) - 1), entry_of(record, codec)))
    return entries


@given(entries=listings())
def test_columns_hold_what_the_entries_hold(entries: list[Entry]) -> None:
    found = columns(entries)
    assert found is not None
    assert list(found) == one_by_one(entries)
    assert len(found) == len(entries)
    assert found[3:5] == one_by_one(entries)[3:5]
    assert found[-1] == one_by_one(entries)[-1]


@pytest.mark.parametrize("first", [990, 9_999_990])
def test_a_millisecond_of_one_digit_more_is_no_obstacle(first: int) -> None:
    ids = [(first + n // 9, n % 9) for n in range(300)]
    entries = [(b"%d-%d" % pair, fields_of(1, b"value", b"timestamp")) for pair in ids]
    found = columns(entries)
    assert found is not None
    assert list(found) == one_by_one(entries)


@pytest.mark.parametrize("sequence", [9, 99, 999])
def test_a_sequence_of_one_digit_more_is_in_the_same_run(sequence: int) -> None:
    entries = [
        (b"7-%d" % n, fields_of(1, b"value", b"timestamp")) for n in range(sequence - 8, sequence + 10)
    ]
    found = columns(entries)
    assert found is not None
    assert found.runs == [range((7 << BITS) + sequence - 8, (7 << BITS) + sequence + 10)]


def test_ids_with_a_gap_and_one_too_many_are_not_taken_for_a_run() -> None:
    sequences = [*range(20), 21]
    entries = [(b"7-%d" % n, fields_of(1, b"value", b"timestamp")) for n in sequences]
    found = columns(entries)
    assert found is not None
    assert [record[0] - (7 << BITS) for record in found] == sequences


FEW = uniform(b"value", b"timestamp", count=ENTRIES_MIN - 1)
SAME = uniform(b"value", b"timestamp")
FRAME = compress(b"x" * 1000, "lz4")
assert FRAME is not None
LEFT_ALONE: dict[str, list[Entry]] = {
    "too few": FEW,
    "another name in one": [*FEW, (b"8-0", fields_of(1, b"value", b"header.timestamp"))],
    "more fields in one": [*FEW, (b"8-0", fields_of(1, b"value", b"timestamp", b"header.h"))],
    "as many fields in sum": [
        *FEW[:-2],
        (b"8-0", fields_of(1, b"value", b"timestamp", b"value")),
        (b"8-1", fields_of(1, b"timestamp")),
        *FEW[-1:],
    ],
    "no value": uniform(b"timestamp"),
    "no timestamp": uniform(b"key", b"value"),
    "only keys": uniform(b"key"),
    "a key that is not the first": uniform(b"value", b"key", b"timestamp"),
    "a field of others": uniform(b"value", b"timestamp", b"colour"),
    "a null header that is not empty": uniform(b"value", b"timestamp", b"nullheader.h"),
    "a negative timestamp": [*FEW, (b"8-0", [b"value", b"v", b"timestamp", b"-1"])],
    "a timestamp of 19 digits": [*FEW, (b"8-0", [b"value", b"v", b"timestamp", b"9" * 19])],
    "a timestamp of letters": [*FEW, (b"8-0", [b"value", b"v", b"timestamp", b"now"])],
    "a sequence without an offset": [*FEW, (b"8-1024", fields_of(1, b"value", b"timestamp"))],
    "a value that does not decompress": [
        *[(b"7-%d" % n, [b"value", FRAME, b"timestamp", b"1", MARKER, b"lz4"]) for n in range(15)],
        (b"8-0", [b"value", FRAME[:-5], b"timestamp", b"1", MARKER, b"lz4"]),
    ],
}


@pytest.mark.parametrize("entries", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_is_not_of_one_layout_is_left_to_be_looked_at_one_by_one(entries: list[Entry]) -> None:
    assert columns(entries) is None


DIGITS = st.one_of(st.sampled_from([b"5", b"05", b"9" * 18]), st.integers(0, 10**18 - 1).map(b"%d".__mod__))
NONE_OF_THEM = st.sampled_from(
    [b"", b"-5", b"+5", b" 5", b"5.0", b"5,6", b"1e3", b"\xb2", b"1" + b"0" * 18, b"0" * 19]
)


@given(st.lists(DIGITS, min_size=ENTRIES_MIN, max_size=ENTRIES_MIN + 3), st.none() | NONE_OF_THEM)
def test_timestamps_are_texts_of_up_to_18_digits(texts: list[bytes], other: bytes | None) -> None:
    if other is not None:
        texts[7] = other
    found = columns([(b"7-%d" % n, [b"value", b"v", b"timestamp", each]) for n, each in enumerate(texts)])
    if other is None:
        assert found is not None
        assert found.timestamps == [int(each) for each in texts]
    else:
        assert found is None


def test_entries_at_or_past_the_end_are_left_too() -> None:
    last = (7 << BITS) + ENTRIES_MIN - 1
    assert columns(SAME, last + 1) is not None
    assert columns(SAME, last) is None


@pytest.mark.parametrize(
    "broken", [b"", (b"8-0", None), (b"8-0", 5), (b"x-1", SAME[0][1]), (b"8", SAME[0][1]), (8, SAME[0][1])]
)
def test_what_is_no_answer_to_xrange_raises(broken: Any) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, IndexError)):
        columns([*FEW, broken])


@given(
    sizes=st.lists(st.integers(1, 20), min_size=2, max_size=4),
    producers=st.lists(st.sampled_from(["7:0", "7:1", "8:0"]), min_size=4, max_size=4),
    compressed=st.booleans(),
)
def test_records_of_transactions_are_the_same_with_their_producers(
    sizes: list[int], producers: list[str], *, compressed: bool
) -> None:
    codec = "lz4" if compressed else "none"
    entries: list[Entry] = []
    expected: list[tuple[int, bytes]] = []
    for size, producer in zip(sizes, producers, strict=False):
        for _ in range(size):
            record: StoredRecord = (0, 5, b"k", b"v" * 99, [("h", b"c")])
            made = entry_of(record, codec, producer)
            expected.append((len(entries), producer.encode()))
            entries.append((b"7-%d" % len(entries), made))
    owned: list[Owned] = []
    records = read_entries(entries, BITS, END, LIMIT, no_damage, owned)
    assert [(at, b"%d:%d" % of, control) for at, of, control in owned] == [(*each, -1) for each in expected]
    assert {(value, key) for _, _, key, value, _ in records} == {(b"v" * 99, b"k")}
    assert records == one_by_one([(each, fields[:-2]) for each, fields in entries])
    runs = producer_runs(owned)
    assert [at for run in runs for at in range(run.start, run.stop)] == list(range(len(entries)))
    assert all(one[2:] != other[2:] for one, other in pairwise(runs))
    again: list[Owned] = []
    found = read_columns(entries, BITS, END, LIMIT, again)
    if len(entries) >= ENTRIES_MIN:
        assert found is not None
        assert list(found) == records
        assert again == owned


@pytest.mark.parametrize(
    "producer", [b"", b"7", b"7:", b"-7:0", b"7:32768", b"x:0", b"7:0:0", b"9" * 19 + b":0"]
)
def test_what_others_write_in_the_field_of_the_producer_is_a_header(producer: bytes) -> None:
    entries: list[Entry] = [
        (b"7-%d" % n, [*fields_of(n, b"value", b"timestamp"), b"korvet.producer", producer])
        for n in range(ENTRIES_MIN)
    ]
    owned: list[Owned] = []
    assert read_columns(entries, BITS, END, LIMIT, owned) is None
    records = read_entries(entries, BITS, END, LIMIT, no_damage, owned)
    assert {tuple(record[4]) for record in records} == {(("korvet.producer", producer),)}
    assert owned == []


@pytest.mark.parametrize(
    "fields",
    [
        [b"korvet.producer", b"7:0"],
        [b"korvet.marker", b"commit"],
        [b"korvet.marker", b"other", b"korvet.producer", b"7:0", b"timestamp", b"5"],
        [b"korvet.marker", b"commit", b"korvet.producer", b"x", b"timestamp", b"5"],
        [b"korvet.marker", b"commit", b"korvet.producer", b"7:0", b"timestamp", b"5", b"value", b"v"],
    ],
)
def test_what_is_not_quite_a_marker_is_a_record(fields: list[bytes]) -> None:
    owned: list[Owned] = []
    [(_, _, _, _, headers)] = read_entries([(b"7-1", fields)], BITS, END, LIMIT, no_damage, owned)
    assert (headers[0], owned) == ((fields[0].decode(), fields[1]), [])


def test_a_producer_id_may_be_as_large_as_any() -> None:
    largest = b"%d:%d" % (2**63 - 1, 2**15 - 1)
    entries: list[Entry] = [
        (b"7-%d" % n, [*fields_of(n, b"value", b"timestamp"), b"korvet.producer", largest])
        for n in range(ENTRIES_MIN)
    ]
    owned: list[Owned] = []
    again: list[Owned] = []
    assert read_columns(entries, BITS, END, LIMIT, owned) is not None
    assert read_entries(entries, BITS, END, LIMIT, no_damage, again)[0][4] == []
    assert producer_runs(owned) == [ProducerRun(0, ENTRIES_MIN, 2**63 - 1, 2**15 - 1, DATA)]
    assert again == owned


@pytest.mark.parametrize(("outcome", "control"), [(b"abort", 0), (b"commit", 1)])
@pytest.mark.parametrize(("stamp", "timestamp"), [(b"5", 5), (b"x", 7)])
def test_a_marker_is_a_control_record(outcome: bytes, control: int, stamp: bytes, timestamp: int) -> None:
    owned: list[Owned] = []
    fields = [b"korvet.marker", outcome, b"korvet.producer", b"9:2", b"timestamp", stamp]
    plain = fields_of(1, b"value", b"timestamp")
    records = read_entries(
        [(b"7-1", plain), (b"7-2", fields), (b"7-3", fields)], BITS, END, LIMIT, no_damage, owned
    )
    offset = (7 << BITS) + 2
    key, value = bytes([0, 0, 0, control]), bytes(6)
    assert records[1:] == [(at, timestamp, key, value, []) for at in (offset, offset + 1)]
    assert producer_runs(owned) == [ProducerRun(1, 2, 9, 2, control), ProducerRun(2, 3, 9, 2, control)]


@pytest.mark.parametrize("value", [None, b"v"])
@pytest.mark.parametrize("key", [None, b"k"])
def test_whatever_a_record_has_its_producer_is_no_header(key: bytes | None, value: bytes | None) -> None:
    record: StoredRecord = (0, 5, key, value, [])
    fields = entry_of(record, producer="7:0")
    owned: list[Owned] = []
    assert read_entries([(b"7-1", fields)], BITS, END, LIMIT, no_damage, owned) == [
        ((7 << BITS) + 1, 5, key, value, [])
    ]
    assert owned == [(0, (7, 0), -1)]
    owned = []
    read_entries([(b"7-1", [*fields, b"korvet.producer", b"8:0"])], BITS, END, LIMIT, no_damage, owned)
    assert owned == [(0, (8, 0), -1)]
