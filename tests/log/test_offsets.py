"""OffsetLookup by timestamp against a model: whatever was appended, trimmed and written by others, in both formats.

Records are large, so that few of them make a row of the index, and lookups go through several of them.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.log.index import IndexStore
from korvet.log.offsets import OffsetFound, OffsetLookup, OffsetQuery
from korvet.log.trim import Trim, Trimmed, TrimStore
from korvet.protocol.types import SpecialTimestamp
from korvet.redis.client import Redis
from korvet.topics.registry import TopicSpec
from korvet.topics.types import AtRest
from tests.support.batches import Record
from tests.support.commands import commands_of
from tests.support.domain import NO_LAKE, Domain
from tests.support.log_bench import BITS, DECOMPRESSED_BYTES_MAX, Bench, Format
from tests.support.transactions import TransactionalProducer

VALUE = b"v" * 200_000
FAR = 2**62
TIMESTAMPS = st.integers(0, 12) | st.sampled_from([-5, 1000, FAR, FAR + 1, 2**63 - 1])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(TIMESTAMPS, min_size=1, max_size=4)),
        st.tuples(st.just("append"), st.lists(TIMESTAMPS, min_size=1, max_size=4)),
        st.tuples(st.just("external"), TIMESTAMPS | st.none()),
        st.tuples(st.just("trim"), st.integers(0, 5)),
        st.tuples(st.just("look"), st.none()),
    ),
    min_size=1,
    max_size=15,
)


class Life:
    """A log, and what must be found in it."""

    def __init__(self, redis: Redis, raw: Any, storage_format: Format) -> None:
        raw.flushall()
        self.bench = Bench(redis, raw, storage_format)
        self.index = IndexStore(redis)
        self.offsets = OffsetLookup(self.bench.logs, self.index, NO_LAKE, DECOMPRESSED_BYTES_MAX)
        self.trims = TrimStore(redis)
        self.records: list[tuple[int, int]] = []
        self.start = 0

    def append(self, stamps: list[int]) -> None:
        base = self.bench.append(*[Record(VALUE, b"k", at) for at in stamps], at_rest=AtRest("none"))
        self.records += [(base + n, at) for n, at in enumerate(stamps)]

    def external(self, timestamp: int | None) -> None:
        if self.bench.format == "batch":
            self.bench.raw.xadd(self.bench.partition.stream, {"value": "no batch"})
            return
        fields: dict[Any, Any] = {"value": VALUE} | ({} if timestamp is None else {"timestamp": timestamp})
        entry_id = self.bench.raw.xadd(self.bench.partition.stream, fields)
        ms, sequence = (int(part) for part in entry_id.split(b"-"))
        self.records.append(((ms << BITS) + sequence, ms if timestamp is None else timestamp))

    def trim(self, count: int) -> None:
        """Move the start past `count` records."""
        self.bench.bounds()  # takes in what others wrote
        live = self.live()
        start = live[count][0] if count < len(live) else self.bench.bounds().high_watermark
        [outcome] = self.trims.trim([Trim(self.bench.partition, start)])
        assert isinstance(outcome, Trimmed)
        while outcome.more:
            [outcome] = self.trims.trim([Trim(self.bench.partition)])
            assert isinstance(outcome, Trimmed)
        self.start = max(self.start, start)

    def live(self) -> list[tuple[int, int]]:
        return [record for record in self.records if record[0] >= self.start]

    def look(self, _: None = None) -> None:
        live = self.live()
        asked = sorted({0, FAR, *(max(at + more, 0) for _, at in live for more in (-1, 0, 1))})
        questions = [OffsetQuery(self.bench.partition, at) for at in asked if at < 2**63]
        for question, answer in zip(questions, self.offsets.find(questions), strict=True):
            fitting = [record for record in live if record[1] >= question.timestamp]
            assert answer == (OffsetFound(*fitting[0], self.bench.epoch) if fitting else OffsetFound()), (
                question
            )
        [largest] = self.offsets.find([OffsetQuery(self.bench.partition, SpecialTimestamp.MAX_TIMESTAMP)])
        timed = [record for record in live if record[1] >= 0]
        first = max(timed, key=lambda record: (record[1], -record[0]), default=None)
        assert largest == (OffsetFound() if first is None else OffsetFound(*first, self.bench.epoch))


@pytest.mark.parametrize("storage_format", ["record", "batch"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_every_lookup_finds_what_a_list_would(
    redis: Redis, raw_redis: Any, storage_format: Format, steps: list[tuple[str, Any]]
) -> None:
    life = Life(redis, raw_redis, storage_format)
    for name, argument in steps:
        getattr(life, name)(argument)
    life.look()


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_long_log_of_many_rows_and_a_start_that_moves(
    redis: Redis, raw_redis: Any, storage_format: Format
) -> None:
    life = Life(redis, raw_redis, storage_format)
    choose = random.Random(5)
    for _ in range(60):
        life.append([choose.randint(0, 200) for _ in range(choose.randint(1, 4))])
        if choose.random() < 0.2:
            life.external(choose.choice([None, 7, FAR]))
        if choose.random() < 0.2:
            life.trim(choose.randint(0, 4))
    assert raw_redis.zcard(life.bench.partition.index_key) > 10
    life.look()


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_lookup_in_a_long_log_reads_one_interval(
    redis: Redis, raw_redis: Any, storage_format: Format
) -> None:
    life = Life(redis, raw_redis, storage_format)
    batches = 200
    for n in range(batches):
        base = life.bench.append(*[Record(b"v", b"k", n * 500 + i) for i in range(500)])
        life.records += [(base + i, n * 500 + i) for i in range(500)]
    assert raw_redis.zcard(life.bench.partition.index_key) >= 48
    life.offsets.find([OffsetQuery(life.bench.partition, 0)])  # loads the script
    for at in (0, 1, 4095, 4500, 50_001, 99_999):
        with commands_of(raw_redis) as used:
            [answer] = life.offsets.find([OffsetQuery(life.bench.partition, at)])
        assert answer == OffsetFound(life.records[at][0], at, life.bench.epoch)
        # An interval has up to 2048 records and the batch that crossed: three reads of 1000, or one of 64 batches.
        entries_read = used["xrange"] - (1 if storage_format == "record" else 0)
        assert entries_read <= (3 if storage_format == "record" else 1)
        assert used["zrange"] <= 12
        assert used["evalsha"] == 1
    # Behind the largest timestamp nothing is read at all.
    with commands_of(raw_redis) as used:
        assert life.offsets.find([OffsetQuery(life.bench.partition, 100_000)]) == [OffsetFound()]
    assert used["xrange"] == (1 if storage_format == "record" else 0)


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_for_committed_readers_a_log_ends_where_the_oldest_transaction_begins(
    here: Domain, storage_format: str
) -> None:
    topic = here.topics.create(TopicSpec(name="orders", configs={"storage.format": storage_format}))
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
