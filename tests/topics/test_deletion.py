"""Deletion of topics against a real server: at once, or marked and in steps, each of which may be the last one."""

from __future__ import annotations

from collections.abc import Callable
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
    """Make every deletion one in steps, of two partitions and one group each."""
    monkeypatch.setattr(topic_deletion, "AT_ONCE_PARTITIONS_MAX", 0)
    for each in ("_FENCED_PER_STEP", "_CLEARED_PER_STEP"):
        monkeypatch.setattr(topic_deletion, each, 2)
    monkeypatch.setattr(topic_deletion, "_GROUPS_PER_STEP", 1)


def of_partitions(row: TopicRow) -> set[bytes]:
    """Return every key that partitions may have."""
    keys: list[str] = []
    for index in range(row.partitions):
        of = (row.name, index)
        keys += (KEYS.stream(*of), KEYS.state(*of), KEYS.producers(*of), KEYS.index(*of), KEYS.moving(*of))
        keys += (KEYS.clean(*of, 0), KEYS.clean(*of, 1))
    return {key.encode() for key in keys}


def fill(redis: Any, row: TopicRow) -> None:
    for key in of_partitions(row):
        if not key.endswith(b":state"):
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
    gone = store.deletion.delete("orders", "id-1")
    assert gone == (GONE if stepwise else None)
    for _ in store.deletion.steps(gone) if gone else ():
        assert left(raw_redis, OTHERS) == of_partitions(OTHERS) | {b"registry"}
    assert left(raw_redis, ORDERS) == set()
    assert store.load().rows == {"others": OTHERS}
    for group in ("a", "{b}%", "c"):
        assert committed(raw_redis, group) == {KEYS.stream("others", 0).encode()}


def test_a_marked_topic_is_listed_as_deleting_until_it_is_gone(store: TopicStore, small_steps: None) -> None:
    store.create(ORDERS)
    assert store.deletion.delete("orders", "id-1") == GONE
    assert store.changes(1) == TopicChanges(2, [GONE], [])
    assert list(store.deletion.steps(GONE))
    assert store.changes(2) == TopicChanges(3, [], ["orders"])


def test_logs_are_fenced_before_anything_of_them_goes(
    store: TopicStore, raw_redis: Any, small_steps: None
) -> None:
    store.create(ORDERS)
    fill(raw_redis, ORDERS)
    store.deletion.delete("orders", "id-1")
    steps = store.deletion.steps(GONE)
    assert len(list(islice(steps, 3))) == 3
    assert left(raw_redis, ORDERS) == of_partitions(ORDERS) | {b"registry"}
    topics = {raw_redis.hget(KEYS.state("orders", index), "topic") for index in range(5)}
    assert topics == {b"deleted id-1"}


def test_a_deletion_can_be_taken_up_after_every_step(
    store: TopicStore, raw_redis: Any, small_steps: None
) -> None:
    ended = False
    done = 0
    while not ended:
        store.create(ORDERS)
        fill(raw_redis, ORDERS)
        for group in ("a", "b", "c"):
            commit(raw_redis, group, ORDERS)
        store.deletion.delete("orders", "id-1")
        ended = len(list(islice(store.deletion.steps(GONE), done))) < done
        list(store.deletion.steps(GONE))
        assert left(raw_redis, ORDERS) == set()
        assert not any(committed(raw_redis, group) for group in ("a", "b", "c"))
        done += 1
    assert done > 8


def test_steps_that_come_too_late_leave_the_new_topic_alone(
    store: TopicStore, raw_redis: Any, small_steps: None
) -> None:
    again = replace(ORDERS, id="id-3")
    for late_from in range(9):
        store.create(ORDERS)
        commit(raw_redis, "group", ORDERS)
        store.deletion.delete("orders", "id-1")
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


def test_what_was_written_to_a_stream_since_a_topic_went_stays(
    store: TopicStore, raw_redis: Any, small_steps: None
) -> None:
    store.create(ORDERS)
    store.deletion.delete("orders", "id-1")
    late = store.deletion.steps(GONE)
    list(islice(late, 3))
    list(store.deletion.steps(GONE))
    raw_redis.xadd(KEYS.stream("orders", 4), {"value": "of somebody else"})
    list(late)
    assert raw_redis.xlen(KEYS.stream("orders", 4)) == 1


def test_another_incarnation_or_a_marked_one_is_not_deleted(store: TopicStore, small_steps: None) -> None:
    store.create(ORDERS)
    for name, topic_id in (("orders", "id-0"), ("unknown", "id-1")):
        with pytest.raises(KafkaError) as refused:
            store.deletion.delete(name, topic_id)
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert store.load().rows == {"orders": ORDERS}
    store.deletion.delete("orders", "id-1")
    with pytest.raises(KafkaError) as refused:
        store.deletion.delete("orders", "id-1")
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(store.deletion.steps(replace(GONE, id="id-0"))) == []
    assert store.load().rows == {"orders": GONE}


