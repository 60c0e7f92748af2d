"""The steps of a pass through the store, whose pass it is, and damage."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.log.compaction_store import (
    ENTRY_ARGS_MAX,
    CompactionStore,
    CompactionSupersededError,
    Period,
)
from korvet.log.index import Row
from korvet.log.packed import LOG_FIELD
from korvet.redis.client import Redis
from tests.log.cleaning import NOTHING_ELSE, begun, compact, entries_of, state_of
from tests.support.log_bench import Bench


@pytest.fixture
def store(redis: Redis) -> CompactionStore:
    return CompactionStore(redis)


def ids(store: CompactionStore, bench: Bench) -> list[bytes]:
    under_way = begun(store, bench)
    return [entry_id for entry_id, _ in entries_of(store, under_way, under_way.start)]


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
    result = entries_of(store, under_way, 0)
    assert [entry_id for entry_id, _ in result][:2] == [before[0], before[3]]
    assert len(result) == 3
    assert entries_of(store, under_way, under_way.compacted_end) == []
    assert store.entry_count(bench.partition) >= 2


def test_a_read_of_a_pass_takes_no_more_than_it_says(store: CompactionStore, bench: Bench) -> None:
    for n in range(5):
        bench.append(b"%d" % n)
    under_way = begun(store, bench)
    assert len(entries_of(store, under_way, 0, 2)) == 2


@pytest.mark.parametrize("step", ["write", "switch"])
def test_a_pass_ends_where_redis_has_lost_what_it_wrote(
    store: CompactionStore, bench: Bench, step: str
) -> None:
    for value in (b"a", b"b", b"c"):
        bench.append(value)
    under_way = begun(store, bench)
    first, second, third = entries_of(store, under_way, 0)
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
    entries = entries_of(store, under_way, 0)
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
