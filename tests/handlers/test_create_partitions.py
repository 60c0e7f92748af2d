"""CreatePartitions by bytes: topics grow, for every worker at once, or nothing changes."""

from __future__ import annotations

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tests.handlers.formats import BOTH_FORMATS
from tests.support.batches import values
from tests.support.topic_client import Client

pytestmark = BOTH_FORMATS


def spec(name: str, count: int, brokers: list[list[int]] | None = None) -> CreatePartitionsTopic:
    given = None if brokers is None else [CreatePartitionsAssignment(broker_ids=each) for each in brokers]
    return CreatePartitionsTopic(name=name, count=count, assignments=given)


def grow(
    client: Client, *topics: CreatePartitionsTopic, version: int = 3, validate_only: bool = False
) -> list[tuple[str, ErrorCode]]:
    """Return for every topic what is answered; where something is refused, it is said why."""
    request = CreatePartitionsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    results = client.call(request, version).results
    assert all(bool(each.error_message) == bool(each.error_code) for each in results)
    return [(each.name, ErrorCode(each.error_code)) for each in results]


def replicas_of(client: Client, name: str) -> list[list[int]]:
    by_index = sorted(client.described(name).partitions, key=lambda each: each.partition_index)
    assert [each.partition_index for each in by_index] == list(range(len(by_index)))
    return [each.replica_nodes for each in by_index]


@pytest.mark.parametrize("version", range(4))
def test_every_version_gives_a_topic_more_partitions(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    before = client.append(topic, b"before")
    assert grow(client, spec(topic, 3), version=version) == [(topic, ErrorCode.NONE)]
    assert len(replicas_of(client, topic)) == 3
    for partition in (1, 2):
        offset = client.append(topic, b"new", partition=partition)
        assert values(client.fetch(topic, offset, partition=partition).records) == [b"new"]
    assert values(client.fetch(topic, before).records) == [b"before"]


def test_every_worker_has_the_new_partitions_at_once(two_clients: tuple[Client, Client], topic: str) -> None:
    here, there = two_clients
    topic_id = here.create(topic)
    there.append(topic, b"v")
    for count in range(2, 12):
        assert grow(here, spec(topic, count)) == [(topic, ErrorCode.NONE)]
        assert there.append(topic, b"new", partition=count - 1) >= 0
        assert (
            there.fetch("", topic_id=topic_id, version=13, partition=count - 1).error_code == ErrorCode.NONE
        )


def test_new_partitions_are_for_the_brokers_that_are_named(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic)
    assert grow(client, spec(topic, 3, [[0], [0]])) == [(topic, ErrorCode.NONE)]
    assert replicas_of(client, topic) == [[0]] * 3
    row = stored.hget("korvet:topics", topic)
    assert isinstance(row, bytes)
    assert b'"assignment":[[],[0],[0]]' in row


@pytest.mark.parametrize("count", [2, 1, 0, -1, -(2**31), 10_001, 2**31 - 1])
def test_a_number_that_is_no_increase_or_too_large_is_refused(client: Client, topic: str, count: int) -> None:
    client.create(topic, 2)
    assert grow(client, spec(topic, count)) == [(topic, ErrorCode.INVALID_PARTITIONS)]
    assert len(replicas_of(client, topic)) == 2


def test_a_topic_that_is_not_there_is_unknown(client: Client, topic: str) -> None:
    assert grow(client, spec(topic, 3), spec("a b", 3), spec("", 3)) == [
        (topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_a_topic_that_another_worker_has_deleted_is_unknown(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    there.delete(topic)
    assert grow(here, spec(topic, 3)) == [(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


def test_a_topic_named_twice_is_answered_once_and_does_not_grow(client: Client, topic: str) -> None:
    other = f"{topic}-other"
    for name in (topic, other):
        client.create(name)
    results = grow(client, spec(topic, 2), spec(other, 2), spec(topic, 3))
    assert results == [(topic, ErrorCode.INVALID_REQUEST), (other, ErrorCode.NONE)]
    assert (len(replicas_of(client, topic)), len(replicas_of(client, other))) == (1, 2)


def test_one_topic_that_is_refused_keeps_no_other_from_growing(client: Client, topic: str) -> None:
    other = f"{topic}-other"
    for name in (topic, other):
        client.create(name)
    assert grow(client, spec(topic, 1), spec(other, 2)) == [
        (topic, ErrorCode.INVALID_PARTITIONS),
        (other, ErrorCode.NONE),
    ]


def test_validation_changes_nothing_and_finds_the_same(client: Client, topic: str) -> None:
    client.create(topic)
    for _ in range(2):
        assert grow(client, spec(topic, 3, [[0], [0]]), validate_only=True) == [(topic, ErrorCode.NONE)]
    assert grow(client, spec(topic, 1), validate_only=True) == [(topic, ErrorCode.INVALID_PARTITIONS)]
    assert grow(client, spec(topic, 3, [[0]]), validate_only=True) == [
        (topic, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    ]
    assert grow(client, spec("nobody", 3), validate_only=True) == [
        ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ]
    assert len(replicas_of(client, topic)) == 1


@pytest.mark.formats("batch")
def test_a_stream_that_can_hold_no_records_is_in_the_way(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic)
    stored.xadd(f"korvet:{topic}:1", {"value": "of somebody else"})
    assert grow(client, spec(topic, 2)) == [(topic, ErrorCode.INVALID_CONFIG)]
    assert len(replicas_of(client, topic)) == 1
    assert stored.xlen(f"korvet:{topic}:1") == 1


def test_what_is_said_of_very_long_names_has_room_in_the_answer(client: Client) -> None:
    long = "x" * 32_767
    request = CreatePartitionsRequest(topics=[spec(long, 2)] * 2, timeout_ms=0, validate_only=False)
    for version in (0, 3):
        [result] = client.call(request, version).results
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert 0 < len(result.error_message) <= 1000
