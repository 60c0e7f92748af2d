"""shared/entry_ids and topics/entry_ids.py: both translate ids and offsets the same way, there and back, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from korvet.topics.entry_ids import BATCH, DENSE, OFFSETS_END, id_of_end
from tests.support.entry_ids import end_of_id

INCLUDE = Path(__file__).parents[2] / "lua/shared/entry_ids.lua"
SCRIPT = f"""
local bits = tonumber(ARGV[1])
{INCLUDE.read_text()}
local ids, ends, after = {{}}, {{}}, {{}}
for at = 2, #ARGV, 2 do
  local number = tonumber(ARGV[at])
  ids[#ids + 1], after[#after + 1] = id_of_end(number), id_after(number)
  local end_offset = end_of_id(ARGV[at + 1])
  ends[#ends + 1] = end_offset and string.format('%d', end_offset) or 'none'
end
return {{ids, ends, after}}
"""
BITS = pytest.mark.parametrize("bits", [BATCH, DENSE, 8, 10, 12])
NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 5000) | st.integers(0, 12).map(lambda n: 2**n)
# Redis takes no entry 0-0.
IDS = st.builds("{}-{}".format, NUMBERS | st.just(0), NUMBERS).filter(lambda text: text != "0-0")
# Offsets end before OFFSETS_END: what follows it is no number of Lua's.
ENDS = st.integers(0, OFFSETS_END - 1) | st.integers(0, 5000)


def order(entry_id: str) -> tuple[int, ...]:
    """Return what Redis compares."""
    return tuple(map(int, entry_id.split("-")))


@BITS
@example(pairs=[(0, "1-0")])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(ENDS, IDS), min_size=1, max_size=30))
def test_scripts_and_workers_translate_alike(raw_redis: Any, bits: int, pairs: list[tuple[int, str]]) -> None:
    args = [arg for end, entry_id in pairs for arg in (end, entry_id)]
    ids, ends, after = raw_redis.eval(SCRIPT, 0, bits, *args)
    assert [text.decode() for text in ids] == [id_of_end(end, bits) for end, _ in pairs]
    expected = [end_of_id(entry_id.encode(), bits) for _, entry_id in pairs]
    assert [None if text == b"none" else int(text) for text in ends] == expected
    for (end, entry_id), limit, at in zip(pairs, after, expected, strict=True):
        # What is below the limit ends there or before, but for ids that name nothing between two milliseconds.
        assert (order(entry_id) < order(limit.decode())) == (order(entry_id) <= order(id_of_end(end, bits)))
        if at is not None and at > 0:
            assert (order(entry_id) < order(limit.decode())) == (at <= end)


@BITS
@given(end=st.integers(1, OFFSETS_END - 1), other=st.integers(1, OFFSETS_END - 1))
def test_an_end_has_one_id_and_ids_are_in_the_order_of_ends(bits: int, end: int, other: int) -> None:
    entry_id = id_of_end(end, bits)
    assert end_of_id(entry_id.encode(), bits) == end
    assert (order(entry_id) < order(id_of_end(other, bits))) == (end < other)
    ms, sequence = order(entry_id)
    if bits <= DENSE:
        assert (ms, sequence) == (0, end)
    else:
        assert end - 1 == (ms << bits) | sequence


@BITS
@pytest.mark.parametrize("text", [b"", b"7", b"x-1", b"1-x", b"1-2-3"])
def test_what_is_no_id_is_no_offset(bits: int, text: bytes) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        end_of_id(text, bits)
