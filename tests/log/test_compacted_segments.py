"""Reading a log whose beginning is compacted: the stream that is read, gaps between streams, and stale knowledge."""

from __future__ import annotations

import pytest
from korvet_core import Fetched

from korvet.errors import ErrorCode
from korvet.log.store import LogStore
from korvet.log.types import Read
from korvet.redis.keys import Keys
from tests.log.cleaning import compact
from tests.support.commands import commands_of
from tests.support.log_bench import Bench, code_of, records_of


def filled(bench: Bench, count: int = 6) -> list[int]:
    """Append records, each a batch of its own; return their offsets."""
    return [bench.append(b"%d" % n) for n in range(count)]


def test_of_a_log_whose_last_records_went_too_the_end_is_found_empty(bench: Bench) -> None:
    offsets = filled(bench)
    compact(bench, 0)
    end = bench.bounds().high_watermark
    fetched = bench.read(offsets[0] + 1)
    assert (len(fetched), fetched.more) == (0, False)
    assert fetched.high_watermark == end


@pytest.mark.parametrize("free", [True, False])
def test_a_store_that_has_read_before_learns_of_each_pass(bench: Bench, *, free: bool) -> None:
    other = LogStore(bench.redis, bench.redis, Keys("korvet"))

    def seen() -> list[bytes | None]:
        values: list[bytes | None] = []
        offset = 0
        while True:
            [fetched] = other.read([Read(bench.partition, offset, 2)])
            assert isinstance(fetched, Fetched)
            records = records_of(fetched, offset)
            if not records:
                return values
            values += [record.value for record in records]
            offset = records[-1].offset + 1

    filled(bench)
    assert seen() == [b"0", b"1", b"2", b"3", b"4", b"5"]
    compact(bench, 2, 5, free=free)
    assert seen() == [b"2", b"5"]
    filled(bench, 2)
    compact(bench, 1, 3, free=free)
    assert seen() == [b"5", b"1"]


def test_a_read_asks_once_where_it_knows_and_once_more_where_that_changed(bench: Bench) -> None:
    offsets = filled(bench)

    def entries_read() -> int:
        with commands_of(bench.raw) as ran:
            bench.read(offsets[0])
        return ran["xrange"]

    entries_read()
    assert entries_read() == 1
    compact(bench, 0, 5)
    assert [entries_read(), entries_read()] == [2, 1]


def test_reads_of_several_partitions_are_kept_apart(bench: Bench) -> None:
    for partition in bench.partitions:
        for n in range(3):
            bench.append(b"%d" % n, partition=partition)
    compact(bench, 2)
    outcomes = bench.logs.read([Read(partition, 0, 10) for partition in bench.partitions])
    values = [
        [record.value for record in records_of(outcome, 0)]
        for outcome in outcomes
        if isinstance(outcome, Fetched)
    ]
    assert values == [[b"2"], [b"0", b"1", b"2"], [b"0", b"1", b"2"]]


def test_what_is_known_of_a_topic_says_nothing_about_the_next_one_of_its_name(bench: Bench) -> None:
    filled(bench)
    compact(bench, 5)
    bench.read(0)
    assert list(bench.topics.deletion.delete({bench.topic: bench.partition.topic_id})[1])
    again = Bench(bench.redis, bench.raw, bench.format)
    base = again.append(b"new")
    [found] = bench.logs.read([Read(again.partition, 0, 5)])
    assert isinstance(found, Fetched)
    assert [(record.offset, record.value) for record in records_of(found, 0)] == [(base, b"new")]


def test_a_field_that_names_no_clean_stream_is_malformed(bench: Bench) -> None:
    filled(bench)
    bench.raw.hset(bench.partition.state, mapping={"clean": "2", "clean_end": "5"})
    [outcome] = bench.logs.read([Read(bench.partition, 0, 5)])
    assert code_of(outcome) == ErrorCode.KAFKA_STORAGE_ERROR
