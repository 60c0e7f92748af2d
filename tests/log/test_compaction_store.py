"""The steps of a pass through the store, whose pass it is, damage, and the map of keys to their latest offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.log.compaction_store import (
    SLOT_BYTES,
    CompactionStore,
    CompactionSupersededError,
    OffsetMap,
    Period,
)
from korvet.log.index import Row
from korvet.log.packed import LOG_FIELD
from korvet.log.record_format import ENTRY_ARGS_MAX
from korvet.redis.client import Redis
from tests.log.cleaning import NOTHING_ELSE, begun, compact, state_of
from tests.support.log_bench import Bench


@pytest.fixture
def store(redis: Redis) -> CompactionStore:
    return CompactionStore(redis)


def ids(store: CompactionStore, bench: Bench) -> list[bytes]:
    under_way = begun(store, bench)
    return [entry_id for entry_id, _ in store.read(under_way, under_way.start, 100)]


def test_the_state_of_an_empty_log(store: CompactionStore, bench: Bench) -> None:
    look = state_of(store, bench)
    assert look.now_ms > 1_600_000_000_000
    assert look[1:] == (0, 0, 0, -1, 0, 0, None, (), "", 0, Row(0, 0, 0, -1, -1), 0)


def test_the_state_after_a_pass(store: CompactionStore, bench: Bench) -> None:
    bench.append(b"a")
    bench.append(b"b")
    compact(bench, 1)
    bench.raw.hset(bench.partition.state, "clean_history", "5@6 7@8")
    look = state_of(store, bench)
    assert (look.segment, look.compacted_end, look.token) == (0, look.end, "")
    assert look.history == (Period(5, 6), Period(7, 8))
    assert look.newest is not None
    assert look.compacted_bytes == look.newest.bytes == look.bytes
    assert begun(store, bench, "next").source == 0
    assert state_of(store, bench).token == "next"


def test_a_pass_reads_the_compacted_part_and_then_the_log_up_to_its_end(
    store: CompactionStore, bench: Bench
) -> None:
    for n in range(5):
        bench.append(b"%d" % n)
    before = ids(store, bench)
    compact(bench, 0, 3)
    bench.append(b"5")
    under_way = begun(store, bench, "next")
    bench.append(b"past its end")
    found = store.read(under_way, 0, 10)
    assert [entry_id for entry_id, _ in found] == [before[0], before[3]]
    after = store.read(under_way, under_way.dirty_start - 1, 10)
    assert len(after) == 1
    assert store.read(under_way, under_way.compacted_end, 10) == []
    assert store.entry_count(bench.partition) >= 2


def test_a_read_of_a_pass_takes_no_more_than_it_says(store: CompactionStore, bench: Bench) -> None:
    for n in range(5):
        bench.append(b"%d" % n)
    under_way = begun(store, bench)
    assert len(store.read(under_way, 0, 2)) == 2


@pytest.mark.parametrize("step", ["write", "switch"])
def test_a_pass_ends_where_redis_has_lost_what_it_wrote(
    store: CompactionStore, bench: Bench, step: str
) -> None:
    for value in (b"a", b"b", b"c"):
        bench.append(value)
    under_way = begun(store, bench)
    first, second, third = store.read(under_way, 0, 5)
    under_way = store.write(under_way, [first])
    lost = (bench.partition.state, bench.partition.compacted[under_way.target])
    before = [bench.raw.dump(key) for key in lost]
    under_way = store.write(under_way, [second])
    for key, content in zip(lost, before, strict=True):
        bench.raw.restore(key, 0, content, replace=True)
    with pytest.raises(CompactionSupersededError):
        store.write(under_way, [third]) if step == "write" else store.switch(under_way, NOTHING_ELSE)
    assert [bench.raw.dump(key) for key in lost] == before
    assert bench.values() == [b"a", b"b", b"c"]


def test_an_entry_of_too_many_fields_is_named(store: CompactionStore, record_bench: Bench) -> None:
    fields: dict[str, str] = {f"f{n}": "" for n in range(ENTRY_ARGS_MAX // 2 + 1)}
    entry_id = record_bench.raw.xadd(record_bench.partition.stream, fields)
    record_bench.logs.external.step(record_bench.partition)
    under_way = begun(store, record_bench)
    entries = store.read(under_way, 0, 5)
    with pytest.raises(KafkaError, match=f"entry {entry_id.decode()} has 3951 fields, .* XDEL"):
        store.write(under_way, entries)


@pytest.mark.parametrize(
    "damage",
    [
        {LOG_FIELD: "x"},
        {"clean": "7"},
        {"clean_history": "5@"},
        {"clean_history": "5@6 x"},
        {"topic": "another"},
    ],
    ids=str,
)
def test_a_state_that_is_not_understood_is_an_error(
    store: CompactionStore, bench: Bench, damage: dict[str, str]
) -> None:
    bench.append(b"a")
    bench.raw.hset(bench.partition.state, mapping=damage)
    looks = store.states([bench.partition, bench.partitions[1]])
    assert isinstance(looks[0], KafkaError)
    assert not isinstance(looks[1], KafkaError)


def test_a_row_that_is_not_understood_is_named(store: CompactionStore, bench: Bench) -> None:
    bench.append(b"a")
    bench.raw.zadd(bench.partition.index_key, {"no row": 1})
    [look] = store.states([bench.partition])
    assert isinstance(look, KafkaError)
    assert (look.code, bench.partition.index_key in look.message) == (ErrorCode.KAFKA_STORAGE_ERROR, True)


MANY = 1000


@given(
    puts=st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 2**53 - 1)), max_size=300),
    others=st.lists(st.binary(max_size=3)),
)
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
