"""Dynamic settings in Redis against a real server: rows, changes beside each other, rows that cannot be read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from korvet.cluster.dynamic_settings import FEED_MEMBER, BrokerConfigStore
from korvet.cluster.rows import ATTEMPTS_MAX
from korvet.config.dynamic import DEFAULT
from korvet.errors import ErrorCode, KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow

KEYS = Keys("korvet")


@pytest.fixture
def store(redis: Redis) -> BrokerConfigStore:
    return BrokerConfigStore(redis, KEYS)


def test_rows_are_of_all_brokers_and_of_each(store: BrokerConfigStore) -> None:
    assert store.alter(DEFAULT, lambda _row: {"a": "1"}) == {"a": "1"}
    assert store.alter("1", lambda row: {**row, "b": "ä"}) == {"b": "ä"}
    assert store.alter("1", lambda row: {**row, "a": "2"}) == {"a": "2", "b": "ä"}
    assert store.load(DEFAULT, "1", "2") == [{"a": "1"}, {"a": "2", "b": "ä"}, {}]
    store.alter("1", lambda _row: {})
    assert store.load("1") == [{}]


def test_a_change_that_changes_nothing_is_not_published(store: BrokerConfigStore, raw_redis: Any) -> None:
    store.alter("1", lambda _row: {"a": "1"})
    store.alter("1", lambda _row: {"a": "1"})
    assert raw_redis.zscore(KEYS.topic_changes, FEED_MEMBER) == 1


def test_changes_beside_each_other_both_count(store: BrokerConfigStore) -> None:
    rounds = []

    def change(row: Mapping[str, str]) -> dict[str, str]:
        rounds.append(dict(row))
        if len(rounds) == 1:
            store.alter("1", lambda other: {**other, "theirs": "1"})
        return {**row, "ours": "1"}

    assert store.alter("1", change) == {"theirs": "1", "ours": "1"}
    assert rounds == [{}, {"theirs": "1"}]


def test_a_row_that_keeps_changing_is_an_error_in_the_end(store: BrokerConfigStore) -> None:
    rounds = []

    def change(row: Mapping[str, str]) -> dict[str, str]:
        rounds.append(row)
        store.alter("1", lambda _other: {"theirs": str(len(rounds))})
        return {"ours": "1"}

    with pytest.raises(KafkaError) as failed:
        store.alter("1", change)
    assert failed.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(rounds) == ATTEMPTS_MAX


def test_a_row_that_cannot_be_read_sets_nothing_and_can_be_replaced(
    store: BrokerConfigStore, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw_redis.hset(KEYS.broker_configs, "1", '{"a": 1}')
    with caplog.at_level(logging.ERROR):
        assert store.load("1") == [{}]
        assert store.load("1") == [{}]
    assert len(caplog.records) == 1
    assert store.alter("1", lambda row: {**row, "b": "2"}) == {"b": "2"}
    assert store.load("1") == [{"b": "2"}]


def test_a_key_of_another_type_sets_nothing_and_cannot_be_changed(
    store: BrokerConfigStore, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw_redis.set(KEYS.broker_configs, "x")
    with caplog.at_level(logging.ERROR):
        assert store.load("1", "2") == [{}, {}]
        assert store.load("1", "2") == [{}, {}]
    assert len(caplog.records) == 1
    with pytest.raises(KafkaError) as failed:
        store.alter("1", lambda _row: {"a": "1"})
    assert failed.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert raw_redis.get(KEYS.broker_configs) == b"x"


def test_a_follower_of_the_topics_is_notified_of_a_change(store: BrokerConfigStore, redis: Redis) -> None:
    topics = TopicStore(redis, KEYS)
    topics.create(TopicRow(name="orders", id="id", partitions=1))
    seen = topics.load().epoch
    store.alter(DEFAULT, lambda _row: {"a": "1"})
    changes = topics.changes(seen)
    assert changes is not None
    assert (changes.epoch, changes.upserts) == (seen + 1, [])
    assert topics.load().rows.keys() == {"orders"}
