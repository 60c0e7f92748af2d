"""A pass of compaction on a real log in both formats, against a model: what stays, and what a consumer sees of it."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.log.index import RowBuilder
from korvet.log.trim import Trim, Trimmed, TrimStore
from tests.log.compacting import TOPIC, CompactedLog, Held
from tests.support.domain import Domain
from tests.support.log_bench import LAYOUTS


@pytest.fixture(params=LAYOUTS)
def log(here: Domain, raw_redis: Any, request: pytest.FixtureRequest) -> CompactedLog:
    return CompactedLog(here, raw_redis, request.param)


def test_of_each_key_the_latest_record_stays_at_its_offset(log: CompactedLog) -> None:
    log.fill(20)
    done = log.compacted()
    assert log.read() == log.expected(done.compacted_end)
    assert done.compacted_end == log.end
    assert done.removed == len(log.model) - done.kept == len(log.model) - len(log.read())
    assert log.plans() == []


def test_tombstones_stay_for_a_while_and_then_go(log: CompactedLog) -> None:
    log.append((b"a", b"1"), (b"b", b"2"), (b"a", None), (b"c", b"3"))
    end = log.compacted().compacted_end
    assert [held.value for held in log.read()] == [b"2", None, b"3"]
    assert log.plans() == []
    log.raw.hset(log.partition.state, "clean_history", f"{end}@5")
    assert log.compacted().compacted_end == end
    assert [held.value for held in log.read()] == [b"2", b"3"]
    assert log.raw.hget(log.partition.state, "clean_history") == b""
    assert log.plans() == []


def test_a_tombstone_that_came_later_stays_longer(log: CompactedLog) -> None:
    log.append((b"a", None), (b"x", b"1"))
    first_end = log.compacted().compacted_end
    log.append((b"b", None), (b"y", b"2"))
    log.compacted()
    history = log.raw.hget(log.partition.state, "clean_history").decode().split()
    log.raw.hset(log.partition.state, "clean_history", f"{first_end}@5 {history[1]}")
    log.compacted()
    assert [(held.key, held.value) for held in log.read()] == [(b"x", b"1"), (b"b", None), (b"y", b"2")]
    assert log.raw.hget(log.partition.state, "clean_history").decode() == history[1]


def test_an_append_goes_on_while_a_pass_is_under_way(log: CompactedLog) -> None:
    log.fill(10)
    end = log.end
    seen: list[list[Held]] = []

    def meanwhile() -> None:
        if log.raw.hexists(log.partition.state, "clean_token"):
            log.fill(1)
            seen.append(log.read())
            assert seen[-1] == log.model

    done = log.compact(check=meanwhile)
    assert done is not None
    assert done.compacted_end == end
    assert len(seen) > 3
    assert log.read() == log.expected(end)


def test_a_tail_that_has_grown_since_the_plan_is_left_to_the_next_one(log: CompactedLog) -> None:
    log.fill(1)
    [plan] = log.plans()
    log.fill(1)
    assert log.compactor.compact(plan, lambda: None) is None
    assert log.read() == log.model
    assert log.compacted().compacted_end == log.end


def test_a_buffer_too_small_for_all_keys_takes_more_passes(log: CompactedLog) -> None:
    log.fill(30, keys=10_000)
    rows = [log.model[at].offset + 1 for at in (49, 99)]
    for row, (records, at) in zip(rows, ((50, 49), (100, 99)), strict=True):
        log.raw.zadd(log.partition.index_key, {f"{records}:{at * 40}:5:5": row})
    small = log.compactor_on(log.here.redis, buffer_bytes=70 * 24)  # 50 keys and a few
    ends = []
    while (done := log.compact(small)) is not None:
        ends.append(done.compacted_end)
        assert log.read() == log.expected(done.compacted_end)
    assert ends == [*rows, log.end]


def test_a_buffer_too_small_for_one_interval_is_said(log: CompactedLog) -> None:
    log.fill(30, keys=10_000)
    [plan] = log.plans()
    with pytest.raises(KafkaError, match=r"tables:0: the map of keys holds 48, .*dedupe\.buffer\.size=1440"):
        log.compactor_on(log.here.redis, buffer_bytes=60 * 24).compact(plan, lambda: None)
    assert log.read() == log.model
    assert "clean_token" not in [name.decode() for name in log.raw.hkeys(log.partition.state)]


@pytest.mark.parametrize("restarted", [True, False])
def test_memory_that_a_stopped_pass_did_not_give_back_comes_back_with_the_next_turn(
    log: CompactedLog, *, restarted: bool
) -> None:
    for n in range(300):
        log.append((b"one", b"%d" % n * 300))

    def check() -> None:
        if log.field("clean_end"):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        log.compact(check=check)
    assert log.raw.xlen(log.partition.stream) == 300
    assert log.plans(log.compactor_on(log.here.redis) if restarted else None) == []
    assert log.raw.xlen(log.partition.stream) < 100


def test_sizes_follow_a_start_that_moves_within_the_compacted_part(
    log: CompactedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowBuilder, "records_per_row", 5)
    log.fill(20, keys=1000)
    log.fill(20, keys=1)
    log.compacted()
    trims = TrimStore(log.here.redis)
    for held in log.model[::7]:
        [trimmed] = trims.trim([Trim(log.partition, held.offset)])
        assert isinstance(trimmed, Trimmed)
        left = log.read(held.offset)
        assert 0 <= log.counters.records - log.field("start_records") - len(left) < 5 * 2
        assert log.counters.size_bytes - log.field("start_bytes") >= len(left)


def test_a_tombstone_that_was_the_last_record_stays_as_long_as_others(log: CompactedLog) -> None:
    log.append((b"a", b"1"), (b"a", None))
    log.compacted()
    log.append((b"b", b"1"))
    log.compacted()
    assert [(held.key, held.value) for held in log.read()] == [(b"a", None), (b"b", b"1")]


def test_a_fetch_in_an_emptied_range_gets_what_comes_next_or_waits_at_the_end(log: CompactedLog) -> None:
    for n in range(30):
        log.append((b"same", b"%d" % n))
    log.compacted()
    last = log.model[-1]
    for held in log.model:
        assert log.read(held.offset) == [last]
    [at_end] = log.here.fetch(log.here.wanted(TOPIC, offset=last.offset + 1))
    assert (at_end.error, at_end.chunks, at_end.high_watermark) == (ErrorCode.NONE, [], last.offset + 1)
