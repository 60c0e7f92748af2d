"""A log through random lives in both formats: whatever happens, clients see what a model in memory says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import redis as redis_py
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from korvet.log.index import RowBuilder
from korvet.log.retention import Policy
from korvet.topics.config import TopicConfig
from tests.log.log_life import LogLife
from tests.support import redis_servers
from tests.support.appends import at_rest
from tests.support.batches import CODECS, NONE, Record
from tests.support.log_bench import LAYOUTS, Layout
from tests.support.redis_servers import DurableServer

# Few keys, so that records have predecessors; few timestamps, so that some are equal, out of order, or far ahead.
TICK_MS = 10**9
KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"])
PRODUCERS = st.sampled_from([5, 2**62])
TIMESTAMPS = st.one_of(
    st.integers(0, 60).map(lambda tick: tick * TICK_MS), st.sampled_from([1000 * TICK_MS, 2**62])
)
SMALL = st.builds(Record, value=st.one_of(st.none(), st.binary(max_size=20)), key=KEYS, timestamp=TIMESTAMPS)
# Three of these are more than lies between two rows of the index.
LARGE = st.builds(
    lambda key, timestamp, filler: Record(filler * 400_000, key, timestamp),
    KEYS,
    TIMESTAMPS,
    st.sampled_from([b"x", b"y"]),
)
FOREIGN = st.fixed_dictionaries(
    {"value": st.binary(max_size=10)},
    optional={"key": KEYS, "timestamp": st.integers(0, 60).map(lambda tick: b"%d" % (tick * TICK_MS))},
)


class Life(RuleBasedStateMachine):
    """What may happen to a log, in any order."""

    layout: ClassVar[Layout]
    url: ClassVar[str]
    raw: ClassVar[Any]

    @initialize(bits=st.sampled_from([8, 10, 12]), keep_tombstones=st.booleans())
    def begin(self, *, bits: int, keep_tombstones: bool) -> None:
        self.raw.flushall()
        self.log = LogLife(self.url, self.raw, self.layout, bits, keep_tombstones=keep_tombstones)

    @rule(records=st.lists(SMALL, min_size=1, max_size=12), codec=st.sampled_from(CODECS))
    def produce(self, records: list[Record], codec: int) -> None:
        self.log.produce(records, codec)

    @rule(
        batches=st.lists(st.lists(SMALL, min_size=1, max_size=5), min_size=1, max_size=7),
        producer=PRODUCERS,
        codec=st.sampled_from(CODECS),
        config=st.sampled_from([at_rest("none"), at_rest("lz4", 50), at_rest("zstd", 50)]),
    )
    def produce_in_sequence(
        self, batches: list[list[Record]], producer: int, codec: int, config: TopicConfig
    ) -> None:
        for records in batches:
            self.log.produce(records, codec, producer, config)

    @rule(producer=PRODUCERS, age=st.integers(0, 6))
    def repeat(self, producer: int, age: int) -> None:
        self.log.repeat(producer, age)

    @rule(producer=PRODUCERS, gap=st.integers(1, 5))
    def skip(self, producer: int, gap: int) -> None:
        self.log.skip(producer, gap)

    @rule(records=st.lists(LARGE, min_size=1, max_size=4))
    def produce_large(self, records: list[Record]) -> None:
        self.log.produce(records, NONE)

    @rule(timestamp=TIMESTAMPS, count=st.sampled_from([900, 2500]))
    def produce_many(self, timestamp: int, count: int) -> None:
        self.log.produce([Record(b"%d" % n, b"k%d" % (n % 700), timestamp) for n in range(count)], NONE)

    @rule(
        entries=st.lists(FOREIGN, min_size=1, max_size=6),
        entry_id=st.sampled_from(["*", "*", f"{2**60}-*", f"{2**64 - 1}-*", "0-1", "3-1", "9-5000"]),
    )
    def external(self, entries: list[dict[str, bytes]], entry_id: str) -> None:
        self.log.external(entries, entry_id)

    @rule(place=st.floats(0, 1), count=st.integers(1, 50))
    def read_from(self, place: float, count: int) -> None:
        self.log.read_from(place, count)

    @rule(place=st.floats(0, 1))
    def delete_to_a_record(self, place: float) -> None:
        if self.log.records:
            self.log.delete_records(self.log.records[int(place * (len(self.log.records) - 1))].offset)

    @rule(place=st.floats(0, 1))
    def delete_to_any_offset(self, place: float) -> None:
        log = self.log
        log.delete_records(log.start + int(place * (log.end - log.start)))

    @rule(tick=st.integers(0, 61))
    def retain_by_time(self, tick: int) -> None:
        self.log.retain(self.log.older_than(tick * TICK_MS - TICK_MS // 2))

    @rule(retention_bytes=st.sampled_from([0, 1000, 10**6, 3 * 10**6]))
    def retain_by_size(self, retention_bytes: int) -> None:
        self.log.retain(Policy(retention_bytes=retention_bytes))

    @rule()
    def compact(self) -> None:
        self.log.compact()

    @rule()
    def lose_index(self) -> None:
        self.log.lose_index()

    @rule()
    def mend_index(self) -> None:
        self.log.mend_index()

    @rule(place=st.floats(0, 1))
    def count_from(self, place: float) -> None:
        self.log.count_from(self.log.start + int(place * (self.log.end - self.log.start)))

    @rule()
    def give_memory_back(self) -> None:
        self.log.give_memory_back()

    @rule()
    def keep(self) -> None:
        self.log.keep()

    @rule()
    def restart(self) -> None:
        self.log.restart()

    @rule(timestamp=st.one_of(st.integers(0, 61 * TICK_MS), st.sampled_from([1000 * TICK_MS + 1, 2**62])))
    def look_up(self, timestamp: int) -> None:
        self.log.look_up(timestamp)

    @rule()
    def look_up_largest(self) -> None:
        self.log.look_up_largest()

    @rule()
    def check(self) -> None:
        self.log.check()

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.check()
            for timestamp in {record.timestamp for record in self.log.records} | {0, 61 * TICK_MS}:
                if timestamp >= 0:
                    self.log.look_up(timestamp)
            self.log.look_up_largest()
            self.log.close()


class LifeWithCrashes(Life):
    """The same on a server that is killed now and then."""

    server: ClassVar[DurableServer]

    @rule()
    def crash(self) -> None:
        self.server.crash()
        self.log.restart()

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.crash()
        super().teardown()


@pytest.fixture(autouse=True)
def _close_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows that compaction and repair write stand close together."""
    monkeypatch.setattr(RowBuilder, "records_per_row", 20)


