"""OffsetLookup by timestamp against a model: whatever was appended, trimmed and written by others, in both formats.

Records are large, so that few of them make a row of the index, and lookups go through several of them.
"""

from __future__ import annotations

import random

import pytest

from korvet.log.index import BYTES_PER_ROW, IndexStore
from korvet.log.offsets import OffsetFound, OffsetLookup, OffsetQuery
from korvet.protocol.types import SpecialTimestamp
from korvet.topics.registry import TopicSpec
from tests.support.batches import Record
from tests.support.commands import commands_of
from tests.support.domain import NO_LAKE, Domain
from tests.support.log_bench import LAYOUTS, Bench, Layout, configs_of
from tests.support.transactions import TransactionalProducer


def test_a_lookup_in_a_long_log_reads_one_interval(bench: Bench) -> None:
    lookup = OffsetLookup(bench.logs, IndexStore(bench.redis), NO_LAKE)
    offsets: list[int] = []
    for n in range(200):
        base = bench.append(*[Record(b"v", b"k", n * 500 + i) for i in range(500)])
        offsets += range(base, base + 500)
    assert bench.raw.zcard(bench.partition.index_key) >= 48
    lookup.find([OffsetQuery(bench.partition, 0)])  # loads the script
    looks_at_the_first_entry = bench.format == "record"
    for at in (0, 1, 4095, 4500, 50_001, 99_999):
        with commands_of(bench.raw) as used:
            [answer] = lookup.find([OffsetQuery(bench.partition, at)])
        assert answer == OffsetFound(offsets[at], at, bench.epoch)
        # An interval has up to 2048 records and the batch that crossed: three reads of 1000, or one of 64 batches.
        entries_read = used["xrange"] - looks_at_the_first_entry
        assert entries_read <= (3 if bench.format == "record" else 1)
        assert used["zrange"] <= 12
        assert used["evalsha"] == 1
    # Behind the largest timestamp nothing is read at all.
    with commands_of(bench.raw) as used:
        assert lookup.find([OffsetQuery(bench.partition, 100_000)]) == [OffsetFound()]
    assert used["xrange"] == looks_at_the_first_entry


def test_timestamps_too_large_for_the_index_are_compared_as_the_records_have_them(bench: Bench) -> None:
    """State and index count those past 2^53 ms as 2^53; each append makes a row, for it is large."""
    lookup = OffsetLookup(bench.logs, IndexStore(bench.redis), NO_LAKE)
    times = [5, 2**53 + 2, 2**60 + 1, 2**53 + 1, 2**60, 2**61, 2**53 - 1, 2**61]
    value = random.Random(1).randbytes(BYTES_PER_ROW)  # does not compress
    offsets = [bench.append(Record(value, b"k", at)) for at in times]
    assert bench.raw.zcard(bench.partition.index_key) > len(times)

    def finds(timestamp: int, wanted: int) -> None:
        answer = OffsetFound(offsets[wanted], times[wanted], bench.epoch)
        assert lookup.find([OffsetQuery(bench.partition, timestamp)]) == [answer]

    for asked in (6, 2**53 - 1, 2**53, 2**53 + 2):
        finds(asked, 1)
    for asked in (2**53 + 3, 2**60 + 1):
        finds(asked, 2)
    for asked in (2**60 + 2, 2**61, SpecialTimestamp.MAX_TIMESTAMP):
        finds(asked, 5)
    assert lookup.find([OffsetQuery(bench.partition, 2**61 + 1)]) == [OffsetFound()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_for_committed_readers_a_log_ends_where_the_oldest_transaction_begins(
    here: Domain, layout: Layout
) -> None:
    topic = here.topics.create(TopicSpec(name="orders", configs=configs_of(layout)))
    partition = topic.partition(0)
    producer = TransactionalProducer(here)

    def find(timestamp: int, *, committed: bool = True) -> int:
        [answer] = here.offsets.find([OffsetQuery(partition, timestamp, committed=committed)])
        assert isinstance(answer, OffsetFound)
        return answer.offset

    first = here.append("orders", Record(b"a", timestamp=1000))
    opened = producer.write(Record(b"b", timestamp=3000))
    later = here.append("orders", Record(b"c", timestamp=2000))
    assert first < find(SpecialTimestamp.LATEST) <= opened
    assert find(SpecialTimestamp.LATEST, committed=False) == later + 1
    assert find(SpecialTimestamp.EARLIEST) == find(SpecialTimestamp.EARLIEST, committed=False) == first
    assert [find(at) for at in (1000, 1001, 3000, SpecialTimestamp.MAX_TIMESTAMP)] == [first, -1, -1, -1]
    assert [find(at, committed=False) for at in (1000, 1001, 3000)] == [first, opened, opened]
    assert find(SpecialTimestamp.MAX_TIMESTAMP, committed=False) == opened
    producer.abort()
    assert find(SpecialTimestamp.LATEST) == find(SpecialTimestamp.LATEST, committed=False) > later + 1
    assert find(3000) == opened
