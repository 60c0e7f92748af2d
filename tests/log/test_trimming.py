"""Moving log starts, and work in the background: once for each log, a failure logged once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.log.retention import Retention, SizeRetentionTrigger
from korvet.log.trim import BackgroundTrims, NewStart, Reason, Trimmed, Trimmer, TrimStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.registry import TopicRegistry
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow
from tests.support.log_bench import Bench, code_of

SECONDS_MAX = 30


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    client = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield client
    client.close()


@pytest.fixture(params=["record", "batch"])
def bench(redis: Redis, raw_redis: Any, request: pytest.FixtureRequest) -> Bench:
    return Bench(redis, raw_redis, request.param)


@pytest.fixture
def trimmer(bench: Bench) -> Trimmer:
    return Trimmer(bench.logs, TrimStore(bench.redis), lambda _reason, _records: None)


def finish(background: BackgroundTrims) -> None:
    """Wait until nothing is under way."""
    with gevent.Timeout(SECONDS_MAX):
        while background._under_way:
            gevent.sleep(0)


def test_many_starts_move_at_once_and_each_has_its_own_answer(bench: Bench, trimmer: Trimmer) -> None:
    ends = [bench.append(b"a", b"b", partition=partition) + 2 for partition in bench.partitions]
    stranger = bench.at(0, topic_id="id-2")
    starts = [NewStart(partition, end - 1) for partition, end in zip(bench.partitions, ends, strict=True)]
    moved = trimmer.move([*starts, NewStart(stranger, 1), NewStart(bench.partition, ends[0] + 1)] * 4, "time")
    assert len(moved) == 20
    for outcome, start in zip(moved, starts, strict=False):
        assert isinstance(outcome, Trimmed)
        assert outcome.start == start.offset
    assert [code_of(outcome) for outcome in moved[3:5]] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ]
    assert bench.bounds().first_offset == ends[0] - 1


def test_records_that_left_are_counted_by_reason(redis: Redis, raw_redis: Any) -> None:
    """To one row of the index; exactly in format batch, whose offsets count records."""
    bench, counted = Bench(redis, raw_redis, "batch"), Counter[Reason]()
    trimmer = Trimmer(bench.logs, TrimStore(redis), lambda reason, records: counted.update({reason: records}))
    bench.append(b"a", b"b", b"c")
    trimmer.move([NewStart(bench.partition, 1)], "delete_records")
    trimmer.move([NewStart(bench.partition, 1)], "time")
    trimmer.move([NewStart(bench.partition, 3)], "size")
    assert counted == {"delete_records": 1, "size": 2}


def test_work_at_a_log_is_begun_once_at_a_time(bench: Bench) -> None:
    background, go_on, begun = BackgroundTrims(), Event(), Counter[str]()

    def work() -> None:
        begun["first"] += 1
        go_on.wait(SECONDS_MAX)

    def other() -> None:
        begun["other"] += 1

    background.begin(bench.partitions[0], work)
    background.begin(bench.partitions[0], work)
    background.begin(bench.partitions[1], other)
    while not begun["other"]:
        gevent.sleep(0)
    assert begun == {"first": 1, "other": 1}
    go_on.set()
    finish(background)
    background.begin(bench.partitions[0], other)
    finish(background)
    assert begun == {"first": 1, "other": 2}


def test_a_failure_is_logged_once_until_it_works_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    background = BackgroundTrims()

    def fails(code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        raise KafkaError(code, "as expected")

    def lines_after(*works: Any) -> int:
        for work in works:
            background.begin(bench.partition, work)
            finish(background)
        return len(caplog.records)

    assert lines_after(fails, fails) == 1
    assert lines_after(lambda: None, fails, fails) == 2
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert lines_after(lambda: None, lambda: fails(gone)) == 2, "its topic was deleted: nothing is left to do"


def test_all_memory_is_freed_in_the_background(bench: Bench, trimmer: Trimmer) -> None:
    for _ in range(500):
        bench.append(b"v")
    end = bench.bounds().high_watermark
    background = BackgroundTrims()
    [moved] = trimmer.move([NewStart(bench.partition, end)], "size")
    assert isinstance(moved, Trimmed)
    assert moved.more
    background.free(bench.partition, trimmer)
    finish(background)
    assert bench.raw.xlen(bench.partition.stream) == 0


@pytest.mark.parametrize(
    ("configs", "trims"),
    [
        ({"retention.bytes": "1000"}, True),
        ({"retention.bytes": "1000", "cleanup.policy": "compact"}, False),
        ({"retention.bytes": "1000000"}, False),
        ({"retention.ms": "1"}, False),
    ],
)
def test_what_has_grown_too_large_shrinks_beside_the_requests(
    bench: Bench, trimmer: Trimmer, configs: dict[str, str], *, trims: bool
) -> None:
    store, settings = TopicStore(bench.redis, Keys("korvet")), Settings()
    row = TopicRow(
        name="grows", id="A" * 22, partitions=1, configs=configs | {"storage.format": bench.format}
    )
    store.create(row)
    topics = TopicRegistry(store, settings, bench.logs.partition)
    [partition] = topics.get("grows").partitions
    offsets = [bench.append(b"v", partition=partition) for _ in range(10)]
    bench.raw.zadd(partition.index_key, {f"{n}:{n * 600}:5:5": offsets[n] for n in range(1, 10)})
    bench.raw.hset(partition.state, mapping={"bytes": 6000, "records": 10})
    background = BackgroundTrims()
    retention = Retention(bench.logs, TrimStore(bench.redis), trimmer)
    SizeRetentionTrigger(topics, retention, background).crossed(partition)
    finish(background)
    [bounds] = bench.logs.bounds([partition])
    assert not isinstance(bounds, KafkaError)
    # 6000 bytes less those of a row leave a thousand, or they stay.
    assert bounds.first_offset == (offsets[8] if trims else offsets[0])


def test_a_topic_that_is_gone_is_left_alone(bench: Bench, trimmer: Trimmer) -> None:
    topics = TopicRegistry(TopicStore(bench.redis, Keys("korvet")), Settings(), bench.logs.partition)
    background = BackgroundTrims()
    SizeRetentionTrigger(topics, Retention(bench.logs, TrimStore(bench.redis), trimmer), background).crossed(
        bench.partition
    )
    assert not background._under_way