@pytest.fixture(scope="module")
def raw(redis_server: str) -> Iterator[Any]:
    with redis_servers.connected(redis_server) as client:
        yield client


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whatever_happens_a_log_is_what_the_model_says(redis_server: str, raw: Any, layout: Layout) -> None:
    machine = type("LifeOf", (Life,), {"layout": layout, "url": redis_server, "raw": raw})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=settings().max_examples // 8, stateful_step_count=20)
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_log_survives_a_server_that_is_killed_again_and_again(layout: Layout) -> None:
    with DurableServer() as server, redis_py.Redis.from_url(server.url) as raw:
        fields = {"layout": layout, "url": server.url, "raw": raw, "server": server}
        machine = type("LifeOf", (LifeWithCrashes,), fields)
        steps = settings(max_examples=settings().max_examples // 20, stateful_step_count=20)
        run_state_machine_as_test(machine, settings=steps)


def test_retention_goes_on_past_an_interval_of_which_every_record_is_over(
    redis_server: str, raw: Any
) -> None:
    raw.flushall()
    log = LogLife(redis_server, raw, "record", 10, keep_tombstones=False)
    # The row of the first interval says 59, of a record that is deleted: only single records show what is over.
    log.produce([Record(b"late", b"a", 59 * TICK_MS)], NONE)
    log.produce([Record(b"%d" % n, b"k", 34 * TICK_MS) for n in range(5000)], NONE)
    log.produce([Record(b"early", b"a", 0), Record(b"late", b"a", 45 * TICK_MS)], NONE)
    # What is left of it fits the steps in which records are read: 1, 8, then 64 at once.
    log.delete_records(log.records[1 + 5000 - (1 + 8 + 10 * 64)].offset)
    log.retain(log.older_than(35 * TICK_MS))
    assert [record.value for record in log.records] == [b"late"]
    log.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_compaction_leaves_as_the_oldest_is_over_by_its_own_time(
    layout: Layout, redis_server: str, raw: Any
) -> None:
    """The record that held up retention may go by compaction, with the log's start where it is."""
    raw.flushall()
    log = LogLife(redis_server, raw, layout, 10, keep_tombstones=True)
    young, old, edge = 50 * TICK_MS, 10 * TICK_MS, 30 * TICK_MS
    log.produce([Record(b"1", b"young", young), Record(b"2", b"old", old)], NONE)
    log.produce([Record(b"3", b"old", old), Record(b"4", b"other", old)], NONE)
    log.retain(log.older_than(edge))
    assert log.records[0].key == b"young"
    log.produce([Record(b"5", b"young", young), Record(b"6", b"last", young)], NONE)
    log.compact()
    assert log.records[0].key == b"old"
    log.retain(log.older_than(edge))
    if layout != "batch":
        assert log.records[0].key == b"young"
    log.check()
    log.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lost_row_of_a_small_compacted_log_is_rebuilt(
    redis_url: str, raw_redis: Any, layout: Layout
) -> None:
    log = LogLife(redis_url, raw_redis, layout, 8, keep_tombstones=False)
    large = Record(b"x" * 400_000, b"a", 0)
    log.produce([large, large], NONE)
    log.delete_records(log.records[0].offset)
    log.compact()
    log.lose_index()
    log.mend_index()
    log.look_up(0)
    log.close()
