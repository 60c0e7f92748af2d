"""lua/topic/delete.lua against a real server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from tests.lua.support import CHANGES, REGISTRY, SIDE_KEYS, STATE, STREAM, of_partition, run

PER_PARTITION = (STREAM, STATE, *SIDE_KEYS)


def fill(client: Any, row: str = '{"id":"id-1","partitions":2}') -> None:
    client.hset(REGISTRY, "orders", row)
    client.zadd(CHANGES, {"orders": 5})
    for partition in range(2):
        for key in PER_PARTITION:
            client.set(of_partition(key, partition), "x")


def delete(client: Any, topic_id: str = "id-1", partitions: int = 2, groups: Sequence[str] = ()) -> list[Any]:
    keys = [of_partition(key, partition) for partition in range(partitions) for key in PER_PARTITION]
    channels = [f"korvet:orders:{partition}" for partition in range(partitions)]
    args = ["orders", topic_id, REGISTRY, 100, len(groups), *channels]
    reply: list[Any] = run(client, "topic/delete", [REGISTRY, CHANGES, *keys, *groups], args)
    return reply


def test_row_logs_and_side_keys_vanish_and_the_feed_remembers(raw_redis: Any) -> None:
    fill(raw_redis)
    assert delete(raw_redis) == [1, b"6"]
    assert raw_redis.keys() == [CHANGES.encode()]
    assert raw_redis.zscore(CHANGES, "orders") == 6


def test_followers_of_registry_and_partitions_are_notified(raw_redis: Any) -> None:
    fill(raw_redis)
    channels = [REGISTRY, "korvet:orders:0", "korvet:orders:1"]
    with raw_redis.pubsub() as listener:
        listener.subscribe(*channels)
        for _ in channels:
            assert listener.get_message(timeout=10)["type"] == "subscribe"
        delete(raw_redis)
        published = [listener.get_message(timeout=10) for _ in channels]
    assert [(message["channel"].decode(), message["data"]) for message in published] == [
        (REGISTRY, b"6"),
        ("korvet:orders:0", b"-1"),
        ("korvet:orders:1", b"-1"),
    ]


def test_what_groups_have_committed_of_it_goes_with_it(raw_redis: Any) -> None:
    fill(raw_redis)
    groups = [f"korvet:group:{name}:offsets" for name in ("a", "b", "c")]
    for group in groups[:2]:
        raw_redis.hset(
            group, mapping={STREAM: "row", of_partition(STREAM, 1): "row", "korvet:other:0": "row"}
        )
    # What is no hash of offsets keeps nothing from going, and stays.
    raw_redis.set(groups[2], "x")
    assert delete(raw_redis, groups=groups) == [1, b"6"]
    assert [raw_redis.hgetall(group) for group in groups[:2]] == [{b"korvet:other:0": b"row"}] * 2
    assert sorted(raw_redis.keys()) == sorted([CHANGES.encode(), *(group.encode() for group in groups)])


def test_another_incarnation_is_left_alone(raw_redis: Any) -> None:
    fill(raw_redis)
    with pytest.raises(redis.ResponseError, match=r"^UNKNOWN_TOPIC_OR_PARTITION "):
        delete(raw_redis, topic_id="id-0")
    assert len(raw_redis.keys()) == 16


def test_an_unknown_topic_is_refused(raw_redis: Any) -> None:
    with pytest.raises(redis.ResponseError, match=r"^UNKNOWN_TOPIC_OR_PARTITION "):
        delete(raw_redis)


def test_keys_of_not_all_partitions_delete_nothing(raw_redis: Any) -> None:
    fill(raw_redis)
    assert delete(raw_redis, partitions=1) == [0, b"2"]
    assert len(raw_redis.keys()) == 16


@pytest.mark.parametrize("row", ["", "{", "[]", "7", '{"id":"id-1"}', '{"id":"id-1","partitions":"2"}'])
def test_a_malformed_row_is_named_and_nothing_is_deleted(raw_redis: Any, row: str) -> None:
    fill(raw_redis, row)
    with pytest.raises(redis.ResponseError, match=r"^KAFKA_STORAGE_ERROR .*row of orders is malformed"):
        delete(raw_redis)
    assert len(raw_redis.keys()) == 16
