"""The map of keys to their latest offsets, against a dict; its bound."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.log.compaction_store import SLOT_BYTES, OffsetMap

MANY = 1000


@given(
    puts=st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 2**53 - 1)), max_size=300),
    others=st.lists(st.binary(max_size=3)),
)
@settings(deadline=None)
def test_it_is_a_dict(puts: list[tuple[bytes, int]], others: list[bytes]) -> None:
    keys = OffsetMap(1 << 20, 300)
    for key, offset in puts:
        assert keys.put(key, offset)
    expected = dict(puts)
    assert keys.keys == len(expected)
    for key in [*expected, *others]:
        assert keys.latest(key) == expected.get(key, -1)


def test_it_takes_no_more_than_its_bytes_and_says_when_it_is_full() -> None:
    keys = OffsetMap(100 * SLOT_BYTES, MANY)
    assert keys.size_bytes <= 100 * SLOT_BYTES
    taken = [n for n in range(MANY) if keys.put(b"%d" % n, n)]
    assert taken == list(range(len(taken)))
    assert 60 < len(taken) < 100
    assert keys.put(b"0", 5)  # it is there already
    assert keys.latest(b"0") == 5
    assert keys.latest(b"%d" % MANY) == -1


def test_it_takes_no_more_memory_than_there_can_be_keys() -> None:
    assert OffsetMap(1 << 30, 500).size_bytes < 700 * SLOT_BYTES
    small = OffsetMap(1 << 30, 500)
    assert all(small.put(b"%d" % n, n) for n in range(500))
