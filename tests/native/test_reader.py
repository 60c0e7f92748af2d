"""The reader in C finds what hiredis finds in whatever pieces it comes, and leaves entries of streams as they are."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet import native
from korvet.redis.connection import MORE
from tests.native.replies import (
    KEPT_MIN,
    ReplyError,
    as_lists,
    blocks_of,
    entries_of,
    new_hiredis,
    new_native,
    transaction,
    written,
)

STRINGS = st.one_of(st.binary(max_size=5), st.just(b"QUEUED"), st.just(bytes(300)), st.just(b"\r\n" * 40_000))
SCALARS = st.one_of(
    STRINGS,
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 20),
    st.sampled_from(["OK", "QUEUED"]),
    st.just(ReplyError("ERR of \u00fc")),
)
REPLIES = st.recursive(SCALARS, lambda each: st.lists(each, max_size=4), max_leaves=12)
FIELDS = st.lists(STRINGS, min_size=2, max_size=6)
ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.binary(min_size=3, max_size=5), FIELDS.filter(lambda some: len(some) % 2 == 0)).map(
            list
        ),
        st.tuples(st.binary(min_size=3, max_size=5), FIELDS).map(list),
        REPLIES,
    ),
    max_size=5,
) | st.integers(2, 300).map(lambda count: [[b"7-%d" % at, [b"value", bytes(at)]] for at in range(count)])
SENT = st.lists(
    st.one_of(
        REPLIES.map(written),
        st.lists(ENTRIES, min_size=1, max_size=3).map(lambda some: transaction([b"state"], *some)),
        ENTRIES.map(written),
    ),
    max_size=4,
).map(b"".join)
PIECES = st.lists(st.sampled_from([1, 2, 7, 100, 5_000, 131_072]), min_size=1, max_size=6)


def read(reader: Any, sent: bytes, pieces: list[int]) -> list[Any]:
    """Return the replies; the last is "not RESP" if something else came."""
    found: list[Any] = []
    at = piece = 0
    try:
        while at < len(sent):
            # Small pieces at the beginning only, or it takes too long.
            size = pieces[piece % len(pieces)] if piece < 300 else 50_000
            reader.feed(sent[at : at + size])
            at, piece = at + size, piece + 1
            while (reply := reader.gets()) is not MORE:
                found.append(reply)
    except hiredis.ProtocolError:
        found.append("not RESP")
    return found


@given(SENT, PIECES)
def test_it_finds_what_hiredis_finds(sent: bytes, pieces: list[int]) -> None:
    assert as_lists(read(new_native(), sent, pieces)) == read(new_hiredis(), sent, pieces)


@given(
    SENT, PIECES, st.lists(st.tuples(st.integers(0, 400), st.sampled_from(b"0129\r\n*$:+-x\0")), max_size=4)
)
def test_bytes_that_are_not_resp_are_refused_or_read_as_hiredis_does(
    sent: bytes, pieces: list[int], changes: list[tuple[int, int]]
) -> None:
    changed = bytearray(sent)
    for at, byte in changes:
        if at < len(changed):
            changed[at] = byte
    found = as_lists(read(new_native(), bytes(changed), pieces))
    wanted = read(new_hiredis(), bytes(changed), pieces)
    if "not RESP" in (found[-1:] + wanted[-1:]):
        # They need not notice it at the same byte.
        common = min(len(found), len(wanted)) - 1
        assert found[:common] == wanted[:common]
    else:
        assert found == wanted


def test_only_what_xrange_answers_in_a_transaction_stays_as_it_is() -> None:
    entries = [[b"7-0", [b"value", b"a"]], [b"7-1", [b"value", b"b", b"timestamp", b"5"]]]
    assert isinstance(entries_of(entries), native.Entries)
    assert list(entries_of(entries)) == entries
    for others in (
        entries[:1],
        [],
        [*entries, None],
        [*entries, [b"7-2", []]],
        [*entries, [b"7-2", [b"value"]]],
        [*entries, [b"7-2", [b"value", None]]],
        [*entries, [b"7-2", [b"value", 5]]],
        [*entries, [7, [b"value", b"c"]]],
        [*entries, [b"7-2", [b"value", b"c"], b"more"]],
    ):
        assert type(entries_of(others)) is list
        assert entries_of(others) == others
    other = [b"of a script", entries]
    for before in (written(entries), written(b"QUEUED"), written(["QUEUED"]), written("QUEUED") + written(5)):
        reader = new_native()
        reader.feed(before + written(other))
        replies = [reader.gets() for _ in range(3)]
        assert other in replies
        assert as_lists(replies) == replies


def test_an_entry_of_very_many_fields_is_left_to_lists() -> None:
    for strings in (1 << 16, (1 << 16) + 2):
        entries = [[b"7-0", [b"f"] * strings], [b"7-1", [b"f", b"v"]]]
        assert isinstance(entries_of(entries), native.Entries) == (strings == 1 << 16)
        assert as_lists(entries_of(entries)) == entries


def resident_kib() -> int:
    """Return what this process has in memory."""
    [line] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmRSS")]
    return int(line.split()[1])


def test_what_a_large_reply_took_is_given_back() -> None:
    reader = new_native()
    before = resident_kib()
    reader.feed(b"$100000000\r\n" + bytes(10**8) + b"\r\n")
    assert len(reader.gets()) == 10**8
    reader.feed(b":5\r\n")
    assert reader.gets() == 5
    assert resident_kib() - before < 50_000


def test_after_an_error_nothing_is_taken_for_a_later_reply() -> None:
    """As it is with hiredis: what follows would be the rest of the reply that was not read."""
    foreign = [b"foreign", [b"values"] * 3]

    def fail(_text: str) -> object:
        raise MemoryError

    for before in ([], [b"a"], [[b"a"], b"b"]):
        reader = native.Reader(fail, MORE, hiredis.ProtocolError)
        reader.feed(written([*before, ReplyError("ERR"), foreign]) + written(foreign))
        with pytest.raises(MemoryError):
            reader.gets()
        reader.feed(written(foreign))
        for _ in range(3):
            with pytest.raises(hiredis.ProtocolError, match="what came before was not read"):
                reader.gets()


def test_entries_are_a_sequence() -> None:
    wanted = [[b"7-%d" % at, [b"value", b"v%d" % at]] for at in range(70)]
    found = entries_of(wanted)
    assert len(found) == 70
    assert found[3] == wanted[3]
    assert found[-1] == wanted[-1]
    for outside in (70, -71):
        with pytest.raises(IndexError):
            found[outside]


def test_a_column_is_a_sequence() -> None:
    values = [b"v%d" % at for at in range(70)]
    split = native.split_entries(entries_of([[b"7-%d" % at, [b"f", each]] for at, each in enumerate(values)]))
    assert split is not None
    ids, names, [column] = split
    assert (list(ids), names, list(column)) == ([b"7-%d" % at for at in range(70)], [b"f"], values)
    assert (column[-1], column[5:8], column[::-30], column[90:]) == (
        values[-1],
        values[5:8],
        values[::-30],
        [],
    )
    for outside in (70, -71):
        with pytest.raises(IndexError):
            column[outside]
    wrong: Any = "a"
    with pytest.raises(TypeError):
        column[wrong]


def test_large_entries_arrive_from_a_socket_in_pieces() -> None:
    entries = [[b"7-%d" % at, [b"batch", bytes([at]) * 50_000]] for at in range(60)]
    sent = transaction([b"state"], entries) * 2 + written(b"the end")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        theirs.settimeout(0)
        reader = new_native()
        with pytest.raises(BlockingIOError):
            reader.receive(ours.fileno(), 1000)
        left, found, received = memoryview(sent), [], 0
        while received < len(sent):
            left = left[theirs.send(left[:100_000]) :] if left else left
            size = reader.receive(ours.fileno(), 131_072)
            assert 0 < size <= 131_072
            received += size
            while (reply := reader.gets()) is not MORE:
                found.append(reply)
        # What was found is not touched by what came after it.
        assert as_lists(found) == 2 * [b"OK", b"QUEUED", b"QUEUED", [[b"state"], entries]] + [b"the end"]
        theirs.close()
        assert reader.receive(ours.fileno(), 1000) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.receive(-1, 1000)
    with pytest.raises(ValueError, match="no room"):
        reader.receive(0, 0)


def test_parts_of_what_was_received_are_fed() -> None:
    reader = new_native()
    reader.feed(bytearray(b"xx:5\r\nyy"), 2, 4)
    assert (reader.gets(), reader.gets()) == (5, MORE)
    for offset, size in ((9, 0), (-1, 1), (2, 7)):
        with pytest.raises(ValueError, match="no part"):
            reader.feed(b"xx:5\r\nyy", offset, size)


@pytest.mark.parametrize(
    "sent",
    [
        b"?1\r\n",
        b":x\r\n",
        b":\r\n",
        b":9223372036854775808\r\n",
        b":-9223372036854775809\r\n",
        b":5\rx",
        b"$-2\r\n",
        b"*-2\r\n",
        b"$536870913\r\n",
        b"+QUEUED\r\n*1\r\n*2\r\n*2\r\n$3\r\n7-0\r\n*2\r\n$536870913\r\n",
        b"*4294967296\r\n",
        b"$1\r\nab\r\n",
        b"+a\rb\r\n",
        b"*1\r\n" * 9,
        b"+" + bytes(2**20 + 1),
        b":" + b"0" * 30,
    ],
)
def test_what_is_not_resp_is_refused(sent: bytes) -> None:
    reader = new_native()
    reader.feed(sent)
    if sent.startswith(b"+QUEUED"):
        assert reader.gets() == b"QUEUED"
    for _ in range(2):
        with pytest.raises(hiredis.ProtocolError):
            reader.gets()


def test_what_is_announced_takes_no_memory_before_it_comes() -> None:
    reader = new_native()
    reader.feed(transaction([b"a"], [])[: -len(b"*1\r\n$1\r\na\r\n*0\r\n")] + b"*4294967295\r\n$1\r\na\r\n")
    assert [reader.gets() for _ in range(4)] == [b"OK", b"QUEUED", b"QUEUED", MORE]
    reader.feed(b"*4294967295\r\n*2\r\n$3\r\n7-0\r\n*2\r\n$1\r\na\r\n$1\r\na\r\n")
    assert reader.gets() is MORE
    reader.feed(b"*2\r\n$3\r\n7-0\r\n*2\r\n$1\r\na\r\n$500000000\r\na")
    assert reader.gets() is MORE
    assert sys.getsizeof(reader) < 1000


def ends() -> list[Callable[[], object]]:
    """Return calls that leave a reader in each state."""
    entries = [[b"7-%d" % at, [b"value", b"v%d" % at, b"timestamp", b"5"]] for at in range(50)]
    sent = transaction([b"state"], entries)

    def feed(sent: bytes, times: int) -> object:
        reader = new_native()
        reader.feed(sent)
        return [reader.gets() for _ in range(times)]

    def refused() -> None:
        with pytest.raises(hiredis.ProtocolError):
            feed(b"*2\r\n$1\r\na\r\n?", 1)

    whole = entries_of(entries)
    split = native.split_entries(whole)
    assert split is not None
    return [
        lambda: feed(sent, 4),
        lambda: feed(sent[:-100], 4),
        lambda: feed(sent[:60], 4),
        lambda: feed(transaction([b"state"], [*entries, None]), 4),
        lambda: list(entries_of(entries)),
        lambda: native.split_entries(whole),
        lambda: native.split_entries(entries_of([*entries, [b"8-0", [b"value", b"a"]]])),
        lambda: native.parse_runs(split[0], 4, 2**53),
        lambda: native.parse_runs(split[0], 4, 0),
        lambda: (split[2][0][5:9], list(split[2][0])),
        refused,
    ]


@pytest.mark.parametrize("place", range(len(ends())))
def test_no_reference_is_lost_or_kept(place: int) -> None:
    assert abs(blocks_of(ends()[place])) < KEPT_MIN
