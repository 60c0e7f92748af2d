"""Deletion of topics against a real server: in steps, each of which may be the last one."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from msgspec.structs import replace

from korvet.errors import ErrorCode, KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys, encode_group_id
from korvet.topics import deletion as topic_deletion
from korvet.topics.store import TopicChanges, TopicStore
from korvet.topics.types import TopicRow

KEYS = Keys("korvet")
ORDERS = TopicRow(name="orders", id="id-1", partitions=5)
OTHERS = TopicRow(name="others", id="id-2", partitions=1)
GONE = replace(ORDERS, state="deleting")


@pytest.fixture
def store(redis: Redis) -> TopicStore:
    return TopicStore(redis, KEYS)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every step take two partitions, or one group."""
    for item in ("_FENCED_PER_STEP", "_CLEARED_PER_STEP"):
        monkeypatch.setattr(topic_deletion, item, 2)
    monkeypatch.setattr(topic_deletion, "_GROUPS_PER_STEP", 1)
    monkeypatch.setattr(topic_deletion, "_FIELDS_PER_STEP", 5)


def of_partitions(row: TopicRow) -> set[bytes]:
    keys: list[str] = []
    for index in range(row.partitions):
        of = (row.name, index)
        keys += (KEYS.stream(*of), KEYS.state(*of), KEYS.index(*of), KEYS.moving(*of))
        keys += (KEYS.clean(*of, 0), KEYS.clean(*of, 1))
    return {key.encode() for key in keys}


def fill(redis: Any, row: TopicRow) -> None:
    for key in of_partitions(row):
        if not key.endswith((b":state", b":index")):  # these are there
            redis.xadd(key, {"value": "x"})
    for index in range(row.partitions):
        redis.xgroup_create(KEYS.stream(row.name, index), "group")


def commit(redis: Any, group: str, *rows: TopicRow) -> None:
    redis.zadd(KEYS.groups, {encode_group_id(group): "inf"})
    for row in rows:
        text = f'{{"offset":3,"epoch":0,"metadata":"","topic_id":"{row.id}","ms":5}}'
        committed = {KEYS.stream(row.name, index): text for index in range(row.partitions)}
        redis.hset(KEYS.group_offsets(group), mapping=committed)


def committed(redis: Any, group: str) -> set[bytes]:
    return set(redis.hkeys(KEYS.group_offsets(group)))


def left(redis: Any, row: TopicRow) -> set[bytes]:
    """Return what is there of a topic: keys, and `registry` for its row."""
    held = of_partitions(row) & set(redis.keys())
    return held | ({b"registry"} if redis.hexists(KEYS.topics, row.name) else set())


@pytest.mark.parametrize("stepwise", [False, True])
def test_all_of_a_topic_goes_and_nothing_of_another(
    store: TopicStore, raw_redis: Any, request: pytest.FixtureRequest, *, stepwise: bool
) -> None:
    if stepwise:
        request.getfixturevalue("small_steps")
    for row in (ORDERS, OTHERS):
        store.create(row)
        fill(raw_redis, row)
    for group in ("a", "{b}%", "c"):
        commit(raw_redis, group, ORDERS, OTHERS)
    commit(raw_redis, "d", OTHERS)
    for _ in store.deletion.delete({"orders": "id-1"})[1]:
        assert left(raw_redis, OTHERS) == of_partitions(OTHERS) | {b"registry"}
    assert left(raw_redis, ORDERS) == set()
    assert store.load().rows == {"others": OTHERS}
    for group in ("a", "{b}%", "c", "d"):
        assert committed(raw_redis, group) == {KEYS.stream("others", 0).encode()}


def test_a_topic_is_listed_as_deleting_and_its_logs_are_fenced_before_anything_of_them_goes(
    store: TopicStore, raw_redis: Any, small_steps: None
) -> None:
    store.create(ORDERS)
    fill(raw_redis, ORDERS)
    steps = store.deletion.delete({"orders": "id-1"})[1]
    assert store.changes(2) == TopicChanges(3, [GONE], [])
    assert left(raw_redis, ORDERS) == of_partitions(ORDERS) | {b"registry"}
    topics = {raw_redis.hget(KEYS.state("orders", index), "topic") for index in range(5)}
    assert topics == {b"deleted id-1"}
    assert list(steps)
    assert store.changes(3) == TopicChanges(4, [], ["orders"])


