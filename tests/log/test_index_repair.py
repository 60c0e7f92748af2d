"""Rebuilding the index and forgetting timestamps, in both formats, beside appends: it is right then."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.log.index import IndexStore, Search
from korvet.log.index_repair import IndexRepair, Repaired
from korvet.log.offsets import OffsetFound, OffsetLookup, OffsetQuery
from korvet.log.packed import LOG_FIELD, PackedLog
from korvet.log.trim import Trim, TrimStore
from korvet.log.types import LogPosition
from korvet.protocol.types import SpecialTimestamp
from korvet.redis.client import Redis
from tests.support.appends import at_rest
from tests.support.batches import Record
from tests.support.domain import NO_LAKE
from tests.support.log_bench import LAYOUTS, Bench, code_of
from tests.support.partition_state import change_log, log_of

RECORDS = 500
LARGE = b"v" * 150_000
FAR = 10**15


class Upkeep:
    """A log with its index, and what mends it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.raw = bench.raw
        self.partition = bench.partition
        self.index = IndexStore(bench.redis)
        self.mender = IndexRepair(bench.redis)
        self.offsets = OffsetLookup(bench.logs, self.index, NO_LAKE)
        self.steps = 0

    def mend(self, beside: Any = None) -> Repaired | None:
        """Have a turn; `beside` is done before each of its steps. Returns None where nothing had to be done."""

        def check() -> None:
            self.steps += 1
            if beside is not None:
                beside()

        self.steps = 0
        outcomes = list(self.mender.repair(self.bench.partitions, check))
        assert len(outcomes) <= 1
        for partition, outcome in outcomes:
            assert partition == self.partition
            assert isinstance(outcome, Repaired)
            return outcome
        return None

    def fill(self, batches: int, first: int = 0) -> list[int]:
        """Append batches of records whose timestamps are their numbers; return their offsets."""
        offsets: list[int] = []
        for n in range(first, first + batches):
            stamps = range(n * RECORDS, (n + 1) * RECORDS)
            base = self.bench.append(*[Record(b"v", b"k", at) for at in stamps])
            offsets += range(base, base + RECORDS)
        return offsets

    def large(self, *stamps: int) -> list[int]:
        """Append large records, each a batch: four of them make a row."""
        return [self.bench.append(Record(LARGE, b"k", at), config=at_rest("none")) for at in stamps]

    def trim(self, start: int) -> None:
        trims = TrimStore(self.bench.redis)
        assert code_is_fine(trims.trim([Trim(self.partition, start)]))

    def find(self, timestamp: int) -> OffsetFound:
        [answer] = self.offsets.find([OffsetQuery(self.partition, timestamp)])
        assert isinstance(answer, OffsetFound)
        return answer

    def intervals(self, timestamp: int) -> list[tuple[int, int]]:
        [result] = self.index.find([Search(self.partition, timestamp)])
        assert not isinstance(result, Exception)
        return result.intervals

    def rows(self) -> list[tuple[bytes, float]]:
        result: list[tuple[bytes, float]] = self.raw.zrange(self.partition.index_key, 0, -1, withscores=True)
        return result

    @property
    def counters(self) -> PackedLog:
        return log_of(self.raw, self.partition.state)

    def below_start(self) -> list[int]:
        return [int(count) for count in self.raw.hmget(self.partition.state, "start_records", "start_bytes")]

    def check(self, offsets: list[int], first: int = 0) -> None:
        """Compare lookups and counts with records whose timestamps are their numbers, from `first` on."""
        for number in range(first, len(offsets), 601):
            assert self.find(number) == OffsetFound(offsets[number], number, self.bench.epoch)
            assert len(self.intervals(number)) >= 1
            [lag] = self.index.records_from([LogPosition(self.partition, offsets[number])])
            assert lag == len(offsets) - number
        assert self.find(SpecialTimestamp.MAX_TIMESTAMP).timestamp == len(offsets) - 1


