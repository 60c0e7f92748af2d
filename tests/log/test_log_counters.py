"""What the log store says of an append's weight: bytes as they lie in the stream, and when the index got a row."""

from __future__ import annotations

from typing import Literal

import pytest

from korvet.log.types import Appended
from korvet.topics.types import AtRest
from tests.support.batches import Record
from tests.support.log_bench import Bench

HEADERS = (("a", b"1"), ("a", None), ("ü", b"22"))
BATCHES = {
    "keys and values": [Record(b"value", b"key", 5), Record(b"", b"", 2**40)],
    "no keys": [Record(b"value", None, 5), Record(b"v" * 50, None, -1)],
    "nulls": [Record(None, b"key", 5), Record(b"v", None, 5), Record(None, None, 5)],
    "headers": [Record(b"v", b"key", 5, HEADERS), Record(b"v", b"key", 5)],
    "compressible": [Record(b"v" * 5000, b"key", 5), Record(b"w", b"key", 5)],
}


def stored_bytes(bench: Bench) -> int:
    script = """
      local size = 0
      for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
        for _, text in ipairs(entry[2]) do size = size + #text end
      end
      return size"""
    return int(bench.raw.eval(script, 1, bench.partition.stream))


def counted_bytes(bench: Bench) -> int:
    return int(bench.raw.hget(bench.partition.state, "bytes"))


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("name", BATCHES)
def test_bytes_are_counted_as_they_are_stored(
    bench: Bench, name: str, codec: Literal["none", "lz4", "zstd"]
) -> None:
    for _ in range(2):
        bench.append(*BATCHES[name], at_rest=AtRest(codec, 1024))
    assert counted_bytes(bench) == stored_bytes(bench) > 0


def test_the_append_that_writes_a_row_of_the_index_says_so(bench: Bench) -> None:
    outcomes = []
    for _ in range(5):
        outcomes += bench.logs.append([bench.made(b"v" * 150_000, at_rest=AtRest("none"))])
    appended = [outcome for outcome in outcomes if isinstance(outcome, Appended)]
    assert [bool(each.row_bytes) for each in appended] == [False, False, False, True, False]
    assert appended[3].row_bytes * 5 == counted_bytes(bench) * 4
    assert bench.raw.zcard(bench.partition.index_key) == 1
