"""The lag of groups: records after the committed offset, and the age of the first of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from korvet.config.sources import load
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.lag import LagReader
from korvet.groups.offsets import Commit, Committer, OffsetStore
from korvet.log.index import IndexStore
from korvet.redis.keys import Keys
from korvet.telemetry.stats import GroupLag
from korvet.topics.registry import TopicSpec
from tests.support.batches import Record
from tests.support.domain import Domain, domain
from tests.support.log_bench import LAYOUTS, configs_of

KEYS = Keys("korvet")


@pytest.fixture(params=LAYOUTS)
def worker(redis_url: str, request: pytest.FixtureRequest) -> Iterator[Domain]:
    with domain(redis_url, load(None, {}, configs_of(request.param)).settings) as made:
        yield made


def read(worker: Domain, *groups: str) -> tuple[list[GroupLag], list[KafkaError]]:
    store = OffsetStore(worker.redis, KEYS, mirror=True)
    steps = LagReader(store, IndexStore(worker.redis), worker.topics).read(groups)
    return sorted_out([outcome for outcomes in steps for outcome in outcomes])


def sorted_out(outcomes: list[GroupLag | KafkaError]) -> tuple[list[GroupLag], list[KafkaError]]:
    errors = [outcome for outcome in outcomes if isinstance(outcome, KafkaError)]
    return [outcome for outcome in outcomes if isinstance(outcome, GroupLag)], errors


def lags(worker: Domain, *groups: str) -> dict[tuple[str, str, int | None], int]:
    result, errors = read(worker, *groups)
    assert errors == []
    return {(lag.group, lag.topic, lag.partition): lag.records for lag in result}


def commit(worker: Domain, group: str, topic: str, offset: int, partition: int = 0) -> None:
    at = worker.topics.get(topic).partition(partition)
    store = OffsetStore(worker.redis, KEYS, mirror=True)
    assert store.commit(Committer(group), [Commit(at, offset, -1, "")]) == [None]


def make(worker: Domain, name: str, partitions: int = 1) -> None:
    worker.topics.create(TopicSpec(name=name, partitions=partitions))


def test_records_are_counted_not_offsets(worker: Domain) -> None:
    make(worker, "orders", 2)
    offsets = [worker.append("orders", b"a", b"b") for _ in range(30)]
    commit(worker, "g", "orders", offsets[10])
    commit(worker, "g", "orders", 0, partition=1)
    commit(worker, "h", "orders", offsets[29] + 2)
    assert lags(worker, "g", "h", "nobody") == {
        ("g", "orders", 0): 40,
        ("g", "orders", 1): 0,
        ("h", "orders", 0): 0,
    }
    commit(worker, "h", "orders", offsets[29] + 1)
    [[lag], _] = read(worker, "h")
    assert (lag.partition, lag.records, lag.offset) == (0, 1, offsets[29] + 1)


def test_the_age_of_the_first_record_that_was_not_committed_is_reported(worker: Domain) -> None:
    make(worker, "orders")
    now = int(time.time() * 1000)
    worker.append("orders", Record(timestamp=now - 7_200_000))
    second = worker.append("orders", Record(timestamp=now - 3_600_000))
    ahead = worker.append("orders", Record(timestamp=now + 3_000_000))
    hours = []
    for offset in (0, second, ahead, ahead + 1):
        commit(worker, "g", "orders", offset)
        [result], _ = read(worker, "g")
        hours.append(result.age_ms // 3_600_000)
        assert result.age_ms >= 0
    assert hours == [2, 1, 0, 0]


def test_a_topic_created_again_has_no_lag(worker: Domain) -> None:
    make(worker, "orders")
    worker.append("orders", b"a")
    commit(worker, "g", "orders", 0)
    worker.topics.delete([worker.topics.get("orders")])
    make(worker, "orders")
    assert lags(worker, "g") == {}


def test_a_damaged_row_keeps_other_groups_from_nothing(worker: Domain, raw_redis: Any) -> None:
    make(worker, "orders")
    worker.append("orders", b"a")
    for group in ("g", "h"):
        commit(worker, group, "orders", 0)
    raw_redis.hset(KEYS.group_offsets("g"), "korvet:orders:0", "no row")
    result, errors = read(worker, "g", "h")
    assert [(lag.group, lag.records) for lag in result] == [("h", 1)]
    assert [error.code for error in errors] == [ErrorCode.KAFKA_STORAGE_ERROR]