def code_is_fine(outcomes: list[Any]) -> bool:
    return not any(isinstance(outcome, Exception) for outcome in outcomes)


@pytest.fixture(params=LAYOUTS)
def upkeep(redis: Redis, raw_redis: Any, request: pytest.FixtureRequest) -> Upkeep:
    return Upkeep(Bench(redis, raw_redis, request.param))


@pytest.mark.parametrize("damage", ["gone", "its newest rows gone", "garbage", "another type", "asked for"])
def test_a_missing_index_is_rebuilt(upkeep: Upkeep, damage: str) -> None:
    offsets = upkeep.fill(40)
    key = upkeep.partition.index_key
    match damage:
        case "gone":
            upkeep.raw.delete(key)
        case "its newest rows gone":
            upkeep.raw.zremrangebyrank(key, 2, -1)
        case "garbage":
            upkeep.raw.zadd(key, {"garbage": offsets[3]})
        case "another type":
            upkeep.raw.set(key, "x")
        case "asked for":
            upkeep.raw.hset(upkeep.partition.state, "reindex", 1)
    before = upkeep.counters
    mended = upkeep.mend()
    assert mended is not None
    assert mended.rebuilt == upkeep.raw.zcount(key, 1, "inf") >= 5
    assert upkeep.counters == before
    assert upkeep.below_start() == [0, 0]
    upkeep.check(offsets)
    assert upkeep.intervals(len(offsets)) == []
    assert upkeep.mend() is None


