"""korvet/lake/encoding.py: the same partitions as Kafka's clients choose."""

from __future__ import annotations

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as of_aiokafka

from korvet.lake.encoding import NO_KEY, murmur2, partitions_of

# What Kafka's own tests hold of org.apache.kafka.common.utils.Utils.murmur2.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_hashes_are_kafkas() -> None:
    found = murmur2(pa.array(list(KNOWN), pa.binary()))
    assert found.view("int32").tolist() == list(KNOWN.values())


@pytest.mark.parametrize("first", [0, 7])
def test_keys_of_any_length_go_where_another_client_sends_them(first: int) -> None:
    keys = [bytes((at * 7 + place) % 256 for place in range(at % 37)) for at in range(300)]
    column = pa.array([*keys, None, b""], pa.binary()).slice(first)
    expected = [(of_aiokafka(key) & 0x7FFFFFFF) % 11 for key in [*keys, b""][first:]]
    expected.insert(-1, NO_KEY)
    assert partitions_of(column, 11).tolist() == expected


def test_no_keys_have_no_partition() -> None:
    assert partitions_of(pa.nulls(2, pa.binary()), 3).tolist() == [NO_KEY, NO_KEY]
    assert partitions_of(pa.array([], pa.binary()), 3).tolist() == []
