"""The registry against a real server: rows, the feed of changes, deletion, rows that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import gevent
import pytest
from msgspec.structs import replace

from korvet.errors import ErrorCode, KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics import rows as topic_rows
from korvet.topics.store import TopicChanges, TopicRows, TopicStore
from korvet.topics.types import TopicRow
from tests.support.redis_cluster import RedisCluster
from tests.support.refusals import refusal

KEYS = Keys("korvet")
ORDERS = TopicRow(
    name="orders",
    id="id-1",
    partitions=2,
    configs={"retention.ms": "1000", "storage.format": "record"},
    assignment=[[0], [1]],
)


@pytest.fixture
def store(redis: Redis) -> TopicStore:
    return TopicStore(redis, KEYS)


def delete(store: TopicStore, name: str, topic_id: str) -> None:
    for _ in store.deletion.delete({name: topic_id})[1]:
        pass


def row(name: str, topic_id: str = "id") -> TopicRow:
    return TopicRow(name=name, id=topic_id, partitions=1)


def test_a_created_topic_is_loaded_as_it_was_given(store: TopicStore) -> None:
    assert store.load() == TopicRows(0, {})
    assert store.create(ORDERS)
    assert store.load() == TopicRows(2, {"orders": ORDERS})


@pytest.mark.slow
def test_the_registry_is_loaded_again_only_after_a_reconnect_to_the_node_that_has_it(
    redis_cluster: RedisCluster,
) -> None:
    redis = Redis(redis_cluster.url, timeout_ms=5000, connect_timeout_ms=5000)
    store = TopicStore(redis, KEYS)
    store.create(row("a"))
    epoch = store.load().epoch
    registry = redis.node_of(KEYS.topics)
    for node in redis.nodes():
        node.reconnect("another server may be the master now")
        node.connect()
        assert (store.changes(epoch) is None) == (node is registry)
        epoch = store.load().epoch
    redis.close()


def test_changes_since_an_epoch_are_returned_once(store: TopicStore) -> None:
    store.create(row("a"))
    store.create(row("b"))
    delete(store, "a", "id")
    store.create(row("c"))
    assert store.changes(0) == TopicChanges(8, [row("b"), row("c")], ["a"])
    assert store.changes(4) == TopicChanges(8, [row("c")], ["a"])
    assert store.changes(8) == TopicChanges(8, [], [])
    store.create(row("a", "id-2"))  # again: the new one is listed, and no deletion
    assert store.changes(4) == TopicChanges(10, [row("c"), row("a", "id-2")], [])


def test_a_reader_that_missed_more_than_the_feed_remembers_loads_again(
    store: TopicStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_rows, "CHANGES_MAX", 3)
    for n in range(5):
        store.create(row(f"t{n}"))
    assert store.changes(0) is None
    assert store.changes(3) is None
    assert store.changes(4) == TopicChanges(10, [row("t2"), row("t3"), row("t4")], [])
    assert len(store.load().rows) == 5


def test_an_epoch_from_the_future_loads_again(store: TopicStore, raw_redis: Any) -> None:
    store.create(row("a"))
    store.create(row("b"))
    raw_redis.flushall()
    assert store.changes(4) is None
    assert store.load() == TopicRows(0, {})


def with_retention(ms: str) -> Callable[[TopicRow], TopicRow]:
    return lambda row: replace(row, configs=row.configs | {"retention.ms": ms})


def test_a_changed_topic_is_in_the_feed_as_it_is_now(store: TopicStore) -> None:
    store.create(ORDERS)
    moved = store.alter("orders", "id-1", lambda row: replace(row, assignment=[[1], [0]]))
    assert moved == replace(ORDERS, assignment=[[1], [0]])
    changed = store.alter("orders", "id-1", with_retention("5"))
    assert changed == with_retention("5")(moved)
    assert store.load() == TopicRows(4, {"orders": changed})
    assert store.changes(3) == TopicChanges(4, [changed], [])


def test_a_change_has_no_say_in_what_a_topic_is_and_one_of_nothing_is_not_written(store: TopicStore) -> None:
    store.create(ORDERS)
    assert store.alter("orders", "id-1", lambda row: row) == ORDERS
    assert store.load().epoch == 2
    other = TopicRow(name="other", id="id-2", partitions=7, configs={"a": "b"}, state="deleting")
    assert store.alter("orders", "id-1", lambda _: other) == replace(
        ORDERS, configs={"a": "b"}, assignment=None
    )


def test_changes_of_many_at_once_are_all_done(store: TopicStore) -> None:
    store.create(ORDERS)
    calls: list[int] = []

    def add(row: TopicRow, number: int) -> TopicRow:
        calls.append(number)
        return replace(row, configs=row.configs | {f"c{number}": "x"})

    greenlets = [gevent.spawn(store.alter, "orders", "id-1", partial(add, number=n)) for n in range(10)]
    gevent.joinall(greenlets, timeout=30, raise_error=True)
    assert store.load().rows["orders"].configs == ORDERS.configs | {f"c{n}": "x" for n in range(10)}
    assert len(calls) > 10, "none of them has met another's change"


def test_a_row_that_keeps_changing_is_an_error(store: TopicStore, raw_redis: Any) -> None:
    store.create(ORDERS)
    rounds = count()

    def outrun(row: TopicRow) -> TopicRow:
        raw_redis.hset(
            KEYS.topics, "orders", f'{{"id":"id-1","partitions":2,"configs":{{"n":"{next(rounds)}"}}}}'
        )
        return replace(row, configs={"mine": "1"})

    with pytest.raises(KafkaError, match=r"KAFKA_STORAGE_ERROR .*keeps changing"):
        store.alter("orders", "id-1", outrun)
    assert "mine" not in store.load().rows["orders"].configs


def test_another_incarnation_is_not_changed(store: TopicStore, raw_redis: Any) -> None:
    store.create(ORDERS)
    raw_redis.hset(KEYS.topics, "going", '{"id":"id-1","partitions":1,"state":"deleting"}')
    raw_redis.hset(KEYS.topics, "bad", "{")
    for name, topic_id in (("orders", "id-0"), ("unknown", "id-1"), ("going", "id-1"), ("bad", "id-1")):
        assert (
            refusal(store.alter, name, topic_id, with_retention("5")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    assert store.load().rows["orders"] == ORDERS


def test_a_topic_that_is_deleted_under_its_change_stays_deleted(store: TopicStore) -> None:
    store.create(ORDERS)

    def too_late(row: TopicRow) -> TopicRow:
        delete(store, "orders", "id-1")
        return replace(row, configs={})

    assert refusal(store.alter, "orders", "id-1", too_late) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert store.load().rows == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"id":"x"}',
        '{"id":"","partitions":1}',
        '{"id":"x","partitions":0}',
        '{"id":"x","partitions":"1"}',
        '{"id":"x","partitions":1,"configs":{"a":1}}',
        '{"id":"x","partitions":1,"state":"odd"}',
        b"\xff",
    ],
)
def test_a_malformed_row_is_an_unknown_topic_and_one_log_line(
    store: TopicStore, raw_redis: Any, caplog: pytest.LogCaptureFixture, text: Any
) -> None:
    store.create(ORDERS)
    store.create(row("bad"))
    raw_redis.hset(KEYS.topics, "bad", text)
    assert store.load() == TopicRows(4, {"orders": ORDERS}, frozenset({"bad"}))
    assert store.changes(0) == TopicChanges(4, [ORDERS], ["bad"])
    assert [one.levelname for one in caplog.records] == ["ERROR", "ERROR"]
    assert "bad" in caplog.text


def test_a_name_that_is_not_utf8_is_an_unknown_topic(store: TopicStore, raw_redis: Any) -> None:
    store.create(ORDERS)
    raw_redis.hset(KEYS.topics, b"\xff", '{"id":"x","partitions":1}')
    raw_redis.zadd(KEYS.topic_changes, {b"\xff": 7})
    assert store.load() == TopicRows(7, {"orders": ORDERS}, frozenset({"\\xff"}))
    assert store.changes(2) == TopicChanges(7, [], ["\\xff"])


@pytest.mark.parametrize("key", [KEYS.topics, KEYS.topic_changes])
def test_a_registry_of_the_wrong_type_is_an_error_that_names_it(
    store: TopicStore, raw_redis: Any, key: str
) -> None:
    store.create(ORDERS)
    raw_redis.delete(key)
    raw_redis.set(key, "x")
    for ask in (store.load, lambda: store.changes(0), lambda: store.create(row("b"))):
        with pytest.raises(KafkaError, match=r"KAFKA_STORAGE_ERROR korvet:topics: .*WRONGTYPE"):
            ask()