def test_a_row_of_a_short_log_hides_nothing_when_it_is_deleted(upkeep: Upkeep) -> None:
    offsets = upkeep.fill(1)
    # As compaction leaves it, which writes a row at its end however short the log is.
    change_log(upkeep.raw, upkeep.partition.state, interval=-1)
    upkeep.raw.delete(upkeep.partition.index_key)
    assert upkeep.find(RECORDS // 2).offset == offsets[RECORDS // 2]


def test_what_is_appended_meanwhile_keeps_its_rows(upkeep: Upkeep) -> None:
    offsets = upkeep.fill(20)
    upkeep.raw.delete(upkeep.partition.index_key)

    def beside() -> None:
        offsets.extend(upkeep.fill(3, first=len(offsets) // RECORDS))

    assert upkeep.mend(beside) is not None
    assert upkeep.steps >= 3
    upkeep.check(offsets)
    offsets += upkeep.fill(20, first=len(offsets) // RECORDS)
    upkeep.check(offsets)
    assert upkeep.mend() is None


def test_a_trimmed_log_counts_back_from_its_totals(upkeep: Upkeep) -> None:
    offsets = upkeep.fill(40)
    upkeep.trim(offsets[9000])
    upkeep.raw.delete(upkeep.partition.index_key)
    assert upkeep.mend() is not None
    start_records, start_bytes = upkeep.below_start()
    assert start_records == (9000 if upkeep.bench.format == "record" else offsets[9000])
    assert 0 < start_bytes < upkeep.counters.size_bytes
    upkeep.check(offsets, 9000)


def test_a_start_that_moves_meanwhile_is_not_moved_back(upkeep: Upkeep) -> None:
    offsets = upkeep.fill(40)
    upkeep.raw.delete(upkeep.partition.index_key)

    def beside() -> None:
        upkeep.trim(offsets[min(2000 * upkeep.steps, 15_000)])

    assert upkeep.mend(beside) is not None
    assert upkeep.counters.start >= offsets[6000]
    first = offsets.index(upkeep.counters.start)
    upkeep.check(offsets, first)


def test_an_empty_log_that_held_records_gets_a_row_at_its_end(upkeep: Upkeep) -> None:
    offsets = upkeep.fill(10)
    upkeep.trim(offsets[-1] + 1)
    upkeep.raw.delete(upkeep.partition.index_key)
    assert upkeep.mend() == Repaired(rebuilt=1)
    assert upkeep.mend() is None
    assert upkeep.find(0) == OffsetFound()


def test_uncounted_records_are_counted(redis: Redis, raw_redis: Any) -> None:
    upkeep = Upkeep(Bench(redis, raw_redis, "record"))
    offsets = upkeep.fill(30)
    before = upkeep.counters
    upkeep.raw.delete(upkeep.partition.index_key)
    change_log(upkeep.raw, upkeep.partition.state, records=0, size_bytes=5)
    upkeep.raw.hset(upkeep.partition.state, "reindex", 1)
    turns = 0
    while upkeep.mend() is not None:
        turns += 1
    assert turns <= 2
    after = upkeep.counters
    assert (after.records, after.size_bytes) == (before.records, before.size_bytes)
    upkeep.check(offsets)


def test_a_far_timestamp_that_left_the_log_is_forgotten_by_its_rows(upkeep: Upkeep) -> None:
    offsets = upkeep.large(0, FAR, *range(2, 80))
    upkeep.trim(offsets[40])
    assert upkeep.counters.largest == FAR
    assert upkeep.find(1000) == OffsetFound()
    mended = upkeep.mend()
    assert mended is not None
    assert mended.rebased > 5
    assert upkeep.counters.largest == 79
    largest = [int(member.split(b":")[2]) for member, score in upkeep.rows() if score > offsets[40]]
    assert largest == sorted(largest)
    assert largest[-1] < 80
    for stamp in range(40, 80):
        assert upkeep.find(stamp) == OffsetFound(offsets[stamp], stamp, upkeep.bench.epoch)
    assert upkeep.find(SpecialTimestamp.MAX_TIMESTAMP) == OffsetFound(offsets[79], 79, upkeep.bench.epoch)
    assert upkeep.mend() is None


def test_a_far_timestamp_that_left_the_log_within_an_interval_is_forgotten(upkeep: Upkeep) -> None:
    offsets = upkeep.large(0, FAR, *range(2, 40))
    upkeep.trim(offsets[2])
    assert len(upkeep.intervals(50)) == 1
    assert upkeep.mend() is not None
    assert upkeep.intervals(50) == []
    assert upkeep.counters.largest == 39
    assert upkeep.find(2) == OffsetFound(offsets[2], 2, upkeep.bench.epoch)
    assert upkeep.mend() is None


def test_a_far_timestamp_that_is_still_in_the_log_stays(upkeep: Upkeep) -> None:
    offsets = upkeep.large(0, 1, FAR, *range(3, 40))
    upkeep.trim(offsets[1])
    assert upkeep.mend() is None
    assert upkeep.find(500) == OffsetFound(offsets[2], FAR, upkeep.bench.epoch)


def test_a_log_of_another_incarnation_and_a_malformed_state_are_errors(upkeep: Upkeep) -> None:
    stranger = upkeep.bench.at(0, topic_id="another-id")
    upkeep.raw.hset(upkeep.bench.partitions[1].state, LOG_FIELD, "x")
    outcomes = dict(
        upkeep.mender.repair([stranger, upkeep.bench.partitions[1], upkeep.bench.partitions[2]], lambda: None)
    )
    assert code_of(outcomes[stranger]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(outcomes[upkeep.bench.partitions[1]]) == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(outcomes) == 2


def test_a_malformed_entry_is_an_error_and_the_index_left_as_it_is(redis: Redis, raw_redis: Any) -> None:
    upkeep = Upkeep(Bench(redis, raw_redis, "record"))
    upkeep.fill(10)
    upkeep.raw.delete(upkeep.partition.index_key, upkeep.partition.stream)
    upkeep.raw.set(upkeep.partition.stream, "x")
    [(_, outcome)] = upkeep.mender.repair([upkeep.partition], lambda: None)
    assert code_of(outcome) == ErrorCode.KAFKA_STORAGE_ERROR
    assert upkeep.rows() == []
