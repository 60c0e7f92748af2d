"""DescribeLogDirs by bytes: each log once in the cluster, with the bytes that Redis holds of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from korvet.redis import url as redis_url
from tests.handlers.formats import BOTH_FORMATS
from tests.handlers.test_alter_partition_reassignments import placement_of
from tests.support.redis_servers import server_of
from tests.support.topic_client import Client

VERSIONS = range(1, 5)


def directories(client: Client, asked: dict[str, list[int]] | None, version: int = 4) -> list[Any]:
    """Return the log directories: one Redis is one, and each master of a cluster."""
    topics = (
        None
        if asked is None
        else [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in asked.items()]
    )
    answer = client.call(DescribeLogDirsRequest(topics=topics), version)
    assert answer.error_code == ErrorCode.NONE
    for result in answer.results:
        assert result.error_code == ErrorCode.NONE
        for each in (each for topic in result.topics for each in topic.partitions):
            assert (each.offset_lag, each.is_future_key) == (0, False)
    return list(answer.results)


def sizes(client: Client, asked: dict[str, list[int]] | None, version: int = 4) -> dict[tuple[str, int], int]:
    return {
        (topic.name, each.partition_index): each.partition_size
        for directory in directories(client, asked, version)
        for topic in directory.topics
        for each in topic.partitions
    }


@BOTH_FORMATS
@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_has_the_bytes_of_its_entries(
    client: Client, topic: str, stored: redis.Redis, version: int
) -> None:
    client.create(topic, 3)
    client.append(topic, b"x" * 100, b"y" * 200, partition=1)
    entries: Any = stored.xrange(f"korvet:{topic}:1")
    held = sum(len(name) + len(value) for _, fields in entries for name, value in fields.items())
    assert held > 300
    assert sizes(client, {topic: [2, 0, 1, 1]}, version) == {(topic, 0): 0, (topic, 1): held, (topic, 2): 0}
    every = sizes(client, None, version)
    assert [every[topic, index] for index in range(3)] == [0, held, 0]


def test_the_directory_is_named_by_the_place_of_the_data(client: Client, broker_redis: str) -> None:
    target = redis_url.parse_url(broker_redis)
    places = {
        msgspec.structs.replace(target, kind="server", addresses=(each,)).safe_url
        for each in target.addresses
    }
    assert {each.log_dir for each in directories(client, {})} == places


def test_each_log_is_reported_by_the_broker_that_leads_it(ends: tuple[Client, Client], topic: str) -> None:
    ends[0].create(topic, 12)
    ends[0].append(topic, b"x", partition=3)
    leaders = [leader for leader, _ in placement_of(ends[0], topic)]
    assert set(leaders) == {0, 1}
    for number, client in enumerate(ends):
        led = {index for index, leader in enumerate(leaders) if leader == number}
        for found in (sizes(client, {topic: list(range(12))}), sizes(client, None)):
            assert {index for name, index in found if name == topic} == led
            assert all((size > 0) == (index == 3) for (name, index), size in found.items() if name == topic)


def test_what_is_not_there_is_left_out(client: Client, topic: str) -> None:
    client.create(topic)
    assert sizes(client, {topic: [0, 1, -1], "not there": [0]}) == {(topic, 0): 0}
    assert sizes(client, {}) == {}


def test_a_deleted_topic_is_reported_no_more(two_clients: tuple[Client, Client], topic: str) -> None:
    one, two = two_clients
    one.create(topic)
    assert (topic, 0) in sizes(two, None)
    one.delete(topic)
    assert (topic, 0) not in sizes(two, None)


def test_the_room_is_that_of_redis_from_version_4_on(client: Client, stored: redis.Redis) -> None:
    def limited(version: int = 4) -> list[Any]:
        return [each for each in directories(client, {}, version) if each.total_bytes != -1]

    assert {each.usable_bytes for each in directories(client, {})} == {-1}
    assert not limited()
    limit = 1 << 30
    one = server_of(stored, "any")
    one.config_set("maxmemory", limit)
    try:
        [found] = limited()
        assert found.total_bytes == limit
        assert 0 < found.usable_bytes < limit
        assert not limited(3)
    finally:
        one.config_set("maxmemory", 0)
