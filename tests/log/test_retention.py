"""What retention deletes, in both formats: the decision by itself, and against a model on a real log."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.log.index import Row, Totals
from korvet.log.retention import Policy, RetainedLog, Retention, Trimming, due, policy_of
from korvet.log.trim import Reason, Trimmer, TrimState, TrimStore
from korvet.redis.client import Redis
from korvet.topics import config as topic_config
from tests.support.batches import Record
from tests.support.commands import commands_of
from tests.support.log_bench import LAYOUTS, Bench
from tests.support.partition_state import change_log

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS


def extent(
    *rows: tuple[int, int], end: int = 1000, tail: int = NOW_MS, more_rows: bool = False, **fields: Any
) -> TrimState:
    """Make an extent whose rows have offsets, intervals (ms), and a thousand bytes each, as the tail has."""
    none = Totals._make([0] * len(Totals._fields))
    totals = none._replace(end=end, bytes=1000 * (len(rows) + 1), interval=tail, **fields)
    made = [
        Row(offset, count, 1000 * count, NOW_MS, interval) for count, (offset, interval) in enumerate(rows, 1)
    ]
    return TrimState(totals, made, more_rows=more_rows, unfinished=False)


def ago(days: float) -> int:
    return NOW_MS - int(days * DAY_MS)


WEEK = Policy(retention_ms=7 * DAY_MS)


@pytest.mark.parametrize(
    ("rows", "tail", "start"),
    [
        ([(10, ago(9)), (20, ago(8)), (30, ago(6))], ago(1), 20),
        ([(10, ago(9)), (20, ago(6)), (30, ago(9))], ago(1), 10),
        ([(10, ago(6)), (20, ago(9))], ago(9), None),
        ([(10, ago(-100)), (20, ago(9))], ago(9), None),  # a record from the future keeps what follows
        ([(10, ago(9)), (20, ago(8))], ago(8), 1000),
        ([], ago(8), 1000),
        ([], ago(6), None),
        ([], -1, None),
        ([(10, -1), (20, ago(9))], ago(1), 20),  # without a timestamp: as old as what follows
        ([(10, ago(9)), (20, -1)], ago(1), 10),
        ([(10, -1)], -1, None),
        ([(10, ago(7))], ago(1), None),
        ([(10, ago(7) - 1)], ago(1), 10),
    ],
)
def test_by_time_goes_all_whose_timestamps_are_older(
    rows: list[tuple[int, int]], tail: int, start: int | None
) -> None:
    trimming = due(extent(*rows, tail=tail), WEEK, NOW_MS)
    assert trimming == (None if start is None else Trimming(start, "time"))


@pytest.mark.parametrize(
    ("kept_bytes", "start"),
    [(10_000, None), (4000, None), (3001, None), (3000, 10), (2001, 10), (2000, 20), (1, 30), (0, 1000)],
)
def test_by_size_goes_what_leaves_enough(kept_bytes: int, start: int | None) -> None:
    trimming = due(extent((10, 5), (20, 5), (30, 5)), Policy(retention_bytes=kept_bytes), NOW_MS)
    assert trimming == (None if start is None else Trimming(start, "size"))


def test_the_limit_that_lets_go_more_decides() -> None:
    result = extent((10, ago(9)), (20, ago(8)), (30, ago(1)))
    assert due(result, Policy(7 * DAY_MS, 3000), NOW_MS) == Trimming(20, "time")
    assert due(result, Policy(7 * DAY_MS, 1000), NOW_MS) == Trimming(30, "size")
    assert due(result, Policy(-1, -1), NOW_MS) is None


def test_where_there_may_be_more_rows_the_end_is_not_asked() -> None:
    result = extent((10, ago(9)), tail=ago(9), more_rows=True)
    assert due(result, WEEK, NOW_MS) == Trimming(10, "time")
    assert due(result, Policy(retention_bytes=0), NOW_MS) == Trimming(10, "size")


def test_sizes_that_compaction_made_wrong_let_nothing_go() -> None:
    assert due(extent((10, 5), reindex=True), Policy(retention_bytes=1), NOW_MS) is None


def test_nothing_goes_that_the_cold_tier_does_not_hold() -> None:
    local = Policy(7 * DAY_MS, -1, archived_only=True)
    rows = [(10, ago(9)), (20, ago(9)), (30, ago(9))]
    assert due(extent(*rows, archived=0), local, NOW_MS) is None
    assert due(extent(*rows, archived=15), local, NOW_MS) == Trimming(15, "time")
    assert due(extent(*rows, archived=15, start=15), local, NOW_MS) is None
    assert due(extent(*rows, archived=900), local, NOW_MS) == Trimming(30, "time")


@pytest.mark.parametrize("tail", [ago(9), ago(-100)])
def test_a_record_from_the_future_keeps_nothing_in_redis_that_is_archived(tail: int) -> None:
    local = Policy(7 * DAY_MS, -1, archived_only=True)
    rows = [(10, ago(-100)), (20, ago(9)), (30, ago(-(2**33)))]
    result = due(extent(*rows, archived=1000, tail=tail), local, NOW_MS)
    assert result == Trimming(1000 if tail < NOW_MS else 20, "time")


REMOTE = {"remote.storage.enable": "true"}


@pytest.mark.parametrize(
    ("configs", "policy"),
    [
        ({}, Policy(604_800_000, -1)),
        ({"retention.ms": "5", "retention.bytes": "6"}, Policy(5, 6)),
        ({"cleanup.policy": "compact", "retention.ms": "5"}, Policy(-1, -1)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5"}, Policy(5, -1)),
        ({"local.retention.ms": "5"}, Policy(604_800_000, -1)),
        (
            REMOTE | {"local.retention.ms": "5", "local.retention.bytes": "6"},
            Policy(5, 6, archived_only=True),
        ),
        (REMOTE | {"cleanup.policy": ""}, Policy(7 * DAY_MS, archived_only=True)),
        (REMOTE | {"retention.bytes": "9"}, Policy(7 * DAY_MS, 9, archived_only=True)),
        (REMOTE | {"remote.log.copy.disable": "true", "retention.ms": "5"}, Policy(5)),
    ],
)
def test_a_topics_configuration_is_a_policy(configs: dict[str, str], policy: Policy) -> None:
    result = policy_of(topic_config.effective(configs, Settings()))
    assert result == policy
    assert result.limited == (policy.retention_ms >= 0 or policy.retention_bytes >= 0)


class Log:
    """A log with index rows where a test wants them, and its model: a list of batches."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.state = bench.partition.state
        self.batches: list[tuple[int, int, list[int]]] = []  # base offset, end, timestamps
        self.rows: list[tuple[int, int]] = []  # offset, bytes
        self.bytes = self.end = 0
        self.since_row: list[int] = []
        self.counted: Counter[Reason] = Counter()
        store = TrimStore(bench.redis)
        self.trimmer = Trimmer(bench.logs, store, self._count)
        self.retention = Retention(bench.logs, store, self.trimmer)

    def _count(self, reason: Reason, records: int) -> None:
        self.counted[reason] += records

    def append(self, *timestamps: int) -> int:
        """Append a batch of records of these timestamps, a hundred bytes each."""
        base = self.bench.append(*(Record(b"v", b"k", at) for at in timestamps))
        self.batches.append((base, base + len(timestamps), list(timestamps)))
        self.end = base + len(timestamps)
        self.bytes += 100 * len(timestamps)
        self.since_row += timestamps
        counters = {"size_bytes": self.bytes, "records": self.bytes // 100, "interval": max(self.since_row)}
        change_log(self.bench.raw, self.state, **counters)
        return base

    def row(self) -> int:
        """Write an index row at the end; returns its offset."""
        end = self.end
        interval = max(self.since_row, default=-1)
        member = f"{self.bytes // 100}:{self.bytes}:0:{interval}"
        self.bench.raw.zadd(self.bench.partition.index_key, {member: end})
        change_log(self.bench.raw, self.state, interval=-1)
        self.rows.append((end, self.bytes))
        self.since_row = []
        return end

    @property
    def start(self) -> int:
        return self.bench.bounds().log_start

    def enforce(self, policy: Policy, turns: int = 1) -> None:
        """Enforce; all that is due goes in one turn."""
        for _ in range(turns):
            assert list(self.retention.enforce([RetainedLog(self.bench.partition, policy)])) == []

    def kept_by_time(self, cutoff_ms: int) -> int:
        """Return where the log is to start by the timestamps, as the model has it."""
        start = 0
        for base, _, timestamps in self.batches:
            largest = [max(timestamps)] * len(timestamps)
            for offset, at in enumerate(largest if self.bench.format == "batch" else timestamps, base):
                if at >= cutoff_ms:
                    return start
                start = offset + 1
        return start

    def kept_by_size(self, kept_bytes: int) -> int:
        """Return where the log is to start by its size, as the model has it."""
        ends = [*self.rows, (self.end, self.bytes)] if kept_bytes == 0 else self.rows
        return max((offset for offset, size in ends if self.bytes - size >= kept_bytes), default=0)

    def check(self, start: int) -> None:
        """Fail unless the log starts at `start` for all readers, and all that follows is there."""
        left = [(base, end) for base, end, _ in self.batches if end > start]
        first = max(start, left[0][0]) if left else self.end
        assert self.bench.bounds()[:3] == (start, first, self.end)
        offsets = [offset for base, end in left for offset in range(max(base, start), end)]
        assert [offset for offset, _ in self.bench.read_all(start)] == offsets


@pytest.fixture(params=LAYOUTS)
def log(redis_url: str, raw_redis: Any, request: pytest.FixtureRequest) -> Iterator[Log]:
    redis = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield Log(Bench(redis, raw_redis, request.param))
    redis.close()


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_kept_is_what_the_model_keeps(log: Log, seed: int) -> None:
    """Ages are whole days and limits lie between two days, so that the clock may go on meanwhile."""
    chance = random.Random(seed)
    today = now_ms()
    expected = 0
    for _ in range(6):
        for _ in range(chance.randint(0, 12)):
            age = chance.choice((30, 20, 12, 9, 5, 1, -3))
            log.append(*(today - (age + chance.randint(0, 2)) * DAY_MS for _ in range(chance.randint(1, 4))))
            if chance.random() < 0.3:
                log.row()
        days, size = chance.choice((-1, 25.5, 15.5, 7.5, 0.5)), chance.choice((-1, -1, 0, 500, 1000, 3000))
        policy = Policy(int(days * DAY_MS) if days > 0 else -1, size)
        log.enforce(policy)
        if policy.retention_ms >= 0:
            expected = max(expected, log.kept_by_time(today - policy.retention_ms))
        if size >= 0:
            expected = max(expected, log.kept_by_size(size))
        # Retention by time continues after retention by size, even if the deleted records were from the future.
        if policy.retention_ms >= 0:
            held = log.batches
            log.batches = [batch for batch in held if batch[1] > expected]
            expected = max(expected, log.kept_by_time(today - policy.retention_ms))
        log.check(expected)


def test_quiet_logs_lose_single_records(log: Log) -> None:
    """Long before their interval is complete."""
    today = now_ms()
    offsets = [log.append(today - days * DAY_MS) for days in (20, 19, 18, 3, 15, 1)]
    log.enforce(WEEK, turns=1)
    log.check(offsets[2] + 1)
    assert log.bench.bounds().first_offset == offsets[3]
    assert log.counted["time"] == (3 if log.bench.partition.is_dense else 0)  # to one row of the index


def test_a_record_without_a_timestamp_is_as_old_as_the_one_after_it(log: Log) -> None:
    today = now_ms()
    log.append(-1)
    log.append(-1)
    log.enforce(WEEK)
    assert log.start == 0
    old = log.append(today - 9 * DAY_MS)
    log.append(-1)
    log.append(today)
    log.enforce(WEEK)
    log.check(old + 1)


def test_where_nothing_is_due_a_look_asks_for_no_entry(log: Log) -> None:
    """Nor for anything else, once it is known how old the first record is."""
    for _ in range(3):
        log.append(now_ms())
    partitions = log.bench.partitions
    kept = [RetainedLog(partition, WEEK) for partition in partitions]
    assert list(log.retention.enforce(kept)) == []
    with commands_of(log.bench.raw) as ran:
        assert list(log.retention.enforce(kept)) == []
    del ran["info"]  # that counts
    assert ran == {"time": 1, "hmget": 3, "zrange": 3}


def test_many_rows_go_in_bounded_steps(log: Log) -> None:
    for _ in range(600):
        log.append(5)
        log.row()
    last = log.append(now_ms())
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1

    assert list(log.retention.enforce([RetainedLog(log.bench.partition, WEEK)], check)) == []
    log.check(log.rows[-1][0])
    assert log.bench.bounds().first_offset == last
    assert checks >= 600 // 256
    assert log.counted == {"time": 600}
    assert log.bench.raw.zcard(log.bench.partition.index_key) == 1
    assert log.bench.raw.xlen(log.bench.partition.stream) <= 100


class StopError(Exception):
    """The lease was lost."""


@pytest.mark.parametrize("steps", range(1, 7))
def test_work_that_ends_anywhere_is_done_by_the_next(log: Log, steps: int) -> None:
    for n in range(300):
        log.append(5)
        if n % 50 == 49:
            log.row()
    log.append(now_ms())
    left = steps

    def check() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StopError

    try:
        assert list(log.retention.enforce([RetainedLog(log.bench.partition, WEEK)], check)) == []
    except StopError:
        assert log.start in (0, log.rows[-1][0])
    log.enforce(WEEK)
    log.check(log.rows[-1][0])
    assert log.bench.raw.xlen(log.bench.partition.stream) <= 100


def test_what_is_wrong_with_one_log_does_not_keep_the_others(log: Log) -> None:
    log.append(5)
    bench = log.bench
    bench.raw.set(bench.partitions[1].index_key, "no index")
    stranger = bench.at(2, topic_id="id-2")
    kept = [RetainedLog(partition, WEEK) for partition in (bench.partitions[1], stranger, bench.partition)]
    failed = {partition: error.code for partition, error in log.retention.enforce(kept)}
    assert failed == {
        bench.partitions[1]: ErrorCode.KAFKA_STORAGE_ERROR,
        stranger: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    log.check(log.end)


@pytest.mark.parametrize("lost", [1, 2])
def test_where_rows_of_the_index_were_lost_nothing_goes_that_is_not_old(log: Log, lost: int) -> None:
    """The state's time since the last row is of fewer records than follow the last one."""
    old, new = 5, now_ms()
    log.append(old)
    log.bytes = 1 << 20
    log.row()
    fresh = log.append(new)
    log.bytes = 2 << 20
    log.row()
    log.append(old)
    for offset, _ in log.rows[2 - lost :]:
        log.bench.raw.zremrangebyscore(log.bench.partition.index_key, offset, offset)
    log.enforce(WEEK)
    assert log.bench.bounds().first_offset == fresh