def test_steps_that_come_too_late_leave_the_new_topic_alone(
    store: TopicStore, raw_redis: Any, small_steps: None
) -> None:
    again = replace(ORDERS, id="id-3")
    for late_from in range(9):
        store.create(ORDERS)
        commit(raw_redis, "group", ORDERS)
        store.deletion.delete({"orders": "id-1"})
        late = store.deletion.steps(GONE)
        list(islice(late, late_from))
        list(store.deletion.steps(GONE))
        store.create(again)
        fill(raw_redis, again)
        commit(raw_redis, "group", again)
        before = {key: raw_redis.dump(key) for key in raw_redis.scan_iter()}
        list(late)
        assert {key: raw_redis.dump(key) for key in raw_redis.scan_iter()} == before
        raw_redis.flushall()


def refused(store: TopicStore, name: str, topic_id: str) -> ErrorCode:
    errors, steps = store.deletion.delete({name: topic_id})
    assert not list(steps)
    return errors[name].code


def test_another_incarnation_or_a_marked_one_is_not_deleted(store: TopicStore, small_steps: None) -> None:
    store.create(ORDERS)
    for name, topic_id in (("orders", "id-0"), ("unknown", "id-1")):
        assert refused(store, name, topic_id) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert store.load().rows == {"orders": ORDERS}
    store.deletion.delete({"orders": "id-1"})
    assert refused(store, "orders", "id-1") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(store.deletion.steps(replace(GONE, id="id-0"))) == []
    assert store.load().rows == {"orders": GONE}


def test_a_step_frees_no_more_of_many_partitions_than_of_one(
    store: TopicStore, raw_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_deletion, "_ENTRIES_MAX", 100)
    store.create(ORDERS)
    for index in range(ORDERS.partitions):
        with raw_redis.pipeline() as pipeline:
            for _ in range(100):
                pipeline.xadd(KEYS.stream("orders", index), {"v": "x"})
            pipeline.execute()
    lengths = [
        sum(raw_redis.xlen(KEYS.stream("orders", index)) for index in range(5))
        for _ in store.deletion.delete({"orders": "id-1"})[1]
    ]
    assert lengths == [400, 300, 200, 100, 0, 0]


@pytest.mark.parametrize(("partitions", "groups"), [(100, 51), (1, 600)])
def test_offsets_of_very_many_groups_are_forgotten(
    store: TopicStore, raw_redis: Any, partitions: int, groups: int
) -> None:
    row = replace(ORDERS, partitions=partitions)
    store.create(row)
    with raw_redis.pipeline() as pipeline:
        for number in range(groups):
            commit(pipeline, f"g{number}", row)
        pipeline.execute()
    assert list(store.deletion.delete({"orders": "id-1"})[1])
    assert left(raw_redis, row) == set()
    assert not raw_redis.keys("korvet:group:*")


def test_damage_is_named_and_nothing_is_deleted(store: TopicStore, raw_redis: Any) -> None:
    for row in (ORDERS, OTHERS):
        store.create(row)
        fill(raw_redis, row)
    raw_redis.hset(KEYS.topics, "orders", "{")
    errors, steps = store.deletion.delete({"orders": "id-1", "others": "id-2"})
    assert list(map(str, errors.values())) == [
        "KAFKA_STORAGE_ERROR korvet:topics: the row of orders is malformed"
    ]
    assert list(steps)
    assert left(raw_redis, OTHERS) == set()
    raw_redis.set(KEYS.topics, "x")
    with pytest.raises(KafkaError, match=r"KAFKA_STORAGE_ERROR korvet:"):
        store.deletion.delete({"orders": "id-1"})
    assert of_partitions(ORDERS) <= set(raw_redis.keys())