@pytest.mark.parametrize(
    ("partitions", "groups", "at_once"),
    [(100, 0, True), (101, 0, False), (100, 50, True), (100, 51, False), (1, 5000, True), (1, 5001, False)],
)
def test_what_would_hold_redis_for_long_is_done_in_steps(
    store: TopicStore, raw_redis: Any, partitions: int, groups: int, *, at_once: bool
) -> None:
    row = replace(ORDERS, partitions=partitions)
    store.create(row)
    with raw_redis.pipeline() as pipeline:
        for number in range(groups):
            commit(pipeline, f"g{number}", row)
        pipeline.execute()
    gone = store.deletion.delete("orders", "id-1")
    assert (gone is None) == at_once
    list(store.deletion.steps(gone) if gone else ())
    assert left(raw_redis, row) == set()
    assert not any(committed(raw_redis, f"g{number}") for number in range(groups))


@pytest.mark.parametrize(
    ("entries", "size", "at_once"), [(100, 10, True), (101, 10, False), (10, 100, True), (10, 101, False)]
)
def test_what_holds_much_is_given_back_in_steps(
    store: TopicStore,
    raw_redis: Any,
    monkeypatch: pytest.MonkeyPatch,
    entries: int,
    size: int,
    *,
    at_once: bool,
) -> None:
    monkeypatch.setattr(topic_deletion, "_ENTRIES_MAX", 100)
    monkeypatch.setattr(topic_deletion, "_BYTES_MAX", 1000)
    row = replace(ORDERS, partitions=2)
    store.create(row)
    keys = [KEYS.stream("orders", 0), KEYS.clean("orders", 1, 1)]
    for number in range(entries):
        raw_redis.xadd(keys[number % 2], {"v": "x" * (size - 1)})
    for index in range(2):
        raw_redis.hset(
            KEYS.state("orders", index), mapping={"bytes": 50 + entries * size // 2, "start_bytes": 50}
        )
    gone = store.deletion.delete("orders", "id-1")
    assert (gone is None) == at_once
    if gone is not None:
        assert len(list(store.deletion.steps(gone))) >= 4  # mark, two of logs at the least, remove
    assert left(raw_redis, row) == set()


def test_a_group_with_very_many_offsets_is_looked_through(
    store: TopicStore, raw_redis: Any, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_deletion, "_ROWS_PER_GROUP", 50)
    wide = replace(OTHERS, partitions=2000)
    for row in (ORDERS, wide):
        store.create(row)
    commit(raw_redis, "group", ORDERS, wide)
    store.deletion.delete("orders", "id-1")
    assert len(list(store.deletion.steps(GONE))) > 20
    assert committed(raw_redis, "group") == {KEYS.stream("others", index).encode() for index in range(2000)}


def break_registry(redis: Any) -> None:
    redis.delete(KEYS.topics)
    redis.set(KEYS.topics, "x")


def break_row(redis: Any) -> None:
    redis.hset(KEYS.topics, "orders", "{")


def break_groups(redis: Any) -> None:
    redis.set(KEYS.groups, "x")


@pytest.mark.parametrize("damage", [break_registry, break_row, break_groups])
def test_damage_is_named_and_nothing_is_deleted(
    store: TopicStore, raw_redis: Any, damage: Callable[[Any], None]
) -> None:
    store.create(ORDERS)
    fill(raw_redis, ORDERS)
    damage(raw_redis)
    with pytest.raises(KafkaError, match=r"KAFKA_STORAGE_ERROR korvet:"):
        store.deletion.delete("orders", "id-1")
    assert of_partitions(ORDERS) <= set(raw_redis.keys())


def test_keys_of_another_type_keep_nothing_from_going(
    store: TopicStore, raw_redis: Any, small_steps: None
) -> None:
    store.create(ORDERS)
    for key in of_partitions(ORDERS):
        raw_redis.delete(key)
        raw_redis.set(key, "x")
    raw_redis.zadd(KEYS.groups, {"group": "inf"})
    raw_redis.set(KEYS.group_offsets("group"), "x")
    store.deletion.delete("orders", "id-1")
    list(store.deletion.steps(GONE))
    assert left(raw_redis, ORDERS) == set()


def test_ten_thousand_partitions_are_deleted(store: TopicStore, raw_redis: Any) -> None:
    store.create(TopicRow(name="wide", id="id", partitions=10_000))
    gone = store.deletion.delete("wide", "id")
    assert gone is not None
    list(store.deletion.steps(gone))
    assert raw_redis.keys() == [KEYS.topic_changes.encode()]
